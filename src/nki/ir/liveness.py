"""Liveness: from when to when something is in use, and how many bytes are live at once.

A tile is live from the first instruction that uses it to the last, both included. Positions count the
instructions of a core in program order.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF, MemoryRegion
from .columns import Columns
from .instruction import Instruction
from .items import Item, Loop
from .storage import Storage
from .view import View

CONDENSE_AT = 512  # closed lifetimes that a TileLifetimes holds before it condenses them
CACHE_LINE = 64  # bytes

T = TypeVar("T")


class Lifetime(NamedTuple):
    """The first and the last position at which something is used."""

    first: int
    last: int


def last_uses(used: Iterable[Iterable[T]]) -> dict[int, list[T]]:
    """Return what is used for the last time at each position, given what is used at each position."""
    last = {thing: position for position, things in enumerate(used) for thing in things}
    found: dict[int, list[T]] = {}
    for thing, position in last.items():
        found.setdefault(position, []).append(thing)
    return found


def lifetimes(items: Sequence[Item]) -> dict[Storage, Lifetime]:
    """Return when each on-chip storage is live; positions start at 1.

    A tile that a loop uses, and that was allocated outside of it, is live as long as the loop.
    """
    around: dict[Storage, Lifetime] = {}  # the loops that a tile outlives
    position = 0

    def walk(items: Sequence[Item]) -> Iterator[Instruction]:
        nonlocal position
        for item in items:
            if not isinstance(item, Loop):
                position += 1
                yield item
                continue
            begin = position + 1
            inside: set[Storage] = set()
            for instruction in walk(item.body):
                if not instruction.simulator_only:
                    inside.update(v.storage for v in instruction.views() if v.storage.on_chip)
                yield instruction
            for storage in inside:
                if storage.loop != item.number:
                    first, last = around.get(storage, (begin, position))
                    around[storage] = Lifetime(min(first, begin), max(last, position))

    begins, ends = first_and_last(walk(items))
    found: dict[Storage, Lifetime] = {}
    for storage, begin in begins.items():
        if storage.on_chip:
            end, outer = ends[storage], around.get(storage)
            if outer is not None:
                begin, end = min(outer.first, begin), max(outer.last, end)
            found[storage] = tuple.__new__(Lifetime, (begin, end))  # there are many
    return found


def first_and_last(instructions: Iterable[Instruction]) -> tuple[dict[Storage, int], dict[Storage, int]]:
    """Return the first and the last position that uses each storage; positions start at 1."""
    begins: dict[Storage, int] = {}
    ends: dict[Storage, int] = {}
    for position, instruction in enumerate(instructions, 1):
        if instruction.simulator_only:
            continue
        access = instruction.access
        if access.fixed:  # its views are its operands, and nothing else
            for name in access.views:
                storage = getattr(instruction, name).storage
                if storage not in begins:
                    begins[storage] = position
                ends[storage] = position
            continue
        for view in instruction.views():
            begins.setdefault(view.storage, position)
            ends[view.storage] = position
    return begins, ends


# ---- live bytes ----------------------------------------------------------------------------------


def levels(lives: Iterable[tuple[Lifetime, int]], also: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Return the positions where the number of live bytes changes, and the number from there on.

    `lives` holds lifetimes and sizes; the positions of `also` are among the results in any case.
    """
    changes: defaultdict[int, int] = defaultdict(int, dict.fromkeys(also, 0))
    for (first, last), size in lives:
        changes[first] += size
        changes[last + 1] -= size
    positions = sorted(changes)
    return list(zip(positions, accumulate(changes[p] for p in positions), strict=True))


def live_bytes(
    first: Sequence[int] | np.ndarray,
    last: Sequence[int] | np.ndarray,
    sizes: Sequence[int] | np.ndarray,
    length: int = 0,
) -> np.ndarray:
    """Return the number of live bytes at each of at least `length` positions, given lifetimes and sizes."""
    begins, ends = np.array(first, np.int64), np.array(last, np.int64) + 1
    length = max(length, int(ends.max(initial=1)) + 1)
    changes = np.bincount(begins, sizes, length) - np.bincount(ends, sizes, length)
    return np.cumsum(changes.astype(np.int64))


class RangeMaximum:
    """Answers what the most live bytes are between two positions."""

    def __init__(self, live: np.ndarray):
        self.most = int(live.max(initial=0))  # at any position
        self._last = len(live) - 1
        self._live = live  # the highest level so far
        self._levels: list[array[int]] = []  # level k: the highest of 2**k positions

    def highest(self, begin: int, end: int) -> int:
        """Return the most live bytes at any position from begin to end."""
        if end > self._last:
            end = self._last
        if begin >= end:
            begin = end = min(begin, self._last)
        level = (end - begin + 1).bit_length() - 1
        while len(self._levels) <= level:  # most answers need few of them
            self._add_level()
        table = self._levels[level]
        one, other = table[begin], table[end - (1 << level) + 1]
        return one if one > other else other

    def _add_level(self) -> None:
        if self._levels:
            step = 1 << (len(self._levels) - 1)
            self._live = np.maximum(self._live[:-step], self._live[step:])
        self._levels.append(array("q", self._live.astype(np.int64).tobytes()))


