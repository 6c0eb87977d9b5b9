"""On-chip space in program order: who gets it, what is spilled when it is full (design.md, Memory)."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import defaultdict, deque
from typing import Any, NamedTuple

import numpy as np

from ..hardware.memories import SBUF
from ..program.effects import effects
from ..program.instruction import Instruction
from ..program.statistics import union
from ..tensors import View
from ..tensors.storage import Storage
from .regions import RAW, SPACE, WHOLE, Operation


class Accesses(NamedTuple):
    """The views an instruction reads and writes, index tiles included.

    A sum in PSUM counts as written: the PE array adds to it without waiting for what it holds.
    """

    reads: tuple[View, ...]
    writes: tuple[View, ...]


def accesses(instruction: Instruction) -> Accesses:
    done = effects(instruction)
    return Accesses(done.reads, done.written)


class Demand:
    """How many bytes the program itself keeps live at each position, and the most over a stretch."""

    def __init__(self, uses: dict[int, deque[int]], sizes: dict[int, int]):
        last = max((u[-1] for u in uses.values() if u), default=0)
        changes = np.zeros(last + 2, np.int64)
        for key, positions in uses.items():
            changes[positions[0]] += sizes[key]
            changes[positions[-1] + 1] -= sizes[key]
        below = np.cumsum(changes)
        self.levels = [below.tolist()]  # level k: the highest of 2**k positions
        step = 1
        while len(below) > step:
            below = np.maximum(below[:-step], below[step:])
            self.levels.append(below.tolist())
            step *= 2

    def highest(self, begin: int, end: int) -> int:
        """The most live bytes at any position from begin to end."""
        end = min(max(begin, end), len(self.levels[0]) - 1)
        begin = min(begin, end)
        level = (end - begin + 1).bit_length() - 1
        table = self.levels[level]
        return max(table[begin], table[end - (1 << level) + 1])


class Ahead:
    """Space taken ahead of its place in the program, and whether it takes it from what comes before."""

    def __init__(self, demand: Demand, capacity: int):
        self.demand = demand
        self.capacity = capacity
        self.early: list[tuple[int, int]] = []  # (position, size), sorted
        self.size = 0  # of all of them

    def take(self, position: int, size: int) -> None:
        insort(self.early, (position, size))
        self.size += size

    def has_room(self, now: int, until: int, size: int) -> bool:
        """True when `size` more, taken from now on, push out nothing the program keeps until then."""
        early = self.early
        while early and early[0][0] <= now:
            self.size -= early.pop(0)[1]
        return self._fits(now, until, 0, len(early), size + self.size)

    def _fits(self, begin: int, until: int, low: int, high: int, ahead: int) -> bool:
        """Demand from `begin` to `until` leaves `ahead`, less what early[low:high] give up on the way.

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


