"""The operations of a core as columns: what planning writes and the simulation reads."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np

from ..ir.dependences import Waits, wait
from ..ir.instruction import Instruction
from ..ir.storage import Storage
from .edges import REASON_NUMBERS, Edges
from .operation import SPACE, Operation
from .timing_rules import REASONS

CHUNK = 4096  # operations whose waits are still objects


class OperationTable:
    """One column per field of the operations; their waits lie one after the other."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.positions = array("i")  # in the program; -1 for spills and reloads
        self.tiles: dict[int, Storage] = {}  # of spills and reloads
        self.reloads: dict[int, Instruction] = {}  # the loads that reloads repeat
        self._clear_waits()

    def _clear_waits(self) -> None:
        self.counts = array("i")  # waits of each operation
        self.producers = array("i")  # of all waits
        self.reasons = bytearray()
        self._recent: list[Waits] = []  # of operations that are not in these columns yet
        self._recent_positions: list[int] = []

    def __len__(self) -> int:
        return len(self.kinds)

    def begin(self, position: int, kind: str) -> tuple[int, Waits]:
        """Add an operation; return its index, and its waits, which the caller fills before the next."""
        index = len(self.kinds)
        waits: Waits = {}
        if len(self._recent) == CHUNK:
            self.finish()
        self._recent.append(waits)
        self._recent_positions.append(position)
        self.kinds.append(kind)
        return index, waits

    def finish(self) -> None:
        """Move the last operations to the columns: many at once, since that takes less time."""
        self.positions.extend(array("i", self._recent_positions))
        recent, self._recent, self._recent_positions = self._recent, [], []
        self.counts.extend(array("i", map(len, recent)))
        self.producers.extend(array("i", list(chain.from_iterable(recent))))
        reasons = chain.from_iterable(waits.values() for waits in recent)
        self.reasons += bytes(map(REASON_NUMBERS.__getitem__, reasons))

    def replace_waits(self, waits: Iterable[Waits]) -> None:
        """Replace the waits of all operations."""
        self._clear_waits()
        self._recent = list(waits)
        self.finish()

    def edges(self) -> Edges:
        """Return the waits as arrays."""
        users = np.repeat(np.arange(len(self), dtype=np.int32), self.counts)
        return Edges(np.array(self.producers, np.int32), users, np.frombuffer(bytes(self.reasons), np.int8))

    def operations(
        self, instructions: Sequence[Instruction], core: int, freed: Iterable[tuple[int, int]] = ()
    ) -> list[Operation]:
        """Return the operations as objects; they also wait for those that freed their PSUM banks."""
        waits_of = WaitColumns(self, freed).of
        return [self.operation(index, instructions, core, waits_of) for index in range(len(self))]

    def operation(
        self,
        index: int,
        instructions: Sequence[Instruction],
        core: int,
        waits_of: Callable[[int], Waits] = lambda index: {},
    ) -> Operation:
        """Return an operation as an object."""
        position, kind = self.positions[index], self.kinds[index]
        if position >= 0:
            return Operation(index, instructions[position], kind, core, position, waits_of)
        op = Operation(index, None, kind, core, position, waits_of)
        op.tile, op.reloads = self.tiles[index], self.reloads.get(index)
        return op


class WaitColumns:
    """What each operation waits for: a dict for one that is asked for, since those of all are large."""

    def __init__(self, table: OperationTable, freed: Iterable[tuple[int, int]]):
        ends = np.cumsum(table.counts, dtype=np.int64)
        self.first = array("q", np.concatenate([[0], ends]).astype(np.int64).tobytes())
        self.producers, self.reasons = table.producers, table.reasons
        self.freed_by: dict[int, list[int]] = {}  # of those that waited for PSUM banks
        for index, other in freed:
            self.freed_by.setdefault(index, []).append(other)

    def of(self, index: int) -> Waits:
        """Return what an operation waits for."""
        part = slice(self.first[index], self.first[index + 1])
        found = dict(zip(self.producers[part], map(REASONS.__getitem__, self.reasons[part]), strict=True))
        for other in self.freed_by.get(index, ()):
            wait(found, index, other, SPACE)
        return found
