"""On-chip space in program order: allocation and spills (docs/decisions/08-spill-instead-of-fail.md)."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..ir.boxes import whole_box
from ..ir.dependences import RAW, WAR, WAW, Waits, wait
from ..ir.liveness import RangeMaximum, live_bytes, union_size
from .operation import SPACE
from .uses import NO_OPERATIONS, SbufTile, Tiles, TileUses


class Ahead:
    """Space taken before its position in the program, and whether earlier instructions can spare it."""

    def __init__(self, demand: RangeMaximum, capacity: int):
        self.demand = demand
        self.capacity = capacity
        self.early: list[tuple[int, int]] = []  # (position, size), sorted
        self.size = 0  # of all of them

    def take(self, position: int, size: int) -> None:
        insort(self.early, (position, size))
        self.size += size

    def has_room(self, now: int, until: int, size: int) -> bool:
        """True when `size` more bytes, taken from now on, evict nothing that is live until then."""
        early = self.early
        while early and early[0][0] <= now:
            self.size -= early.pop(0)[1]
        ahead = size + self.size
        return self.demand.most + ahead <= self.capacity or self._fits(now, until, 0, len(early), ahead)

    def _fits(self, begin: int, until: int, low: int, high: int, ahead: int) -> bool:
        """True when the demand from `begin` to `until` leaves `ahead` bytes, less those of early[low:high].

        From its own place in the program on, what was taken early is part of the demand.
        """
        if self.demand.highest(begin, until - 1) + ahead <= self.capacity:
            return True
        if low == high or self.early[low][0] >= until:
            return False
        middle = (low + high) // 2
        turn = max(begin + 1, min(until, self.early[middle][0]))
        given = sum(taken for _, taken in self.early[low : middle + 1])
        return self._fits(begin, turn, low, middle, ahead) and (
            turn >= until or self._fits(turn, until, middle + 1, high, ahead - given)
        )


class Chunk:
    """Free space."""

    __slots__ = ("size", "after", "freed_by")

    def __init__(self, size: int, after: tuple[int, ...] = (), freed_by: str | None = ""):
        self.size = size
        self.after = after  # the operations that must finish before it is free
        self.freed_by = freed_by  # the engine of all of these, "" if there are none, None if they differ


class SbufPool:
    """Allocates SBUF in program order; when it is full, the tile needed last is evicted."""

    def __init__(self, plan: Any, uses: TileUses, capacity: int):
        self.plan = plan
        self.tiles, self.read, self.written = uses.sbuf, uses.read, uses.written  # the last two by position
        self.capacity = max(0, capacity - union_size(uses.sbuf_placed))
        self.free: deque[Chunk] = deque([Chunk(self.capacity)])
        self.free_bytes = self.capacity
        self.resident: dict[SbufTile, None] = {}  # in the order in which they got space
        self.lacking = 0  # tiles that were spilled, and loads that are deferred, for lack of space
        tiles = uses.sbuf.values()
        first, last = [tile.positions[0] for tile in tiles], [tile.positions[-1] for tile in tiles]
        self.demand = RangeMaximum(live_bytes(first, last, [tile.size for tile in tiles]))
        self.ahead = Ahead(self.demand, self.capacity)  # loads done early
        self.over_committed = 0
        self.pinned: Tiles = ()  # of the instruction that a deferred load is done for

    def defers(self, position: int, tile: SbufTile) -> bool:
        """True when a load is deferred, because SBUF is full of tiles that are needed sooner."""
        if tile.is_resident or self.free_bytes >= tile.size:
            return False
        used, uses = tile.used, tile.positions
        if len(uses) - used < 2 or uses[used] != position or self._farthest(())[1] > uses[used + 1]:
            return False
        tile.used += 1
        tile.deferred = position
        self.lacking += 1
        return True

    def _load_now(self, tile: SbufTile) -> None:
        """Do a load that was deferred."""
        position, tile.deferred = tile.deferred, -1
        tile.used -= 1
        self.lacking -= 1
        self.plan.add(position)

    def make_resident(self, tile: SbufTile, position: int) -> None:
        """Allocate a tile of the instruction, reloading it if it was spilled."""
        if tile.deferred >= 0 and tile.deferred != position:
            self.pinned = self._tiles(position)
            self._load_now(tile)
            self.pinned = ()
            if tile.is_resident:
                return
        exclude = (*self.pinned, *self._tiles(position)) if self.free_bytes < tile.size else ()
        waits = self._take(tile, exclude, self.plan.engines[position])
        if tile.spilled is None:
            tile.space_waits, tile.last = waits, []
            tile.is_untouched = True
        else:
            self._reload(tile, waits)

    def _tiles(self, position: int) -> Tiles:
        return (*self.read[position], *self.written[position])

    def fetch(self, now: int, position: int) -> bool:
        """Load what a later instruction needs: loads into free space, reloads also by eviction.

        False when a load must wait for space; the instructions behind it then wait as well.
        """
        if self.lacking:
            self.refetch(position)
        for tile in self.read[position]:
            if tile.load > now and not tile.is_resident and tile.spilled is None:
                if self.free_bytes < tile.size or not self.ahead.has_room(now, tile.load, tile.size):
                    return False
                self.ahead.take(tile.load, tile.size)
                self.plan.load_early(tile.load)
        return True

    def refetch(self, position: int) -> None:
        """Load what was deferred or dropped, if it is needed before the tile it would evict."""
        for tile in self.read[position]:
            if tile.is_resident or tile.used == len(tile.positions):
                continue
            if tile.deferred < 0 and tile.spilled is None:
                continue
            if self.free_bytes < tile.size and self._farthest(())[1] <= position:
                continue
            if tile.deferred >= 0:
                self._load_now(tile)
            else:
                self._reload(tile, self._take(tile, ()))

    def used(self, position: int, index: int, waits: Waits) -> None:
        """Record the uses of an instruction; free the tiles that have none left."""
        read, written = self.read[position], self.written[position]
        for tile in (*read, *written) if read and written else read or written:
            done, uses = tile.used, tile.positions
            if done == len(uses) or uses[done] != position:
                continue
            tile.used = done + 1
            tile.is_untouched = False
            if tile in written:
                for waited in tile.space_waits:
                    if waited not in waits and waited != index:  # as `wait` does; there are many
                        waits[waited] = SPACE
                tile.last = [index]
                tile.is_dirty = True
                tile.clean = position if tile.load == position else -1
            else:
                if tile.is_made_once:
                    waits[tile.last[0]] = RAW
                tile.last.append(index)
            if done + 1 == len(uses):
                self._release(tile)
                if not tile.is_made_once:  # nothing else is in its space
                    self.plan.spaces.pop(tile.storage, None)

    def finish(self) -> None:
        """Drop what only planning needs, and the reference to the plan, which refers to this."""
        self.read.clear()
        self.written.clear()
        self.tiles.clear()
        del self.plan

    def _release(self, tile: SbufTile, *more: int) -> None:
        """Free the space of a tile once the operations since its last write, and `more`, are done."""
        del self.resident[tile]
        tile.is_resident = False
        tile.space_waits = ()
        after, tile.last = (*tile.last, *more), NO_OPERATIONS
        kinds = self.plan.table.kinds
        kind: str | None = kinds[after[0]] if after else ""
        for index in after:
            if kinds[index] != kind:
                kind = None
                break
        self.free.append(Chunk(tile.size, after, kind))
        self.free_bytes += tile.size

    def _take(self, tile: SbufTile, exclude: Sequence[SbufTile], writer: str = "dma") -> tuple[int, ...]:
        """Take space for a tile; return the operations that must finish before it is free.

        An engine takes back space it freed itself, where it need not wait for another; a load takes what
        has been free longest, so that buffers rotate and loads run ahead.
        """
        size = tile.size
        while self.free_bytes < size:
            if not self._evict(exclude):
                self.over_committed += size - self.free_bytes
                self.free.append(Chunk(size - self.free_bytes))
                self.free_bytes = size
        self.free_bytes -= size
        tile.is_resident = True
        self.resident[tile] = None
        place = 0 if writer == "dma" else self._own(writer)
        waits: tuple[int, ...] = ()
        while size > 0:
            chunk = self.free[place]
            waits += chunk.after
            if chunk.size > size:
                chunk.size -= size
                break
            size -= chunk.size
            del self.free[place]
            place = 0
        return waits

    def _own(self, writer: str) -> int:
        """Return the index of a free chunk that `writer` freed, or that was never used; else 0."""
        for i, chunk in enumerate(itertools.islice(self.free, 64)):
            if chunk.freed_by == writer or chunk.freed_by == "":
                return i
        return 0

    def _evict(self, exclude: Sequence[SbufTile]) -> bool:
        """Spill the resident tile whose next use is farthest away; one that HBM still holds is dropped."""
        best, _ = self._farthest(exclude)
        if best is None:
            return False
        self.lacking += best.spilled is None
        more: tuple[int, ...] = ()
        if best.clean >= 0:
            best.spilled = -1
        elif best.is_dirty or best.spilled is None:
            best.spilled = self._spill(best)
            best.is_dirty = False
            more = (best.spilled,)
        best.evicted = (*best.last, *more)
        self._release(best, *more)
        return True

    def _spill(self, tile: SbufTile) -> int:
        """Add the operation that writes a tile to HBM."""
        index, waits = self._move(tile, "spill")
        if tile.is_made_once:
            waits[tile.last[0]] = RAW
        else:
            self.plan.space(tile.storage).read(index, whole_box(tile.storage), waits)
        return index

    def _move(self, tile: SbufTile, kind: str) -> tuple[int, Waits]:
        """Add an operation that moves a tile; its waits follow."""
        index, waits = self.plan.table.begin(-1, kind)
        self.plan.table.tiles[index] = tile.storage
        self.plan.spill_bytes += tile.storage.nbytes
        return index, waits

    def _farthest(self, exclude: Sequence[SbufTile]) -> tuple[SbufTile | None, int]:
        """Return the resident tile needed last, and when."""
        best, distance = None, -1
        for tile in self.resident:
            if tile.positions[tile.used] > distance and not tile.is_untouched and tile not in exclude:
                best, distance = tile, tile.positions[tile.used]
        return best, distance

    def _reload(self, tile: SbufTile, space: tuple[int, ...]) -> None:
        """Add the operation that loads a tile again, into space that others free."""
        index, waits = self._move(tile, "reload")
        for waited in space:
            wait(waits, index, waited, SPACE)
        assert tile.spilled is not None
        if tile.spilled >= 0:
            wait(waits, index, tile.spilled, RAW)
        else:
            self.plan.table.reloads[index] = self.plan.instructions[tile.clean]
        if tile.is_made_once:
            for number, other in enumerate(tile.evicted):
                wait(waits, index, other, WAR if number else WAW)
        else:
            self.plan.space(tile.storage).write(index, whole_box(tile.storage), waits)
        tile.last = [index]
