"""Tracking: walks the instructions of a core and makes a dataflow node for what each of them does.

A node reads and writes SSA values. A storage that is not a sequence of values (`Untrackable`) stays memory
that is written in place, and the tracking starts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.instruction import Instruction
from ...ir.program import Item, Loop
from ...ir.semantics import Fill, MatrixProduct, Move, Sum
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.dtypes import float32
from ..lowered import Signature
from .storages import Storages
from .tiles import CoreTiles, Untrackable, box_of
from .values import (
    Elements,
    LoadedValue,
    SSAValue,
    as_dtype,
    joined,
    permuted,
    split_view,
    storage_elements,
)

WIDENED = ("bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")  # exact in float32


class Node:
    """An instruction, a sum of products of many of them, a gather of parts, or a fence."""

    __slots__ = (
        "kind",
        "instruction",
        "position",
        "reads",
        "outputs",
        "parts",
        "written",
        "store",
        "order",
        "depth",
        "unit",
    )

    def __init__(self, kind: str, instruction: Any, position: int):
        self.kind = kind  # "compute", "memory", "move", "product", "gather" or "fence"
        self.instruction = instruction
        self.position = position
        self.reads: list[tuple[int, Any]] = []  # operand, and its Elements or a View of memory in place
        self.outputs: list[tuple[int, Any, Any]] = []  # operand, SSAValue or View, what it held before
        self.parts: list[tuple[View, Elements]] = []  # gather: each part in order
        self.written: Any = False  # a matmul: dst holds a sum
        self.store: Elements | None = None  # move: into HBM that is written once
        self.order: Any = None  # move: how the dimensions of src are permuted
        self.depth = 0
        self.unit = 0  # of which it is a part; 0: of none

    def unlink(self) -> None:
        """Drop the references that form cycles, so that nodes are freed without the garbage collector."""
        for _, value, _ in self.outputs:
            if value.__class__ is SSAValue:
                value.unlink()


def node_inputs(node: Node) -> list[Elements]:
    """Return everything that a node reads, except memory in place."""
    if node.kind == "product":
        return [elements for term in node.outputs[0][1].terms for elements in term]
    found = [elements for _, elements in node.reads if elements.__class__ is Elements]
    found += [before for _, _, before in node.outputs if before is not None]
    if node.parts:
        found += [elements for _, elements in node.parts]
    return found


class Tracker:
    """Makes the nodes of one core."""

    def __init__(self, storages: Storages):
        self.storages = storages
        self.nodes: list[Node] = []
        self.tiles = CoreTiles()
        self.sources: dict[tuple[Storage, int, int], Elements] = {}  # by storage, offset and signature
        self.loads: dict[tuple[Signature, Storage, int], LoadedValue] = {}  # by what is copied
        self.fused: dict[str, int] = {"copies": 0, "matmuls": 0}

    def track(self, items: Sequence[Item], kinds: Sequence[Signature | None]) -> None:
        """Make the nodes of items, whose signatures are `kinds`."""
        position = 0
        for item, kind in zip(items, kinds, strict=True):
            if kind is None or kind.fence:
                self.nodes.append(Node("fence", item, position))
                position += _length(item)
                continue
            meaning = kind.meaning.__class__
            if not (
                (meaning is MatrixProduct and self._product(item, kind.meaning, position))  # type: ignore[arg-type]
                or (meaning is Move and self._move(item, kind, position))  # type: ignore[arg-type]
            ):
                self._instruction(item, kind, position)  # type: ignore[arg-type]
            position += 1
        # a sum of products comes where its last term does, after what was gathered for it
        self.nodes.sort(key=lambda node: (node.position, node.kind != "gather"))

    # ---- one instruction -------------------------------------------------------------------------

    def _instruction(self, instruction: Instruction, kind: Signature, position: int) -> Node:
        node = Node("compute", instruction, position)
        meaning, access, operands = kind.meaning, kind.access, instruction.operands()
        if kind.lazy:
            node.kind = "memory"  # its compute accesses memory by itself
            node.reads = [(i, operands[i]) for i in instruction.read_at if isinstance(operands[i], View)]
            node.outputs = [
                (i, operands[i], None) for i in instruction.write_at if isinstance(operands[i], View)
            ]
            self.nodes.append(node)
            return node
        if meaning.__class__ is Move and instruction.lazy_output:
            node.kind, node.order = "move", meaning.order  # type: ignore[union-attr]
        for i, _ in access.reads:
            node.reads.append((i, self._read(operands[i], node)))
        if access.accumulates:
            self._accumulates(instruction, node, operands[0])
        else:
            for i in (0,) if node.kind == "move" else access.writes:
                self._write(node, i, operands[i], i in instruction.read_at)
        if meaning.__class__ is Fill and meaning.value == 0 and node.outputs[0][1].__class__ is SSAValue:  # type: ignore[union-attr]
            node.outputs[0][1].is_zero = True
        if meaning.__class__ is Sum:
            node.written = "sum"
        self.nodes.append(node)
        return node

    def _read(self, view: View, node: Node) -> Any:
        storage = view.storage
        if self.storages.is_tracked(storage):
            elements = self._locate(view, node.position)
            if elements.base.__class__ is SSAValue:
                elements.base.readers.append(node)
            return elements
        return self._source(view) if self.storages.is_constant(storage) else view

    def _source(self, view: View) -> Elements:
        """Return the elements of a view of HBM that is never written. Equal views share them."""
        key = (view.storage, view.offset, view._sig or view.sig)
        return self.sources.get(key) or self.sources.setdefault(key, storage_elements(view))

    def _write(self, node: Node, index: int, view: View, keeps_old: bool) -> None:
        storage = view.storage
        if not self.storages.is_tracked(storage):
            node.outputs.append((index, view, None))
            if storage in self.storages.write_once:
                node.store = storage_elements(view)
            return
        before = None
        if keeps_old:
            before = self._locate(view, node.position)
            if before.base.__class__ is SSAValue:
                before.base.readers.append(node)
        value = SSAValue(view)
        value.producers.append(node)
        node.outputs.append((index, value, before))
        self.tiles.define(storage, view, value)

    def _move(self, instruction: Instruction, kind: Signature, position: int) -> bool:
        """Make a copy of a value an alias of it. False: the elements have to be moved."""
        meaning: Move = kind.meaning  # type: ignore[assignment]
        operands = instruction.operands()
        dst, src = operands[0], operands[1]
        storages, storage, source = self.storages, dst.storage, src.storage
        if not storage.on_chip or storage in storages.in_place:
            return False
        loaded = self.loads.get((kind, source, src.offset))
        if loaded is not None:
            self.tiles.load(storage, loaded)
            self.fused["copies"] += 1
            return True
        same = dst.dtype is src.dtype
        if not same and not (dst.dtype is float32 and src.dtype in WIDENED):
            return False
        wide: Elements | None = None
        if source.on_chip:
            if source in storages.in_place:
                return False
            wide = self._origin_of(src)  # before what it spans is gathered
            elements = self._locate(src, position)
        elif source not in storages.written:
            elements = self._source(src)
        else:
            return False
        if meaning.through_float32:
            value = self._instruction(instruction, kind, position).outputs[0][1]
            value.origin = _origin_value(dst, wide or elements, None)
            return True
        alias = permuted(elements, None, dst.shape) if same and meaning.order is None else None
        if same and meaning.order is None and alias is None:
            return False
        if alias is not None and (alias.strides[-1] <= 1 or dst.shape[-1] == 1):
            self.fused["copies"] += 1
            if not source.on_chip and storage.address is None:
                loaded = self.loads[kind, source, src.offset] = LoadedValue(dst, alias)
                self.tiles.load(storage, loaded)
                return True
            value = SSAValue(dst, alias)
            value.origin = None if wide is None else _origin_value(dst, wide, None)
            self.tiles.define(storage, dst, value)
            return True
        # products read the origin; other readers, if there are any, read what is moved
        node = Node("move", instruction, position)
        node.order = meaning.order
        value = SSAValue(dst)
        value.producers.append(node)
        value.origin = _origin_value(dst, wide or elements, meaning.order)
        node.reads.append((1, elements))
        if elements.base.__class__ is SSAValue:
            elements.base.readers.append(node)
        node.outputs.append((0, value, None))
        self.nodes.append(node)
        self.tiles.define(storage, dst, value)
        return True

    # ---- matmuls ---------------------------------------------------------------------------------

    def _product(self, instruction: Any, meaning: MatrixProduct, position: int) -> bool:
        dst, stationary, moving = instruction.dst, instruction.stationary, instruction.moving
        in_place = self.storages.in_place  # all three are on chip
        if in_place and (
            dst.storage in in_place or stationary.storage in in_place or moving.storage in in_place
        ):
            return False
        old = self.tiles[dst.storage].exact.get(dst._sig or dst.sig)
        if old is not None and meaning.accumulate is None:
            adds = old.by_matmul
        else:
            adds, old = self._adds(dst, meaning.accumulate)
        if adds and (old is None or old.terms is None or old.sealed):
            return False
        left, right = self._factor(stationary, position), self._factor(moving, position)
        if adds:
            assert old is not None
            node, value = old.producers[0], old
            node.position = position
            self.fused["matmuls"] += 1
        else:
            node, value = Node("product", instruction, position), SSAValue(dst)
            value.terms, value.by_matmul = [], True
            value.producers.append(node)
            node.outputs.append((0, value, None))
            self.nodes.append(node)
            self.tiles.define(dst.storage, dst, value)
        value.terms.append((left, right))  # type: ignore[union-attr]
        for base in (left.base, right.base):
            if base.__class__ is SSAValue:
                base.readers.append(node)
                value.from_values = True
        return True

    def _factor(self, view: View, position: int) -> Elements:
        """Locate an operand of a product: the origin that it was moved from, or the operand itself."""
        storage, sig, tiles = view.storage, view._sig or view.sig, self.tiles
        loaded = tiles.loaded.get(storage)
        if loaded is not None:
            found = loaded.parts.get(sig) or loaded.locate_part(view)
            if found is not None:
                return found
        tile = tiles[storage]
        found = tile.factors.get(sig)
        if found is None:
            value = tile.exact.get(sig) or tiles.holder(view)
            found = self._origin(view, value) or tile.places.get(sig) or self._find(view, value, position)
            if found.base.__class__ is SSAValue and found.base.pieces is not None:
                found = found.base.in_single_piece(found) or found
            tile.factors[sig] = found
        return found

    def _origin_of(self, view: View) -> Elements | None:
        """Locate the same numbers before they were transposed or widened."""
        return self._origin(view, self._value(view))

    def _value(self, view: View) -> SSAValue | None:
        """Return the value that holds all of a view, or None."""
        return self.tiles[view.storage].exact.get(view._sig or view.sig) or self.tiles.holder(view)

    def _origin(self, view: View, value: SSAValue | None) -> Elements | None:
        """Locate a view in the origin of the value that holds it; None: several do."""
        return self._joined_origin(view) if value is None else _origin_in(value, view)

    def _joined_origin(self, view: View) -> Elements | None:
        """Locate the same for a view of several values, whose origins may be adjacent, too."""
        values = self.tiles.values_in(view)
        if any(value.origin is None for value in values):
            return None
        for dim in range(1, len(view.shape)):
            parts = split_view(view, dim, len(values))
            owners = [self.tiles.holder(part) for part in parts]
            if parts and all(owners):
                found = [_origin_in(owner, part) for owner, part in zip(owners, parts, strict=True)]  # type: ignore[arg-type]
                return joined(found, dim)
        return None

    def _adds(self, dst: View, accumulate: bool | None) -> tuple[bool, SSAValue | None]:
        """Return whether a matmul adds to dst, and to which value; None: to parts of several."""
        value = self.tiles[dst.storage].exact.get(dst._sig or dst.sig)
        if value is not None:
            if accumulate is None:
                return value.by_matmul, value
            if accumulate and not value.by_matmul:
                raise Untrackable(dst.storage, "a matmul adds to what no matmul wrote")
            return accumulate, value
        flags = self.tiles.written_by_matmul(dst)
        if accumulate is None:
            if len(flags) > 1:
                raise Untrackable(dst.storage, "a matmul into parts of other sums")
            return flags == {True}, value
        if accumulate and flags != {True}:
            raise Untrackable(dst.storage, "a matmul adds to what no matmul wrote")
        if accumulate:
            raise Untrackable(dst.storage, "a matmul adds to a part of a tile")
        return False, value

    def _accumulates(self, instruction: Any, node: Node, dst: View) -> None:
        """Record the output of a matmul that is not a plain product."""
        if not self.storages.is_tracked(dst.storage):
            node.outputs.append((0, dst, None))
            node.written = None
            return
        adds, old = self._adds(dst, instruction.accumulate)
        if adds and old is None:
            raise Untrackable(dst.storage, "a matmul adds to a part of a tile")
        self._write(node, 0, dst, adds)
        node.written = adds
        node.outputs[-1][1].by_matmul = not instruction.is_transpose

    # ---- what tiles hold -------------------------------------------------------------------------

    def _locate(self, view: View, position: int) -> Elements:
        """Locate the elements of a view of a tile."""
        tile, sig = self.tiles[view.storage], view._sig or view.sig
        elements = tile.places.get(sig)
        if elements is None:
            elements = self._find(view, self._value(view), position)
            tile.places[sig] = elements
        elif elements.base.__class__ is SSAValue:
            elements.base.sealed = True
        return elements

    def _find(self, view: View, value: SSAValue | None, position: int) -> Elements:
        """Locate a view in the value that holds it, or in a new one if several do."""
        elements = (value or self._gather(view, position)).locate(view)
        if elements is None:
            raise Untrackable(view.storage, "a view that is none of what was written")
        if elements.base.__class__ is SSAValue:
            elements.base.sealed = True  # it is read as it is now: nothing may be added to it any more
        return elements

    def _gather(self, view: View, position: int) -> SSAValue:
        """Make a value from all segments of a tile, or from those that a view spans."""
        storage = view.storage
        if view.dtype is not storage.dtype:
            raise Untrackable(storage, "parts are read as another dtype")
        frame, wanted = self.tiles.frame(view)
        node, value = Node("gather", None, position), SSAValue(frame)
        value.producers.append(node)
        flags = set()
        value.pieces = []
        for part, elements, whole in self.tiles.parts(view, wanted):
            node.parts.append((part, elements))
            value.pieces.append((box_of(part), whole))
            flags.add(whole.by_matmul)
            if elements.base.__class__ is SSAValue:
                elements.base.sealed = True
                elements.base.readers.append(node)
        node.outputs.append((0, value, None))
        value.by_matmul = flags == {True}
        if len(flags) == 1:
            self.tiles.define(storage, frame, value)
        self.nodes.append(node)
        return value


def _length(item: Item) -> int:
    return sum(_length(i) for i in item.body) if isinstance(item, Loop) else 1


def _origin_in(value: SSAValue, view: View) -> Elements | None:
    """Locate a view of a value in its origin."""
    if value.origin is None or value.dtype is not view.dtype:
        return None
    elements = value.origin.locate(view)
    return None if elements is None else as_dtype(elements, value.origin.dtype)


def _origin_value(view: View, elements: Elements, order: object) -> SSAValue | None:
    """Return the value of a view before it was moved there."""
    found = permuted(elements, order, view.shape)
    if found is None:
        return None
    value = SSAValue(view, found)
    value.dtype = elements.dtype
    return value
