"""PSUM banks: which tiles hold them while the kernel runs.

A tile has its banks from the start of its first writer to its last use: the compiler "analyzes the memory
dependency and allocates a physical address to each tile" (migration guide), so no tile waits for a bank
because of its place in the program alone. A tile may take banks ahead of earlier ones while these still find
theirs: what is live in program order always fits, so nothing waits forever. An instruction without inputs is
ready from the start, and takes its banks in program order: all zeros at once would hold every bank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from heapq import heappop, heappush

import numpy as np

from ..ir.liveness import RangeMaximum, live_bytes, union_size
from ..machine.machine import Machine
from .access_columns import Numbers
from .sbuf_pool import Ahead
from .uses import TileUses

BankNeeds = list[tuple[int, int]]  # (where the program uses a tile first, its banks), sorted


class BankPlan:
    """The tiles of one core in PSUM, numbered, and what they need: the same in every simulation."""

    def __init__(self, machine: Machine, uses: TileUses, without_inputs: Collection[int] = ()):
        unit, tiles = machine.psum_bank_bytes, uses.psum
        banks = -(-uses.psum_sizes // unit)
        numbers = np.repeat(np.arange(len(banks)), tiles.counts())
        self.in_turn = without_inputs  # positions that take banks in program order
        order = np.argsort(tiles.access)  # as the instructions access them
        self.tiles = _tiles_at(tiles.position[order], numbers[order])  # position -> its tiles
        self.sizes: list[int] = banks.tolist()
        self.uses: list[int] = tiles.counts().tolist()
        self.first: list[int] = tiles.first.tolist()  # where the program uses each first
        self.wanted: dict[int, int] = {}  # position -> banks of tiles that begin there
        for first, size in zip(self.first, self.sizes, strict=True):
            self.wanted[first] = self.wanted.get(first, 0) + size
        self.order = sorted(self.wanted)  # those positions, as in the program
        self.demand = RangeMaximum(live_bytes(tiles.first, tiles.last, banks))
        left = machine.psum_banks - -(-union_size(uses.psum_placed) // unit)
        self.capacity = max(left, self.demand.most)


def _tiles_at(positions: Numbers, numbers: Numbers) -> dict[int, tuple[int, ...]]:
    """Return the tiles of each position."""
    found = dict(zip(positions.tolist(), zip(numbers.tolist(), strict=True), strict=True))
    if len(found) < len(positions):  # some have several
        found = {}
        for position, number in zip(positions.tolist(), numbers.tolist(), strict=True):
            found[position] = (*found.get(position, ()), number)
    return found


class Banks:
    """The PSUM of one core, while it is simulated."""

    def __init__(self, plan: BankPlan):
        self.plan, self.tiles = plan, plan.tiles
        self.left = list(plan.uses)  # of each tile: uses to come
        self.held = bytearray(len(plan.sizes))  # of each tile: whether it has its banks
        self.wanted = dict(plan.wanted)  # position -> banks of tiles that begin there and have none yet
        self.order = deque(plan.order)  # those positions, as in the program
        self.ahead = Ahead(plan.demand, plan.capacity)
        # the operation that freed each bank, and when; longest free first
        self.free: deque[tuple[int, float]] = deque([(-1, 0.0)] * plan.capacity)

    def has_room(self, position: int) -> bool:
        """True when the instruction finds its banks, and earlier ones in the program will find theirs.

        Writers of one tile may run in any order: the first takes its banks.
        """
        held = self.held
        for tile in self.tiles[position]:
            if not held[tile]:
                return self.fits(self.needs(position), position in self.plan.in_turn)
        return True

    def needs(self, position: int) -> BankNeeds:
        """Return the banks that the instruction still needs."""
        first, sizes = self.plan.first, self.plan.sizes
        missing = [tile for tile in self.tiles[position] if not self.held[tile]]
        if len(missing) == 1:  # as most instructions
            return [(first[missing[0]], sizes[missing[0]])]
        found: dict[int, int] = {}
        for tile in missing:
            found[first[tile]] = found.get(first[tile], 0) + sizes[tile]
        return sorted(found.items())

    def fits(self, needs: BankNeeds, in_turn: bool) -> bool:
        if len(self.free) < sum([banks for _, banks in needs]):
            return False
        if in_turn and needs and needs[-1][0] != self.order[0]:
            return False
        return all([self._may_take(first, banks) for first, banks in needs])

    def _may_take(self, first: int, banks: int) -> bool:
        return first == self.order[0] or self.ahead.has_room(self.order[0], first, banks)

    def take(self, position: int) -> tuple[list[int], list[tuple[int, float]]]:
        """Take the banks of an instruction; return its new tiles, who freed their banks, and when."""
        tiles = [tile for tile in self.tiles[position] if not self.held[tile]]
        found: list[tuple[int, float]] = []
        for tile in tiles:
            self.held[tile] = True
            size = self.plan.sizes[tile]
            self._taken(self.plan.first[tile], size)
            found += [self.free.popleft() for _ in range(size)]
        return tiles, found

    def _taken(self, first: int, banks: int) -> None:
        if first != self.order[0]:
            self.ahead.take(first, banks)
        self.wanted[first] -= banks
        while self.order and self.wanted[self.order[0]] == 0:
            self.order.popleft()

    def used(self, position: int) -> int:
        """Record that an instruction is done; return how many banks are free now."""
        freed = 0
        for tile in self.tiles[position]:
            self.left[tile] -= 1
            if self.left[tile] == 0:
                freed += self.plan.sizes[tile]
        return freed

    def give_back(self, operation: int, banks: int, now: float) -> None:
        self.free.extend([(operation, now)] * banks)


class StarvedQueues:
    """The operations that wait for PSUM banks, for each engine.

    Where two need as many banks, the one whose tile the program uses first finds them first: if it does not,
    the other does not either. So only the first of each queue is tried, however many wait.
    """

    def __init__(self, banks: Banks):
        self.banks = banks
        self.queues: dict[int, dict[tuple, list[tuple[BankNeeds, int, int]]]] = {}  # needs, rank, operation
        self.users: dict[int, list[tuple[int, int]]] = {}  # by tile: (place, operation)
        self.waits: set[int] = set()  # the operations; one in a queue that is not here was released

    def places(self) -> list[int]:
        return list(self.queues)

    def add(self, place: int, position: int, rank: int, index: int) -> None:
        needs = self.banks.needs(position)
        queues = self.queues.setdefault(place, {})
        key = (position in self.banks.plan.in_turn, *(banks for _, banks in needs))
        heappush(queues.setdefault(key, []), (needs, rank, index))
        self.waits.add(index)
        for tile in self.banks.tiles[position]:
            if not self.banks.held[tile]:
                self.users.setdefault(tile, []).append((place, index))

    def pop_ready(self, place: int, before: float) -> Iterator[tuple[int, int]]:
        """Yield (rank, operation) of those of a lower rank than `before` that find their banks now."""
        queues = self.queues.get(place)
        if queues is None:
            return
        for key, queue in list(queues.items()):
            while queue and queue[0][2] not in self.waits:
                heappop(queue)
            if not queue:
                del queues[key]
            elif queue[0][1] < before and self.banks.fits(queue[0][0], key[0]):
                _, rank, index = heappop(queue)
                self.waits.discard(index)
                yield rank, index
        if not queues:
            del self.queues[place]

    def take_users(self, tiles: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the operations that wait for some of these tiles, each with its engine."""
        for tile in tiles:
            for place, index in self.users.pop(tile, ()):
                if index in self.waits:
                    self.waits.discard(index)
                    yield place, index
