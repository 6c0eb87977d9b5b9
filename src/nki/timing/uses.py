"""Which instructions use which tile: one pass over the accesses of a core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..ir.effects import Effects
from ..ir.liveness import Lifetime, address_range
from ..ir.storage import Storage
from ..ir.view import View
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF

Views = tuple[View, ...]


class Accesses(NamedTuple):
    """The views an instruction reads and writes, index tiles included.

    A sum in PSUM counts as written: the PE array adds to it without waiting for what it holds.
    """

    reads: Views
    writes: Views


def accesses(done: Effects) -> Accesses:
    reads, writes, adds_to = done[:3]
    return tuple.__new__(Accesses, (reads, writes + adds_to if adds_to else writes))


def all_accesses(done: Iterable[Effects]) -> list[tuple[Views, Views]]:
    """Return the accesses of many instructions, as plain tuples."""
    return [(one[0], one[1] + one[2] if one[2] else one[1]) for one in done]


NO_OPERATIONS: list[int] = []  # of a tile that has no space; never changed


class SbufTile:
    """An automatic tile of SBUF, and its state while space is allocated."""

    __slots__ = (
        "storage", "size", "positions", "writers", "is_made_once", "used", "is_resident", "is_untouched",
        "is_dirty", "space_waits", "last", "evicted", "load", "clean", "spilled", "deferred",
    )  # fmt: skip

    def __init__(self, storage: Storage, machine: Machine, position: int):
        self.storage = storage
        self.size = storage.taken(machine)  # bytes of each partition
        self.positions = [position]  # of the instructions that use it, ascending
        self.writers = 0  # how many of these write it
        self.is_made_once = False  # the first alone writes it, as a whole
        self.used = 0  # how many of them are done
        self.is_resident = False
        self.is_untouched = False  # it has space, but no instruction used it yet
        self.is_dirty = False
        self.space_waits: tuple[int, ...] = ()  # what its writers wait for
        self.last = NO_OPERATIONS  # since the last write
        self.evicted: tuple[int, ...] = ()  # what `last` was, and its spill
        self.load = -1  # the position of its plain load
        self.clean = -1  # the same while it holds what was loaded
        self.spilled: int | None = None  # its spill operation, or -1: HBM has it anyway
        self.deferred = -1  # the position of a load that was deferred

    @property
    def life(self) -> Lifetime:
        return Lifetime(self.positions[0], self.positions[-1])


Tiles = tuple[SbufTile, ...]


class TileUses:
    """The automatic tiles of each instruction, each once; and the instructions of each tile.

    Positions are those of the instructions. Of tiles with an explicit address only their bytes are recorded.
    """

    def __init__(self, done: Iterable[tuple[Views, Views]], machine: Machine):
        self.machine = machine
        self.read: list[Tiles] = []  # of SBUF, by position
        self.written: list[Tiles] = []
        self.in_psum: dict[int, tuple[int, ...]] = {}  # of PSUM, where there are any: numbers in `psum`
        self.sbuf: dict[Storage, SbufTile] = {}
        self.psum: dict[Storage, list[int]] = {}  # tile -> positions, ascending
        self._psum_numbers: dict[Storage, int] = {}
        self.hbm_read: set[Storage] = set()
        self.hbm_written: set[Storage] = set()
        self.sbuf_placed: set[tuple[int, int]] = set()  # (begin, end) of explicit addresses
        self.psum_placed: set[tuple[int, int]] = set()
        for position, (reads, writes) in enumerate(done):
            self.read.append(self._tiles(reads, position, self.hbm_read))
            written = self._tiles(writes, position, self.hbm_written)
            self.written.append(written)
            for tile in written:
                tile.writers += 1

    def _tiles(self, views: Views, position: int, in_hbm: set[Storage]) -> Tiles:
        """Return the SBUF tiles of some views, each once; those in PSUM go to `in_psum`."""
        found: Tiles = ()
        for view in views:
            storage = view.storage
            tile = self.sbuf.get(storage)
            if tile is not None:
                positions = tile.positions
                if positions[-1] != position:
                    positions.append(position)
                if tile not in found:
                    found += (tile,)
            elif storage.buffer is PSUM:
                self._use_bank(storage, position)
            elif storage.buffer is not SBUF:
                in_hbm.add(storage)
            elif storage.address is None:
                tile = self.sbuf[storage] = SbufTile(storage, self.machine, position)
                found += (tile,)
            else:
                self.sbuf_placed.add(address_range(storage))
        return found

    def _use_bank(self, storage: Storage, position: int) -> None:
        if storage.address is not None:
            self.psum_placed.add(address_range(storage))
            return
        number = self._psum_numbers.setdefault(storage, len(self._psum_numbers))
        tiles = self.in_psum.get(position, ())
        if number not in tiles:
            self.in_psum[position] = (*tiles, number)
            self.psum.setdefault(storage, []).append(position)
