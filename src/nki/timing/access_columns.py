"""The accesses of a core's instructions as columns: who reads and writes which storage, and where in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..ir.boxes import Box, box
from ..ir.columns import ProgramColumns
from ..ir.effects import effects
from ..ir.instruction import Instruction
from ..ir.storage import Storage
from ..ir.view import View

Numbers = np.ndarray  # of integers, those of accesses and tiles of 32 bits, since there are many
NO_BOX = -1  # of HBM, where boxes of one signature differ


class Access(NamedTuple):
    """How an instruction uses one of its views."""

    place: int  # of the view among those of its instruction
    is_write: bool
    box: int
    is_whole: bool  # it writes all of its storage


class AccessColumns:
    """The reads of each instruction in program order, then its writes; sums in PSUM count as written.

    Index tiles of run-time addresses are read. On chip, the boxes of one signature are the same.
    """

    def __init__(self, instructions: Sequence[Instruction], program: ProgramColumns, core: int):
        """`program` has the columns of these instructions, as those of one of its cores."""
        self.instructions = instructions
        columns = program.of(core)
        self.boxes: list[Box] = []  # by number
        self._box_numbers: dict[Box, int] = {}
        by_signature = [self._accesses(sample) for sample in columns.samples]
        known = [found or [] for found in by_signature]
        counts = np.array([len(found) for found in known], np.int64)
        table = np.array([access for found in known for access in found], np.int32).reshape(-1, 4)
        each = counts[columns.signature]
        self.position = np.repeat(np.arange(len(each), dtype=np.int32), each)
        first_row = (np.cumsum(counts) - counts)[columns.signature] - (np.cumsum(each) - each)
        rows = table[np.arange(len(self.position)) + np.repeat(first_row, each)]
        first_view = np.repeat(np.cumsum(columns.views) - columns.views, each)
        self.storage = columns.storage[first_view + rows[:, 0]].astype(np.int32)
        self.is_write = rows[:, 1].astype(np.bool_)
        self.box = rows[:, 2].copy()
        self.is_whole = rows[:, 3].astype(np.bool_)
        unknown = np.array([found is None for found in by_signature], np.bool_)
        if unknown.any():
            self._add_each(np.nonzero(unknown[columns.signature])[0].tolist(), program)
        self.storages = program.storages
        self._kinds, _ = program.storage_kinds

    def _accesses(self, sample: Instruction) -> list[Access] | None:
        """Return the accesses of all instructions of one signature; None where they differ."""
        if not sample.access.fixed:
            return None
        names = sample.operand_names
        places = {name: place for place, name in enumerate(sample.access.views)}
        read = [names[i] for i in sample.read_at if names[i] in places]
        written = [names[i] for i in sample.write_at if names[i] in places]
        if sample.accumulates and sample.adds_to_dst():
            written = written[1:] + written[:1]
        return [
            self._access(places[name], getattr(sample, name), is_write)
            for is_write, some in ((False, read), (True, written))
            for name in some
        ]

    def _access(self, place: int, view: View, is_write: bool) -> Access:
        number = self.box_number(box(view)) if view.on_chip else NO_BOX
        return Access(place, is_write, number, is_write and view.covers_storage())

    def _add_each(self, positions: Sequence[int], program: ProgramColumns) -> None:
        """Add the accesses of some instructions, one by one."""
        found: list[tuple[int, ...]] = []
        for position in positions:
            reads, writes = accesses(self.instructions[position])
            for is_write, views in ((False, reads), (True, writes)):
                for view in views:
                    _, _, number, is_whole = self._access(0, view, is_write)
                    found.append((position, program.numbers[view.storage], is_write, number, is_whole))
        added = np.array(found, np.int64).reshape(-1, 5).T
        names = ("position", "storage", "is_write", "box", "is_whole")
        old = [getattr(self, name) for name in names]
        order = np.argsort(np.concatenate([old[0], added[0]]), kind="stable")
        for name, mine, more in zip(names, old, added, strict=True):
            setattr(self, name, np.concatenate([mine, more.astype(mine.dtype)])[order])

    def of_storages(self, fact: Callable[[Storage], int]) -> Numbers:
        """Return a fact of each storage, which is the same for all that differ in name and line alone."""
        first = np.unique(self._kinds, return_index=True)[1].tolist()
        return np.array([fact(self.storages[number]) for number in first], np.int64)[self._kinds]

    def view(self, number: int) -> View:
        """Return the view of an access."""
        position = int(self.position[number])
        reads, writes = accesses(self.instructions[position])
        return (*reads, *writes)[number - int(np.searchsorted(self.position, position))]

    def box_number(self, found: Box) -> int:
        """Return the number of a box."""
        number = self._box_numbers.setdefault(found, len(self.boxes))
        if number == len(self.boxes):
            self.boxes.append(found)
        return number

    def box_of(self, number: int) -> int:
        """Return the number of the box of an access."""
        found = int(self.box[number])
        return self.box_number(box(self.view(number))) if found == NO_BOX else found


class Accesses(NamedTuple):
    """The views an instruction reads and writes, index tiles included.

    A sum in PSUM counts as written: the PE array adds to it without waiting for what it holds.
    """

    reads: tuple[View, ...]
    writes: tuple[View, ...]


def accesses(instruction: Instruction) -> Accesses:
    """Return what an instruction reads and writes."""
    reads, writes, adds_to = effects(instruction)[:3]
    return tuple.__new__(Accesses, (reads, writes + adds_to if adds_to else writes))
