"""Passes leave what a program does: effects say all that matters."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import SourceLine
from nki.ir.dependences import RAW, WAR, WAW
from nki.ir.program import Diagnostic, Edge, OrderedBlock
from nki.ir.schedule_edges import declared
from passes.dead_code import without_dead_code
from passes.dependences import FENCE, REGISTER, dependences
from passes.renaming import renamed
from passes.reordering import reordered
from random_programs import assert_unchanged, outcome, rich_programs, traced

X = np.arange(32, dtype=np.float32).reshape(4, 8)
UNHURRIED = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def names(program, core=0):
    return [i.public for i in program.walk(core)]


# ---- any program ---------------------------------------------------------------------------------


@settings(max_examples=60, **UNHURRIED)
@given(rich_programs(), st.integers(0, 1 << 16))
def test_passes_preserve_the_results_of_a_random_program(found, seed):
    assert_unchanged(*found, seed)


@pytest.mark.slow
def test_passes_preserve_the_results_of_5000_random_programs(capsys):
    counts = {1: 0, 2: 0, "failing": 0, "instructions": 0}

    @settings(max_examples=6000, database=None, **UNHURRIED)
    @given(rich_programs(), st.integers(0, 1 << 16))
    def check(found, seed):
        program, arrays = found
        done = assert_unchanged(program, arrays, seed)
        counts[len(program.cores) if done else "failing"] += 1
        counts["instructions"] += len(program)

    check()
    with capsys.disabled():
        print(f"\nrandom programs through every pass, bit-equal: {counts[1] + counts[2]:,} ({counts})")
    assert counts[1] + counts[2] >= 5000


# ---- dead code -----------------------------------------------------------------------------------


def of(function, *arrays, degree=None):
    kernel = nki.jit(function)
    return (kernel if degree is None else kernel[degree]).trace(*(arrays or (X,)))


def tiles(x, count):
    return [nl.ndarray(x.shape, x.dtype) for _ in range(count)]


def test_an_unread_value_is_removed_with_everything_only_it_needed():
    def kernel(x):
        a, b, c = tiles(x, 3)
        nisa.dma_copy(a, x)
        nisa.tensor_scalar(b, a, nl.add, 1.0)  # for c
        nisa.tensor_tensor(c, b, b, nl.add)  # not read
        nisa.dma_copy(x, a)
        return x

    left = without_dead_code(of(kernel))
    assert names(left) == ["dma_copy", "dma_copy"] and len(left.storages) == 2
    np.testing.assert_array_equal(left.run(X.copy()), X)


def test_an_overwritten_tile_does_not_keep_its_first_value_alive():
    def kernel(x):
        (a,) = tiles(x, 1)
        nisa.memset(a, 1.0)
        nisa.memset(a[:, 0:4], 2.0)
        nisa.memset(a, 3.0)
        nisa.dma_copy(x, a)
        return x

    assert names(without_dead_code(of(kernel))) == ["memset", "dma_copy"]


def test_accumulator_registers_are_live_only_until_their_last_reader():
    def kernel(x):
        a, b = tiles(x, 2)
        column = nl.ndarray((4, 1), x.dtype)
        reset, reduce = nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce
        nisa.dma_copy(a, x)
        nisa.activation(b, nl.exp, a, reduce_op=nl.add, reduce_cmd=reset)
        nisa.activation(b, nl.exp, a, reduce_op=nl.add, reduce_res=column, reduce_cmd=reduce)
        nisa.activation(b, nl.exp, a, reduce_op=nl.add, reduce_cmd=reset)  # its registers are not read
        nisa.dma_copy(x[:, 0:1], column)
        return x

    assert names(without_dead_code(of(kernel))) == ["dma_copy", "activation", "activation", "dma_copy"]


def test_printing_random_numbers_and_barriers_stay():
    def kernel(x):
        (a,) = tiles(x, 1)
        nisa.memset(a, 1.0)
        nl.device_print("a", a)
        nisa.rng(a.view(nl.uint32))
        nisa.core_barrier(x, (0, 1))

    assert names(without_dead_code(of(kernel, degree=2)), 1) == [
        "memset",
        "device_print",
        "rng",
        "core_barrier",
    ]


def test_a_loop_that_changes_nothing_is_left_out_and_a_carried_value_stays():
    def kernel(x):
        a, b = tiles(x, 2)
        nisa.memset(b, 0.0)
        nisa.dma_copy(a, x)

        def quiet(i):
            nisa.tensor_scalar(b, b, nl.add, 1.0)

        def carried(i):
            nisa.tensor_tensor(a, a, a, nl.add)
            nisa.tensor_scalar(b, a, nl.add, 1.0)  # not read

        nl.fori_loop(0, nisa.register_alloc(2), quiet)
        nl.fori_loop(0, nisa.register_alloc(3), carried)
        nisa.dma_copy(x, a)
        return x

    left = without_dead_code(of(kernel))
    assert len(left.loops) == 1 and names(left).count("register_move") == 1
    assert names(left)[-3:] == ["dynamic_loop", "tensor_tensor", "dma_copy"]
    np.testing.assert_array_equal(left.run(X.copy()), 8 * X)


def test_positions_follow_their_instructions():
    def kernel(x):
        a, b = tiles(x, 2)
        first = nisa.memset(a, 1.0)
        nisa.memset(b, 2.0).depends_on(first)  # not read
        with nl.no_reorder():
            nisa.memset(b, 3.0)  # not read
            nisa.dma_copy(a, x)
            second = nisa.tensor_scalar(a, a, nl.add, 1.0)
        nisa.dma_copy(x, a).depends_on(second)
        return x

    program = of(kernel)
    site = SourceLine("here.py", 1, "text", "kernel")
    said = tuple(Diagnostic("x", "y", [], None, site, 0, before) for before in (None, 2, 5, 6))
    program = dataclasses.replace(program, diagnostics=said)
    assert program.edges == (Edge(0, 1, 0), Edge(0, 5, 4)) and program.blocks == (OrderedBlock(0, 2, 4),)
    left = without_dead_code(program)
    assert names(left) == ["dma_copy", "tensor_scalar", "dma_copy"]
    assert left.edges == (Edge(0, 2, 1),) and left.blocks == (OrderedBlock(0, 0, 1),)
    assert [d.before for d in left.diagnostics] == [None, 0, 2, 3]


# ---- renaming ------------------------------------------------------------------------------------


def test_a_full_overwrite_begins_a_new_version():
    def kernel(x):
        (a,) = tiles(x, 1)
        for i in range(3):
            nisa.dma_copy(a, x)
            nisa.tensor_scalar(a[:, 0:4], a[:, 0:4], nl.add, float(i))
        nisa.dma_copy(x, a)
        return x

    program = of(kernel)
    apart = renamed(program)
    assert len(apart.storages) == len(program.storages) + 2
    assert [i.operands()[0].storage for i in apart.walk()][:2] == [program.storages[1]] * 2
    assert all(not found for found in dependences(apart.cores[0])[0::2][:3])
    assert any(found for found in dependences(program.cores[0])[2::2])
    np.testing.assert_array_equal(apart.run(X.copy()), program.run(X.copy()))


def test_addresses_and_outer_tiles_of_a_loop_keep_their_storage():
    def kernel(x):
        placed = nl.ndarray(x.shape, x.dtype, address=(0, 0))
        (outer,) = tiles(x, 1)
        nisa.memset(placed, 1.0)
        nisa.memset(placed, 2.0)
        nisa.memset(outer, 0.0)

        def body(i):
            nisa.memset(outer, 1.0)
            nisa.memset(outer, 2.0)
            (inner,) = tiles(x, 1)
            nisa.memset(inner, 1.0)
            nisa.memset(inner, 2.0)
            nisa.tensor_tensor(outer, inner, placed, nl.add)

        nl.fori_loop(0, 2, body)
        nisa.dma_copy(x, outer)
        return x

    program = of(kernel)
    new = set(renamed(program).storages) - set(program.storages)
    assert [storage.loop for storage in new] == [1]


# ---- dependences and reordering ------------------------------------------------------------------


def test_dependences_have_reasons():
    def kernel(x):
        a, b = tiles(x, 2)
        r = nisa.VirtualRegister(1)
        nisa.memset(a[:, 0:4], 1.0)
        nisa.memset(a[:, 4:8], 2.0)
        nisa.tensor_copy(b, a)
        nisa.memset(a[:, 4:8], 3.0)
        nisa.register_move(r, 2)
        nisa.dma_copy(x[:, nl.ds(r, 4)], a[:, 0:4])
        nisa.dma_copy(x[0:1, 0:1], b[0:1, 0:1])
        return x

    found = dependences(of(kernel).cores[0])
    assert found[:2] == [{}, {}]
    assert found[2] == {0: RAW, 1: RAW}
    assert found[3] == {1: WAW, 2: WAR}
    assert found[5] == {0: RAW, 4: REGISTER}
    assert found[6] == {2: RAW, 5: WAW}


def test_tiles_at_one_address_depend_on_each_other_whatever_their_dtype():
    def kernel(x):
        a = nl.ndarray((4, 8), nl.float32, address=(0, 0))
        b = nl.ndarray((4, 8), nl.bfloat16, address=(2, 24))
        c = nl.ndarray((4, 8), nl.bfloat16, address=(0, 32))
        nisa.memset(a, 1.0)
        nisa.memset(b, 2.0)
        nisa.memset(c, 3.0)

    assert dependences(of(kernel).cores[0]) == [{}, {0: WAW}, {1: WAW}]


def test_nothing_moves_across_a_barrier():
    def kernel(x):
        a, b = tiles(x, 2)
        nisa.memset(a, 1.0)
        nisa.core_barrier(x, (0, 1))
        nisa.memset(b, 1.0)

    found = dependences(of(kernel, degree=2).cores[0])
    assert found[1] == {0: FENCE} and found[2] == {1: FENCE}


def test_an_order_is_the_same_for_the_same_seed_and_many_are_possible():
    program, arrays = traced([("load", t, (0, 16)) for t in range(4)])
    orders = [reordered(program, seed) for seed in range(5)]
    assert orders[0] == reordered(program, 0) and len({str(order) for order in orders}) == 5
    assert all(outcome(order, arrays) == outcome(program, arrays) for order in orders)


def test_with_schedule_and_no_reorder_are_respected():
    @nki.jit
    def kernel(x):
        a, b, c = tiles(x, 3)
        nisa.memset(a, 1.0, name="first")
        nisa.memset(b, 2.0, name="second")
        with nl.no_reorder():
            nisa.memset(c[:, 0:4], 3.0)
            nisa.memset(c[:, 4:8], 4.0)

    program = kernel.with_schedule([("second", "first")]).trace(X)
    for seed in range(8):
        other = reordered(program, seed)
        (edge,) = declared(other)
        assert edge.earlier < edge.later
        (block,) = other.blocks
        assert [i.value for i in list(other.walk())[block.first : block.last + 1]] == [3.0, 4.0]
