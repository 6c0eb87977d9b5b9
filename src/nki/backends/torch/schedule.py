"""The order of a program on a device: steps of many equal instructions that do not wait for each other.

Products come as early as the products before them allow, so that many of them meet; between two such stages
the other instructions go in levels. What equals another in everything but addresses is done in the same step.
The accumulator registers are values like any other: who goes on with them waits for their maker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...ir.instruction import State
from ...ir.storage import Storage
from ...ir.view import View
from ..fused.products import Factor, Gemm, merged, single
from ..fused.stages import _places
from ..fused.storages import Storages
from ..fused.tracking import Task
from ..fused.values import Place, Value, of_storage

MERGED = 4.0  # a large product is worth its packing if its factors are so many times smaller than its tiles'
RESETS = ("reset", "reset_reduce", "load_reduce")  # commands that do not look at the registers
SETS = {State.vector_accumulator: "vector", State.scalar_accumulator: "scalar"}


class Refused(Exception):
    """The program runs on the host, and why."""


class Registers:
    """A set of accumulator registers after an instruction: a value of 128 float32 numbers."""

    __slots__ = ("size", "lanes", "user", "at", "order", "stage")
    nbytes = 512

    def __init__(self, size: int, lanes: int, user: str):
        self.size = size  # lanes that this value holds
        self.lanes, self.user = lanes, user  # lanes that hold something, whoever wrote them
        self.at = -1
        self.order, self.stage = (0, 0), -1


class Member(NamedTuple):
    """An instruction of a step, with the registers it goes on with and leaves."""

    task: Task
    before: Registers | None
    after: Registers | None


class Ordered:
    """Gives every task its place: (products before it, level), and its step."""

    def __init__(self, storages: Storages):
        self.storages = storages
        self.registers: dict[str, Registers | None] = {}
        self.orders: dict[Value, tuple[int, tuple[int, int]]] = {}  # window and order of who makes it
        self.writers: dict[Storage, tuple[int, int]] = {}
        self.touched: dict[Storage, tuple[int, int]] = {}
        self.written: dict[Storage, np.ndarray] = {}
        self.window = 0

    def next_window(self) -> None:
        self.window += 1
        self.writers, self.touched = {}, {}

    def place(self, task: Task) -> tuple[tuple[int, int], Member]:
        before, after = self._registers(task)
        depth, level = 0, 0
        for place in _places(task):
            if place.base.__class__ is Value:
                window, order = self.orders.get(place.base, (-1, (0, 0)))
                if window == self.window and order > (depth, level):
                    depth, level = order
        if before is not None and before.stage == self.window:
            depth, level = max((depth, level), before.order)
        if task.kind == "product":
            order = (depth + 1, 0)
        else:
            order = self._after_memory(task, (depth, level))
            order = (order[0], order[1] + 1)
            self._touch(task, order)
        for _, value, _ in task.outs:
            if value.__class__ is Value:
                self.orders[value] = self.window, order
        if after is not None:
            after.order, after.stage = order, self.window
        return order, Member(task, before, after)

    # ---- registers -------------------------------------------------------------------------------

    def _registers(self, task: Task) -> tuple[Registers | None, Registers | None]:
        if task.instruction is None or task.kind == "product" or not task.instruction.state:
            return None, None
        touched = task.instruction.touches()
        if not touched:
            return None, None
        (state,) = touched
        which = SETS.get(state)
        if which is None:
            raise Refused(f"{task.instruction.public} touches {state.value}")
        instruction = task.instruction
        command = getattr(instruction, "reduce_cmd", None)
        lanes = instruction.operands()[0].shape[0]
        known, name = self.registers.get(which), getattr(command, "name", "")
        defined = 0 if known is None else known.lanes
        user = "" if known is None else known.user
        if name in RESETS:
            after = Registers(lanes, max(defined, lanes), instruction.public)
            self.registers[which] = after
            return None, after
        if name == "idle" and which == "vector":
            after = Registers(lanes, 0, user)
            self.registers[which] = after
            return None, after
        if known is None or known.size < lanes:
            raise Refused(f"{instruction.public} goes on with registers of several instructions")
        after = Registers(known.size, defined, instruction.public if which == "vector" else user)
        self.registers[which] = after
        return known, after

    # ---- HBM that is read and written ------------------------------------------------------------

    def _after_memory(self, task: Task, order: tuple[int, int]) -> tuple[int, int]:
        for view in self._read_views(task):
            self._check_written(view)
            order = max(order, self.writers.get(view.storage, order))
        for view in self._written_views(task):
            order = max(order, self.touched.get(view.storage, order))
        return order

    def _touch(self, task: Task, order: tuple[int, int]) -> None:
        written = self._written_views(task)
        for view in (*self._read_views(task), *written):
            self.touched[view.storage] = max(order, self.touched.get(view.storage, order))
        for view in written:
            self.writers[view.storage] = order
            self._mark(view)

    def _read_views(self, task: Task) -> list[View]:
        found = [source for _, source in task.reads if source.__class__ is not Place]
        if any(view.storage.on_chip for view in found):
            raise Refused("a tile is not followed value by value")
        return found

    def _written_views(self, task: Task) -> list[View]:
        found = [out for _, out, _ in task.outs if out.__class__ is not Value]
        if any(view.storage.on_chip for view in found):
            raise Refused("a tile is not followed value by value")
        return [view for view in found if view.storage not in self.storages.once]

    def _flags(self, view: View) -> np.ndarray:
        storage = view.storage
        if view.dtype is not storage.dtype:
            raise Refused("HBM is seen as another dtype")
        flags = self.written.get(storage)
        if flags is None:
            count = storage.nbytes // storage.dtype.itemsize
            flags = self.written[storage] = np.zeros(count, np.bool_)
        return np.ndarray(tuple(view.shape), np.bool_, flags, view.offset, tuple(view.strides))

    def _mark(self, view: View) -> None:
        self._flags(view)[...] = True

    def _check_written(self, view: View) -> None:
        if not view.storage.parameter and not self._flags(view).all():
            raise Refused("HBM is read before it was written")

    def is_complete(self, storage: Storage) -> bool:
        """Everything of it was written."""
        if storage in self.storages.once:
            return storage in self.storages.complete
        flags = self.written.get(storage)
        return flags is not None and bool(flags.all())


# ---- what may be done together -------------------------------------------------------------------


def signature(member: Member) -> tuple:
    """What the members of a step share."""
    task = member.task
    registers = member.before and (member.before.lanes, member.before.user)
    parts = tuple([_seen(part) for _, part in task.parts])
    reads = tuple([(i, _seen(source)) for i, source in task.reads])
    outs = tuple([(i, _made(out), before and _seen(before)) for i, out, before in task.outs])
    if task.instruction is None:
        frames = tuple(
            [(v.offset - task.outs[0][1].view.offset, tuple(v.shape), v.strides) for v, _ in task.parts]
        )
        return task.kind, frames, parts, outs
    options = instruction_options(task.instruction) if task.kind == "compute" else ()
    return task.kind, task.order, task.written, options, reads, outs, registers


def instruction_options(instruction: Any) -> tuple:
    """All but the tensors."""
    found: list[Any] = [instruction.__class__, instruction.runs_on]
    for field in instruction.fields:
        value = getattr(instruction, field)
        if isinstance(value, View):
            found.append((tuple(value.shape), value.dtype))
        else:
            found.append((value.__class__, value, str(value) if isinstance(value, float) else None))
    return tuple(found)


def _seen(source: Any) -> tuple:
    place = source if source.__class__ is Place else of_storage(source)
    base: Any = "arena"
    strides = place.strides
    if place.base.__class__ is not Value:
        base = id(place.base)
    elif place.base.placed is not None:
        base = ("arena", place.base.placed[2], place.base.size // place.base.view.shape[0])
    return base, place.shape, strides, place.dtype


def _made(out: Any) -> tuple:
    if out.__class__ is not Value:
        return (id(out.storage), tuple(out.shape), out.strides, out.dtype)
    if out.sunk is not None:
        return ("sunk", id(out.sunk.base), out.sunk.shape, out.sunk.strides, out.dtype)
    return ("value", tuple(out.view.shape), out.dtype)


def gemm_signature(gemm: Gemm) -> tuple:
    target = None if gemm.target is None else _seen(gemm.target)
    copies = tuple([(row, column, _made(value)) for value, row, column in gemm.copies])
    return _factor_signature(gemm.left), _factor_signature(gemm.right), target, copies


def _factor_signature(factor: Factor) -> tuple:
    if factor.there is not None:
        return factor.rows, factor.columns, _seen(factor.there)
    tiles = tuple([(t.row, t.rows, t.column, t.columns, t.strides, _seen(t.place)) for t in factor.tiles])
    return factor.rows, factor.columns, factor.terms, tiles


def products_of(tasks: Sequence[Task]) -> list[Gemm]:
    """The products of a stage: large ones where that saves reading, else tile by tile, to be batched."""
    found: list[Gemm] = []
    for gemm in merged(tasks):
        if len(gemm.tasks) > 1 and _saved(gemm) < MERGED:
            found += [single(task) for task in gemm.tasks]
        else:
            found.append(gemm)
    return found


def _saved(gemm: Gemm) -> float:
    tiles = 0
    for task in gemm.tasks:
        for left, right in task.outs[0][1].terms:
            tiles += _elements(left) + _elements(right)
    return tiles / (gemm.left.rows * (gemm.left.columns + gemm.right.columns))


def _elements(place: Place) -> int:
    found = 1
    for n in place.shape:
        found *= n
    return found


def groups(ordered: Sequence[tuple[tuple[int, int], Member]]) -> Iterator[list[Any]]:
    """Gemms, or members, that are one step."""
    stages: dict[tuple[int, int], list[Member]] = {}
    for order, member in ordered:
        stages.setdefault(order, []).append(member)
    for order in sorted(stages):
        members = stages[order]
        if order[1] == 0:
            yield from _alike(products_of([m.task for m in members]), gemm_signature)
        else:
            yield from _alike(members, signature)


def _alike(items: Sequence[Any], key: Any) -> Iterator[list[Any]]:
    found: dict[tuple, list[Any]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    yield from found.values()


__all__ = ["Member", "Ordered", "Refused", "Registers", "groups"]
