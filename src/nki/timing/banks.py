"""PSUM banks: who holds them while the kernel runs.

A tile has its banks from the start of its first writer to its last use: the compiler "analyzes the memory
dependency and allocates a physical address to each tile" (migration guide), so no tile waits for a bank
because of its place in the program alone. A tile may take banks ahead of earlier ones while these still find
theirs: what the program itself keeps live always fits, so nothing waits for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..hardware.machine import Machine
from ..hardware.memories import PSUM
from ..program.statistics import union
from .pools import Accesses, Ahead, Demand


class Banks:
    """The PSUM of one core."""

    def __init__(self, machine: Machine, accesses: Sequence[Accesses]):
        unit = machine.psum_bank_bytes
        uses: dict[int, deque[int]] = {}
        self.sizes: dict[int, int] = {}  # tile -> banks
        self.tiles: dict[int, list[int]] = {}  # position -> the tiles its instruction uses
        placed: set[tuple[int, int]] = set()
        for position, access in enumerate(accesses):
            for view in (*access.reads, *access.writes):
                tile = view.storage
                if tile.buffer is not PSUM:
                    continue
                if tile.address is not None:
                    placed.add((tile.address[1], tile.address[1] + tile.pitch))
                    continue
                of_tile = uses.setdefault(id(tile), deque())
                if not of_tile or of_tile[-1] != position:
                    of_tile.append(position)
                    self.tiles.setdefault(position, []).append(id(tile))
                    self.sizes[id(tile)] = -(-tile.pitch // unit)
        self.left = {tile: len(of_tile) for tile, of_tile in uses.items()}  # uses to come
        self.wanted: dict[int, int] = {}  # position -> banks that its instruction takes
        for number, of_tile in uses.items():
            self.wanted[of_tile[0]] = self.wanted.get(of_tile[0], 0) + self.sizes[number]
        self.order = deque(sorted(self.wanted))  # positions that have not taken theirs, as in the program
        self.taken: set[int] = set()
        demand = Demand(uses, self.sizes)
        banks = machine.psum_banks - -(-union(placed) // unit)
        self.ahead = Ahead(demand, max(banks, max(demand.levels[0], default=0)))
        # who freed them and when, longest free first
        self.free: deque[tuple[int, float]] = deque([(-1, 0.0)] * self.ahead.capacity)

    def has_room(self, position: int) -> bool:
        """The instruction finds its banks, and the ones before it in the program will find theirs."""
        wanted = self.wanted.get(position)
        if wanted is None:
            return True
        if len(self.free) < wanted:
            return False
        return position == self.order[0] or self.ahead.has_room(self.order[0], position, wanted)

    def take(self, position: int) -> list[tuple[int, float]]:
        """The operations that freed the banks which the instruction at a position takes, and when."""
        wanted = self.wanted.get(position)
        if wanted is None:
            return []
        self.taken.add(position)
        if position == self.order[0]:
            while self.order and self.order[0] in self.taken:
                self.order.popleft()
        else:
            self.ahead.take(position, wanted)
        return [self.free.popleft() for _ in range(wanted)]

    def used(self, position: int) -> int:
        """The instruction at a position is done: how many banks nobody uses any more."""
        freed = 0
        for tile in self.tiles.get(position, ()):
            self.left[tile] -= 1
            if self.left[tile] == 0:
                freed += self.sizes[tile]
        return freed

    def give_back(self, operation: int, banks: int, now: float) -> None:
        self.free.extend([(operation, now)] * banks)
