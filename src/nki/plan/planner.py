"""The planner: a Program in, a Plan out, kept with the Program.

A plan is made where it can pay: the products of the program are large, and there are many of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

from ..program.effects import effects
from ..program.instruction import State
from ..program.program import Loop, Program
from ..tensors.storage import Storage
from .folding import folded
from .kinds import Kinds
from .products import Gemm
from .stages import in_stages, laid_out
from .storages import Storages
from .tracking import InPlace, Task, Tracker

WORTH = 1 << 28  # floating-point operations of matmuls from which a plan is made
WORTH_EACH = 1 << 20  # and so many for each instruction, which all have to be looked at
ATTEMPTS = 24  # times that a storage may turn out to be no sequence of values
UNPLANNED = (State.output, State.ranks, State.vector_random, State.gpsimd_random)


class CorePlan(NamedTuple):
    """What one core does, in order: Gemms, Tasks and fences."""

    steps: list[Any]
    arena: int  # bytes of the values
    packed: int  # bytes of the largest pair of packed factors
    folded: dict[str, int]


class Plan:
    """A program as a few large operations. It never changes; calls share it."""

    def __init__(self, program: Program, cores: list[CorePlan], storages: Storages, kept: dict[Storage, str]):
        self.program = program
        self.cores = cores
        self.storages = storages
        self.in_place = kept  # storages that are not followed, and why

    @cached_property
    def independent(self) -> bool:
        """Nothing that one core writes matters to another, so that they need not take turns."""
        if self.program.said:  # in their order
            return False
        if any(step.__class__ is Task and step.kind == "fence" for core in self.cores for step in core.steps):
            return False
        used = [_touched(self.program, core) for core in range(len(self.cores))]
        free = self.storages.once  # every element of these is written by one of them, and read by nobody
        return not any(
            (written & (read | others)) - free
            for i, (_, written) in enumerate(used)
            for j, (read, others) in enumerate(used)
            if i != j
        )

    @property
    def products(self) -> Iterator[Gemm]:
        return (step for core in self.cores for step in core.steps if step.__class__ is Gemm)


class NoPlan(NamedTuple):
    """Why a program runs one instruction at a time."""

    why: str


def plan_of(program: Program, forced: bool = False) -> Plan | NoPlan:
    """The plan of a program, made once and kept with it."""
    key = "_forced_plan" if forced else "_plan"
    found = program.__dict__.get(key)
    if found is None:
        found = program.__dict__[key] = _made(program, forced)
    return found


def _made(program: Program, forced: bool) -> Plan | NoPlan:
    flops, count = 0, 0
    states: set[State] = set()
    kinds = Kinds(program.machine)
    for items in program.cores:
        straight = [item for item in items if item.__class__ is not Loop]
        first = {id(instruction.access): instruction for instruction in straight}  # type: ignore[union-attr]
        for access, often in Counter(map(id, map(attrgetter("access"), straight))).items():
            kind = kinds.of(first[access])  # type: ignore[arg-type]
            states.update(kind.states)
            flops += kind.flops * often
        count += len(straight)
    for state in UNPLANNED:
        if state in states:
            return NoPlan(f"it touches {state.value}")
    if flops < max(WORTH, WORTH_EACH * count) and not forced:
        return NoPlan(f"its matmuls are {flops / 1e6:.0f} MFLOP in {count} instructions, which does not pay")
    if any(isinstance(item, Loop) for items in program.cores for item in items) and _touches(program):
        return NoPlan("a dynamic loop touches what only the numpy executor knows")
    return _planned(program, kinds)


def _touched(program: Program, core: int) -> tuple[set[Storage], set[Storage]]:
    """What a core reads, and what it writes."""
    read: set[Storage] = set()
    written: set[Storage] = set()
    for instruction in program.walk(core):
        done = effects(instruction)
        read.update(view.storage for view in done.reads)
        written.update(view.storage for view in done.written)
    return read, written


def _touches(program: Program) -> bool:
    return bool(program.state & frozenset(UNPLANNED))


def _planned(program: Program, kinds: Kinds) -> Plan | NoPlan:
    kept: dict[Storage, str] = {}
    for _ in range(ATTEMPTS):
        storages = Storages(program, kinds, kept)
        try:
            cores = [_core(program, core, storages, kinds) for core in range(len(program.cores))]
        except InPlace as problem:
            kept[problem.storage] = problem.why
            continue
        return Plan(program, cores, storages, kept)
    return NoPlan("too many of its tiles are no sequences of values")


def _core(program: Program, core: int, storages: Storages, kinds: Kinds) -> CorePlan:
    tracker = Tracker(storages, kinds)
    tracker.follow(program.cores[core])
    tasks = folded(tracker.tasks, tracker.folded)
    steps = in_stages(tasks, storages)
    arena = laid_out(steps)
    packed = max((s.left.nbytes + s.right.nbytes for s in steps if s.__class__ is Gemm), default=0)
    return CorePlan(steps, arena, packed, tracker.folded)


__all__ = ["CorePlan", "NoPlan", "Plan", "plan_of"]
