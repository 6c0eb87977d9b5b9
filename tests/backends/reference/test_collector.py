"""While a kernel runs, cycles are looked for less often; afterwards as before."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import nki
import nki.language as nl
from nki.backends.reference.collector import YOUNG, fewer_collections

X = np.ones((4, 4), np.float32)


@pytest.fixture(autouse=True)
def threshold():
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_a_kernel_raises_the_threshold_and_restores_it(threshold):
    seen = []

    @nki.jit
    def kernel(x):
        seen.append(gc.get_threshold())
        return nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)

    with pytest.warns(UserWarning):  # the result is never written
        kernel(X)
    assert seen == [(YOUNG, *threshold[1:])] and gc.get_threshold() == threshold


def test_the_threshold_is_restored_after_an_error(threshold):
    @nki.jit
    def kernel(x):
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        kernel(X)
    assert gc.get_threshold() == threshold


def test_nested_uses_restore_the_threshold_once(threshold):
    with fewer_collections():
        with fewer_collections():
            pass
        assert gc.get_threshold()[0] == YOUNG
    assert gc.get_threshold() == threshold


def test_an_interrupt_while_the_threshold_is_changed_restores_it(threshold, monkeypatch):
    class interrupted(fewer_collections):
        @classmethod
        def change(cls, before):
            super().change(before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), interrupted():
        pass
    assert gc.get_threshold() == threshold


def test_a_context_that_an_interrupt_kept_from_leaving_has_left_when_it_is_gone(threshold):
    context = fewer_collections()
    context.__enter__()
    assert gc.get_threshold()[0] == YOUNG
    del context
    assert gc.get_threshold() == threshold


@pytest.mark.parametrize("chosen", [0, 10 * YOUNG])
def test_a_threshold_that_the_user_set_is_not_changed(chosen):
    gc.set_threshold(chosen, 10, 10)
    with fewer_collections():
        assert gc.get_threshold() == (chosen, 10, 10)
    assert gc.get_threshold() == (chosen, 10, 10)
