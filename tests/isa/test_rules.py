"""Rules that concern every instruction (spec/isa.md 1.2)."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl


def said(body):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        finished = nki.jit(body).run()
    return [d for d in finished.diagnostics if d.kind == "alias-shift"]


def tile(shape=(8, 32), dtype=nl.float32):
    made = nl.ndarray(shape, dtype)
    nisa.memset(made, 1)
    return made


def test_an_output_that_overlaps_an_input_at_another_offset_is_reported():
    def body():
        t = tile()
        nisa.tensor_copy(t[:, 1:9], t[:, 0:8])

    (found,) = said(body)
    assert found.message == "tensor_copy: dst overlaps src at another offset"
    assert "hardware may read what it has just written" in found.help


@pytest.mark.parametrize(
    "dst, src",
    [
        (np.s_[:, 0:8], np.s_[:, 0:8]),  # the same
        (np.s_[:, 8:16], np.s_[:, 0:8]),  # side by side
        (np.s_[:, 0:16:2], np.s_[:, 1:17:2]),  # interleaved
    ],
)
def test_equal_and_separate_views_of_one_tile_are_fine(dst, src):
    def body():
        t = tile()
        nisa.tensor_copy(t[dst], t[src])

    assert not said(body)


def test_the_same_elements_under_another_shape_are_fine():
    def body():
        t = tile()
        nisa.tensor_copy(t, t.reshape((8, 4, 8)))

    assert not said(body)


def test_other_partitions_of_one_tile_are_fine():
    def body():
        t = tile((64, 32))
        nisa.tensor_copy(t[32:64, 0:8], t[0:32, 4:12])

    assert not said(body)


def test_two_tiles_of_one_shape_are_fine_though_the_check_is_remembered():
    def body():
        one, other = tile(), tile()
        nisa.tensor_copy(one[:, 1:9], other[:, 0:8])
        nisa.tensor_copy(one[:, 1:9], one[:, 0:8])
        nisa.tensor_copy(other[:, 1:9], one[:, 0:8])

    assert len(said(body)) == 1


def test_any_input_counts():
    def body():
        t, other = tile(), tile()
        nisa.tensor_tensor(t[:, 2:10], other[:, 0:8], t[:, 0:8], nl.add)

    (found,) = said(body)
    assert "dst overlaps data2" in found.message