def address_range(storage: Storage) -> tuple[int, int]:
    """Return the bytes of each partition that a storage with an explicit address takes."""
    assert storage.address is not None
    return storage.address[1], storage.address[1] + storage.pitch


def union_size(ranges: Iterable[tuple[int, int]]) -> int:
    """Return how many bytes some ranges cover, those that overlap counted once."""
    total = reach = 0
    for begin, end in sorted(ranges):
        total += max(0, end - max(begin, reach))
        reach = max(reach, end)
    return total


class Peak(NamedTuple):
    """The most bytes per partition that are live at once, and the storages that are live then."""

    nbytes: int
    live: list[Storage]


class LiveTiles(NamedTuple):
    """Tiles without an explicit address that are live together."""

    life: Lifetime
    nbytes: int  # of each partition
    tiles: tuple[Storage, ...]


def peak(lives: Mapping[Storage, Lifetime], size: Callable[[Storage], int]) -> Peak:
    """Return the peak of the storages of one memory; those with an explicit address are always live."""
    placed: dict[tuple[int, int], Storage] = {}
    changes = [0] * (max([life.last for life in lives.values()], default=0) + 2)  # of live bytes
    for storage, (first, last) in lives.items():
        if storage.address is None:
            nbytes = size(storage)
            changes[first] += nbytes
            changes[last + 1] -= nbytes
        else:
            placed.setdefault(address_range(storage), storage)
    live = list(accumulate(changes))
    most = max(live)
    at = live.index(most)
    automatic = [s for s, (first, last) in lives.items() if first <= at <= last and s.address is None]
    return _with_placed(most, automatic, placed)


def _with_placed(most: int, live: Sequence[Storage], placed: Mapping[tuple[int, int], Storage]) -> Peak:
    """Return a peak beside one tile for each explicit address, in the order of allocation."""
    return Peak(most + union_size(placed), sorted([*live, *placed.values()], key=attrgetter("number")))