class Pool:
    """SBUF handed out in program order; what is full evicts the tile needed last."""

    def __init__(self, planner: Any, capacity: int):
        self.planner = planner
        self.uses: dict[int, deque[int]] = defaultdict(deque)
        self.storages: dict[int, Storage] = {}
        placed: set[tuple[int, int]] = set()
        for position, access in enumerate(planner.accesses):
            for view in (*access.reads, *access.writes):
                storage = view.storage
                if storage.buffer is not SBUF:
                    continue
                if storage.address is not None:
                    placed.add((storage.address[1], storage.address[1] + storage.pitch))
                    continue
                uses = self.uses[id(storage)]
                if not uses or uses[-1] != position:
                    uses.append(position)
                self.storages[id(storage)] = storage
        self.capacity = max(0, capacity - union(placed))
        self.free: deque[tuple[int, tuple[int, ...]]] = deque([(self.capacity, ())])
        self.free_bytes = self.capacity
        self.resident: dict[int, int] = {}  # storage -> bytes taken
        self.space_waits: dict[int, tuple[int, ...]] = {}  # storage -> what its writers wait for
        self.untouched: set[int] = set()  # has space, but no instruction used it yet
        self.last: dict[int, list[int]] = defaultdict(list)  # storage -> operations since the last write
        self.dirty: set[int] = set()
        self.clean: dict[int, int] = {}  # storage that holds what was loaded -> position of the load
        self.spilled: dict[int, int] = {}  # storage -> its spill operation, or -1: HBM has it anyway
        self.deferred: dict[int, int] = {}  # storage -> position of the load that was put off
        self.lives = {key: (uses[0], uses[-1]) for key, uses in self.uses.items()}  # first and last use
        self.demand = Demand(self.uses, {k: self.size(s) for k, s in self.storages.items()})
        self.ahead = Ahead(self.demand, self.capacity)  # loads done early
        self.over_committed = 0

    def size(self, storage: Storage) -> int:
        """Bytes of all partitions that a tile takes; small ones lie side by side, a quadrant or half each.

        An operand of up to 32 partitions may start at any quadrant, of up to 64 at any half (machine.md 3).
        """
        quadrants = -(-storage.partitions // self.planner.machine.quadrant_partitions)
        return storage.pitch if quadrants > 2 else -(-storage.pitch * quadrants // 4)

    def defers(self, position: int, target: Storage) -> bool:
        """Put a load off while SBUF is full of tiles that are needed sooner."""
        key = id(target)
        uses = self.uses[key]
        if len(uses) < 2 or uses[0] != position or key in self.resident:
            return False
        if self.free_bytes >= self.size(target) or self._farthest(set())[1] > uses[1]:
            return False
        uses.popleft()
        self.deferred[key] = position
        return True

    def _load_now(self, key: int) -> None:
        """Do a load that was put off."""
        position = self.deferred.pop(key)
        self.uses[key].appendleft(position)
        self.planner._add(position)

    def prepare(self, position: int, access: Accesses) -> None:
        """Make room for every tile of the instruction, reloading the ones that were spilled."""
        for view in (*access.reads, *access.writes):
            storage = view.storage
            if storage.buffer is not SBUF or storage.address is not None:
                continue
            key = id(storage)
            if self.deferred.get(key, position) != position:
                self._load_now(key)
            if key not in self.resident:
                keep = {id(v.storage) for v in (*access.reads, *access.writes)}
                writer = self.planner.instructions[position].engine_name()
                waits = self._take(self.size(storage), keep, writer)
                self.resident[key] = self.size(storage)
                if key in self.spilled:
                    self._reload(storage, waits)
                else:
                    self.space_waits[key] = waits
                    self.untouched.add(key)

    @property
    def is_short(self) -> bool:
        """Something had to go, or to wait, for want of room."""
        return bool(self.spilled or self.deferred)

    def fetch(self, now: int, position: int, access: Accesses) -> bool:
        """Bring in what a coming instruction needs: loads into free space, reloads also by eviction.

        False when a load must wait for space; the instructions behind it then wait as well.
        """
        self.refetch(position, access)
        for view in access.reads:
            key = id(view.storage)
            if view.storage.buffer is not SBUF or key in self.resident or not self.uses[key]:
                continue
            size = self.size(view.storage)
            known = key in self.deferred or key in self.spilled
            if not known and self.planner.load_of.get(key, -1) > now:
                load = self.planner.load_of[key]
                if self.free_bytes < size or not self.ahead.has_room(now, load, size):
                    return False
                self.ahead.take(load, size)
                self.planner.load_early(load)
        return True

    def refetch(self, position: int, access: Accesses) -> None:
        """Bring back what was put off or dropped, if it is needed before what would have to go for it."""
        for view in access.reads:
            key = id(view.storage)
            if view.storage.buffer is not SBUF or key in self.resident or not self.uses[key]:
                continue
            size = self.size(view.storage)
            put_off = key in self.deferred
            if not put_off and key not in self.spilled:
                continue
            if self.free_bytes < size and self._farthest(set())[1] <= position:
                continue
            if put_off:
                self._load_now(key)
            else:
                waits = self._take(size, set())
                self.resident[key] = size
                self._reload(view.storage, waits)

    def used(self, position: int, op: Operation, access: Accesses) -> None:
        """Record the use; free the tiles that have none left."""
        writes = {id(v.storage) for v in access.writes}
        for view in (*access.reads, *access.writes):
            storage = view.storage
            key = id(storage)
            if storage.buffer is not SBUF or storage.address is not None:
                continue
            uses = self.uses[key]
            if not uses or uses[0] != position:
                continue
            uses.popleft()
            self.untouched.discard(key)
            if key in writes:
                for waited in self.space_waits.get(key, ()):
                    op.wait_for(waited, SPACE)
                self.last[key] = [op.index]
                self.dirty.add(key)
                self.clean.pop(key, None)
                if self.planner.load_of.get(key) == position:
                    self.clean[key] = position
            else:
                self.last[key].append(op.index)
            if not uses:
                self._release(key, tuple(self.last.pop(key)))

    def _release(self, key: int, after: tuple[int, ...]) -> None:
        size = self.resident.pop(key)
        self.space_waits.pop(key, None)
        self.free.append((size, after))
        self.free_bytes += size

    def _take(self, size: int, keep: set[int], writer: str = "dma") -> tuple[int, ...]:
        """Space for `size` bytes and what must finish before it is free.

        An engine takes back space it freed itself, where it need not wait for another; a load takes what
        has been free longest, so that buffers rotate and loads run ahead.
        """
        while self.free_bytes < size:
            if not self._evict(keep):
                self.over_committed += size - self.free_bytes
                self.free.append((size - self.free_bytes, ()))
                self.free_bytes = size
        self.free_bytes -= size
        place = 0 if writer == "dma" else self._own(writer)
        waits: list[int] = []
        while size > 0:
            chunk, after = self.free[place]
            waits += after
            if chunk > size:
                self.free[place] = (chunk - size, after)
            else:
                del self.free[place]
            size -= chunk
            place = 0
        return tuple(waits)

    def _own(self, writer: str) -> int:
        """Where in the free list a chunk is that `writer` freed, or that nobody ever used; else its head."""
        operations = self.planner.operations
        for i, (_, after) in enumerate(itertools.islice(self.free, 64)):
            if all(operations[a].kind == writer for a in after):
                return i
        return 0

    def _evict(self, keep: set[int]) -> bool:
        """Spill the resident tile whose next use is farthest away; one that HBM still has is only dropped."""
        best, _ = self._farthest(keep)
        if best is None:
            return False
        storage = self.storages[best]
        after = tuple(self.last.pop(best))
        if best in self.clean:
            self.spilled[best] = -1
        elif best in self.dirty or best not in self.spilled:
            op = self.planner.new(-1, "spill")
            op.tile = storage
            self.planner.space(storage).read(op, WHOLE)
            self.dirty.discard(best)
            self.spilled[best] = op.index
            self.planner.spill_bytes += storage.nbytes
            after = (*after, op.index)
        self._release(best, after)
        return True

    def _farthest(self, keep: set[int]) -> tuple[int | None, int]:
        """The resident tile needed last, and when."""
        best, distance = None, -1
        for key in self.resident:
            if key not in keep and key not in self.untouched and self.uses[key][0] > distance:
                best, distance = key, self.uses[key][0]
        return best, distance

    def _reload(self, storage: Storage, waits: tuple[int, ...]) -> None:
        op = self.planner.new(-1, "reload")
        op.tile = storage
        for waited in waits:
            op.wait_for(waited, SPACE)
        if self.spilled[id(storage)] >= 0:
            op.wait_for(self.spilled[id(storage)], RAW)
        else:
            op.again = self.planner.instructions[self.clean[id(storage)]]
        self.planner.space(storage).write(op, WHOLE)
        self.last[id(storage)] = [op.index]
        self.planner.spill_bytes += storage.nbytes
