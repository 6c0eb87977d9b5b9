"""Tracking: goes through the instructions of a core and finds the values each of them reads and makes.

What cannot be followed so (`InPlace`) stays memory that is written in place, and the tracking starts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.instruction import Instruction
from ...ir.program import Item, Loop
from ...ir.semantics import Fill, MatrixProduct, Move, Sum
from ...ir.view import View
from ...machine.dtypes import float32
from ..lowered import Lowered, Signature
from .storages import Storages
from .tiles import InPlace, Tiles, rectangle
from .values import Place, Value, moved, of_storage

WIDENED = ("bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")  # exact in float32


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

    def forget(self) -> None:
        """Let go of what refers back: then no collector is needed to free a task."""
        for _, value, _ in self.outs:
            if value.__class__ is Value:
                value.forget()


class Tracker:
    """Makes the tasks of one core."""

    def __init__(self, storages: Storages, lowered: Lowered):
        self.storages = storages
        self.lowered = lowered
        self.tasks: list[Task] = []
        self.tiles = Tiles()
        self.folded: dict[str, int] = {"copies": 0, "matmuls": 0}

    def follow(self, items: Sequence[Item]) -> None:
        position, signature = 0, self.lowered.signature
        for item in items:
            kind = None if item.__class__ is Loop else signature(item)  # type: ignore[arg-type]
            if kind is None or kind.fence:
                self.tasks.append(Task("fence", item, position))
                position += _length(item)
                continue
            meaning = kind.meaning
            if not (
                (meaning.__class__ is MatrixProduct and self._product(item, meaning, position))  # type: ignore[arg-type]
                or (meaning.__class__ is Move and self._move(item, meaning, position))  # type: ignore[arg-type]
            ):
                self._instruction(item, kind, position)  # type: ignore[arg-type]
            position += 1
        # a sum of products stands where its last term does, after what was gathered for it
        self.tasks.sort(key=lambda task: (task.position, task.kind != "gather"))

    # ---- one instruction -------------------------------------------------------------------------

    def _instruction(self, instruction: Instruction, kind: Signature, position: int) -> None:
        task = Task("compute", instruction, position)
        meaning, access, operands = kind.meaning, kind.access, instruction.operands()
        if kind.lazy:
            task.kind = "memory"  # its compute looks for the memory by itself
            task.reads = [(i, operands[i]) for i in instruction.read_at if isinstance(operands[i], View)]
            task.outs = [
                (i, operands[i], None) for i in instruction.write_at if isinstance(operands[i], View)
            ]
            self.tasks.append(task)
            return
        if meaning.__class__ is Move and instruction.lazy_output:
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
        self.tiles.define(view, value)

    def _move(self, instruction: Instruction, meaning: Move, position: int) -> bool:
        """A copy of what never changes is another name for it. False: somebody must move the elements."""
        dst, src, *_ = instruction.operands()
        storages, source = self.storages, src.storage
        if not dst.storage.on_chip or dst.storage in storages.in_place:
            return False
        wide: Place | None = None
        if source.on_chip:
            if source in storages.in_place:
                return False
            place = self._place(src, position)
            wide = self._elsewhere(src)
        elif source not in storages.written:
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
            self.tiles.define(dst, value)
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
        self.tiles.define(dst, value)
        return True

    # ---- matmuls ---------------------------------------------------------------------------------

    def _product(self, instruction: Any, meaning: MatrixProduct, position: int) -> bool:
        dst, stationary, moving = instruction.dst, instruction.stationary, instruction.moving
        in_place = self.storages.in_place  # all three are on chip
        if in_place and (
            dst.storage in in_place or stationary.storage in in_place or moving.storage in in_place
        ):
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
            self.tiles.define(dst, value)
        value.terms.append((left, right))  # type: ignore[union-attr]
        if left.base.__class__ is Value:
            left.base.readers.append(task)
        if right.base.__class__ is Value:
            right.base.readers.append(task)
        return True

    def _factor(self, view: View, position: int) -> Place:
        """An operand of a product: as it stands, or where it was moved from."""
        sig = view._sig or view.sig
        tile = self.tiles[view.storage]
        found = tile.factors.get(sig)
        if found is None:
            found = self._elsewhere(view) or tile.places.get(sig) or self._find(view, sig, position)
            if found.base.__class__ is Value and found.base.gathered is not None:
                found = found.base.ungathered(found) or found
            tile.factors[sig] = found
        return found

    def _elsewhere(self, view: View) -> Place | None:
        """The same numbers where they were before somebody turned or widened them."""
        value = self.tiles[view.storage].exact.get(view.sig) or self.tiles.single(view)
        if value is None or value.wide is None or value.dtype is not view.dtype:
            return None
        place = value.wide.part(view)
        return None if place is None else place._replace(dtype=value.wide.dtype)

    def _adds(self, dst: View, accumulate: bool | None) -> tuple[bool, Value | None]:
        """Whether a matmul adds to dst, and to which value; None: to parts of several."""
        value = self.tiles[dst.storage].exact.get(dst._sig or dst.sig)
        if value is not None:
            if accumulate is None:
                return value.by_matmul, value
            if accumulate and not value.by_matmul:
                raise InPlace(dst.storage, "a matmul adds to what no matmul wrote")
            return accumulate, value
        flags = self.tiles.written_by_matmul(dst)
        if accumulate is None:
            if len(flags) > 1:
                raise InPlace(dst.storage, "a matmul into parts of other sums")
            return flags == {True}, value
        if accumulate and flags != {True}:
            raise InPlace(dst.storage, "a matmul adds to what no matmul wrote")
        if accumulate:
            raise InPlace(dst.storage, "a matmul adds to a part of a tile")
        return False, value

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

    # ---- what tiles hold -------------------------------------------------------------------------

    def _place(self, view: View, position: int) -> Place:
        """Where the elements of a view of a tile are."""
        tile, sig = self.tiles[view.storage], view._sig or view.sig
        place = tile.places.get(sig)
        if place is None:
            place = self._find(view, sig, position)
            tile.places[sig] = place
        elif place.base.__class__ is Value:
            place.base.closed = True
        return place

    def _find(self, view: View, sig: int, position: int) -> Place:
        tile = self.tiles[view.storage]
        value = tile.exact.get(sig) or self.tiles.single(view) or self._gathered(view, position)
        place = value.part(view)
        if place is None:
            raise InPlace(view.storage, "a view that is none of what was written")
        if place.base.__class__ is Value:
            place.base.closed = True  # somebody sees it as it is now: nothing is added to it any more
        return place

    def _gathered(self, view: View, position: int) -> Value:
        """A new value made of all pieces of a tile, or of those that a view spans."""
        storage = view.storage
        if view.dtype is not storage.dtype:
            raise InPlace(storage, "parts are read as another dtype")
        frame, wanted = self.tiles.frame(view)
        task, value = Task("gather", None, position), Value(frame)
        value.makers.append(task)
        flags = set()
        value.gathered = []
        for part, place, whole in self.tiles.parts(view, wanted):
            task.parts.append((part, place))
            value.gathered.append((rectangle(part), whole))
            flags.add(whole.by_matmul)
            if place.base.__class__ is Value:
                place.base.closed = True
                place.base.readers.append(task)
        task.outs.append((0, value, None))
        value.by_matmul = flags == {True}
        if len(flags) == 1:
            self.tiles.define(frame, value)
        self.tasks.append(task)
        return value


def _length(item: Item) -> int:
    return sum(_length(i) for i in item.body) if isinstance(item, Loop) else 1


def _beside(view: View, place: Place, order: object) -> Value | None:
    """The numbers of a view where they were before they were moved there."""
    found = moved(place, order, view.shape)
    if found is None:
        return None
    value = Value(view, found)
    value.dtype = place.dtype
    return value


__all__ = ["InPlace", "Task", "Tracker"]
