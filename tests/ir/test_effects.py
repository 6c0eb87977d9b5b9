"""Every declared effect is needed: drop one, and some random program is changed by some pass."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import nki
from nki.ir import effects as module
from nki.ir.instruction import State
from nki.ir.instruction_class import READS, WRITES
from nki.ir.view import View
from passes import reordering
from random_programs import MEETINGS, MORE, PLAIN, assert_unchanged, nested, rich_programs

ALL = {**PLAIN, **MORE, **MEETINGS}
true_effects = module.effects


# ---- what a mutant leaves out --------------------------------------------------------------------


def kinds(instruction):
    """The annotation of each operand, register and option."""
    for cls in type(instruction).__mro__:
        found = cls.__dict__.get("__annotations__", {})
        if tuple(found)[: len(instruction.fields)] == instruction.fields:
            return found
    raise AssertionError(f"{instruction} has no annotations")


def operands_of(instruction, kind):
    """The views through which operands of a kind are touched."""
    annotated = kinds(instruction)
    for i, name in enumerate(instruction.operand_names):
        if annotated[name] == kind:
            yield from module._touched(instruction, i, instruction.operands()[i])


def without(views, dropped):
    """The views less one for each of the dropped."""
    left = list(views)
    for view in dropped:
        same = [v for v in left if v is view or (v.storage is view.storage and v.sig == view.sig)]
        if same:
            left.remove(same[0])
    return tuple(left)


def drop_reads(kind):
    def mutant(instruction):
        done = true_effects(instruction)
        return done._replace(reads=without(done.reads, operands_of(instruction, kind)))

    return mutant


def drop_writes(kind):
    def mutant(instruction):
        done = true_effects(instruction)
        dropped = list(operands_of(instruction, kind))
        return done._replace(writes=without(done.writes, dropped), adds_to=without(done.adds_to, dropped))

    return mutant


def drop_sums(instruction):
    """A matmul only writes."""
    done = true_effects(instruction)
    return done._replace(writes=(*done.writes, *done.adds_to), adds_to=())


def drop_registers(field):
    def mutant(instruction):
        done = true_effects(instruction)
        indices = {id(v.indirection.index) for v in instruction.views() if v.indirection is not None}
        return done._replace(**{field: tuple(r for r in getattr(done, field) if id(r) in indices)})

    return mutant


def drop_index_registers(instruction):
    done = true_effects(instruction)
    indices = {id(v.indirection.index) for v in instruction.views() if v.indirection is not None}
    return done._replace(registers_read=tuple(r for r in done.registers_read if id(r) not in indices))


def drop_index_tiles(kind):
    def mutant(instruction):
        done = true_effects(instruction)
        found = [v.indirection for v in instruction.views() if v.indirection is not None]
        tiles = [i.index for i in found if isinstance(i.index, View) and i.kind == kind]
        return done._replace(reads=without(done.reads, tiles))

    return mutant


def drop_state(state):
    def mutant(instruction):
        done = true_effects(instruction)
        return done._replace(state=tuple(s for s in done.state if s is not state))

    return mutant


# name: what `effects` says, the operations that meet it, and on how many cores
MUTANTS = {
    "read In": (drop_reads("In"), "load copy combine write", 1),
    "read InOut": (drop_reads("InOut"), "predicated mask load memset combine", 1),
    "read Operand": (drop_reads("Operand"), "by_column sample", 1),
    "read OptionalIn": (drop_reads("OptionalIn"), "sum load memset scale", 1),
    "write Out": (drop_writes("Out"), "load copy combine write", 1),
    "write InOut": (drop_writes("InOut"), "predicated mask scale constant", 1),
    "write OptionalOut": (drop_writes("OptionalOut"), "activate reduce_with by_column", 1),
    "write Accumulated": (drop_writes("Accumulated"), "product drain clear_sum", 1),
    "accumulate": (drop_sums, "product drain", 1),
    "read a register": (drop_registers("registers_read"), "move store_register count", 1),
    "write a register": (drop_registers("registers_written"), "move store_register slide count", 1),
    "an index in a register": (drop_index_registers, "move slide shift", 1),
    "an index tile of rows": (drop_index_tiles("vector"), "gather skip_gather", 1),
    "an index tile of columns": (drop_index_tiles("tensor"), "indirect store_register read", 1),
    **{
        f"state {state.name}": (drop_state(state), operations, 2 if state is State.peer else 1)
        for state, operations in {
            State.vector_accumulator: "reduce_with running select",
            State.scalar_accumulator: "activate",
            State.vector_random: "random drop seed",
            State.gpsimd_random: "sample state",
            State.output: "print load",
            State.peer: "exchange barrier publish look_over",
            State.ranks: "all_reduce load",
            State.loop: "load",
        }.items()
    },
}


def test_every_kind_of_effect_has_its_mutant():
    assert {f"state {state.name}" for state in State} <= set(MUTANTS)
    assert {f"read {kind}" for kind in READS} <= set(MUTANTS)
    assert {f"write {kind}" for kind in WRITES} <= set(MUTANTS)


def is_noticed(operations, cores, most=200):
    """Whether the property of `test_passes` fails for some random program of these operations."""
    strategy = [ALL[name] for name in operations.split()]
    chosen = nested(strategy) if operations == "load" else st.one_of(*strategy)
    ways = settings(
        max_examples=most,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )

    @seed(1)
    @ways
    @given(rich_programs(chosen, cores, size=12, dtypes=("float32",)), st.integers(0, 1 << 16))
    def property(found, order):
        assert_unchanged(*found, order)

    try:
        property()
    except (AssertionError, nki.NkiError, KeyError):
        return True
    return False


@pytest.fixture
def declare(monkeypatch):
    def patch(mutant):
        for where in ("nki.ir.effects", "passes.dead_code", "passes.dependences"):
            monkeypatch.setattr(sys.modules[where], "effects", mutant)

    return patch


@pytest.mark.parametrize("name", MUTANTS)
def test_an_effect_that_is_not_declared_is_noticed(name, declare):
    mutant, operations, cores = MUTANTS[name]
    declare(mutant)
    assert is_noticed(operations, cores)


def test_a_transfer_that_may_skip_is_no_overwrite(monkeypatch):
    monkeypatch.setattr(module, "_moves_whole", lambda instruction: instruction.lazy_output)
    assert is_noticed("skip_gather load", 1)


def test_edges_and_blocks_are_noticed(monkeypatch):
    monkeypatch.setattr(reordering, "declared", lambda program: [])
    assert is_noticed("together edge", 1)
    monkeypatch.undo()
    monkeypatch.setattr(reordering, "_units", lambda items, first, blocks: [[i] for i in range(len(items))])
    assert is_noticed("together load", 1)
