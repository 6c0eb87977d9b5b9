"""What a kernel prints: once, however often the call starts again."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from support import target

X = np.ones((4, 8), np.float32)


@nki.jit
def prints_then_reads(x):
    print("start")
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    print("start")
    print(tile.shape, np.asarray(tile).sum())
    print("end")


def test_a_call_that_starts_again_prints_once(capsys):
    for _ in range(2):  # traced first, eager at once
        prints_then_reads(X)
        assert capsys.readouterr().out == "start\nstart\n(4, 8) 32.0\nend\n"


def test_two_cores_that_start_again_print_once_each(capsys):
    @nki.jit
    def kernel(x):
        print("core", nl.program_id(0))
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        np.asarray(tile)

    with target("trn2"):
        kernel[2](X)
    assert sorted(capsys.readouterr().out.split("\n")) == ["", "core 0", "core 1"]


def test_cores_that_race_print_once_each(capsys):
    @nki.jit
    def kernel(x):
        print("core", nl.program_id(0))
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        np.asarray(tile)
        nisa.dma_copy(out, tile)
        return out

    with target("trn2"), pytest.warns(nki.NkiWarning, match="both cores write"):
        kernel[2](X)
    assert sorted(capsys.readouterr().out.split("\n")) == ["", "core 0", "core 1"]


def test_an_exception_that_the_kernel_catches_does_not_hide_the_restart():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        try:
            total = float(np.asarray(tile).sum())
        except BaseException:  # what restarts a call must not be caught for good
            total = 0.0
        nisa.tensor_scalar(tile, tile, nl.multiply, total)
        nisa.dma_copy(out, tile)
        return out

    assert (kernel(X) == 32.0).all()


def test_threads_that_print_keep_their_output(capsys):
    threads = [threading.Thread(target=prints_then_reads, args=(X,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert capsys.readouterr().out.count("end") == 4
