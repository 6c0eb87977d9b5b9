"""Units: parts of a core's instructions that are equal, independent of each other, and run on different data.

The heads of attention are units: the same instructions in the same order, on tiles of their own, with all
addresses in HBM moved by one distance for each storage. The program may interleave them. A backend plans one
unit and repeats it. What is in no unit, such as a load of what all units read, is common and comes first.

Units are guessed from how often tiles are used in the same way. Then everything that they promise is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

from ..ir.columns import Numbers
from ..ir.instruction import Instruction
from ..ir.semantics import Fill, MatrixProduct, Move, Sum
from ..ir.storage import Storage
from .lowered import Lowered, Signature, lanes_of, register_use

CANDIDATES = 3  # numbers of units that are tried
MIN_UNITS = 4  # so that threads can share them
MAX_FLOPS_PER_ELEMENT = 1 << 10  # products of more work are merged over units, which is faster than repeating
FUSED = (MatrixProduct, Move, Fill, Sum)  # meanings of instructions that become part of products


class Unit(NamedTuple):
    """Equal units: the first one, and where the others are."""

    items: list[int]  # of the first one
    tiles: frozenset[Storage]  # that it uses alone
    shifts: tuple[dict[Storage, int], ...]  # of each one: bytes by which its views of HBM are moved

    @property
    def moved(self) -> set[Storage]:
        """The storages of which not all units use the same part."""
        return {storage for row in self.shifts for storage, shift in row.items() if shift}


class Units(NamedTuple):
    """The units of a core."""

    common: list[int]  # the items that are in no unit
    units: list[Unit]  # of different content
    registers: dict[str, tuple[int, int]]  # the last use of each set: which of `units`, and of its shifts


def find_units(
    lowered: Lowered,
    core: int,
    written: Collection[Storage],
    write_once: Collection[Storage],
    candidate: type[Candidate] | None = None,
) -> Units | None:
    """Return the units of a core, or None.

    `written` is the HBM that is written; in `write_once` every element is written once, and never read.
    `candidate` finds units in a way of its own.
    """
    counts = cast("Counter[Signature]", lowered.counts[core])
    if any(kind is None or kind.fence or kind.lazy for kind in counts) or not _pays(counts):
        return None
    if any(s.address is not None for s in lowered.storages):
        return None
    accesses = Accesses(lowered, core)
    in_order = {s for s in written if s not in write_once}
    for count in accesses.candidates():
        found = (candidate or Candidate)(accesses, count).units(in_order)
        if found is not None:
            return found
    return None


def _pays(kinds: Counter[Signature]) -> bool:
    """Return whether instructions that are part of no product take most of the time."""
    flops = sum([kind.flops * often for kind, often in kinds.items()])
    alone = [(kind, often) for kind, often in kinds.items() if kind.meaning.__class__ not in FUSED]
    return flops < MAX_FLOPS_PER_ELEMENT * sum([kind.elements * often for kind, often in alone])


class Accesses:
    """The views of a core's instructions, one after the other, as arrays of numbers."""

    def __init__(self, lowered: Lowered, core: int):
        self.lowered = lowered
        self.items = cast("Sequence[Instruction]", lowered.items[core])  # there is no loop
        self.kinds = cast("Sequence[Signature]", lowered.kinds[core])
        columns, known = lowered.columns.of(core), lowered.known(core)
        self.known = known  # the signatures, by their numbers
        self.signature, self.storage = columns.signature, columns.storage
        self.views, self.first = columns.views, np.cumsum(columns.views) - columns.views  # of each item
        self.item, self.operand = columns.positions(), columns.operands()
        self.writes = np.array([flag for kind in known for flag in kind.written])[self.operand]
        widths = np.array([width for kind in known for width in kind.widths])
        self.offset = columns.offset * widths[self.operand]  # in bytes: HBM may be viewed as other dtypes
        self.on_chip = np.array([s.on_chip for s in lowered.columns.storages])
        self.alike = self._alike()

    def _alike(self) -> Numbers:
        """Return how many tiles are used in the same way as each tile; 0 for HBM."""
        marks = np.zeros(len(self.on_chip), np.uint64)
        np.add.at(marks, self.storage, _mixed(self.operand))
        _, which, often = np.unique(marks, return_inverse=True, return_counts=True)
        return np.where(self.on_chip, often[which], 0)

    def table(self, rows: Numbers) -> Numbers:
        """Return the numbers of the views of rows of items; all rows have equal signatures."""
        counts = self.views[rows[0]]
        begins = np.repeat(np.cumsum(counts) - counts, counts)
        found: Numbers = np.repeat(self.first[rows], counts, axis=1) + np.arange(len(begins)) - begins
        return found

    def candidates(self) -> list[int]:
        """Return likely numbers of units: those of which most tiles have as many alike."""
        counts = np.bincount(self.alike)
        order = np.argsort(-counts, kind="stable")
        return [int(n) for n in order if n > 1 and counts[n]][:CANDIDATES]


