"""Operations: what the scheduler places in time, and what each must wait for.

A program becomes operations in three steps: every access of every tile is a region; overlapping
regions give dependencies (RAW, WAR, WAW); and SBUF is planned in program order, which adds the waits
for reused space and, when live tiles exceed it, spills to HBM (machine.md 4, design.md "Memory").
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..hardware.machine import Machine
from ..hardware.memories import PSUM, SBUF
from ..program.effects import effects
from ..program.instruction import Cost, Instruction
from ..program.statistics import union
from ..tensors import View
from ..tensors.storage import Storage

# How far ahead of its use a tile is fetched: several DMA latencies, so that a spill, the load into its
# place and the queue before both fit in. No source gives it: of 8 to 32 us it fits AWS's blocked matmul best.
FETCH_AHEAD_NS = 24_000.0

RAW, WAR, WAW, SPACE, ORDER = "data", "overwrite", "rewrite", "space", "order"


class Operation:
    """One thing an engine or a DMA queue does."""

    __slots__ = ("index", "position", "instruction", "kind", "waits", "tile", "site", "core")

    def __init__(self, index: int, instruction: Instruction | None, kind: str, core: int, position: int):
        self.index = index
        self.position = position  # in the program; -1 for spills
        self.instruction = instruction  # None for spills
        self.kind = kind  # the engine's name, "dma", "spill" or "reload"
        self.waits: dict[int, str] = {}  # operation index -> why
        self.tile: Storage | None = None  # spills: what is moved
        self.site = instruction.site if instruction is not None else None
        self.core = core

    @property
    def is_dma(self) -> bool:
        return self.kind in ("dma", "spill", "reload")

    def wait_for(self, other: int, why: str) -> None:
        if other != self.index and (other not in self.waits or why == RAW):
            self.waits[other] = why


class Region(NamedTuple):
    """A rectangle of a space: partitions (or HBM rows) and bytes inside them."""

    first: int
    last: int
    begin: int
    end: int

    def overlaps(self, other: Region) -> bool:
        return (
            self.first < other.last
            and other.first < self.last
            and self.begin < other.end
            and other.begin < self.end
        )

    def covers(self, other: Region) -> bool:
        return (
            self.first <= other.first
            and other.last <= self.last
            and self.begin <= other.begin
            and other.end <= self.end
        )


def region(view: View) -> Region:
    """The smallest rectangle that holds a view; for a run-time index, the whole storage."""
    storage = view.storage
    if view.indirection is not None and view.indirection.kind != "static":
        return Region(0, 1 << 40, 0, 1 << 60)
    width = view.dtype.itemsize
    if storage.on_chip:
        partition, byte = storage.address or (0, 0)
        first, free = divmod(view.offset, view.row_pitch)
        reach = sum((n - 1) * s for n, s in zip(view.shape[1:], view.strides[1:], strict=True))
        begin = byte + free * width
        return Region(
            partition + first, partition + first + view.shape[0], begin, begin + (reach + 1) * width
        )
    row = storage.shape[-1] * storage.dtype.itemsize
    begin = view.offset * width
    inside = (
        sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True) if s * width < row) * width
    )
    total = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)) * width
    if begin % row + inside + width <= row:  # a block of whole or partial rows
        return Region(begin // row, (begin + total) // row + 1, begin % row, begin % row + inside + width)
    return Region(begin // row, (begin + total + width - 1) // row + 1, 0, row)


class Space:
    """The accesses of one storage (or of a core's placed memory) that later ones may conflict with."""

    __slots__ = ("writes", "reads")

    def __init__(self) -> None:
        self.writes: dict[Region, int] = {}
        self.reads: dict[Region, list[int]] = {}

    def read(self, op: Operation, box: Region) -> None:
        writer = self.writes.get(box)
        if writer is not None and len(self.writes) == 1:
            op.wait_for(writer, RAW)
        else:
            for other, writer in self.writes.items():
                if box.overlaps(other):
                    op.wait_for(writer, RAW)
        self.reads.setdefault(box, []).append(op.index)

    def write(self, op: Operation, box: Region) -> None:
        for other, readers in list(self.reads.items()):
            if box.overlaps(other):
                for reader in readers:
                    op.wait_for(reader, WAR)
                if box.covers(other):
                    del self.reads[other]
        for other, writer in list(self.writes.items()):
            if box.overlaps(other):
                op.wait_for(writer, WAW)
                if box.covers(other):
                    del self.writes[other]
        self.writes[box] = op.index


class Accesses(NamedTuple):
    """The views an instruction reads and writes, index tiles included.

    A sum in PSUM counts as written: the PE array adds to it without waiting for what it holds.
    """

    reads: tuple[View, ...]
    writes: tuple[View, ...]


def accesses(instruction: Instruction) -> Accesses:
    done = effects(instruction)
    return Accesses(done.reads, done.written)


class Planner:
    """Turns the instructions of one core into operations."""

    def __init__(
        self,
        machine: Machine,
        instructions: Iterable[Instruction],
        core: int = 0,
        block_of: Mapping[int, int] | None = None,
    ):
        self.machine = machine
        self.instructions = list(instructions)
        self.core = core
        self.block_of = block_of or {}  # position -> its no_reorder block
        self.last_in_block: dict[tuple[int, str], int] = {}
        self.operations: list[Operation] = []
        self.spaces: dict[Any, Space] = defaultdict(Space)
        self.accesses = [accesses(i) for i in self.instructions]
        self.costs = self._costs()
        self.regions: dict[int, Region] = {}  # of on-chip views, by signature
        self.silent = self._one_sided_hbm()
        self.plain_loads = self._plain_loads()
        self.load_of = {id(tile): position for position, tile in self.plain_loads.items()}
        self.loaded_early: set[int] = set()
        self.sbuf = Pool(self, SBUF, machine.sbuf_usable_bytes, 1)
        self.psum = Pool(self, PSUM, machine.psum_bytes, machine.psum_bank_bytes)
        self.spill_bytes = 0

    def _costs(self) -> list[Cost]:
        """What each instruction costs; equal ones are priced once."""
        known: dict[tuple, Cost] = {}
        costs = []
        for instruction in self.instructions:
            key = instruction.key()
            cost = known.get(key)
            if cost is None:
                cost = known[key] = instruction.cost(self.machine)
            costs.append(cost)
        return costs

    def region(self, view: View) -> Region:
        if not view.storage.on_chip:
            return region(view)
        box = self.regions.get(view.sig)
        if box is None:
            box = self.regions[view.sig] = region(view)
        return box

    def _keep_order(self, op: Operation) -> None:
        """Inside no_reorder, instructions of one queue keep the order of the program."""
        block = self.block_of.get(op.position)
        if block is not None:
            before = self.last_in_block.get((block, op.kind))
            if before is not None:
                op.wait_for(before, ORDER)
            self.last_in_block[block, op.kind] = op.index

    def _one_sided_hbm(self) -> set[int]:
        """HBM storages that are only read or only written: nothing there can conflict by accident."""
        read: set[int] = set()
        written: set[int] = set()
        for access in self.accesses:
            read.update(id(v.storage) for v in access.reads if not v.on_chip)
            written.update(id(v.storage) for v in access.writes if not v.on_chip)
        return read ^ written

    def plan(self) -> list[Operation]:
        look = Lookahead(self)
        for position in range(len(self.instructions)):
            look.fetch(position)
            if position in self.loaded_early:
                continue
            target = self.plain_loads.get(position)
            if target is not None and self.sbuf.defers(position, target):
                continue
            self._add(position)
        return self.operations

    def load_early(self, position: int) -> None:
        self.loaded_early.add(position)
        self._add(position)

    def _add(self, position: int) -> None:
        """The operation of an instruction, with its tiles in place and its waits known."""
        access = self.accesses[position]
        self.sbuf.prepare(position, access)
        self.psum.prepare(position, access)
        op = self.new(position, self.instructions[position].engine_name())
        self._keep_order(op)
        for view in access.reads:
            if id(view.storage) not in self.silent:
                self.space(view.storage).read(op, self.region(view))
        for view in access.writes:
            if id(view.storage) not in self.silent:
                self.space(view.storage).write(op, self.region(view))
        self.sbuf.used(position, op, access)
        self.psum.used(position, op, access)

    def _plain_loads(self) -> dict[int, Storage]:
        """Copies of constant HBM data into whole fresh tiles: they may happen any time before their use."""
        found: dict[int, Storage] = {}
        seen: set[int] = set()
        for position, access in enumerate(self.accesses):
            movable = not self.instructions[position].on_chip and position not in self.block_of
            if movable and len(access.reads) == len(access.writes) == 1:
                source, target = access.reads[0], access.writes[0]
                if (
                    not source.on_chip
                    and id(source.storage) in self.silent
                    and target.buffer is SBUF
                    and target.storage.address is None
                    and id(target.storage) not in seen
                    and target.covers_storage()
                ):
                    found[position] = target.storage
            seen.update(id(v.storage) for v in (*access.reads, *access.writes) if v.on_chip)
        return found

    def cost_of(self, op: Operation) -> Cost:
        return self.costs[op.position]

    def space(self, storage: Storage) -> Space:
        return self.spaces[storage.buffer if storage.address is not None else id(storage)]

    def new(self, position: int, kind: str) -> Operation:
        instruction = self.instructions[position] if position >= 0 else None
        op = Operation(len(self.operations), instruction, kind, self.core, position)
        self.operations.append(op)
        return op


class Lookahead:
    """Fetches what the instructions of the next FETCH_AHEAD_NS will need.

    Time here is the work of the busiest engine so far: what the kernel would take if data were there.
    """

    def __init__(self, planner: Planner):
        self.planner = planner
        clocks = engine_clocks(planner.machine)
        work = dict.fromkeys(clocks, 0.0)
        self.moments = []
        for instruction, cost in zip(planner.instructions, planner.costs, strict=True):
            self.moments.append(max(work.values()))
            name = instruction.engine_name()
            if name in work:
                work[name] += cost.interval / clocks[name]
        self.next = 0

    def fetch(self, position: int) -> None:
        horizon = self.moments[position] + FETCH_AHEAD_NS
        self.next = max(self.next, position)
        while self.next < len(self.moments) and self.moments[self.next] <= horizon:
            if not self.planner.sbuf.fetch(position, self.next, self.planner.accesses[self.next]):
                break
            self.next += 1


def engine_clocks(m: Machine) -> dict[str, float]:
    """GHz of each engine."""
    return {
        "tensor": m.tensor_ghz,
        "vector": m.vector_ghz,
        "scalar": m.scalar_ghz,
        "gpsimd": m.gpsimd_ghz,
        "sync": m.gpsimd_ghz,
    }


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


class Pool:
    """On-chip space handed out in program order; what is full evicts the tile needed last."""

    def __init__(self, planner: Planner, buffer: Any, capacity: int, unit: int):
        self.planner = planner
        self.buffer = buffer
        self.unit = unit
        self.uses: dict[int, deque[int]] = defaultdict(deque)
        self.storages: dict[int, Storage] = {}
        placed: set[tuple[int, int]] = set()
        for position, access in enumerate(planner.accesses):
            for view in (*access.reads, *access.writes):
                storage = view.storage
                if storage.buffer is not buffer:
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
        self.spilled: dict[int, int] = {}  # storage -> its spill operation
        self.deferred: dict[int, int] = {}  # storage -> position of the load that was put off
        self.lives = {key: (uses[0], uses[-1]) for key, uses in self.uses.items()}  # first and last use
        self.demand = Demand(self.uses, {k: self.size(s) for k, s in self.storages.items()})
        self.early: list[tuple[int, int]] = []  # loads done ahead: (position, bytes), sorted
        self.early_bytes = 0
        self.over_committed = 0

    def size(self, storage: Storage) -> int:
        return -(-storage.pitch // self.unit) * self.unit

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
            if storage.buffer is not self.buffer or storage.address is not None:
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

    def fetch(self, now: int, position: int, access: Accesses) -> bool:
        """Bring in what a coming instruction needs: loads into free space, reloads also by eviction.

        False when a load must wait for space; the instructions behind it then wait as well.
        """
        for view in access.reads:
            key = id(view.storage)
            if view.storage.buffer is not self.buffer or key in self.resident or not self.uses[key]:
                continue
            size = self.size(view.storage)
            put_off = key in self.deferred
            if put_off or key in self.spilled:
                if self.free_bytes < size and self._farthest(set())[1] <= position:
                    continue
                if put_off:
                    self._load_now(key)
                else:
                    waits = self._take(size, set())
                    self.resident[key] = size
                    self._reload(view.storage, waits)
            elif self.planner.load_of.get(key, -1) > now:
                load = self.planner.load_of[key]
                if self.free_bytes < size or not self._has_room(now, load, size):
                    return False
                insort(self.early, (load, size))
                self.early_bytes += size
                self.planner.load_early(load)
        return True

    def _has_room(self, now: int, until: int, size: int) -> bool:
        """True when `size` bytes more, taken from now on, push out nothing the program keeps until then."""
        early = self.early
        while early and early[0][0] <= now:
            self.early_bytes -= early.pop(0)[1]
        return self._fits(now, until, 0, len(early), size + self.early_bytes)

    def _fits(self, begin: int, until: int, low: int, high: int, ahead: int) -> bool:
        """Demand from `begin` to `until` leaves `ahead` bytes, less what early[low:high] give up on the way.

        From its own place in the program on, an early load is part of the demand.
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

    def used(self, position: int, op: Operation, access: Accesses) -> None:
        """Record the use; free the tiles that have none left."""
        writes = {id(v.storage) for v in access.writes}
        for view in (*access.reads, *access.writes):
            storage = view.storage
            key = id(storage)
            if storage.buffer is not self.buffer or storage.address is not None:
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
        """Spill the resident tile whose next use is farthest away."""
        if self.buffer is PSUM:
            return False
        best, _ = self._farthest(keep)
        if best is None:
            return False
        storage = self.storages[best]
        after = tuple(self.last.pop(best))
        if best in self.dirty or best not in self.spilled:
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
        op.wait_for(self.spilled[id(storage)], RAW)
        self.planner.space(storage).write(op, WHOLE)
        self.last[id(storage)] = [op.index]
        self.planner.spill_bytes += storage.nbytes


WHOLE = Region(0, 1 << 40, 0, 1 << 60)
