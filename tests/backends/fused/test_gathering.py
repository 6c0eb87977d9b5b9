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


def rows_transposed(copy, also_stored=False, dtype=nl.bfloat16, shift=0):
    """rows @ right: 128 rows at a time are transposed into a bank, and banks are copied; 256 columns at once.

    With `shift` the second tile of 128 rows lies further away, so that both are not one strided matrix.
    """

    @nki.jit
    def kernel(rows, right):
        depth = rows.shape[1]
        out = nl.ndarray((right.shape[1], 256), nl.float32, buffer=nl.shared_hbm)
        turned = nl.ndarray((128, depth // 128, 256), dtype)
        for t in range(2):
            tile = nl.ndarray((128, depth), dtype)
            first = t * (128 + shift)
            nisa.dma_copy(tile, rows[first : first + 128])
            bank = nl.ndarray((128, depth // 128, 128), dtype, buffer=nl.psum)
            for k in range(depth // 128):
                nisa.nc_transpose(bank[:, k, :], tile[:, 128 * k : 128 * k + 128])
            copy(turned[:, :, 128 * t : 128 * t + 128], bank)
        sums = nl.ndarray((right.shape[1], 256), nl.float32, buffer=nl.psum)
        for k in range(depth // 128):
            stationary = nl.ndarray((128, right.shape[1]), dtype)
            nisa.dma_copy(stationary, right[128 * k : 128 * k + 128])
            nisa.nc_matmul(sums, stationary, turned[:, k, :])
        result = nl.ndarray(sums.shape, nl.float32)
        nisa.tensor_copy(result, sums)
        nisa.dma_copy(out, result)
        if also_stored:
            stored = nl.ndarray(turned.shape, dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(stored, turned)
            return out, stored
        return out

    chance = np.random.default_rng(0)
    shapes = ((256 + shift, 256), (256, 128))
    arrays = [chance.integers(-3, 4, shape).astype(dtype.storage) for shape in shapes]
    return kernel, arrays


def by_activation(dst, src):
    nisa.activation(dst, nl.copy, src)


@pytest.mark.parametrize("copy", [nisa.tensor_copy, by_activation])
def test_a_product_reads_rows_that_were_transposed_by_tiles_and_copied_by_banks(copy):
    kernel, arrays = rows_transposed(copy)
    assert steps_of(kernel.trace(*arrays)) == {"product"}
    assert assert_agrees(kernel.trace(*arrays), arrays, exact=True)


@pytest.mark.parametrize("copy", [nisa.tensor_copy, by_activation])
def test_rows_that_are_no_strided_matrix_are_gathered(copy):
    kernel, arrays = rows_transposed(copy, shift=64)
    assert "gather" in steps_of(kernel.trace(*arrays))
    assert assert_agrees(kernel.trace(*arrays), arrays, exact=True)


def test_a_copy_by_the_scalar_engine_changes_the_bits_of_a_nan_for_other_readers():
    kernel, arrays = rows_transposed(by_activation, also_stored=True)
    arrays[0].view(np.uint16)[3, 5] = 0x7F81
    program = kernel.trace(*arrays)
    results = []
    for executor in ("reference", "fused"):
        with nki.options(executor=executor):
            results.append([found.copy() for found in program.run(*arrays)])
    (out, stored), (planned, written) = results
    assert stored.tobytes() == written.tobytes() and 0x7FC0 in stored.view(np.uint16)
    np.testing.assert_array_equal(out, planned)
    assert np.isnan(out[:, 3]).all() and np.isnan(out).sum() == out.shape[0]


@pytest.mark.parametrize(
    "copy",
    [
        lambda dst, src: nisa.activation(dst, nl.copy, src, scale=2.0),
        lambda dst, src: nisa.activation(dst, nl.copy, src, bias=1.0),
        lambda dst, src: nisa.activation(dst, nl.square, src),
    ],
    ids=["scaled", "shifted", "function"],
)
def test_an_activation_that_changes_numbers_is_no_copy(copy):
    kernel, arrays = rows_transposed(copy)
    assert {"activation", "nc_transpose"} <= steps_of(kernel.trace(*arrays))
    assert assert_agrees(kernel.trace(*arrays), arrays, exact=True)
