"""On-chip space in program order: allocation and spills (docs/decisions/08-spill-instead-of-fail.md)."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.dependences import RAW, WAR, WAW
from ..ir.liveness import RangeMaximum, live_bytes, union_size
from .access_columns import Numbers
from .operation import SPACE
from .uses import TileColumns, TileUses, as_array


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

    __slots__ = ("size", "tile", "after", "freed_by")

    def __init__(self, size: int, tile: int = -1, freed_by: str | None = "", after: tuple[int, ...] = ()):
        self.size = size
        self.tile = tile  # the one that had it: those that used it since its last write must finish first
        self.after = after  # the same operations of a tile that was away
        self.freed_by = freed_by  # the engine of all of these, "" if there are none, None if they differ


class Away:
    """A tile that was evicted, or whose load was deferred."""

    __slots__ = ("spilled", "spilled_uses", "evicted", "base", "since", "deferred")

    def __init__(self) -> None:
        self.spilled: int | None = None  # its spill operation, or -1: HBM has it anyway
        self.spilled_uses = 0  # its uses that were done when it was spilled last
        self.evicted: tuple[int, ...] = ()  # what had to finish before its space was free
        self.base = -1  # the operation that reloaded it last
        self.since = 0  # its uses that were done then
        self.deferred = -1  # the position of a load that was deferred


class SbufPool:
    """Allocates SBUF in program order; when it is full, the tile needed last is evicted.

    Tiles are numbered as in `TileUses`. Only their first and last uses change anything, unless some are away.
    """

    def __init__(self, plan: Any, uses: TileUses, capacity: int):
        self.plan = plan
        tiles = uses.sbuf
        self.uses = as_array(tiles.position)  # of all tiles, one after the other
        self.is_write = bytes(tiles.is_write)
        self.start = as_array(tiles.start)
        self.sizes = as_array(uses.sizes)
        self.next_use = self.start[:-1]  # of each tile: at the least the uses before it are done
        self.freed_by = _only_engines(plan.engines, tiles, tiles.since_write())  # of tiles never away
        self.capacity = max(0, capacity - union_size(uses.sbuf_placed))
        self.free: deque[Chunk] = deque([Chunk(self.capacity)])
        self.free_bytes = self.capacity
        self.resident: dict[int, None] = {}  # in the order in which they got space
        self.away: dict[int, Away] = {}
        self.lacking = 0  # tiles that were spilled, and loads that are deferred, for lack of space
        self.demand = RangeMaximum(live_bytes(tiles.first, tiles.last, uses.sizes))
        self.ahead = Ahead(self.demand, self.capacity)  # loads done early
        self.over_committed = 0
        self.now = 0  # the position that is planned: what comes before it is done
        self.pinned: tuple[int, ...] = ()  # of the instruction that a deferred load is done for
        # whose space each tile took: writers wait for these tiles, or for some operations
        self.takers: list[int] = []
        self.givers: list[int] = []
        self.space_waits: list[tuple[int, tuple[int, ...]]] = []
        self.stayed: dict[int, int] = {}  # of evicted tiles: their uses before that

    # ---- loads -----------------------------------------------------------------------------------

    def defers(self, position: int, tile: int) -> bool:
        """True when a load is deferred, because SBUF is full of tiles that are needed sooner."""
        if self.free_bytes >= self.sizes[tile] or tile in self.resident:
            return False
        at = self._next_use(tile)
        if self.start[tile + 1] - at < 2 or self.uses[at] != position:
            return False
        if self._farthest(())[1] > self.uses[at + 1]:
            return False
        self._away(tile).deferred = position
        self.lacking += 1
        return True

    def _load_now(self, away: Away) -> None:
        """Do a load that was deferred."""
        position, away.deferred = away.deferred, -1
        self.lacking -= 1
        self.plan.add(position)

    def fetch(self, now: int, position: int) -> bool:
        """Load what a later instruction needs: loads into free space, reloads also by eviction.

        False when a load must wait for space; the instructions behind it then wait as well.
        """
        if self.lacking:
            self.refetch(position)
        return all(self.load(now, tile) for tile in self.plan.tiles_read(position))

    def load(self, now: int, tile: int) -> bool:
        """Load a tile that a later instruction reads; False when it must wait for space."""
        load = self.plan.loads[tile]
        if load > now and tile not in self.resident and tile not in self.stayed:
            size = self.sizes[tile]
            if self.free_bytes < size or not self.ahead.has_room(now, load, size):
                return False
            self.ahead.take(load, size)
            self._use_space(tile, self._take(tile, ()))
            self.next_use[tile] += 1
            self.plan.begin_early(load)
        return True

    def refetch(self, position: int) -> None:
        """Load what was deferred or dropped, if it is needed before the tile it would evict."""
        for tile in self.plan.tiles_read(position):
            away = self.away.get(tile)
            if away is None or tile in self.resident or (away.deferred < 0 and away.spilled is None):
                continue
            if self.free_bytes < self.sizes[tile] and self._farthest(())[1] <= position:
                continue
            if away.deferred >= 0:
                self._load_now(away)
            else:
                self._reload(tile, self._take(tile, ()))

    # ---- the tiles of an instruction ---------------------------------------------------------------

    def make_resident(self, tile: int, position: int) -> None:
        """Allocate a tile of the instruction, reloading it if it was spilled."""
        if self.away:
            self._load_deferred(tile, position)
            if tile in self.resident:
                return
        exclude = (*self.pinned, *self.plan.tiles(position)) if self.free_bytes < self.sizes[tile] else ()
        taken = self._take(tile, exclude, self.plan.engines[position])
        if tile in self.stayed:
            self._reload(tile, taken)
        else:
            self._use_space(tile, taken)

    def _use_space(self, tile: int, taken: Sequence[Chunk]) -> None:
        """Record whose space a tile has."""
        for chunk in taken:
            if chunk.after:
                self.space_waits.append((tile, chunk.after))
            elif chunk.tile >= 0:
                self.takers.append(tile)
                self.givers.append(chunk.tile)

    def _load_deferred(self, tile: int, position: int) -> None:
        """Do the load of a tile of the instruction if it was deferred."""
        away = self.away.get(tile)
        if away is not None and away.deferred >= 0 and away.deferred != position:
            self.pinned = self.plan.tiles(position)
            self._load_now(away)
            self.pinned = ()

    def release(self, tile: int) -> None:
        """Free the space of a tile that was used for the last time."""
        size = self.sizes[tile]
        if tile in self.away:
            done = self.start[tile + 1]
            self._end_stay(tile, done)
            self._release(tile, self._operations(tile, done))
            return
        del self.resident[tile]
        self.free.append(Chunk(size, tile, self.freed_by[tile]))
        self.free_bytes += size

    def _operations(self, tile: int, done: int) -> list[int]:
        """Return the operations since the last write of a tile, that one included, given its uses so far."""
        since = self._last_write(tile, done)
        away = self.away.get(tile)
        begun: list[int] = []
        if away is not None and away.base >= 0 and away.since > since:
            begun, since = [away.base], away.since
        operation = self.plan.operation_at
        return begun + [operation[at] for at in self.uses[max(since, self.start[tile]) : done]]

    def _last_write(self, tile: int, done: int) -> int:
        """Return the last of the uses so far that wrote a tile, or -1."""
        return next((i for i in range(done - 1, self.start[tile] - 1, -1) if self.is_write[i]), -1)

    def _release(self, tile: int, after: Sequence[int]) -> None:
        """Free the space of a tile that was away, once some operations are done."""
        del self.resident[tile]
        kinds = {self.plan.kind(index) for index in after}
        kind = "" if not kinds else kinds.pop() if len(kinds) == 1 else None
        self.free.append(Chunk(self.sizes[tile], tile, kind, tuple(after)))
        self.free_bytes += self.sizes[tile]

    def _take(self, tile: int, exclude: Sequence[int], writer: str = "dma") -> list[Chunk]:
        """Take space for a tile; return the chunks that it is, or is part of.

        An engine takes back space it freed itself, where it need not wait for another; a load takes what
        has been free longest, so that buffers rotate and loads run ahead.
        """
        size, free = self.sizes[tile], self.free
        while self.free_bytes < size:
            if not self._evict(exclude):
                self.over_committed += size - self.free_bytes
                free.append(Chunk(size - self.free_bytes))
                self.free_bytes = size
        self.free_bytes -= size
        self.resident[tile] = None
        place = 0 if writer == "dma" else self._own(writer)
        taken = []
        while size > 0:
            chunk = free[place]
            taken.append(chunk)
            if chunk.size > size:
                chunk.size -= size
                break
            size -= chunk.size
            del free[place]
            place = 0
        return taken

    def _own(self, writer: str) -> int:
        """Return the index of a free chunk that `writer` freed, or that was never used; else 0."""
        for i, chunk in enumerate(itertools.islice(self.free, 64)):
            if chunk.freed_by == writer or chunk.freed_by == "":
                return i
        return 0

    # ---- eviction --------------------------------------------------------------------------------

    def _away(self, tile: int) -> Away:
        return self.away.setdefault(tile, Away())

    def _next_use(self, tile: int) -> int:
        """Return the first use of a tile that is not done."""
        at, uses, now = self.next_use[tile], self.uses, self.now
        while uses[at] < now:
            at += 1
        self.next_use[tile] = at
        return at

    def _farthest(self, exclude: Sequence[int]) -> tuple[int, int]:
        """Return the resident tile needed last, or -1, and when."""
        best, distance = -1, -1
        next_use, uses, now = self.next_use, self.uses, self.now
        for tile in self.resident:
            at = next_use[tile]
            if uses[at] < now:
                at = self._next_use(tile)
            if uses[at] > distance and tile not in exclude:
                best, distance = tile, uses[at]
        return best, distance

    def _evict(self, exclude: Sequence[int]) -> bool:
        """Spill the resident tile whose next use is farthest away; one that HBM still holds is dropped."""
        tile, _ = self._farthest(exclude)
        if tile < 0:
            return False
        away, done = self._away(tile), self._next_use(tile)
        self.lacking += away.spilled is None
        self.stayed.setdefault(tile, done)
        self._end_stay(tile, done)
        after, last = self._operations(tile, done), self._last_write(tile, done)
        if last == self.start[tile] and self.plan.loads[tile] >= 0:
            away.spilled = -1
        elif away.spilled is None or last >= away.spilled_uses:
            away.spilled, away.spilled_uses = self._spill(tile, after), done
            after = [*after, away.spilled]
        away.evicted = tuple(after)
        self._release(tile, after)
        return True

    def _end_stay(self, tile: int, done: int) -> None:
        """Make those that read an evicted tile, which is made once, wait for what it was loaded by."""
        if not self.plan.is_made_once[tile] or tile not in self.stayed:
            return
        away, first, operation = self.away[tile], self.start[tile], self.plan.operation_at
        base, since = away.base, away.since
        if base < 0:
            base, since = operation[self.uses[first]], first + 1
        for at in self.uses[since:done]:
            self.plan.waits.add_late(operation[at], base, RAW)

    def _spill(self, tile: int, since_write: Sequence[int]) -> int:
        """Add the operation that writes a tile to HBM."""
        index = self._move(tile, "spill")
        if self.plan.is_made_once[tile]:
            self.plan.waits.add(index, since_write[0], RAW)
        else:
            self.plan.waits.spills.append((index, False, tile))
        return index

    def _move(self, tile: int, kind: str) -> int:
        """Add an operation that moves a tile."""
        storage = self.plan.uses.storages[self.plan.uses.sbuf.storage[tile]]
        index = self.plan.table.begin_move(kind, storage)
        self.plan.spill_bytes += storage.nbytes
        return index

    def _reload(self, tile: int, space: Sequence[Chunk]) -> None:
        """Add the operation that loads a tile again, into space that others free."""
        index, away, waits = self._move(tile, "reload"), self.away[tile], self.plan.waits
        for chunk in space:
            after: Sequence[int] = chunk.after
            if not after and chunk.tile >= 0:
                after = self._operations(chunk.tile, self.start[chunk.tile + 1])
            for waited in after:
                waits.add(index, waited, SPACE)
        assert away.spilled is not None
        if away.spilled >= 0:
            waits.add(index, away.spilled, RAW)
        else:
            self.plan.table.reloads[index] = self.plan.instructions[self.plan.loads[tile]]
        if self.plan.is_made_once[tile]:
            for number, other in enumerate(away.evicted):
                waits.add(index, other, WAR if number else WAW)
        else:
            waits.spills.append((index, True, tile))
        away.base, away.since = index, self._next_use(tile)

    def end(self) -> None:
        """Drop what only the order of the operations needs, and the plan, which refers to this."""
        del self.plan, self.uses, self.is_write, self.start, self.sizes, self.next_use, self.freed_by
        del self.free, self.resident, self.away, self.ahead

    def finish(self) -> None:
        """Drop who waits for whose space."""
        del self.takers, self.givers, self.space_waits, self.stayed


def _only_engines(engines: Sequence[str], tiles: TileColumns, since: Numbers) -> list[str | None]:
    """Return the engine of all uses of each tile from one on, or None if they differ."""
    names = [*dict.fromkeys(engines)]
    numbers = {name: number for number, name in enumerate(names)}
    each = np.array([*map(numbers.__getitem__, engines)], np.int64)[tiles.position]
    if not len(each):
        return []
    bounds = np.stack([since, tiles.start[1:]], axis=1).ravel()[:-1]
    least, most = (by.reduceat(each, bounds)[::2] for by in (np.minimum, np.maximum))
    return [*map([*names, None].__getitem__, np.where(least == most, least, len(names)).tolist())]
