"""On-chip space in program order: allocation and spills (docs/decisions/08-spill-instead-of-fail.md)."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..ir.boxes import whole_box
from ..ir.dependences import RAW
from ..ir.liveness import Lifetime, RangeMaximum, live_bytes, union_size
from ..ir.storage import Storage
from .operation import SPACE, Operation
from .uses import TileUses


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


class Chunk(NamedTuple):
    """Free space."""

    size: int
    after: tuple[int, ...]  # the operations that must finish before it is free
    freed_by: str | None  # the engine of all of these, "" if there are none, None if they differ


class SbufPool:
    """Allocates SBUF in program order; when it is full, the tile needed last is evicted."""

    def __init__(self, plan: Any, uses: TileUses, capacity: int):
        self.plan = plan
        self.read, self.written, self.touched = uses.read, uses.written, uses.touched  # tiles by position
        self.uses = {tile: positions[::-1] for tile, positions in uses.sbuf.items()}  # to come, next one last
        self.sizes = {tile: tile.taken(plan.machine) for tile in uses.sbuf}  # bytes of all partitions
        self.capacity = max(0, capacity - union_size(uses.sbuf_placed))
        self.free: deque[Chunk] = deque([Chunk(self.capacity, (), "")])
        self.free_bytes = self.capacity
        self.resident: dict[Storage, int] = {}  # tile -> bytes taken
        self.space_waits: dict[Storage, tuple[int, ...]] = {}  # tile -> what its writers wait for
        self.untouched: set[Storage] = set()  # has space, but no instruction used it yet
        self.last: dict[Storage, list[int]] = defaultdict(list)  # tile -> operations since the last write
        self.dirty: set[Storage] = set()
        self.clean: dict[Storage, int] = {}  # tile that holds what was loaded -> position of the load
        self.spilled: dict[Storage, int] = {}  # tile -> its spill operation, or -1: HBM has it anyway
        self.deferred: dict[Storage, int] = {}  # tile -> position of the deferred load
        self.lives = {tile: Lifetime(at[0], at[-1]) for tile, at in uses.sbuf.items()}
        self.demand = RangeMaximum(live_bytes((life, self.sizes[tile]) for tile, life in self.lives.items()))
        self.ahead = Ahead(self.demand, self.capacity)  # loads done early
        self.over_committed = 0

    def size(self, tile: Storage) -> int:
        """Return the bytes of all partitions that a tile takes."""
        return self.sizes[tile]

    def defers(self, position: int, target: Storage) -> bool:
        """True when a load is deferred, because SBUF is full of tiles that are needed sooner."""
        uses = self.uses[target]
        if len(uses) < 2 or uses[-1] != position or target in self.resident:
            return False
        if self.free_bytes >= self.sizes[target] or self._farthest(())[1] > uses[-2]:
            return False
        uses.pop()
        self.deferred[target] = position
        return True

    def _load_now(self, tile: Storage) -> None:
        """Do a load that was deferred."""
        position = self.deferred.pop(tile)
        self.uses[tile].append(position)
        self.plan._add(position)

    def prepare(self, position: int) -> None:
        """Allocate every tile of the instruction, reloading the ones that were spilled."""
        tiles = self.touched[position]
        for tile in tiles:
            if self.deferred and self.deferred.get(tile, position) != position:
                self._load_now(tile)
            if tile not in self.resident:
                writer = self.plan.engines[position]
                size = self.sizes[tile]
                waits = self._take(size, tiles, writer)
                self.resident[tile] = size
                if tile in self.spilled:
                    self._reload(tile, waits)
                else:
                    self.space_waits[tile] = waits
                    self.untouched.add(tile)

    @property
    def is_short(self) -> bool:
        """True when a tile was spilled, or a load deferred, for lack of space."""
        return bool(self.spilled or self.deferred)

    def fetch(self, now: int, position: int) -> bool:
        """Load what a later instruction needs: loads into free space, reloads also by eviction.

        False when a load must wait for space; the instructions behind it then wait as well.
        """
        if self.spilled or self.deferred:
            self.refetch(position)
        for tile in self.read[position]:
            if tile in self.resident or not self.uses[tile]:
                continue
            load = self.plan.load_of.get(tile, -1)
            if load > now and tile not in self.deferred and tile not in self.spilled:
                size = self.sizes[tile]
                if self.free_bytes < size or not self.ahead.has_room(now, load, size):
                    return False
                self.ahead.take(load, size)
                self.plan.load_early(load)
        return True

    def refetch(self, position: int) -> None:
        """Load what was deferred or dropped, if it is needed before the tile it would evict."""
        for tile in self.read[position]:
            if tile in self.resident or not self.uses[tile]:
                continue
            size = self.sizes[tile]
            deferred = tile in self.deferred
            if not deferred and tile not in self.spilled:
                continue
            if self.free_bytes < size and self._farthest(())[1] <= position:
                continue
            if deferred:
                self._load_now(tile)
            else:
                waits = self._take(size, ())
                self.resident[tile] = size
                self._reload(tile, waits)

    def used(self, position: int, op: Operation) -> None:
        """Record the uses of an instruction; free the tiles that have none left."""
        written, waits, index, load_of = self.written[position], op.waits, op.index, self.plan.load_of
        for tile in self.touched[position]:
            uses = self.uses[tile]
            if not uses or uses[-1] != position:
                continue
            uses.pop()
            self.untouched.discard(tile)
            if tile in written:
                for waited in self.space_waits.get(tile, ()):
                    if waited not in waits and waited != index:  # as wait_for does; there are many
                        waits[waited] = SPACE
                self.last[tile] = [index]
                self.dirty.add(tile)
                if load_of.get(tile) == position:
                    self.clean[tile] = position
                else:
                    self.clean.pop(tile, None)
            else:
                self.last[tile].append(index)
            if not uses:
                self._release(tile, tuple(self.last.pop(tile)))
                self.plan.spaces.pop(tile, None)

    def finish(self) -> None:
        """Drop what only planning needs, and the reference to the plan, which refers to this."""
        self.uses.clear()
        self.last.clear()
        del self.plan

    def _release(self, tile: Storage, after: tuple[int, ...]) -> None:
        size = self.resident.pop(tile)
        self.space_waits.pop(tile, None)
        kinds = {self.plan.operations[index].kind for index in after}
        self.free.append(Chunk(size, after, kinds.pop() if len(kinds) == 1 else None if kinds else ""))
        self.free_bytes += size

    def _take(self, size: int, exclude: Sequence[Storage], writer: str = "dma") -> tuple[int, ...]:
        """Take `size` bytes; return the operations that must finish before they are free.

        An engine takes back space it freed itself, where it need not wait for another; a load takes what
        has been free longest, so that buffers rotate and loads run ahead.
        """
        while self.free_bytes < size:
            if not self._evict(exclude):
                self.over_committed += size - self.free_bytes
                self.free.append(Chunk(size - self.free_bytes, (), ""))
                self.free_bytes = size
        self.free_bytes -= size
        place = 0 if writer == "dma" else self._own(writer)
        waits: list[int] = []
        while size > 0:
            chunk = self.free[place]
            waits += chunk.after
            if chunk.size > size:
                self.free[place] = chunk._replace(size=chunk.size - size)
            else:
                del self.free[place]
            size -= chunk.size
            place = 0
        return tuple(waits)

    def _own(self, writer: str) -> int:
        """Return the index of a free chunk that `writer` freed, or that was never used; else 0."""
        for i, (_, _, freed_by) in enumerate(itertools.islice(self.free, 64)):
            if freed_by == writer or freed_by == "":
                return i
        return 0

    def _evict(self, exclude: Sequence[Storage]) -> bool:
        """Spill the resident tile whose next use is farthest away; one that HBM still holds is dropped."""
        best, _ = self._farthest(exclude)
        if best is None:
            return False
        after = tuple(self.last.pop(best))
        if best in self.clean:
            self.spilled[best] = -1
        elif best in self.dirty or best not in self.spilled:
            op = self.plan.new(-1, "spill")
            op.tile = best
            self.plan.space(best).read(op.index, whole_box(best), op.waits)
            self.dirty.discard(best)
            self.spilled[best] = op.index
            self.plan.spill_bytes += best.nbytes
            after = (*after, op.index)
        self._release(best, after)
        return True

    def _farthest(self, exclude: Sequence[Storage]) -> tuple[Storage | None, int]:
        """Return the resident tile needed last, and when."""
        best, distance = None, -1
        for tile in self.resident:
            if tile not in exclude and tile not in self.untouched and self.uses[tile][-1] > distance:
                best, distance = tile, self.uses[tile][-1]
        return best, distance

    def _reload(self, tile: Storage, waits: tuple[int, ...]) -> None:
        op = self.plan.new(-1, "reload")
        op.tile = tile
        for waited in waits:
            op.wait_for(waited, SPACE)
        if self.spilled[tile] >= 0:
            op.wait_for(self.spilled[tile], RAW)
        else:
            op.reloads = self.plan.instructions[self.clean[tile]]
        self.plan.space(tile).write(op.index, whole_box(tile), op.waits)
        self.last[tile] = [op.index]
        self.plan.spill_bytes += tile.nbytes
