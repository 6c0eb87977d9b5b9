"""Steps: what is done on a device at once, with the memory of its operands.

`planned` makes the steps of a program. The values of a step lie side by side in one arena (a slab for each
output), so that the next step finds them at regular distances.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...ir.caches import per_program
from ...ir.program import Loop, Program
from ...ir.storage import Storage
from ...machine.dtypes import float32
from ...machine.machine import Machine
from ..fused.fusion import folded
from ..fused.lowering import made_at
from ..fused.products import Factor, Gemm
from ..fused.stages import Arena
from ..fused.storages import Storages
from ..fused.tiles import InPlace
from ..fused.tracking import Task, Tracker
from ..fused.values import Place, Value, of_storage
from ..lowered import UNPLANNED, Lowered, lower
from .grids import Grid, Pattern, common_lead, pattern_of
from .schedule import Member, Ordered, Refused, Registers, groups

WINDOW = 8 << 30  # bytes of the values that are made between two points at which everything is over


class Slab:
    """Memory for one output of all members of a step."""

    __slots__ = ("nbytes", "at", "owners")

    def __init__(self, owners: Sequence[Any]):
        self.owners = owners
        self.nbytes = sum(owner.nbytes for owner in owners)
        self.at = -1

    def settle(self, at: int) -> None:
        self.at = at
        for owner in self.owners:
            owner.at = at
            at += owner.nbytes


class Step:
    """Equal instructions, or equal products."""

    def __init__(self, items: Sequence[Any]):
        self.items = items
        self.count = len(items)
        self.lead: tuple[int, ...] = (self.count,)

    def slabs(self) -> list[Slab]:
        """New memory for what is made."""
        raise NotImplementedError

    def owners(self) -> Iterable[Any]:
        """Everything in the arena that it reads."""
        raise NotImplementedError

    def settle(self) -> None:
        """Now everything has its memory: find out how it lies."""
        raise NotImplementedError


def _owner(place: object) -> Iterable[Any]:
    if place.__class__ is Place and place.base.__class__ is Value:
        value = place.base
        if value.placed is not None:
            yield value.placed[0]
        elif value.sunk is None:
            yield value


class Batch(Step):
    """The same instruction, move or gathering of pieces for many operands."""

    items: Sequence[Member]

    def slabs(self) -> list[Slab]:
        found = []
        for k, (_, out, _) in enumerate(self.items[0].task.outs):
            if out.__class__ is Value and out.sunk is None:
                found.append(Slab([m.task.outs[k][1] for m in self.items]))
        if self.items[0].after is not None:
            found.append(Slab([m.after for m in self.items]))
        return found

    def owners(self) -> Iterable[Any]:
        for task, before, _ in self.items:
            for _, source in (*task.reads, *task.parts):
                yield from _owner(source)
            for _, _, old in task.outs:
                yield from _owner(old)
            if before is not None:
                yield before

    def settle(self) -> None:
        tasks = [m.task for m in self.items]
        first: Task = tasks[0]
        self.task = first
        self.reads = [
            (i, Grid.of([_place(t.reads[k][1]) for t in tasks])) for k, (i, _) in enumerate(first.reads)
        ]
        self.outs = []
        for k, (i, _, old) in enumerate(first.outs):
            grid = Grid.of([_made_at(t.outs[k][1]) for t in tasks])
            self.outs.append((i, grid, None if old is None else Grid.of([t.outs[k][2] for t in tasks])))
        self.before = self._registers([m.before for m in self.items])
        self.after = self._registers([m.after for m in self.items])
        self.lanes = self.items[0].before
        self.copies = _copies(tasks) if first.kind == "gather" else []
        grids = [grid for _, grid in self.reads] + [grid for _, grid, _ in self.outs]
        self.lead = common_lead(grids, self.count)
        self.items = self.items[:1]  # all the rest is in the grids

    @staticmethod
    def _registers(found: Sequence[Registers | None]) -> Grid | None:
        if found[0] is None:
            return None
        return Grid(Pattern(None, (128,), (1,), float32), [r.at // 4 for r in found if r is not None])


def _place(source: Any) -> Place:
    return source if source.__class__ is Place else of_storage(source)


def _made_at(out: Any) -> Place:
    return made_at(out) if out.__class__ is Value else of_storage(out)


def _copies(tasks: Sequence[Task]) -> list[tuple[Grid, Grid]]:
    """The pieces of gatherings, those that lie alike together; later ones hide earlier ones."""
    found: dict[Any, tuple[list[Place], list[Place]]] = {}
    for task in tasks:
        value: Value = task.outs[0][1]
        there = value if value.sunk is None else value.within(value.sunk)
        apart = sum(view.size for view, _ in task.parts) <= value.size  # no piece hides another
        for number, (view, source) in enumerate(task.parts):
            target = there.part(view)
            assert target is not None
            key = (0 if apart else number, pattern_of(target), pattern_of(source))
            targets, sources = found.setdefault(key, ([], []))
            targets.append(target)
            sources.append(source)
    return [(Grid.of(targets), Grid.of(sources)) for targets, sources in found.values()]


# ---- products ------------------------------------------------------------------------------------


class Products(Step):
    """Products of one shape, with factors that lie alike."""

    items: Sequence[Gemm]

    def slabs(self) -> list[Slab]:
        return [] if self.items[0].result is None else [Slab([g.result for g in self.items])]

    def owners(self) -> Iterable[Any]:
        for gemm in self.items:
            for factor in (gemm.left, gemm.right):
                yield from _owner(factor.there)
                for tile in factor.tiles:
                    yield from _owner(tile.place)

    def settle(self) -> None:
        gemms = self.items
        first = gemms[0]
        self.left = Side([g.left for g in gemms])
        self.right = Side([g.right for g in gemms])
        self.rows, self.columns = first.left.columns, first.right.columns
        self.target: Grid | None = None
        if first.target is not None:
            self.target = Grid.of([g.target for g in gemms if g.target is not None])
        self.result: Grid | None = None
        if first.result is not None:
            pattern = Pattern(None, (self.rows, self.columns), (self.columns, 1), float32)
            self.result = Grid(pattern, [g.result.at // 4 for g in gemms if g.result is not None])
        self.copies = []
        for k, (value, row, column) in enumerate(first.copies):
            height = value.view.shape[0]
            window = slice(row, row + height), slice(column, column + value.size // height)
            places = [place for g in gemms if (place := g.copies[k][0].sunk) is not None]
            self.copies.append((window, Grid.of(places)))
        self.products = sum(g.products for g in gemms)
        self.items = gemms[:1]


class Side:
    """A factor of every product of a step: a view, tiles one behind the other, or tiles put together."""

    def __init__(self, factors: Sequence[Factor]):
        first = factors[0]
        self.count, self.rows, self.columns = len(factors), first.rows, first.columns
        self.terms, self.tiles = 1, 1
        self.stack: Grid | None = None
        self.pieces: list[tuple[Grid, Grid]] = []
        if first.there is not None:
            self.stack = Grid.of([f.there for f in factors if f.there is not None])
            return
        kinds: dict[Any, tuple[list[int], list[Place]]] = {}
        for number, factor in enumerate(factors):
            base = number * factor.rows * factor.columns
            for tile, row, place in factor.packed():
                key = (tile.rows, tile.columns, pattern_of(place))
                offsets, places = kinds.setdefault(key, ([], []))
                offsets.append(base + row * factor.columns + tile.column)
                places.append(place)
        if len(kinds) == 1 and all(t.columns == first.columns for t in first.tiles):
            ((_, places),) = kinds.values()
            self.stack, self.terms, self.tiles = Grid.of(places), first.terms, len(first.tiles)
            return
        pitch = first.columns * first.terms
        for (rows, columns, _), (offsets, places) in kinds.items():
            pattern = Pattern("pack", (rows, columns), (pitch, 1), float32)
            self.pieces.append((Grid(pattern, offsets), Grid.of(places)))


# ---- all of a program ----------------------------------------------------------------------------


class DevicePlan:
    """A program as steps on a device. It never changes; calls share it."""

    def __init__(
        self, machine: Machine, steps: list[Any], arena: int, written: list[Storage], partly: set[Storage]
    ):
        self.machine, self.steps, self.arena = machine, steps, arena
        self.written = written  # in HBM
        self.partly = partly  # of these, where what was there before matters


@per_program
def device_plan_of(program: Program) -> DevicePlan | Refused:
    """Return the steps of a program on a device, or why it has none."""
    try:
        return _planned(lower(program))
    except Refused as why:
        return Refused(*why.args)  # without its traceback, which refers to the program


def _planned(lowered: Lowered) -> DevicePlan:
    if len(lowered.items) > 1:
        raise Refused("it runs on two cores")
    for item in lowered.items[0]:
        if lowered.is_fence(item):
            what = "a dynamic loop" if isinstance(item, Loop) else item.public
            raise Refused(f"{what} depends on values at run time")
    if not lowered.states.isdisjoint(UNPLANNED):
        raise Refused("it prints, draws random numbers or talks to other ranks")
    storages = Storages(lowered)
    tracker = Tracker(storages, lowered)
    try:
        tracker.follow(lowered.items[0])
    except InPlace as problem:
        raise Refused(f"a tile is not followed value by value: {problem.why}") from None
    return _steps(lowered, storages, folded(tracker.tasks, tracker.folded))


def _steps(lowered: Lowered, storages: Storages, tasks: Sequence[Task]) -> DevicePlan:
    order = Ordered(storages)
    steps: list[Any] = []
    open_tasks: list[Any] = []
    held = 0

    def close() -> None:
        nonlocal open_tasks, held
        for group in groups(open_tasks):
            steps.append(Products(group) if group[0].__class__ is Gemm else Batch(group))
        open_tasks, held = [], 0
        order.next_window()

    for task in tasks:
        if task.kind == "memory":
            raise Refused(f"{task.instruction.public} has no form there")
        made = sum(v.nbytes for _, v, _ in task.outs if v.__class__ is Value and v.sunk is None)
        if held + made > WINDOW and open_tasks:
            close()
        held += made
        open_tasks.append(order.place(task))
    close()
    written = sorted(storages.written, key=lambda storage: storage.number)
    arena = _laid_out(steps)
    for step in steps:
        step.settle()
    partly = {s for s in written if not order.is_complete(s) or (s.parameter and s in storages.read)}
    return DevicePlan(lowered.machine, steps, arena, written, partly)


def _laid_out(steps: Sequence[Step]) -> int:
    """Give every value its memory; the bytes of all."""
    slab_of: dict[Any, Slab] = {}
    made: list[list[Slab]] = []
    last: dict[Slab, int] = {}
    for number, step in enumerate(steps):
        slabs = step.slabs()
        made.append(slabs)
        for slab in slabs:
            last[slab] = number
            for owner in slab.owners:
                slab_of[owner] = slab
        for owner in step.owners():
            last[slab_of[owner]] = number
    ends: dict[int, list[Slab]] = {}
    for slab, number in last.items():
        ends.setdefault(number, []).append(slab)
    arena = Arena()
    for number in range(len(steps)):
        for slab in made[number]:
            slab.settle(arena.take(slab.nbytes))
        for slab in ends.get(number, ()):
            arena.give_back(slab.at, slab.nbytes)
    return arena.size


__all__ = ["Batch", "DevicePlan", "Products", "Side", "Step", "device_plan_of"]
