"""Tiles of several iterations that lie side by side, so that one instruction can use them all."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.rewriting import moved_columns
from ...ir.storage import Storage
from ...ir.view import View
from ..entries import Entry
from .compilation import Compilation


def columns_of(tile: Storage) -> int:
    """Return how many elements a partition of a tile has."""
    return tile.pitch // tile.dtype.itemsize


class Placement:
    """Where tiles lie in the storages that replace them."""

    def __init__(self, core: Compilation):
        self.core = core
        self.places: dict[Storage, tuple[Storage, int]] = {}  # tile -> its new storage, and its first column

    def join(self, tiles: Sequence[Storage]) -> bool:
        """Lay tiles of one shape side by side; return False if they lie elsewhere, or cannot move."""
        one, width = tiles[0], columns_of(tiles[0])
        if any(tile in self.places for tile in tiles):
            storage, column = self.places.get(one, (one, 0))
            wanted = [(storage, column + i * width) for i in range(len(tiles))]
            return [self.places.get(tile) for tile in tiles] == wanted
        if len(set(tiles)) < len(tiles) or not all(self.can_move(tile) for tile in tiles):
            return False
        shape = (one.partitions, width * len(tiles))
        joined = Storage(one.buffer, shape, one.dtype, one.name, None, one.site)
        self.places.update({tile: (joined, i * width) for i, tile in enumerate(tiles)})
        return True

    def can_move(self, tile: Storage) -> bool:
        """True when every view of a tile has its dtype and no run-time index, and no user of it is pinned."""
        uses, items = self.core.uses, self.core.items
        users = [items[n] for n in (*uses.writers[tile], *uses.readers[tile])]
        views = [view for item in users for view in item.instruction.views() if view.storage is tile]
        plain = all(view.indirection is None and view.dtype == tile.dtype for view in views)
        return tile.address is None and plain and all(map(self.core.is_free, users))

    def moved(self, item: Entry) -> Entry:
        """Return an item on the new storages."""
        places, done = self.places, item.done
        if not any(view.storage in places for view in (*done.seen, *done.writes)):
            return item
        return self.core.with_views(
            item, lambda view: moved_columns(view, *places[view.storage]) if view.storage in places else view
        )

    def together(self, first: Storage, view: View, count: int) -> View:
        """Return the same view of `count` joined tiles from `first` on: they are its second dimension."""
        joined, column = self.places[first]
        shape = (view.shape[0], count, *view.shape[1:])
        strides = (columns_of(joined), columns_of(first), *view.strides[1:])
        return View(joined, column + view.offset % view.row_pitch, shape, strides, view.dtype)
