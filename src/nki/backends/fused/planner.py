"""The planner: a Program in, a Plan out, kept with the Program and under its content.

A plan is made where it can pay: the products of the program are large, and there are many of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from ...ir.effects import effects
from ...ir.instruction import Instruction, State
from ...ir.program import Item, Loop, Program
from ...ir.storage import Storage
from . import cache as keeping
from .content import content_key
from .fusion import folded
from .lowering import Settler
from .products import Gemm
from .signatures import Kinds
from .stages import in_stages, laid_out
from .steps import CorePlan, Plan, Result, Work
from .storages import Storages, touched
from .tracking import InPlace, Tracker

WORTH = 1 << 28  # floating-point operations of matmuls from which a plan is made
WORTH_EACH = 1 << 20  # and so many for each instruction, which all have to be looked at
WORTH_SHARE = 0.5  # of them that must have become large products: what runs by itself is slower by a plan
ATTEMPTS = 24  # times that a storage may turn out to be no sequence of values
UNPLANNED = (State.output, State.ranks, State.vector_random, State.gpsimd_random)


class NoPlan(NamedTuple):
    """Why a program runs one instruction at a time."""

    why: str


def plan_of(program: Program, forced: bool = False, folder: str = "") -> Plan | NoPlan:
    """The plan of a program: the one it has, one that was made for its content, or a new one.

    `forced`: also where it does not pay. `folder`: keeps plans for other processes.
    """
    name = "_forced_plan" if forced else "_plan"
    found = program.__dict__.get(name)
    if found is None:
        found = program.__dict__[name] = _found_or_made(program, forced, folder)
    return found


def _found_or_made(program: Program, forced: bool, folder: str) -> Plan | NoPlan:
    kinds = Kinds(program.machine)
    flops, why = _weighed(program, kinds, forced)
    if why:
        return NoPlan(why)
    found = _kept(program, kinds, folder)
    if not forced and isinstance(found, Plan) and found.flops < WORTH_SHARE * flops:
        return NoPlan(f"{found.flops / flops:.0%} of its matmuls become large products, which does not pay")
    return found


def _kept(program: Program, kinds: Kinds, folder: str) -> Plan | NoPlan:
    """The plan for a program's content: from memory, from the folder, or made and kept there."""
    key = content_key(program)
    if key is None:
        return made(program, kinds)
    kept = keeping.plans.find(key)
    found: Plan | NoPlan = kept or _in_folder(key, folder) or made(program, kinds)
    if isinstance(found, Plan):
        if kept is None:
            keeping.plans.keep(key, found)
        if folder:
            _put_into(folder, key, found)
    return found


def _in_folder(key: bytes, folder: str) -> Plan | None:
    if not folder:
        return None
    from . import files  # what it imports is needed by few

    return files.read(key, folder)


def _put_into(folder: str, key: bytes, plan: Plan) -> None:
    from . import files

    if not files.has(key, folder):
        files.write(key, plan, folder)


def _weighed(program: Program, kinds: Kinds, forced: bool) -> tuple[int, str]:
    """The work of a program's matmuls, and why it has no plan, as far as that is seen at once; "" else."""
    flops, count = 0, 0
    states: set[State] = set()
    for items in program.cores:
        straight = _straight(items)
        first = {id(instruction.access): instruction for instruction in straight}
        for access, often in Counter(map(id, map(attrgetter("access"), straight))).items():
            kind = kinds.of(first[access])
            states.update(kind.states)
            flops += kind.flops * often
        count += len(straight)
    for state in UNPLANNED:
        if state in states:
            return flops, f"it touches {state.value}"
    if flops < max(WORTH, WORTH_EACH * count) and not forced:
        return flops, f"its matmuls are {flops / 1e6:.0f} MFLOP in {count} instructions, which does not pay"
    apart = 0 if forced else _apart(program, kinds)
    if flops - apart < WORTH_SHARE * flops:
        return flops, f"{apart / flops:.0%} of its matmuls' work is on tiles that are addressed at run time"
    if any(isinstance(item, Loop) for items in program.cores for item in items) and _touches(program):
        return flops, "a dynamic loop touches what only the numpy executor knows"
    return flops, ""


def _straight(items: Sequence[Item]) -> list[Instruction]:
    """The instructions that stand in no dynamic loop."""
    return [item for item in items if not isinstance(item, Loop)]


def _apart(program: Program, kinds: Kinds) -> int:
    """The work of matmuls on tiles that fences touch: they become no large products."""
    known = [(kinds.of(i), i) for items in program.cores for i in _straight(items)]
    kept = {storage for kind, i in known if kind.fence for storage in touched(i)}
    return sum([kind.flops for kind, i in known if kind.flops and not kept.isdisjoint(touched(i))])


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


def made(program: Program, kinds: Kinds | None = None) -> Plan | NoPlan:
    """A new plan, whatever it costs."""
    kinds = kinds or Kinds(program.machine)
    kept: dict[Storage, str] = {}
    for _ in range(ATTEMPTS):
        storages = Storages(program, kinds, kept)
        try:
            cores = [_core(program, core, storages, kinds) for core in range(len(program.cores))]
        except InPlace as problem:
            kept[problem.storage] = problem.why
            continue
        return _plan(program, cores, storages, kept)
    return NoPlan("too many of its tiles are no sequences of values")


def _core(program: Program, core: int, storages: Storages, kinds: Kinds) -> CorePlan:
    tracker = Tracker(storages, kinds)
    tracker.follow(program.cores[core])
    tasks = folded(tracker.tasks, tracker.folded)
    steps = in_stages(tasks, storages)
    arena = laid_out(steps)
    packed = max((s.left.nbytes + s.right.nbytes for s in steps if s.__class__ is Gemm), default=0)
    settled = Settler(program, core).settled(steps)
    for task in tracker.tasks:
        task.forget()
    return CorePlan(settled, arena, packed, tracker.folded)


def _plan(program: Program, cores: list[CorePlan], storages: Storages, kept: dict[Storage, str]) -> Plan:
    numbers = {storage: number for number, storage in enumerate(program.storages)}
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
        len(cores) < 2 or _independent(program, cores, storages),
    )


def _independent(program: Program, cores: list[CorePlan], storages: Storages) -> bool:
    """Nothing that one core writes matters to another, so that they need not take turns."""
    if any(step.__class__ is Work and step.kind == "fence" for core in cores for step in core.steps):
        return False
    used = [_touched(program, core) for core in range(len(cores))]
    free = storages.once  # every element of these is written by one of them, and read by nobody
    return not any(
        (written & (read | others)) - free
        for i, (_, written) in enumerate(used)
        for j, (read, others) in enumerate(used)
        if i != j
    )


__all__ = ["NoPlan", "made", "plan_of"]
