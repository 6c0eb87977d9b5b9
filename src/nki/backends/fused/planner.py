"""The planner: a lowered Program in, a FusedPlan out.

A plan is made where it can pay: the products of the program are large, and there are many of them. It is
cached with the Program, and by its content.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from ...ir.caches import per_program
from ...ir.effects import effects
from ...ir.instruction import State
from ...ir.storage import Storage
from ..lowered import UNPLANNED, Lowered
from ..units import Units, find_units
from . import cache
from .chains import allocate_values, memories_of
from .emission import StepEmitter
from .fusion import fuse, track_units
from .hoisting import Hoisting
from .products import Gemm
from .stages import schedule, schedule_unit
from .steps import CorePlan, FusedPlan, InstructionStep, RepeatedUnit, WriteOnceResult
from .storages import Storages, touched
from .tiles import Untrackable
from .tracking import Tracker
from .values import Elements, SSAValue

MIN_FLOPS = 1 << 28  # of the matmuls of a program that is planned
MIN_FLOPS_PER_INSTRUCTION = 1 << 20  # planning takes time for each of them
MIN_FUSED_SHARE = 0.5  # of the work that must become large products; the rest is slower by a plan
ATTEMPTS = 24  # each finds a storage that is not a sequence of values


class NoPlan(NamedTuple):
    """Why a program runs one instruction at a time."""

    why: str


@per_program
def plan_of(lowered: Lowered, forced: bool = False) -> FusedPlan | NoPlan:
    """Return the plan of a program, or why it has none. `forced`: also where it does not pay."""
    flops, why = _assess(lowered, forced)
    if why:
        return NoPlan(why)
    found = _shared(lowered)
    if not forced and isinstance(found, FusedPlan) and found.flops < MIN_FUSED_SHARE * flops:
        return NoPlan(f"{found.flops / flops:.0%} of its matmuls become large products, which does not pay")
    return found


def _shared(lowered: Lowered) -> FusedPlan | NoPlan:
    """Return the plan of an equal program, or a new one."""
    content = cache.Content(lowered)
    found: FusedPlan | NoPlan = cache.plans.find(content) or make_plan(lowered)
    if isinstance(found, FusedPlan):
        cache.plans.put(content, found)
    return found


def _assess(lowered: Lowered, forced: bool) -> tuple[int, str]:
    """Return the work of a program's matmuls, and why it has no plan, if that is decided without planning."""
    flops, count = 0, 0
    states: set[State] = set()
    for kind, often in chain.from_iterable(counts.items() for counts in lowered.counts):
        if kind is not None:
            states.update(kind.states)
            flops += kind.flops * often
            count += often
    for state in UNPLANNED:
        if state in states:
            return flops, f"it touches {state.value}"
    if flops < max(MIN_FLOPS, MIN_FLOPS_PER_INSTRUCTION * count) and not forced:
        return flops, f"its matmuls are {flops / 1e6:.0f} MFLOP in {count} instructions, which does not pay"
    apart = 0 if forced else _apart(lowered)
    if flops - apart < MIN_FUSED_SHARE * flops:
        return flops, f"{apart / flops:.0%} of its matmuls' work is on tiles that are addressed at run time"
    if any(None in counts for counts in lowered.counts) and not lowered.states.isdisjoint(UNPLANNED):
        return flops, "a dynamic loop touches what only the numpy executor knows"
    return flops, ""


def _apart(lowered: Lowered) -> int:
    """Return the work of matmuls on tiles that fences touch: they become no large products."""
    if not any(kind is not None and kind.fence for counts in lowered.counts for kind in counts):
        return 0
    cores = (zip(*core, strict=True) for core in zip(lowered.kinds, lowered.items, strict=True))
    known: list[Any] = [(kind, item) for kind, item in chain.from_iterable(cores) if kind is not None]
    untracked = {storage for kind, item in known if kind.fence for storage in touched(item)}
    return sum([kind.flops for kind, i in known if kind.flops and not untracked.isdisjoint(touched(i))])


def share_nothing(lowered: Lowered, storages: Storages) -> bool:
    """Return whether no core writes what another one uses, so that their order does not matter."""
    used = [_touched(lowered, core) for core in range(len(lowered.items))]
    free = storages.write_once  # every element of these is written by one core, and never read
    return not any(
        (written & (read | others)) - free
        for i, (_, written) in enumerate(used)
        for j, (read, others) in enumerate(used)
        if i != j
    )


def _touched(lowered: Lowered, core: int) -> tuple[set[Storage], set[Storage]]:
    """Return what a core reads, and what it writes."""
    read: set[Storage] = set()
    written: set[Storage] = set()
    for instruction in lowered.walk(core):
        done = effects(instruction)
        read.update(view.storage for view in done.reads)
        written.update(view.storage for view in done.written)
    return read, written


