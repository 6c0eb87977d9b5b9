"""Columns: what the instructions of a program are, and where their operands lie, as arrays of numbers.

The objects of a program lie far apart in memory: they are visited once, and checks and backends read these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from .caches import cached_property
from .instruction import Instruction
from .items import Item, Loop, walk
from .storage import Storage

Numbers = np.ndarray[Any, np.dtype[np.int64]]

FEW = 256  # instructions
_ACCESS = attrgetter("access")
_KIND = attrgetter("buffer", "shape", "dtype", "address", "parameter", "constant", "loop")


class StorageNumbers(dict[Storage, int]):
    """The numbers of storages: of those that a program lists in their order, then of any others."""

    def __missing__(self, storage: Storage) -> int:
        return self.setdefault(storage, len(self))


class Columns:
    """The instructions of a core, bodies of loops once, and their views, one after the other."""

    def __init__(self, instructions: Sequence[Instruction], numbers: StorageNumbers):
        keys = [*map(id, map(_ACCESS, instructions))]  # equal for instructions of one signature
        known = dict(zip(keys, instructions, strict=True))
        order = {key: number for number, key in enumerate(known)}
        self.samples = [*known.values()]  # an instruction of each signature
        self.signature = _fetched(order, keys)  # of each instruction
        places = {key: _places(sample) for key, sample in known.items()}
        asked = (places[key](instruction) for key, instruction in zip(keys, instructions, strict=True))
        self.is_fixed = all(sample.access.fixed for sample in self.samples)  # all views are known before
        found = asked if self.is_fixed else [*asked]
        flat = [*chain.from_iterable(found)]
        self.storage = _fetched(numbers, flat[::2])  # of each view
        self.offset = np.fromiter(flat[1::2], np.int64, len(flat) // 2)
        if self.is_fixed:
            self.views = np.array([len(s.access.views) for s in self.samples], np.int64)[self.signature]
        else:
            self.views = np.array([*map(len, found)], np.int64) // 2  # of each instruction

    def positions(self) -> Numbers:
        """Return the position of the instruction of each view."""
        return np.repeat(np.arange(len(self.views)), self.views)

    def operands(self) -> Numbers:
        """Return the number of each view among those of one instruction of every signature.

        All views of all instructions are known before the run.
        """
        counts = np.array([len(sample.access.views) for sample in self.samples], np.int64)
        first = (np.cumsum(counts) - counts)[self.signature] - (np.cumsum(self.views) - self.views)
        return np.arange(len(self.storage)) + np.repeat(first, self.views)

    def lives(self) -> tuple[Numbers, Numbers, Numbers]:
        """Return the storages that hardware uses, by first use, and the first and last positions of each.

        Positions count the instructions that hardware has, from 1.
        """
        on_hardware = np.array([not sample.simulator_only for sample in self.samples], np.bool_)
        counted = on_hardware[self.signature]
        positions: Numbers = np.repeat(np.cumsum(counted, dtype=np.int64), self.views)
        chosen = np.repeat(counted, self.views)
        storage, positions = self.storage[chosen], positions[chosen]
        numbers, first_use = np.unique(storage, return_index=True)
        last = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
        last[storage] = positions  # of equal indices the last counts
        order = np.argsort(first_use)
        return numbers[order], positions[first_use[order]], last[numbers[order]]


class ProgramColumns:
    """The columns of each core of a program, made when they are asked for."""

    def __init__(self, cores: Sequence[Sequence[Item]], storages: Sequence[Storage]):
        self.cores = cores
        self.numbers = StorageNumbers(zip(storages, range(len(storages)), strict=True))
        self._found: dict[int, Columns] = {}

    def of(self, core: int) -> Columns:
        """Return the columns of a core."""
        found = self._found.get(core)
        if found is None:
            items: Any = self.cores[core]
            if self.has_loops[core]:
                items = [*walk(items)]
            found = self._found[core] = Columns(items, self.numbers)
        return found

    def of_run(self, instructions: Sequence[Instruction]) -> Columns:
        """Return the columns of instructions of the program in the order of a run."""
        return Columns(instructions, self.numbers)

    @cached_property
    def has_loops(self) -> list[bool]:
        """Whether there are dynamic loops among the items of each core."""
        return [Loop in set(map(type, items)) for items in self.cores]

    def pays(self, core: int) -> bool:
        """Return whether an answer from columns takes less time than one walk over the items of a core."""
        return len(self.cores[core]) > FEW and not self.has_loops[core]

    @cached_property
    def storages(self) -> tuple[Storage, ...]:
        """The storages that the program lists, and any others that its instructions use."""
        for core in range(len(self.cores)):
            self.of(core)
        return (*self.numbers,)

    @cached_property
    def storage_kinds(self) -> tuple[Numbers, tuple]:
        """A number for each storage, equal for those that differ in name and line alone; what they are."""
        kinds = [*map(_KIND, self.storages)]
        known = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        return _fetched(known, kinds), (*known,)


def _places(sample: Instruction) -> Callable[[Any], Sequence[Any]]:
    """Return what finds the storage and the offset of each view of an instruction, one after the other."""
    access = sample.access
    fixed = [part for name in access.views for part in (f"{name}.storage", f"{name}.offset")]
    return attrgetter(*fixed) if access.fixed and fixed else _touched_places


def _touched_places(instruction: Instruction) -> list[Any]:
    """Return the places of the operands, and of what the addresses of indirect ones are computed from."""
    views = instruction.views()
    views += [
        v.indirection.base for v in views if v.indirection is not None and v.indirection.base is not None
    ]
    return [part for view in views for part in (view.storage, view.offset)]


def _fetched(known: dict[Any, int], things: list[Any]) -> Numbers:
    return np.fromiter(map(known.__getitem__, things), np.int64, len(things))
