"""Which values a tile's memory holds, as instructions write and read it.

A tile's memory is a list of segments, the newest last: a write adds some and removes what it covers. A read
that lies in one segment is a strided selection of its value; one that spans several gathers them into a new
value. What a read found is cached until the next write there. Tiles with an `address=` may share their
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...ir.boxes import Box, exact_boxes, rectangle, whole_box
from ...ir.layout import Shape
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.memories import MemoryRegion
from .values import Elements, LoadedValue, SSAValue


class Untrackable(Exception):
    """A storage whose values cannot be tracked: it stays memory that is written in place."""

    def __init__(self, storage: Storage, why: str):
        super().__init__(why)
        self.storage, self.why = storage, why


class Segment(NamedTuple):
    """A box of a tile, and the value that it holds."""

    value: SSAValue
    where: Box
    written: int  # number of the write


class TileContents:
    """What the memory of one storage holds."""

    __slots__ = ("storage", "segments", "exact", "places", "factors")

    def __init__(self, storage: Storage):
        self.storage = storage
        self.segments: list[Segment] = []
        self.exact: dict[int, SSAValue] = {}  # by signature of the view it was written through
        self.places: dict[int, Elements] = {}  # by signature: where a view was located
        self.factors: dict[int, Elements] = {}  # the same for operands of products

    def overwrite(self, boxes: list[Box], where: Box) -> None:
        """Remove what a write to these boxes, which lie in `where`, covers."""
        if len(self.segments) == 1 and boxes == [self.segments[0].where]:  # most write the same again
            self.segments, self.exact, self.places, self.factors = [], {}, {}, {}
            return
        first, last, start, stop, _ = where
        remaining = []
        for segment in self.segments:
            value, box, _ = segment
            if box.first < last and first < box.last and box.start < stop and start < box.stop:
                hits = [new for new in boxes if box.overlaps(new)]
                if hits:
                    self.exact.pop(value.view.sig, None)
                    if self.places:
                        self.places = {}
                    if self.factors:
                        self.factors = {}
                    if any(new.covers(box) for new in hits):
                        continue
            remaining.append(segment)
        self.segments = remaining


class CoreTiles(dict[Storage, TileContents]):
    """The tiles of a core."""

    def __init__(self) -> None:
        super().__init__()
        self.placed: dict[MemoryRegion, dict[Storage, TileContents]] = {}  # those that hold something
        self.loaded: dict[Storage, LoadedValue] = {}  # tiles that were written once and hold nothing else
        self.writes = 0

    def __missing__(self, storage: Storage) -> TileContents:
        found = self[storage] = TileContents(storage)
        value = self.loaded.pop(storage, None)
        if value is not None:
            self.define(storage, value.view, value)
        return found

    def load(self, storage: Storage, value: LoadedValue) -> None:
        """Record that a tile without an address holds a value, in the place of the value's own view."""
        if storage in self or storage in self.loaded:
            self.define(storage, value.view, value)
        else:
            self.loaded[storage] = value  # most are read as they were written, and need no more

    def define(self, storage: Storage, view: View, value: SSAValue) -> None:
        """Record that a tile holds a value from now on, in the place of a view of this or an equal tile."""
        where = box_of(view)
        boxes = [where] if where.exact else exact_boxes(view, where)
        if boxes is None:
            raise Untrackable(storage, "a write of very many pieces")
        tile = self[storage]
        if storage.address is not None:
            self._overwrite_placed(tile, boxes, where)
        elif tile.segments:
            tile.overwrite(boxes, where)
        self.writes = written = self.writes + 1
        for box in boxes:
            tile.segments.append(tuple.__new__(Segment, (value, box, written)))  # there are many
        tile.exact[view._sig or view.sig] = value

    def _overwrite_placed(self, tile: TileContents, boxes: list[Box], where: Box) -> None:
        """Remove what is written now from tiles that share the memory."""
        space = self.placed.setdefault(tile.storage.buffer, {})
        first, last, start, stop, _ = where
        gone = []
        for storage, other in space.items():
            partition, byte = storage.address  # type: ignore[misc]
            if (
                partition < last
                and first < partition + storage.partitions
                and byte < stop
                and start < byte + storage.pitch
            ):
                other.overwrite(boxes, where)
                if not other.segments:
                    gone.append(storage)
        for storage in gone:
            del space[storage]
        space[tile.storage] = tile

    def sharing(self, storage: Storage) -> Iterator[TileContents]:
        """Iterate over the tiles that may share memory with a storage; its own comes last."""
        if storage.address is not None:
            for other in self.placed.get(storage.buffer, {}).values():
                if other.storage is not storage:
                    yield other
        yield self[storage]

    def holder(self, view: View) -> SSAValue | None:
        """Return the value that holds all of a view, or None."""
        storage = view.storage
        where = box_of(view)
        found: SSAValue | None = None
        first, last, start, stop, _ = where
        for value, (top, bottom, left, right, exact), written in reversed(self[storage].segments):
            if top < last and first < bottom and left < stop and start < right:
                around = top <= first and last <= bottom and left <= start and stop <= right
                if found is None and exact and around:
                    if storage.address is not None:
                        self._check_exclusive(storage, where, written)
                    return value
                if found is not None and found is not value:
                    found = None
                    break
                found = value
        if storage.address is not None:
            self._check_exclusive(storage, where, 0)
        return None if found is None or found.locate(view) is None else found

    def _check_exclusive(self, storage: Storage, where: Box, since: int) -> None:
        """Raise Untrackable if another tile was written here since then."""
        for other in self.placed.get(storage.buffer, {}).values():
            if other.storage is not storage and any(
                segment.written > since and segment.where.overlaps(where) for segment in other.segments
            ):
                raise Untrackable(storage, "read through another tile's memory")

    def values_in(self, view: View) -> set[SSAValue]:
        """Return the values of which a view has a part."""
        where = box_of(view)
        return {segment.value for segment in self[view.storage].segments if segment.where.overlaps(where)}

    def written_by_matmul(self, view: View) -> set[bool]:
        """Return whether the segments that a view overlaps are sums of products; {False} for none."""
        where = box_of(view)
        return {
            segment.value.by_matmul
            for tile in self.sharing(view.storage)
            for segment in tile.segments
            if segment.where.overlaps(where)
        } or {False}

    # ---- gathering -------------------------------------------------------------------------------

    def frame(self, view: View) -> tuple[View, list[Box]]:
        """Return what to gather for a read: the whole tile, the box around the view, or the view alone."""
        storage, where = view.storage, box_of(view)
        table = [segment for tile in self.sharing(storage) for segment in tile.segments]
        whole = whole_box(storage)
        for inside in (whole, where) if storage.address is None else (where,):
            if _are_adjacent(table, inside) or _cover(table, inside):
                return box_view(storage, inside), [inside._replace(exact=True)]
        boxes = exact_boxes(view, where)
        if where.exact or boxes is None or not all(_cover(table, box) for box in boxes):
            raise Untrackable(storage, "read before it was written")
        return view, boxes

    def parts(self, view: View, wanted: list[Box]) -> Iterator[tuple[View, Elements, SSAValue]]:
        """Iterate over the parts of values that make up the boxes of a view, in order."""
        storage = view.storage
        for inside in wanted:
            for tile in self.sharing(storage):
                for value, where, _ in tile.segments:
                    if not where.overlaps(inside):
                        continue
                    if tile.storage is not storage or value.view.dtype is not view.dtype:
                        raise Untrackable(storage, "parts that cannot be put together")
                    own = value.view
                    if len(own.shape) == 2 and where == rectangle(own) and inside.covers(where):
                        part = own  # all of what was written
                    else:
                        part = box_view(storage, where.common(inside))
                    elements = value.locate(part)
                    if elements is None:
                        raise Untrackable(storage, "parts that cannot be put together")
                    yield part, elements, value


