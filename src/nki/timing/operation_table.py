"""The operations of a core as columns: what planning writes and the simulation reads."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, MutableSequence, Sequence

import numpy as np

from ..ir.dependences import Waits, wait
from ..ir.instruction import Instruction
from ..ir.storage import Storage
from .edges import Edges
from .operation import SPACE, Operation
from .timing_rules import REASONS


class OperationTable:
    """The operations of a core, one column per field; `edges` once all are there."""

    def __init__(self) -> None:
        self.positions: MutableSequence[int] = []  # in the program; -1 for spills and reloads
        self.tiles: dict[int, Storage] = {}  # of spills and reloads
        self.moves: dict[int, str] = {}  # their kinds
        self.reloads: dict[int, Instruction] = {}  # the loads that reloads repeat
        self.kinds: list[str] = []  # of all, once they are there
        self.edges = Edges(*(np.zeros(0, dtype) for dtype in (np.int32, np.int32, np.int8)))

    def __len__(self) -> int:
        return len(self.positions)

    def begin(self, position: int) -> int:
        """Add the operation of an instruction; return its index."""
        self.positions.append(position)
        return len(self.positions) - 1

    def begin_move(self, kind: str, tile: Storage) -> int:
        """Add a spill or a reload; return its index."""
        index = self.begin(-1)
        self.moves[index], self.tiles[index] = kind, tile
        return index

    def finish(self, engines: Sequence[str], edges: Edges) -> None:
        """Set the kinds of all operations, given the engines by position, and what they wait for."""
        self.kinds = [*map([*engines, ""].__getitem__, self.positions)]
        for index, kind in self.moves.items():
            self.kinds[index] = kind
        self.positions = array("i", self.positions)
        self.edges = edges

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
        producers, users, reasons = table.edges
        self.first = np.searchsorted(users, np.arange(len(table) + 1)).tolist()
        self.producers, self.reasons = array("i", producers.tobytes()), reasons.tobytes()
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
