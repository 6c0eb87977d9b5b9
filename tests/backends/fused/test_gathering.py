"""Tiles that are written in parts: a product of one part reads it where it was computed."""

from __future__ import annotations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from backend_agreement import assert_agrees
from nki.backends.fused.describing import describe
from support import target


@pytest.fixture(autouse=True)
def on_trn2():
    with target("trn2"):
        yield


def turned_in_parts(columns, also_stored=False):
    """left @ right: tiles of left are transposed side by side into one tile, whose parts are multiplied."""

    @nki.jit
    def kernel(left, right):
        rows, depth = left.shape
        out = nl.ndarray((rows, right.shape[1]), nl.float32, buffer=nl.shared_hbm)
        copy = nl.ndarray((128, depth), nl.float32, buffer=nl.shared_hbm) if also_stored else None
        tile = nl.ndarray((rows, depth), nl.float32)
        nisa.dma_copy(tile, left)
        transposed, sums = (nl.ndarray((128, n), nl.float32, buffer=nl.psum) for n in (depth, right.shape[1]))
        for k in range(0, depth, 128):
            nisa.nc_transpose(transposed[:, k : k + 128], tile[:, k : k + 128])
        copied = nl.ndarray((128, depth), nl.float32)
        nisa.tensor_copy(copied, transposed)
        for k in range(0, depth - 127, columns):
            moving = nl.ndarray((128, right.shape[1]), nl.float32)
            nisa.dma_copy(moving, right[k : k + 128])
            nisa.nc_matmul(sums, copied[:, k : k + 128], moving)
        result = nl.ndarray((rows, right.shape[1]), nl.float32)
        nisa.tensor_copy(result, sums)
        nisa.dma_copy(out, result)
        if also_stored:
            nisa.dma_copy(copy, copied)
            return out, copy
        return out

    chance = np.random.default_rng(0)
    arrays = [chance.integers(-3, 4, shape).astype(np.float32) for shape in ((128, 384), (384, 256))]
    return kernel.trace(*arrays), arrays


def steps_of(program):
    found = [step.get("what", {"product": 1}) for step in describe(program)["cores"][0]["steps"]]
    return {name for step in found for name in step}


def test_a_product_reads_a_part_before_its_transposition():
    program, arrays = turned_in_parts(128)
    assert steps_of(program) == {"product"}
    assert assert_agrees(program, arrays, exact=True)


def test_a_tile_with_another_reader_is_gathered():
    program, arrays = turned_in_parts(128, also_stored=True)
    assert {"product", "nc_transpose"} <= steps_of(program)
    assert assert_agrees(program, arrays, exact=True)


def test_a_factor_that_spans_two_parts_is_gathered():
    program, arrays = turned_in_parts(64)
    assert "gather" in steps_of(program)
    assert assert_agrees(program, arrays, exact=True)