class TileLifetimes:
    """The lifetimes of one core's tiles, collected while a kernel runs.

    What it holds grows with the number of tiles that are live at once, not with the length of the run. Tiles
    live as `lifetimes` says, also those that dynamic loops use.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.open: dict[int, list[Any]] = {}  # id(storage) -> [storage, first use, last use]
        self.closed: dict[MemoryRegion, list[LiveTiles]] = {SBUF: [], PSUM: []}
        self.limit: dict[MemoryRegion, float] = {SBUF: CONDENSE_AT, PSUM: CONDENSE_AT}
        self.placed: dict[MemoryRegion, dict[tuple[int, int], Storage]] = {SBUF: {}, PSUM: {}}
        self.loops: list[tuple[int, int]] = []  # the dynamic loops that run: number, first position
        self.released: list[Storage] = []  # while a loop runs that they outlive

    def begin_loop(self, number: int, now: int) -> None:
        """Begin a dynamic loop after position `now`."""
        self.loops.append((number, now + 1))

    def end_loop(self, number: int, now: int) -> None:
        """End a dynamic loop: what it used of the tiles around it was live all the time."""
        while any(number == running for running, _ in self.loops):  # those inside it have ended as well
            innermost, begin = self.loops.pop()
            for life in self.open.values():
                if life[2] >= begin and life[0].loop != innermost:
                    life[1:] = min(life[1], begin), now
        released, self.released = self.released, []
        for storage in released:
            self.close(storage)

    def use(self, view: View, now: int) -> None:
        """Record a use of a view, and of its index tile."""
        storage = view.storage
        if storage.on_chip:
            life = self.open.get(id(storage))
            if life is None:
                self.open[id(storage)] = [storage, now, now]
            else:
                life[2] = now
        if view.indirection is not None and isinstance(view.indirection.index, View):
            self.use(view.indirection.index, now)

    def close(self, storage: Storage) -> None:
        """End the lifetime of a storage; one that a loop uses and outlives, when the loop ends."""
        if id(storage) not in self.open:
            return
        if self.loops and storage.loop != self.loops[-1][0]:
            self.released.append(storage)
            return
        _, first, last = self.open.pop(id(storage))
        self._close(storage, Lifetime(first, last))
        if len(self.closed[storage.buffer]) >= self.limit[storage.buffer]:
            self._condense(storage.buffer)

    def _close(self, storage: Storage, life: Lifetime) -> None:
        if storage.address is not None:
            self.placed[storage.buffer].setdefault(address_range(storage), storage)
        else:
            tiles = (life, storage.taken(self.machine), (storage,))
            self.closed[storage.buffer].append(tuple.__new__(LiveTiles, tiles))  # there are many

    def add(self, columns: Columns, storages: Sequence[Storage]) -> None:
        """Add the lifetimes of the tiles of a whole recorded program: of those that are live at its peaks.

        `storages` has those of the program by number.
        """
        numbers, firsts, lasts = columns.lives()
        used = [storages[number] for number in numbers.tolist()]
        buffers = {memory: np.array([s.buffer is memory for s in used], np.bool_) for memory in self.closed}
        for memory, chosen in buffers.items():
            tiles = [tile for tile in used if tile.buffer is memory]
            sizes = [tile.taken(self.machine) if tile.address is None else 0 for tile in tiles]
            first, last = firsts[chosen], lasts[chosen]
            at = int(live_bytes(first, last, sizes).argmax())
            placed = np.array([tile.address is not None for tile in tiles], np.bool_)
            (live,) = np.nonzero(placed | (first <= at) & (at <= last))
            for i in live.tolist():
                self._close(tiles[i], Lifetime(int(first[i]), int(last[i])))

    def close_all(self) -> None:
        """End all lifetimes."""
        self.limit = dict.fromkeys(self.limit, math.inf)  # nothing follows, so condensing gains nothing
        for storage, _, _ in list(self.open.values()):
            self.close(storage)

    def _condense(self, memory: MemoryRegion) -> None:
        """Forget all but the peak between any two positions at which an open lifetime begins or may end.

        An open lifetime adds the same number of bytes all the way between them, so only that peak can become
        the highest.
        """
        uses = [(first, last + 1) for storage, first, last in self.open.values() if storage.buffer is memory]
        edges = {position for use in uses for position in use}
        changes: defaultdict[int, list[tuple[int, LiveTiles]]] = defaultdict(list, {p: [] for p in edges})
        for one in self.closed[memory]:
            changes[one.life.first].append((one.nbytes, one))
            changes[one.life.last + 1].append((-one.nbytes, one))
        stretches: list[list[Any]] = []  # from, peak, what is live then
        live: dict[int, LiveTiles] = {}
        level = 0
        for position in sorted(changes):
            for size, one in changes[position]:
                level += size
                if size > 0:
                    live[id(one)] = one
                else:
                    del live[id(one)]
            if position in edges or not stretches:
                stretches.append([position, -1, ()])
            if level > stretches[-1][1]:
                stretches[-1][1:] = level, list(live.values())
        ends = [begin for begin, _, _ in stretches[1:]] + [max(changes)]
        self.closed[memory] = [
            LiveTiles(Lifetime(begin, end - 1), most, tuple(s for one in live for s in one.tiles))
            for (begin, most, live), end in zip(stretches, ends, strict=True)
            if most
        ]
        self.limit[memory] = max(CONDENSE_AT, 2 * len(self.closed[memory]))

    def peak(self, memory: MemoryRegion) -> Peak:
        """Return the most bytes per partition that are live at once, beside all explicit addresses."""
        closed = self.closed[memory]
        at, most = max(levels((life, size) for life, size, _ in closed), key=itemgetter(1), default=(0, 0))
        live = [s for (first, last), _, tiles in closed if first <= at <= last for s in tiles]
        return _with_placed(most, live, self.placed[memory])


# ---- one array for many values -------------------------------------------------------------------


class ArenaAllocator:
    """Allocates parts of one array; freed parts are allocated again."""

    def __init__(self) -> None:
        self.size = 0
        self.free: dict[int, list[int]] = {}  # offsets of free parts, by their size

    def allocate(self, nbytes: int) -> int:
        """Return the offset of a free part."""
        nbytes = -(-nbytes // CACHE_LINE) * CACHE_LINE
        reusable = self.free.get(nbytes)
        if reusable:
            return reusable.pop()
        for size in sorted(self.free):  # a larger one is split
            if size > nbytes and self.free[size]:
                at = self.free[size].pop()
                self.free.setdefault(size - nbytes, []).append(at + nbytes)
                return at
        at = self.size
        self.size += nbytes
        return at

    def free_bytes(self, at: int, nbytes: int) -> None:
        """Make a part free again."""
        self.free.setdefault(-(-nbytes // CACHE_LINE) * CACHE_LINE, []).append(at)


class Buffer(Protocol):
    """Something that needs `nbytes` bytes of an array."""

    nbytes: int


B = TypeVar("B", bound=Buffer)


def allocate(used: Iterable[Iterable[B]], place: Callable[[B, int], None]) -> int:
    """Place the buffers of some steps in one array; those that are not live together may overlap.

    `used` holds the buffers that each step uses, its results included. `place` is called once for each buffer
    with its offset. Returns the size of the array.
    """
    steps = [list(buffers) for buffers in used]
    ends, arena = last_uses(steps), ArenaAllocator()
    offsets: dict[B, int] = {}
    for position, buffers in enumerate(steps):
        for buffer in buffers:
            if buffer not in offsets:
                offsets[buffer] = at = arena.allocate(buffer.nbytes)
                place(buffer, at)
        for buffer in ends.get(position, ()):
            arena.free_bytes(offsets[buffer], buffer.nbytes)
    return arena.size
