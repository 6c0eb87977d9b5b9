"""Which instructions use which tile: one pass over the accesses of a core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..ir.effects import Effects
from ..ir.liveness import address_range
from ..ir.storage import Storage
from ..ir.view import View
from ..machine.memories import PSUM, SBUF

Tiles = tuple[Storage, ...]


class Accesses(NamedTuple):
    """The views an instruction reads and writes, index tiles included.

    A sum in PSUM counts as written: the PE array adds to it without waiting for what it holds.
    """

    reads: tuple[View, ...]
    writes: tuple[View, ...]


def accesses(done: Effects) -> Accesses:
    reads, writes, adds_to = done[:3]
    return tuple.__new__(Accesses, (reads, writes + adds_to if adds_to else writes))


class TileUses:
    """The automatic tiles of each instruction, each once; and the instructions of each tile.

    Positions are those of the instructions. Of tiles with an explicit address only their bytes are recorded.
    """

    def __init__(self, done: Sequence[Accesses]):
        self.read: list[Tiles] = []  # of SBUF, by position
        self.written: list[Tiles] = []
        self.touched: list[Tiles] = []  # both, read ones first
        self.in_psum: dict[int, Tiles] = {}  # of PSUM, where there are any
        self.sbuf: dict[Storage, list[int]] = {}  # tile -> positions, ascending
        self.psum: dict[Storage, list[int]] = {}
        self.sbuf_placed: set[tuple[int, int]] = set()  # (begin, end) of explicit addresses
        self.psum_placed: set[tuple[int, int]] = set()
        for position, (reads, writes) in enumerate(done):
            banks: list[Storage] = []
            read = self._tiles(reads, position, banks)
            written = self._tiles(writes, position, banks)
            self.read.append(read)
            self.written.append(written)
            self.touched.append(_joined(read, written))
            if banks:
                self.in_psum[position] = tuple(banks)

    def _tiles(self, views: tuple[View, ...], position: int, banks: list[Storage]) -> Tiles:
        """Return the SBUF tiles of some views, each once; `banks` gets those in PSUM."""
        found: list[Storage] = []
        for view in views:
            tile = view.storage
            if tile.buffer is SBUF:
                placed, tiles, uses = self.sbuf_placed, found, self.sbuf
            elif tile.buffer is PSUM:
                placed, tiles, uses = self.psum_placed, banks, self.psum
            else:
                continue
            if tile.address is not None:
                placed.add(address_range(tile))
            elif tile not in tiles:
                tiles.append(tile)
                _add_use(uses, tile, position)
        return tuple(found)


def _add_use(uses: dict[Storage, list[int]], tile: Storage, position: int) -> None:
    positions = uses.get(tile)
    if positions is None:
        uses[tile] = [position]
    elif positions[-1] != position:
        positions.append(position)


def _joined(read: Tiles, written: Tiles) -> Tiles:
    if not read:
        return written
    more = [tile for tile in written if tile not in read]
    return (*read, *more) if more else read
