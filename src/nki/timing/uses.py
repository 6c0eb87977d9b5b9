"""Which instructions use which tile: columns of the tiles of a core, from those of its accesses."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..ir.liveness import address_range
from ..ir.storage import Storage
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF
from .access_columns import AccessColumns, Numbers

HBM, SBUF_TILE, PSUM_TILE, SBUF_PLACED, PSUM_PLACED = range(5)  # where a storage is


def as_array(column: np.ndarray) -> array[int]:
    """Return a column whose elements Python reads one by one, in fewer bytes than a list."""
    return array("i", column.astype(np.intc).tobytes())


class TileColumns(NamedTuple):
    """Tiles by first use, and the instructions that use each, once and in program order.

    Those of tile i are the uses from start[i] to start[i + 1].
    """

    storage: Numbers  # the number of each tile's storage
    start: Numbers
    position: Numbers  # of each use
    is_write: np.ndarray  # whether a use writes the tile
    access: Numbers  # the first access of each use, among those of tiles
    tile: Numbers  # of each of these accesses

    @property
    def first(self) -> Numbers:
        return self.position[self.start[:-1]]

    @property
    def last(self) -> Numbers:
        return self.position[self.start[1:] - 1]

    def counts(self) -> Numbers:
        return np.diff(self.start)

    def since_write(self) -> Numbers:
        """Return the last use of each tile that writes it; its first use if none does."""
        uses = np.where(self.is_write, np.arange(len(self.is_write)), -1)
        last = np.maximum.reduceat(uses, self.start[:-1]) if len(uses) else uses
        return np.maximum(last, self.start[:-1])


class TileUses:
    """The automatic tiles of a core; of tiles with an explicit address only their bytes are recorded."""

    def __init__(self, found: AccessColumns, machine: Machine):
        self.storages = found.storages
        where = found.of_storages(_where)
        self.where = where[found.storage]  # of each access
        self.sbuf = _tiles(found, self.where == SBUF_TILE)
        self.psum = _tiles(found, self.where == PSUM_TILE)
        taken, pitch = found.of_storages(lambda s: s.taken(machine)), found.of_storages(lambda s: s.pitch)
        self.sizes = taken[self.sbuf.storage]  # of tiles in SBUF, in bytes of each partition
        self.psum_sizes = pitch[self.psum.storage]
        self.sbuf_placed = self._ranges(found, SBUF_PLACED)
        self.psum_placed = self._ranges(found, PSUM_PLACED)
        read = _marked(found.storage[~found.is_write], len(where))
        written = _marked(found.storage[found.is_write], len(where))
        # in HBM, only read or only written: accesses there cannot conflict
        self.is_one_sided = (where == HBM) & (read ^ written)

    def _ranges(self, found: AccessColumns, where: int) -> set[tuple[int, int]]:
        numbers = np.unique(found.storage[self.where == where])
        return {address_range(self.storages[number]) for number in numbers.tolist()}

    def finish(self) -> None:
        """Drop what only planning needs."""
        del self.where, self.is_one_sided
        nothing = self.sbuf.tile[:0]
        self.sbuf = self.sbuf._replace(tile=nothing, access=nothing)
        self.psum = self.psum._replace(tile=nothing)

    def sbuf_tiles(self) -> Sequence[Storage]:
        """Return the storages of the tiles in SBUF."""
        return [self.storages[number] for number in self.sbuf.storage.tolist()]


def _where(storage: Storage) -> int:
    if storage.buffer is SBUF:
        return SBUF_TILE if storage.address is None else SBUF_PLACED
    if storage.buffer is PSUM:
        return PSUM_TILE if storage.address is None else PSUM_PLACED
    return HBM


def _marked(numbers: Numbers, size: int) -> np.ndarray:
    found = np.zeros(size, np.bool_)
    found[numbers] = True
    return found


def _tiles(found: AccessColumns, chosen: np.ndarray) -> TileColumns:
    """Return the tiles that some accesses use."""
    storage, position, is_write = found.storage[chosen], found.position[chosen], found.is_write[chosen]
    numbers, first, which = np.unique(storage, return_index=True, return_inverse=True)
    by_first_use = np.argsort(first)
    rank = np.empty_like(by_first_use)
    rank[by_first_use] = np.arange(len(rank))
    tile = rank[which]
    order = np.argsort(tile, kind="stable")
    tiles, positions = tile[order], position[order]
    begins = np.ones(len(order), np.bool_)  # of a use: an instruction may access a tile several times
    begins[1:] = (tiles[1:] != tiles[:-1]) | (positions[1:] != positions[:-1])
    (at,) = np.nonzero(begins)
    written = np.logical_or.reduceat(is_write[order], at) if len(at) else is_write[:0]
    start = np.searchsorted(tiles[at], np.arange(len(numbers) + 1))
    storages = numbers[by_first_use]
    return TileColumns(storages, start.astype(np.int32), positions[at], written, order[at], tile)