class Candidate:
    """What may be units: tiles of which there are `count` or more alike are theirs, and connect items."""

    def __init__(self, accesses: Accesses, count: int):
        self.accesses = accesses
        self.own = accesses.alike >= count
        self.unit_of = np.full(len(accesses.kinds), -1)  # the number of the unit of each item; -1: none

    def units(self, in_order: set[Storage]) -> Units | None:
        """Return the units; None: there are none, they depend on each other, or most items are in none."""
        a, found = self.accesses, []
        for rows in self._equal():
            for equal, unit in self._checked(rows, in_order):
                number = 1 + self.unit_of.max()
                self.unit_of[equal] = number + np.arange(len(equal))[:, None]
                found.append(unit)
        common = np.flatnonzero(self.unit_of < 0)
        if self.unit_of.max(initial=-1) + 1 < MIN_UNITS or 2 * len(common) > len(a.kinds):
            return None
        if not self._after_common(found):
            return None
        registers = self._registers()
        if registers is None:
            return None
        numbers = [(i, k) for i, unit in enumerate(found) for k in range(len(unit.shifts))]
        last = {which: numbers[unit] for which, unit in registers.items() if unit >= 0}
        return Units(common.tolist(), found, last)

    def _equal(self) -> Iterator[Numbers]:
        """Iterate over the items, in rows, of connected parts with equal signatures in equal order."""
        return (np.array(parts) for parts in self._parts() if len(parts) > 1)

    def _parts(self) -> list[list[Numbers]]:
        """Return the items of connected parts; those with equal signatures in equal order in one list."""
        a = self.accesses
        label = _connected(len(self.own), self._pairs())
        inside = self.own[a.storage]
        group = np.full(len(a.kinds), -1)
        group[a.item[inside]] = label[a.storage[inside]]
        order = np.argsort(group, kind="stable")[np.count_nonzero(group < 0) :]
        equal: dict[bytes, list[Numbers]] = {}
        for part in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            if len(part):
                equal.setdefault(a.signature[part].tobytes(), []).append(part)
        return [sorted(parts, key=lambda part: part[0]) for parts in equal.values()]

    def _pairs(self) -> tuple[Numbers, Numbers]:
        """Return the tiles of units that one instruction uses, in pairs."""
        a = self.accesses
        inside = np.flatnonzero(self.own[a.storage])
        both = a.item[inside[1:]] == a.item[inside[:-1]]
        return a.storage[inside[:-1][both]], a.storage[inside[1:][both]]

    def _checked(self, rows: Numbers, in_order: set[Storage]) -> Iterator[tuple[Numbers, Unit]]:
        """Iterate over the units that rows of items repeat, and over their rows: only places differ."""
        a = self.accesses
        table = a.table(rows)
        storages = a.storage[table]
        own = self.own[storages[0]]
        if (self.own[storages] != own).any() or not self._same_tiles(storages[:, own]):
            return
        if (a.writes[table[0]] & a.on_chip[storages[0]] & ~own).any():
            return
        beside: dict[bytes, list[int]] = {}  # rows that use the same storages beside their tiles
        for number, row in enumerate(storages[:, ~own]):
            beside.setdefault(row.tobytes(), []).append(number)
        for equal in beside.values():
            shifts = self._shifts(table[equal][:, ~own], in_order) if len(equal) > 1 else None
            if shifts is not None:
                tiles = [a.lowered.storages[n] for n in np.unique(storages[equal[0], own])]
                yield rows[equal], Unit(rows[equal[0]].tolist(), frozenset(tiles), shifts)

    def _shifts(self, table: Numbers, in_order: set[Storage]) -> tuple[dict[Storage, int], ...] | None:
        """Return by how much the views of each storage in HBM are moved in each row; None: they differ."""
        a = self.accesses
        numbers, first, which = np.unique(a.storage[table[0]], return_index=True, return_inverse=True)
        moved = a.offset[table] - a.offset[table[0]]
        shifts = moved[:, first]
        used = [(i, a.lowered.storages[n]) for i, n in enumerate(numbers) if not a.on_chip[n]]
        if (moved != shifts[:, which]).any() or (shifts < 0).any() or any(s in in_order for _, s in used):
            return None
        return tuple({storage: int(row[i]) for i, storage in used} for row in shifts)

    def _same_tiles(self, tiles: Numbers) -> bool:
        """Return whether each tile of the first unit has one of equal shape and dtype in all other units."""
        known, first, which = np.unique(tiles[0], return_index=True, return_inverse=True)
        mapped = tiles[:, first]  # the tile of each unit for each one of the first unit
        kinds = self.accesses.lowered.columns.storage_kinds[0][mapped]
        return bool(
            (tiles == mapped[:, which]).all()
            and (kinds == kinds[0]).all()
            and all(len(np.unique(row)) == len(known) for row in mapped)
        )

    def _after_common(self, units: list[Unit]) -> bool:
        """Return whether what is in no unit can run first: it writes no tile that a unit has read before, and
        what units read of it is no copy of HBM of which every unit reads its own part."""
        a = self.accesses
        inside = self.unit_of[a.item] >= 0
        begin = np.full(len(a.on_chip), len(a.kinds))
        np.minimum.at(begin, a.storage[inside], a.item[inside])
        if (a.writes & ~inside & a.on_chip[a.storage] & (a.item > begin[a.storage])).any():
            return False
        tiles = a.writes & ~inside & a.on_chip[a.storage] & ~self.own[a.storage]  # that units may read
        items = np.isin(a.item, a.item[tiles])
        read = {a.lowered.storages[n] for n in np.unique(a.storage[items & ~a.writes])}
        return not any(
            shift and s in read for unit in units for row in unit.shifts for s, shift in row.items()
        )

    def _registers(self) -> dict[str, int] | None:
        """Return the last unit that uses each set of registers; None: they pass from one unit to another."""
        a = self.accesses
        last: dict[str, int] = {}
        lanes: dict[str, int] = {}
        with_states = np.array([bool(kind.states) for kind in a.known])[a.signature]
        for number in np.flatnonzero(with_states).tolist():
            item, unit = a.items[number], int(self.unit_of[number])
            for state in a.kinds[number].states:
                which, begins = register_use(item, state)
                count = lanes_of(item)
                if begins is None or lanes.setdefault(which, count) != count:
                    return None
                if not begins and last.get(which, -1) != unit:
                    return None
                last[which] = unit
        return last


def _mixed(numbers: Numbers) -> np.ndarray:
    """Return a number for each small one, so that sums of few of them are equal by chance only."""
    found = (numbers + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found ^= found >> np.uint64(29)
    return found * np.uint64(0xBF58476D1CE4E5B9)


def _connected(count: int, pairs: tuple[Numbers, Numbers]) -> Numbers:
    """Return a label for each of `count` things: the least number among those that pairs connect with it."""
    label = np.arange(count)
    one, other = pairs
    while True:
        before = label
        label = before.copy()
        least = np.minimum(before[one], before[other])
        np.minimum.at(label, before[one], least)
        np.minimum.at(label, before[other], least)
        while (label[label] != label).any():
            label = label[label]
        if (label == before).all():
            return label
