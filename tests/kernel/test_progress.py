"""The progress of long calls is shown on a terminal."""

from __future__ import annotations

import io
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.kernel import progress as waiting

X = np.ones((2, 2), np.float32)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    made = Terminal()
    monkeypatch.setattr(waiting, "sys", SimpleNamespace(stderr=made, modules={}))  # pytest has its own
    monkeypatch.setattr(waiting, "DELAY", 0.1)
    monkeypatch.setattr(waiting, "EVERY", 0.02)
    monkeypatch.setattr(waiting, "_watcher", None)
    return made


def kernel(seconds):
    @nki.jit
    def slow(x):
        time.sleep(seconds)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        return out

    return slow


def wait_for(condition):
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_a_long_call_names_itself_and_cleans_up(terminal):
    kernel(0.6)(X)
    assert "slow: running" in terminal.getvalue()
    assert wait_for(lambda: terminal.getvalue().endswith("\r"))
    assert waiting._calls == []


def test_a_short_call_says_nothing(terminal):
    kernel(0)(X)
    time.sleep(0.3)
    assert terminal.getvalue() == ""


def test_nothing_is_said_where_nobody_looks(terminal, monkeypatch):
    monkeypatch.setattr(terminal, "isatty", lambda: False, raising=False)
    kernel(0.4)(X)
    assert terminal.getvalue() == "" and waiting._watcher is None


def test_a_call_that_fails_is_forgotten(terminal):
    @nki.jit
    def wrong(x):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        wrong(X)
    assert waiting._calls == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_watches_for_itself(terminal):
    kernel(0.2)(X)
    assert waiting._watcher is not None
    waiting._after_fork()
    assert waiting._watcher is None
    kernel(0.4)(X)
    assert waiting._watcher is not None


def test_the_watcher_ends_when_there_is_nothing_to_watch(terminal):
    kernel(0.2)(X)
    assert wait_for(lambda: not waiting._watcher.is_alive())
