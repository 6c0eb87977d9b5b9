"""Tracking: goes through the instructions of a core and finds the values each of them reads and makes.

A tile's memory is a table of pieces, the newest last: a write adds one and hides what it covers. A read that
lies in one piece is a strided view of its value; one that spans several gathers them into a new value. What
cannot be followed so (`InPlace`) stays memory that is written in place, and the tracking starts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..hardware.dtypes import float32
from ..hardware.machine import Machine
from ..program.instruction import Instruction
from ..program.meanings import Fill, Move, Product, Sum
from ..program.program import Item, Loop
from ..tensors import Shape, View
from ..tensors.storage import Storage
from .storages import Storages, is_fence
from .values import Place, Region, Value, moved, of_storage, region, runs

WIDENED = ("bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")  # exact in float32


class InPlace(Exception):
    """A storage whose values cannot be followed."""

    def __init__(self, storage: Storage, why: str):
        super().__init__(why)
        self.storage, self.why = storage, why


class Task:
    """Something to do: an instruction, a product of many of them, a gathering of pieces, or a fence."""

    __slots__ = (
        "kind",
        "instruction",
        "position",
        "reads",
        "outs",
        "parts",
        "written",
        "store",
        "order",
        "depth",
    )

    def __init__(self, kind: str, instruction: Any, position: int):
        self.kind = kind  # "compute", "move", "product", "gather" or "fence"
        self.instruction = instruction
        self.position = position
        self.reads: list[tuple[int, Any]] = []  # operand, and its Place; or a View of memory in place
        self.outs: list[tuple[int, Any, Any]] = []  # operand, Value or View, Place of what it held before
        self.parts: list[tuple[View, Place]] = []  # gather: each piece in order
        self.written: Any = False  # a matmul: dst holds a sum
        self.store: Place | None = None  # move: into HBM that is written once
        self.order: Any = None  # move: how the dimensions of src are permuted
        self.depth = 0


class Piece(NamedTuple):
    value: Value
    where: Region
    storage: Storage


class Tracker:
    """Makes the tasks of one core."""

    def __init__(self, storages: Storages, machine: Machine):
        self.storages = storages
        self.machine = machine
        self.tasks: list[Task] = []
        self.tables: dict[Any, list[Piece]] = {}
        self.exact: dict[tuple[Storage, int], Value] = {}
        self.folded: dict[str, int] = {"copies": 0, "matmuls": 0}

    def follow(self, items: Sequence[Item]) -> None:
        position = 0
        for item in items:
            if is_fence(item):
                self.tasks.append(Task("fence", item, position))
                position += _length(item)
            else:
                self._instruction(item, position)  # type: ignore[arg-type]
                position += 1
        # a sum of products stands where its last term does, after what was gathered for it
        self.tasks.sort(key=lambda task: (task.position, task.kind != "gather"))

    # ---- one instruction -------------------------------------------------------------------------

    def _instruction(self, instruction: Instruction, position: int) -> None:
        meaning = instruction.meaning(self.machine)
        if meaning.__class__ is Move and self._move(instruction, meaning, position):  # type: ignore[arg-type]
            return
        if meaning.__class__ is Product and self._product(instruction, meaning, position):  # type: ignore[arg-type]
            return
        task = Task("compute", instruction, position)
        operands = instruction.operands()
        access = instruction.access
        if instruction.opens and meaning is None:
            task.kind = "memory"  # its compute looks for the memory by itself
            task.reads = [(i, operands[i]) for i in instruction.read_at if isinstance(operands[i], View)]
            task.outs = [
                (i, operands[i], None) for i in instruction.write_at if isinstance(operands[i], View)
            ]
            self.tasks.append(task)
            return
        if meaning.__class__ is Move and instruction.opens:
            task.kind, task.order = "move", meaning.order  # type: ignore[union-attr]
        for i, _ in access.reads:
            task.reads.append((i, self._read(operands[i], task)))
        if access.accumulates:
            self._accumulates(instruction, task, operands[0])
        else:
            for i in (0,) if task.kind == "move" else access.writes:
                self._write(task, i, operands[i], i in instruction.read_at)
        if meaning.__class__ is Fill and meaning.value == 0 and task.outs[0][1].__class__ is Value:  # type: ignore[union-attr]
            task.outs[0][1].zero = True
        if meaning.__class__ is Sum:
            task.written = "sum"
        self.tasks.append(task)

    def _read(self, view: View, task: Task) -> Any:
        storage = view.storage
        if self.storages.is_followed(storage):
            place = self._place(view, task.position)
            if place.base.__class__ is Value:
                place.base.readers.append(task)
            return place
        return of_storage(view) if self.storages.is_constant(storage) else view

    def _write(self, task: Task, index: int, view: View, keeps: bool) -> None:
        storage = view.storage
        if not self.storages.is_followed(storage):
            task.outs.append((index, view, None))
            if storage in self.storages.once:
                task.store = of_storage(view)
            return
        before = None
        if keeps:
            before = self._place(view, task.position)
            if before.base.__class__ is Value:
                before.base.readers.append(task)
        value = Value(view)
        value.makers.append(task)
        task.outs.append((index, value, before))
        self._define(view, value)

    def _move(self, instruction: Instruction, meaning: Move, position: int) -> bool:
        """A copy of what never changes is another name for it. False: somebody must move the elements."""
        dst, src = instruction.operands()[:2]
        if not self.storages.is_followed(dst.storage):
            return False
        wide: Place | None = None
        if self.storages.is_followed(src.storage):
            place = self._place(src, position)
            wide = self._elsewhere(src)
        elif self.storages.is_constant(src.storage):
            place = of_storage(src)
        else:
            return False
        same = dst.dtype is src.dtype
        if not same and not (dst.dtype is float32 and src.dtype in WIDENED):
            return False
        alias = moved(place, None, dst.shape) if same and meaning.order is None else None
        if same and meaning.order is None and alias is None:
            return False
        if alias is not None and (alias.strides[-1] <= 1 or dst.shape[-1] == 1):
            value = Value(dst, alias)
            value.wide = None if wide is None else _beside(dst, wide, None)
            self._define(dst, value)
            self.folded["copies"] += 1
            return True
        # products take it where it is; for everybody else it is moved, if there is anybody
        task = Task("move", instruction, position)
        task.order = meaning.order
        value = Value(dst)
        value.makers.append(task)
        value.wide = _beside(dst, wide or place, meaning.order)
        task.reads.append((1, place))
        if place.base.__class__ is Value:
            place.base.readers.append(task)
        task.outs.append((0, value, None))
        self.tasks.append(task)
        self._define(dst, value)
        return True

    # ---- matmuls ---------------------------------------------------------------------------------

    def _product(self, instruction: Instruction, meaning: Product, position: int) -> bool:
        dst, stationary, moving = instruction.operands()
        followed = self.storages.is_followed
        if not followed(dst.storage):
            return False
        for view in (stationary, moving):
            if not (followed(view.storage) or self.storages.is_constant(view.storage)):
                return False
        adds, old = self._adds(dst, meaning.accumulate)
        if adds and (old is None or old.terms is None or old.closed):
            return False
        left, right = self._factor(stationary, position), self._factor(moving, position)
        if adds:
            assert old is not None and old.terms is not None
            task, value = old.makers[0], old
            task.position = position
            self.folded["matmuls"] += 1
        else:
            task, value = Task("product", instruction, position), Value(dst)
            value.terms, value.by_matmul = [], True
            value.makers.append(task)
            task.outs.append((0, value, None))
            self.tasks.append(task)
            self._define(dst, value)
        value.terms.append((left, right))  # type: ignore[union-attr]
        for place in (left, right):
            if place.base.__class__ is Value:
                place.base.readers.append(task)
        return True

    def _factor(self, view: View, position: int) -> Place:
        """An operand of a product: as it stands, or where it was moved from."""
        if not view.storage.on_chip:
            return of_storage(view)
        return self._elsewhere(view) or self._place(view, position)

    def _elsewhere(self, view: View) -> Place | None:
        """The same numbers where they were before somebody turned or widened them."""
        value = self.exact.get((view.storage, view.sig)) or self._single(view)
        if value is None or value.wide is None or value.dtype is not view.dtype:
            return None
        place = value.wide.part(view)
        return None if place is None else place._replace(dtype=value.wide.dtype)

    def _adds(self, dst: View, accumulate: bool | None) -> tuple[bool, Value | None]:
        """Whether a matmul adds to dst, and to which value; None: to parts of several."""
        value = self.exact.get((dst.storage, dst.sig))
        if value is not None:
            flags = {value.by_matmul}
        else:
            where = self._region(dst)
            flags = {p.value.by_matmul for p in self._table(dst.storage) if p.where.overlaps(where)} or {
                False
            }
        if accumulate is None:
            if len(flags) > 1:
                raise InPlace(dst.storage, "a matmul into parts of other sums")
            return flags == {True}, value
        if accumulate and flags != {True}:
            raise InPlace(dst.storage, "a matmul adds to what no matmul wrote")
        if accumulate and value is None:
            raise InPlace(dst.storage, "a matmul adds to a part of a tile")
        return bool(accumulate), value

    def _accumulates(self, instruction: Any, task: Task, dst: View) -> None:
        """A matmul that is no plain product."""
        if not self.storages.is_followed(dst.storage):
            task.outs.append((0, dst, None))
            task.written = None
            return
        adds, old = self._adds(dst, instruction.accumulate)
        if adds and old is None:
            raise InPlace(dst.storage, "a matmul adds to a part of a tile")
        self._write(task, 0, dst, adds)
        task.written = adds
        task.outs[-1][1].by_matmul = not instruction.is_transpose

    # ---- pieces ----------------------------------------------------------------------------------

    def _table(self, storage: Storage) -> list[Piece]:
        space: Any = storage if storage.address is None else storage.buffer
        found = self.tables.get(space)
        if found is None:
            found = self.tables[space] = []
        return found

    def _region(self, view: View) -> Region:
        found = region(view)
        if found is None:
            raise InPlace(view.storage, "partitions in another order")
        return found

    def _define(self, view: View, value: Value) -> None:
        """From now on a view of a tile holds a value."""
        storage = view.storage
        where = self._region(view)
        pieces = runs(view, where)
        if pieces is None:
            raise InPlace(storage, "a write of very many pieces")
        table = self._table(storage)
        if table:
            kept = []
            for piece in table:
                if piece.where.overlaps(where):
                    hits = [new for new in pieces if piece.where.overlaps(new)]
                    if hits:
                        self.exact.pop((piece.storage, piece.value.view.sig), None)
                        if any(new.covers(piece.where) for new in hits):
                            continue
                kept.append(piece)
            table[:] = kept
        table += [Piece(value, piece, storage) for piece in pieces]
        self.exact[storage, view.sig] = value

    def _single(self, view: View) -> Value | None:
        """The value that holds all of a view."""
        where = self._region(view)
        found: Value | None = None
        for piece in reversed(self._table(view.storage)):
            if piece.where.overlaps(where):
                if piece.storage is not view.storage:
                    raise InPlace(view.storage, "read through another tile's memory")
                if found is None and piece.where.covers(where):
                    return piece.value
                if found is not None and found is not piece.value:
                    return None
                found = piece.value
        return None if found is None or found.part(view) is None else found

    def _place(self, view: View, position: int) -> Place:
        """Where the elements of a view of a tile are."""
        value = self.exact.get((view.storage, view.sig))
        if value is None:
            value = self._single(view)
        if value is None:
            value = self._gathered(view, position)
        place = value.part(view)
        if place is None:
            raise InPlace(view.storage, "a view that is none of what was written")
        if place.base.__class__ is Value:
            place.base.closed = True  # somebody sees it as it is now: nothing is added to it any more
        return place

    def _gathered(self, view: View, position: int) -> Value:
        """A new value made of all pieces of a tile, or of those that a view spans."""
        storage, where = view.storage, self._region(view)
        if view.dtype is not storage.dtype:
            raise InPlace(storage, "parts are read as another dtype")
        frame, wanted = self._frame(view, where)
        task, value = Task("gather", None, position), Value(frame)
        value.makers.append(task)
        flags = set()
        for inside in wanted:
            for piece in self._table(storage):
                if not piece.where.overlaps(inside):
                    continue
                if piece.storage is not storage or piece.value.view.dtype is not view.dtype:
                    raise InPlace(storage, "parts that cannot be put together")
                part = _frame(storage, _common(piece.where, inside))
                place = piece.value.part(part)
                if place is None:
                    raise InPlace(storage, "parts that cannot be put together")
                task.parts.append((part, place))
                flags.add(piece.value.by_matmul)
                if place.base.__class__ is Value:
                    place.base.closed = True
                    place.base.readers.append(task)
        task.outs.append((0, value, None))
        value.by_matmul = flags == {True}
        if len(flags) == 1:
            self._define(frame, value)
        self.tasks.append(task)
        return value

    def _frame(self, view: View, where: Region) -> tuple[View, list[Region]]:
        """What to gather for a read: the whole tile, the rectangle around the view, or the view alone."""
        storage = view.storage
        table = [p for p in self._table(storage) if p.where.overlaps(where) or p.storage is storage]
        whole = Region(*_origin(storage), exact=True)
        for inside in (whole, where) if storage.address is None else (where,):
            if _covered(table, inside):
                return _frame(storage, inside), [inside._replace(exact=True)]
        pieces = runs(view, where)
        if where.exact or pieces is None or not all(_covered(table, piece) for piece in pieces):
            raise InPlace(storage, "read before it was written")
        return view, pieces


def _length(item: Item) -> int:
    return sum(_length(i) for i in item.body) if isinstance(item, Loop) else 1


def _beside(view: View, place: Place, order: Any) -> Value | None:
    """The numbers of a view where they were before they were moved there."""
    found = moved(place, order, view.shape)
    if found is None:
        return None
    value = Value(view, found)
    value.dtype = place.dtype
    return value


def _origin(storage: Storage) -> tuple[int, int, int, int]:
    partition, byte = storage.address or (0, 0)
    return partition, partition + storage.partitions, byte, byte + storage.pitch


def _frame(storage: Storage, where: Region) -> View:
    """A rectangle of a tile as a view [partitions, elements]."""
    partition, byte = storage.address or (0, 0)
    width = storage.dtype.itemsize
    pitch = storage.pitch // width
    offset = (where.first - partition) * pitch + (where.start - byte) // width
    shape = Shape((where.last - where.first, (where.stop - where.start) // width))
    return View(storage, offset, shape, (pitch, 1), storage.dtype)


def _common(a: Region, b: Region) -> Region:
    return Region(
        max(a.first, b.first), min(a.last, b.last), max(a.start, b.start), min(a.stop, b.stop), True
    )


def _covered(pieces: list[Piece], where: Region) -> bool:
    """Every byte of a rectangle is in some piece."""
    parts = [_common(piece.where, where) for piece in pieces if piece.where.overlaps(where)]
    if sum(_area(part) for part in parts) < _area(where):
        return False
    rows = sorted({where.first, where.last, *(p.first for p in parts), *(p.last for p in parts)})
    bytes_ = sorted({where.start, where.stop, *(p.start for p in parts), *(p.stop for p in parts)})
    row_of, byte_of = ({edge: i for i, edge in enumerate(edges)} for edges in (rows, bytes_))
    flags = np.zeros((len(rows) - 1, len(bytes_) - 1), np.bool_)  # one for each field between the edges
    for p in parts:
        flags[row_of[p.first] : row_of[p.last], byte_of[p.start] : byte_of[p.stop]] = True
    return bool(flags.all())


def _area(where: Region) -> int:
    return (where.last - where.first) * (where.stop - where.start)
