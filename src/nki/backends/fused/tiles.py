"""Tiles: which values a tile's memory holds, as instructions write and read it.

A tile's memory is a table of pieces, the newest last: a write adds some and hides what it covers. A read that
lies in one piece is a strided view of its value; one that spans several gathers them into a new value. What
a read found is remembered until somebody writes there. Tiles that the user placed may share their memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...ir.layout import Shape
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.memories import MemoryRegion
from .values import Place, Region, Value, region, runs


class InPlace(Exception):
    """A storage whose values cannot be followed."""

    def __init__(self, storage: Storage, why: str):
        super().__init__(why)
        self.storage, self.why = storage, why


class Piece(NamedTuple):
    value: Value
    where: Region
    written: int  # when, counted in writes


class Tile:
    """What the memory of one storage holds."""

    __slots__ = ("storage", "pieces", "exact", "places", "factors")

    def __init__(self, storage: Storage):
        self.storage = storage
        self.pieces: list[Piece] = []
        self.exact: dict[int, Value] = {}  # by signature: what was written through such a view, and holds
        self.places: dict[int, Place] = {}  # by signature: where a view was found
        self.factors: dict[int, Place] = {}  # the same for operands of products

    def hide(self, pieces: list[Region], where: Region) -> None:
        """Somebody writes these rectangles, which lie in `where`."""
        first, last, start, stop, _ = where
        kept = []
        for piece in self.pieces:
            value, (top, bottom, left, right, _), _ = piece
            if top < last and first < bottom and left < stop and start < right:
                hits = [new for new in pieces if piece.where.overlaps(new)]
                if hits:
                    self.exact.pop(value.view.sig, None)
                    if self.places:
                        self.places = {}
                    if self.factors:
                        self.factors = {}
                    if any(new.covers(piece.where) for new in hits):
                        continue
            kept.append(piece)
        self.pieces = kept


class Tiles(dict[Storage, Tile]):
    """The tiles of a core."""

    def __init__(self) -> None:
        super().__init__()
        self.placed: dict[MemoryRegion, dict[Storage, Tile]] = {}  # those that hold something
        self.writes = 0

    def __missing__(self, storage: Storage) -> Tile:
        found = self[storage] = Tile(storage)
        return found

    def define(self, view: View, value: Value) -> None:
        """From now on a view of a tile holds a value."""
        storage = view.storage
        where = rectangle(view)
        pieces = [where] if where.exact else runs(view, where)
        if pieces is None:
            raise InPlace(storage, "a write of very many pieces")
        tile = self[storage]
        if storage.address is not None:
            self._hide_placed(tile, pieces, where)
        elif tile.pieces:
            tile.hide(pieces, where)
        self.writes += 1
        for piece in pieces:
            tile.pieces.append(Piece(value, piece, self.writes))
        tile.exact[view.sig] = value

    def _hide_placed(self, tile: Tile, pieces: list[Region], where: Region) -> None:
        """Tiles that were placed here before lose what is written now."""
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
                other.hide(pieces, where)
                if not other.pieces:
                    gone.append(storage)
        for storage in gone:
            del space[storage]
        space[tile.storage] = tile

    def beside(self, storage: Storage) -> Iterator[Tile]:
        """The tiles whose memory a view of this storage may lie in; its own last."""
        if storage.address is not None:
            for other in self.placed.get(storage.buffer, {}).values():
                if other.storage is not storage:
                    yield other
        yield self[storage]

    def single(self, view: View) -> Value | None:
        """The value that holds all of a view."""
        storage = view.storage
        where = rectangle(view)
        found: Value | None = None
        first, last, start, stop, _ = where
        for value, (top, bottom, left, right, exact), written in reversed(self[storage].pieces):
            if top < last and first < bottom and left < stop and start < right:
                around = top <= first and last <= bottom and left <= start and stop <= right
                if found is None and exact and around:
                    self._nobody_else(storage, where, written)
                    return value
                if found is not None and found is not value:
                    self._nobody_else(storage, where, 0)
                    return None
                found = value
        self._nobody_else(storage, where, 0)
        return None if found is None or found.part(view) is None else found

    def _nobody_else(self, storage: Storage, where: Region, since: int) -> None:
        """No other tile was written here since then."""
        if storage.address is not None:
            for other in self.placed.get(storage.buffer, {}).values():
                if other.storage is not storage and any(
                    piece.written > since and piece.where.overlaps(where) for piece in other.pieces
                ):
                    raise InPlace(storage, "read through another tile's memory")

    def written_by_matmul(self, view: View) -> set[bool]:
        """Whether the pieces that a view meets are sums of products; False: there are none."""
        where = rectangle(view)
        return {
            piece.value.by_matmul
            for tile in self.beside(view.storage)
            for piece in tile.pieces
            if piece.where.overlaps(where)
        } or {False}

    # ---- gathering -------------------------------------------------------------------------------

    def frame(self, view: View) -> tuple[View, list[Region]]:
        """What to gather for a read: the whole tile, the rectangle around the view, or the view alone."""
        storage, where = view.storage, rectangle(view)
        table = [piece for tile in self.beside(storage) for piece in tile.pieces]
        whole = Region(*_origin(storage), exact=True)
        for inside in (whole, where) if storage.address is None else (where,):
            if _in_a_row(table, inside) or _covered(table, inside):
                return framed(storage, inside), [inside._replace(exact=True)]
        pieces = runs(view, where)
        if where.exact or pieces is None or not all(_covered(table, piece) for piece in pieces):
            raise InPlace(storage, "read before it was written")
        return view, pieces

    def parts(self, view: View, wanted: list[Region]) -> Iterator[tuple[View, Place, Value]]:
        """The pieces that the rectangles of a view consist of, in order."""
        storage = view.storage
        for inside in wanted:
            for tile in self.beside(storage):
                for value, where, _ in tile.pieces:
                    if not where.overlaps(inside):
                        continue
                    if tile.storage is not storage or value.view.dtype is not view.dtype:
                        raise InPlace(storage, "parts that cannot be put together")
                    own = value.view
                    if len(own.shape) == 2 and where == region(own) and inside.covers(where):
                        part = own  # all of what was written
                    else:
                        part = framed(storage, _common(where, inside))
                    place = value.part(part)
                    if place is None:
                        raise InPlace(storage, "parts that cannot be put together")
                    yield part, place, value


def rectangle(view: View) -> Region:
    found = region(view)
    if found is None:
        raise InPlace(view.storage, "partitions in another order")
    return found


def _origin(storage: Storage) -> tuple[int, int, int, int]:
    partition, byte = storage.address or (0, 0)
    return partition, partition + storage.partitions, byte, byte + storage.pitch


def framed(storage: Storage, where: Region) -> View:
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


def _in_a_row(pieces: list[Piece], where: Region) -> bool:
    """The pieces stand side by side and make up the rectangle: the usual case, seen at once."""
    following = where.start
    for _, piece, _ in pieces:
        if piece.first != where.first or piece.last != where.last or piece.start != following:
            return False
        following = piece.stop
    return following == where.stop


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


__all__ = ["InPlace", "Piece", "Tile", "Tiles", "rectangle"]