def make_plan(lowered: Lowered) -> FusedPlan | NoPlan:
    """Return a new plan, whatever it costs."""
    untracked: dict[Storage, str] = {}
    for _ in range(ATTEMPTS):
        storages = Storages(lowered, untracked)
        if storages.share_addresses(lowered.storages):
            return NoPlan("tiles that are no sequences of values share addresses")
        try:
            cores = [_core(lowered, core, storages) for core in range(len(lowered.items))]
        except Untrackable as problem:
            untracked[problem.storage] = problem.why
            continue
        return _plan(lowered, cores, storages, untracked)
    return NoPlan("too many of its tiles are no sequences of values")


def _core(lowered: Lowered, core: int, storages: Storages) -> CorePlan:
    units = find_units(lowered, core, storages.written, storages.write_once)
    tracker = Tracker(storages)
    if units is None:
        tracker.track(lowered.items[core], lowered.kinds[core])
        nodes = fuse(tracker.nodes, tracker.fused)
        steps = schedule(nodes, storages)
        plan = _part(StepEmitter(lowered, core), steps, allocate_values(steps), tracker.fused)
    else:
        plan = _with_units(lowered, core, storages, tracker, units)
    for node in tracker.nodes:
        node.unlink()
    return plan


def _part(
    emitter: StepEmitter, steps: Sequence[Any], sizes: tuple[int, int], fused: dict[str, int]
) -> CorePlan:
    """Return the plan of steps whose values have their addresses."""
    packed = max((s.packed_bytes for s in steps if s.__class__ is Gemm), default=0)
    emitter.emit(steps)
    return CorePlan(tuple(emitter.steps), emitter.chains, *sizes, packed, fused)


def _with_units(lowered: Lowered, core: int, storages: Storages, tracker: Tracker, units: Units) -> CorePlan:
    """Return the plan of what is common, and of the first one of equal units."""
    nodes = track_units(tracker, lowered, core, units)
    hoisting = Hoisting()
    steps = [schedule(nodes[0], storages)]
    for unit, some in zip(units.units, nodes[1:], strict=True):
        inside_unit = schedule_unit(some, storages, len(nodes[0]))
        steps.append(hoisting.hoist(inside_unit, partial(_is_common, unit.moved)))
    steps[0] += hoisting.packs
    common, *inside = (memories_of(some) for some in steps)
    kept = common.intersection(chain.from_iterable(inside))
    plan = _part(StepEmitter(lowered, core), steps[0], allocate_values(steps[0], kept), tracker.fused)
    repeated = []
    for unit, some in zip(units.units, steps[1:], strict=True):
        sizes = allocate_values(some, outer=kept)
        part = _part(StepEmitter(lowered, core, kept), some, sizes, {})
        shifts = tuple([_by_number(lowered, row) for row in unit.shifts])
        tiles = unit.tiles & storages.in_place
        repeated.append(
            RepeatedUnit(part, shifts, tuple(sorted([lowered.columns.numbers[tile] for tile in tiles])))
        )
    registers = tuple([(which, *last) for which, last in units.registers.items()])
    return plan._replace(units=tuple(repeated), registers=registers)


def _is_common(moved: Collection[Storage], elements: Elements) -> bool:
    """Return whether elements are the same in all repetitions; of storages in `moved` each has its own."""
    base = elements.base
    return base.producers[0].unit == 0 if base.__class__ is SSAValue else base not in moved


def _by_number(lowered: Lowered, shifts: dict[Storage, int]) -> dict[int, int]:
    return {lowered.columns.numbers[storage]: shift for storage, shift in shifts.items()}


def _plan(
    lowered: Lowered, cores: list[CorePlan], storages: Storages, untracked: dict[Storage, str]
) -> FusedPlan:
    numbers = lowered.columns.numbers
    results = []
    for storage, views in storages.stores.items():
        if storage in storages.write_once:
            written = tuple([(v.offset, tuple(v.shape), tuple(v.strides)) for v in views])
            results.append(
                WriteOnceResult(numbers[storage], None if storage in storages.complete else written)
            )
    return FusedPlan(
        tuple(cores),
        tuple(results),
        tuple([(numbers[storage], why) for storage, why in untracked.items()]),
        sum([storage.on_chip for storage in storages.in_place]),
        len(cores) < 2 or _independent(lowered, cores, storages),
    )


def _independent(lowered: Lowered, cores: list[CorePlan], storages: Storages) -> bool:
    """Return whether no core writes what another one uses, so that they can run in parallel."""
    if any(
        step.__class__ is InstructionStep and step.kind == "fence" for core in cores for step in core.steps
    ):
        return False
    return share_nothing(lowered, storages)
