"""A run keeps nothing per instruction: a long kernel holds what a short one holds.

`benchmarks/long_kernel.py` measures the same in seconds and bytes.
"""

from __future__ import annotations

import gc
from collections import Counter

import pytest

import nki.isa as nisa
import nki.language as nl
from nki.ir.liveness import CONDENSE_AT
from nki.launch.launch import Launch
from nki.machine.generations import find
from nki.options import Options

PER_STEP = 12


MARKS = (1_000, 10_000)  # instructions


def living():
    """The objects of nki that are alive, by class."""
    gc.collect()
    names = (f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in gc.get_objects())
    return Counter(name for name in names if name.startswith("nki."))


DEAD_TILES = (
    *("ir.liveness.Lifetime", "ir.liveness.LiveTiles", "ir.storage.Storage", "errors.Site"),
    *("check.psum.Product", "ir.boxes.Box"),
)
SITES = 2  # of a tile: where it was allocated, and where its product was read


def without_dead_tiles(counts, before, degree):
    """The counts without what is known of dead tiles, whose number is bounded; `before`: of other tests."""
    for name in (f"nki.{name}" for name in DEAD_TILES):
        assert counts.pop(name, 0) - before[name] <= SITES * degree * CONDENSE_AT + 200, name
    return counts


def step(number, source, out, accumulator, register):
    """One round of every family, each on tiles of its own and at places of its own in HBM."""
    row = number % 32 * 4
    tile, scaled = nl.ndarray((4, 8), nl.bfloat16), nl.ndarray((4, 8), nl.float32)
    column, psum = nl.ndarray((4, 1), nl.float32), nl.ndarray((8, 8), nl.float32, buffer=nl.psum)
    nisa.dma_copy(tile, source[row : row + 4, :])
    nisa.tensor_scalar(scaled, tile, nl.multiply, 0.5, op1=nl.add, operand1=float(number % 7))
    nisa.activation(scaled, nl.tanh, scaled)
    nisa.tensor_reduce(column, nl.maximum, scaled, axis=1)
    nisa.tensor_scalar(scaled, scaled, nl.subtract, column)
    nisa.nc_matmul(psum, tile, tile)
    nisa.tensor_tensor(accumulator, accumulator, psum, nl.add)
    nisa.register_move(register, row)
    nisa.dma_copy(scaled, source.ap([[8, 4], [1, 8]], scalar_offset=register))
    nisa.iota(nl.ndarray((4, 8), nl.int32), [[1, 8]], offset=number % 5)
    nl.exp(scaled[:, 0:4])
    nisa.dma_copy(out[row : row + 4, :], scaled)


def run(body, degree):
    launch = Launch(find("trn2"), Options(), (degree,))
    launch.run(body)
    launch.statistics.finish()
    return launch


@pytest.mark.parametrize("degree", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_long_kernel_keeps_as_many_objects_as_a_short_one(degree):
    seen, before = [], living()

    def body():
        source = nl.ndarray((128, 8), nl.bfloat16, buffer=nl.shared_hbm, name="source")
        out = nl.ndarray((128, 8), nl.float32, buffer=nl.shared_hbm, name="out")
        nisa.dma_copy(source, nl.ones((128, 8), nl.bfloat16))
        accumulator, register = nl.zeros((8, 8), nl.float32), nisa.register_alloc(0)
        for number in range(MARKS[1] // PER_STEP + 1):
            if nl.program_id(0) == 0 and number in [mark // PER_STEP for mark in MARKS]:
                seen.append(living())
            step(number, source, out, accumulator, register)

    launch = run(body, degree)
    assert launch.statistics.instructions > MARKS[1] * degree
    short, long = seen
    assert short["nki.ir.liveness.TileLifetimes"] >= degree  # what is counted is really there
    assert without_dead_tiles(long, before, degree) == without_dead_tiles(short, before, degree)


def test_instructions_and_tiles_of_a_dynamic_loop_are_gone_after_each_turn():
    counts, before = [], living()

    def body():
        source = nl.ones((4, 8), nl.float32)

        def turn(i):
            scaled = nl.ndarray((4, 8), nl.float32)
            nisa.tensor_scalar(scaled, source, nl.multiply, 2.0)
            nisa.tensor_tensor(source, source, scaled, nl.subtract)

        for turns in (100, 2_000):
            nl.fori_loop(0, turns, turn)
            counts.append(living())

    run(body, 1)
    short, long = counts
    assert without_dead_tiles(long, before, 1) == without_dead_tiles(short, before, 1)
