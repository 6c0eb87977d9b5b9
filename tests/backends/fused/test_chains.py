"""Chains: independent instructions of a stage run on several threads, and give the same bits."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from backend_agreement import assert_agrees
from nki.backends.fused.planner import plan_of
from nki.backends.fused.steps import ARENA, GemmStep, InstructionStep
from nki.backends.lowered import lower
from nkilib.core.attention.attention_cte import attention_cte
from support import target

RESET_REDUCE, REDUCE = nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce
TILES, WIDTH = 8, 640


@pytest.fixture(autouse=True)
def on_trn2():
    with target("trn2"):
        yield


@nki.jit
def row_sums(x, last_rows=128):
    """Sum exp(x) of row tiles in two halves each: the second continues the registers of the first."""
    sums = nl.ndarray((128, TILES + 1), nl.float32, buffer=nl.shared_hbm)
    rest = nl.ndarray((128, 1), nl.float32)
    for tile in range(TILES):
        rows = last_rows if tile == TILES - 1 else 128
        data = nl.ndarray((rows, WIDTH), nl.float32)
        nisa.dma_copy(data, x[tile * 128 : tile * 128 + rows])
        total = nl.ndarray((rows, 1), nl.float32)
        for half, command in ((slice(0, 256), RESET_REDUCE), (slice(256, WIDTH), REDUCE)):
            part = data[:, half]
            nisa.activation(part, nl.exp, part, reduce_op=nl.add, reduce_res=total, reduce_cmd=command)
        nisa.dma_copy(sums[0:rows, tile : tile + 1], total)
    nisa.activation(rest, nl.copy, rest_of(x), reduce_op=nl.add, reduce_res=rest, reduce_cmd=REDUCE)
    nisa.dma_copy(sums[:, TILES : TILES + 1], rest)
    return sums


def rest_of(x):
    """Return a product: what adds it to the registers comes after all chains."""
    tile, psum = nl.ndarray((128, 128), nl.float32), nl.ndarray((128, 1), nl.float32, buffer=nl.psum)
    nisa.dma_copy(tile, x[0:128, 0:128])
    nisa.nc_matmul(psum, tile, tile[:, 0:1])
    return psum


def chains_of(program):
    """Return the steps of each chain, group by group."""
    (core,) = plan_of(lower(program), forced=True).cores
    return [
        [core.steps[slice(*limits)] for limits in pairwise((first, *group.ends))]
        for first, group in core.chains.items()
    ]


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("threads", ["1", "3"])
def test_chains_have_registers_of_their_own_and_leave_the_last_ones(threads):
    arrays = [numbers(TILES * 128, WIDTH)]
    program = row_sums.trace(*arrays)
    (chains,) = chains_of(program)
    assert len(chains) == TILES
    assert assert_agrees(program, arrays, OPEN_NKI_THREADS=threads) == "ran"
    rows = np.exp(arrays[0].astype(np.float64)).sum(axis=1).reshape(TILES, 128).T
    with nki.options(executor="fused", threads=int(threads)):
        found = row_sums(*arrays)
    np.testing.assert_allclose(found[:, :TILES], rows, rtol=1e-5)
    first = arrays[0][:128, :128].astype(np.float64)
    np.testing.assert_allclose(found[:, TILES], rows[:, -1] + first.T @ first[:, 0], rtol=1e-5)


def test_registers_of_different_lanes_keep_program_order():
    arrays = [numbers(TILES * 128, WIDTH), 64]
    program = row_sums.trace(*arrays)
    assert chains_of(program) == []
    assert assert_agrees(program, arrays[:1], OPEN_NKI_THREADS="3") in ("ran", "dropped")


@nki.jit
def roots(x):
    out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), nl.float32)
        nisa.dma_copy(tile, x[row : row + 128])
        nisa.activation(tile, nl.sqrt, tile)
        nisa.dma_copy(out[row : row + 128], tile)
    return out


def test_a_warning_in_a_chain_comes_from_the_reference():
    x = np.abs(numbers(384, 1024))  # too few parts for units
    program = roots.trace(x)
    assert chains_of(program) and assert_agrees(program, [x], OPEN_NKI_THREADS="3") == "ran"
    x[300, 7] = -1  # assert_agrees compares the warnings, with their lines
    assert assert_agrees(program, [x], OPEN_NKI_THREADS="3") == "dropped"


def bytes_of(ref):
    """Return the first byte of an array in the arena, and the one after its last."""
    lengths = [(n - 1) * stride for n, stride in zip(ref.shape, ref.strides, strict=True)]
    return ref.offset, ref.offset + sum(lengths) + ref.dtype.itemsize


def written(step):
    """Return the bytes of the arena that a step writes."""
    if isinstance(step, GemmStep):
        size = 4 * step.left.columns * step.right.columns
        return {(step.result, step.result + size)} if step.target is None else set()
    assert step.kind in ("compute", "move", "gather")
    targets = [out.target for out in step.outputs] + [part[0] for part in step.parts]
    return {bytes_of(ref) for ref in targets if ref.storage == ARENA}


def touched(step):
    return written(step) | {bytes_of(ref) for ref in step.refs() if ref.storage == ARENA}


def test_no_chain_writes_what_another_one_touches():
    queries, keys, values = numbers(2, 512, 128), numbers(1, 128, 512), numbers(1, 512, 128)
    groups = chains_of(attention_cte.trace(queries, keys, values))
    assert {type(step) for chains in groups for chain in chains for step in chain} == {
        InstructionStep,
        GemmStep,
    }
    for chains in groups:
        for one, other in permutations(chains, 2):
            for start, stop in set().union(*map(written, one)):
                for begin, end in set().union(*map(touched, other)):
                    assert end <= start or stop <= begin
