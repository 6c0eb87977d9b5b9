"""PSUM banks: which tiles hold them while the kernel runs.

A tile has its banks from the start of its first writer to its last use: the compiler "analyzes the memory
dependency and allocates a physical address to each tile" (migration guide), so no tile waits for a bank
because of its place in the program alone. A tile may take banks ahead of earlier ones while these still find
theirs: what is live in program order always fits, so nothing waits forever.
"""

from __future__ import annotations

from collections import deque

from ..ir.liveness import Lifetime, RangeMaximum, live_bytes, union_size
from ..ir.storage import Storage
from ..machine.machine import Machine
from .sbuf_pool import Ahead
from .uses import TileUses


class Banks:
    """The PSUM of one core."""

    def __init__(self, machine: Machine, uses: TileUses):
        unit = machine.psum_bank_bytes
        self.tiles = uses.in_psum  # position -> the tiles its instruction uses
        self.sizes = {tile: -(-tile.pitch // unit) for tile in uses.psum}  # banks
        self.left = {tile: len(positions) for tile, positions in uses.psum.items()}  # uses to come
        self.first = {tile: at[0] for tile, at in uses.psum.items()}  # where the program uses it first
        self.wanted: dict[int, int] = {}  # position -> banks of tiles that begin there and have none yet
        for tile, first in self.first.items():
            self.wanted[first] = self.wanted.get(first, 0) + self.sizes[tile]
        self.order = deque(sorted(self.wanted))  # those positions, as in the program
        self.held: set[Storage] = set()  # tiles that have their banks
        lives = [(Lifetime(at[0], at[-1]), self.sizes[tile]) for tile, at in uses.psum.items()]
        demand = RangeMaximum(live_bytes(lives))
        banks = machine.psum_banks - -(-union_size(uses.psum_placed) // unit)
        self.ahead = Ahead(demand, max(banks, max(demand.levels[0], default=0)))
        # the operation that freed each bank, and when; longest free first
        self.free: deque[tuple[int, float]] = deque([(-1, 0.0)] * self.ahead.capacity)

    def has_room(self, position: int) -> bool:
        """True when the instruction finds its banks, and earlier ones in the program will find theirs.

        Writers of one tile may run in any order: the first takes its banks.
        """
        missing = [tile for tile in self.tiles.get(position, ()) if tile not in self.held]
        if not missing:
            return True
        if len(self.free) < sum(self.sizes[tile] for tile in missing):
            return False
        return all(
            self._may_take(first, sum(self.sizes[t] for t in missing if self.first[t] == first))
            for first in {self.first[tile] for tile in missing}
        )

    def is_next(self, position: int) -> bool:
        """True when the tiles of the instruction have their banks, or are the next ones in the program."""
        head = self.order[0] if self.order else -1
        return all(tile in self.held or self.first[tile] == head for tile in self.tiles.get(position, ()))

    def _may_take(self, first: int, banks: int) -> bool:
        return first == self.order[0] or self.ahead.has_room(self.order[0], first, banks)

    def take(self, position: int) -> list[tuple[int, float]]:
        """Take the banks of an instruction; return the operations that freed them, and when."""
        found: list[tuple[int, float]] = []
        for tile in self.tiles.get(position, ()):
            if tile not in self.held:
                self.held.add(tile)
                self._taken(self.first[tile], self.sizes[tile])
                found += [self.free.popleft() for _ in range(self.sizes[tile])]
        return found

    def _taken(self, first: int, banks: int) -> None:
        if first != self.order[0]:
            self.ahead.take(first, banks)
        self.wanted[first] -= banks
        while self.order and self.wanted[self.order[0]] == 0:
            self.order.popleft()

    def used(self, position: int) -> int:
        """Record that an instruction is done; return how many banks are free now."""
        freed = 0
        for tile in self.tiles.get(position, ()):
            self.left[tile] -= 1
            if self.left[tile] == 0:
                freed += self.sizes[tile]
        return freed

    def give_back(self, operation: int, banks: int, now: float) -> None:
        self.free.extend([(operation, now)] * banks)