def box_of(view: View) -> Box:
    """Return the smallest box of a view; raise Untrackable where its partitions do not simply count up."""
    found = rectangle(view)
    if found is None:
        raise Untrackable(view.storage, "partitions in another order")
    return found


def box_view(storage: Storage, where: Box) -> View:
    """Return a box of a tile as a view [partitions, elements]."""
    partition, byte = storage.address or (0, 0)
    width = storage.dtype.itemsize
    pitch = storage.pitch // width
    offset = (where.first - partition) * pitch + (where.start - byte) // width
    shape = Shape((where.last - where.first, (where.stop - where.start) // width))
    return View(storage, offset, shape, (pitch, 1), storage.dtype)


def _are_adjacent(segments: list[Segment], where: Box) -> bool:
    """Return whether the segments are adjacent and make up the box: the usual case, decided fast."""
    following = where.start
    for _, box, _ in segments:
        if box.first != where.first or box.last != where.last or box.start != following:
            return False
        following = box.stop
    return following == where.stop


def _cover(segments: list[Segment], where: Box) -> bool:
    """Return whether every byte of a box is in some segment."""
    parts = [s.where.common(where) for s in segments if s.where.overlaps(where)]
    if sum(part.nbytes for part in parts) < where.nbytes:
        return False
    rows = sorted({where.first, where.last, *(p.first for p in parts), *(p.last for p in parts)})
    bytes_ = sorted({where.start, where.stop, *(p.start for p in parts), *(p.stop for p in parts)})
    row_of, byte_of = ({edge: i for i, edge in enumerate(edges)} for edges in (rows, bytes_))
    flags = np.zeros((len(rows) - 1, len(bytes_) - 1), np.bool_)  # one for each cell between the edges
    for p in parts:
        flags[row_of[p.first] : row_of[p.last], byte_of[p.start] : byte_of[p.stop]] = True
    return bool(flags.all())
