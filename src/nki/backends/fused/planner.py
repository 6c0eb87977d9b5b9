"""The planner: a lowered Program in, a Plan out.

A plan is made where it can pay: the products of the program are large, and there are many of them. It is
cached with the Program, and by its content.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import NamedTuple

from ...ir.caches import per_program
from ...ir.effects import effects
from ...ir.instruction import State
from ...ir.program import Loop, Program
from ...ir.storage import Storage
from ..lowered import UNPLANNED, Lowered, lower
from . import cache
from .fusion import folded
from .lowering import Settler
from .products import Gemm
from .stages import in_stages, laid_out
from .steps import CorePlan, Plan, Result, Work
from .storages import Storages, touched
from .tracking import InPlace, Tracker

WORTH = 1 << 28  # floating-point operations of matmuls from which a plan is made
WORTH_EACH = 1 << 20  # and so many for each instruction, which all have to be looked at
WORTH_SHARE = 0.5  # of them that must have become large products: what runs by itself is slower by a plan
ATTEMPTS = 24  # times that a storage may turn out to be no sequence of values


class NoPlan(NamedTuple):
    """Why a program runs one instruction at a time."""

    why: str


@per_program
def plan_of(program: Program, forced: bool = False) -> Plan | NoPlan:
    """Return the plan of a program, or why it has none. `forced`: also where it does not pay."""
    lowered = lower(program)
    flops, why = _weighed(lowered, forced)
    if why:
        return NoPlan(why)
    found = _shared(lowered)
    if not forced and isinstance(found, Plan) and found.flops < WORTH_SHARE * flops:
        return NoPlan(f"{found.flops / flops:.0%} of its matmuls become large products, which does not pay")
    return found


def _shared(lowered: Lowered) -> Plan | NoPlan:
    """Return the plan of an equal program, or a new one."""
    try:
        content = cache.Content(lowered)
    except KeyError:  # a storage that the program does not list
        return made(lowered)
    found: Plan | NoPlan = cache.plans.find(content) or made(lowered)
    if isinstance(found, Plan):
        cache.plans.put(content, found)
    return found


def _weighed(lowered: Lowered, forced: bool) -> tuple[int, str]:
    """Return the work of a program's matmuls, and why it has no plan, as far as that is seen at once."""
    flops, count = 0, 0
    states: set[State] = set()
    for core in range(len(lowered.items)):
        straight = lowered.straight(core)
        first = {id(instruction.access): instruction for instruction in straight}
        for access, often in Counter(map(id, map(attrgetter("access"), straight))).items():
            signature = lowered.signature(first[access])
            states.update(signature.states)
            flops += signature.flops * often
        count += len(straight)
    for state in UNPLANNED:
        if state in states:
            return flops, f"it touches {state.value}"
    if flops < max(WORTH, WORTH_EACH * count) and not forced:
        return flops, f"its matmuls are {flops / 1e6:.0f} MFLOP in {count} instructions, which does not pay"
    apart = 0 if forced else _apart(lowered)
    if flops - apart < WORTH_SHARE * flops:
        return flops, f"{apart / flops:.0%} of its matmuls' work is on tiles that are addressed at run time"
    loops = any(isinstance(item, Loop) for items in lowered.items for item in items)
    if loops and not lowered.states.isdisjoint(UNPLANNED):
        return flops, "a dynamic loop touches what only the numpy executor knows"
    return flops, ""


def _apart(lowered: Lowered) -> int:
    """Return the work of matmuls on tiles that fences touch: they become no large products."""
    known = [(lowered.signature(i), i) for core in range(len(lowered.items)) for i in lowered.straight(core)]
    kept = {storage for signature, i in known if signature.fence for storage in touched(i)}
    return sum([s.flops for s, i in known if s.flops and not kept.isdisjoint(touched(i))])


def _touched(lowered: Lowered, core: int) -> tuple[set[Storage], set[Storage]]:
    """Return what a core reads, and what it writes."""
    read: set[Storage] = set()
    written: set[Storage] = set()
    for instruction in lowered.walk(core):
        done = effects(instruction)
        read.update(view.storage for view in done.reads)
        written.update(view.storage for view in done.written)
    return read, written


def made(lowered: Lowered) -> Plan | NoPlan:
    """Return a new plan, whatever it costs."""
    kept: dict[Storage, str] = {}
    for _ in range(ATTEMPTS):
        storages = Storages(lowered, kept)
        try:
            cores = [_core(lowered, core, storages) for core in range(len(lowered.items))]
        except InPlace as problem:
            kept[problem.storage] = problem.why
            continue
        return _plan(lowered, cores, storages, kept)
    return NoPlan("too many of its tiles are no sequences of values")


def _core(lowered: Lowered, core: int, storages: Storages) -> CorePlan:
    tracker = Tracker(storages, lowered)
    tracker.follow(lowered.items[core])
    tasks = folded(tracker.tasks, tracker.folded)
    steps = in_stages(tasks, storages)
    arena = laid_out(steps)
    packed = max((s.left.nbytes + s.right.nbytes for s in steps if s.__class__ is Gemm), default=0)
    settled = Settler(lowered, core).settled(steps)
    for task in tracker.tasks:
        task.forget()
    return CorePlan(settled, arena, packed, tracker.folded)


def _plan(lowered: Lowered, cores: list[CorePlan], storages: Storages, kept: dict[Storage, str]) -> Plan:
    numbers = lowered.storage_numbers
    results = []
    for storage, views in storages.stores.items():
        if storage in storages.once:
            shown = tuple([(v.offset, tuple(v.shape), tuple(v.strides)) for v in views])
            results.append(Result(numbers[storage], None if storage in storages.complete else shown))
    return Plan(
        tuple(cores),
        tuple(results),
        tuple([(numbers[storage], why) for storage, why in kept.items()]),
        sum([storage.on_chip for storage in storages.in_place]),
        len(cores) < 2 or _independent(lowered, cores, storages),
    )


def _independent(lowered: Lowered, cores: list[CorePlan], storages: Storages) -> bool:
    """Nothing that one core writes matters to another, so that they need not take turns."""
    if any(step.__class__ is Work and step.kind == "fence" for core in cores for step in core.steps):
        return False
    used = [_touched(lowered, core) for core in range(len(cores))]
    free = storages.once  # every element of these is written by one of them, and read by nobody
    return not any(
        (written & (read | others)) - free
        for i, (_, written) in enumerate(used)
        for j, (read, others) in enumerate(used)
        if i != j
    )


__all__ = ["NoPlan", "made", "plan_of"]
