"""A Program: what a kernel does, as data that everything reads.

One sequence of instructions per core, dynamic loops as structured regions, storages, parameters,
constants by content, results, declared edges, and the warnings of the trace. A Program never changes; what a
reader derives from one lives in a cache of the reader.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from ..machine.generations import find
from ..machine.machine import Machine
from .caches import cached_property
from .columns import Columns, ProgramColumns
from .effects import Effects, effects
from .hooks import hooks
from .instruction import Instruction, State
from .items import Diagnostic, Edge, Item, Loop, OrderedBlock, loops_in, unrolled, walk
from .statistics import Statistics
from .storage import Storage

__all__ = ["OrderedBlock", "Diagnostic", "Edge", "Item", "Loop", "Program", "walk"]


@dataclass(frozen=True, eq=False)
class Program:
    """What a kernel does. Equal when their texts are; `str(program)` is that text."""

    name: str
    machine: Machine
    cores: tuple[tuple[Item, ...], ...]
    storages: tuple[Storage, ...]
    parameters: tuple[tuple[str, Storage], ...]
    constants: tuple[tuple[Storage, np.ndarray], ...]  # the bytes of each
    result: Any  # what the kernel returned: a tree of views and plain values
    edges: tuple[Edge, ...] = ()
    blocks: tuple[OrderedBlock, ...] = ()
    schedule: tuple[tuple[str, tuple[str, ...]], ...] = ()  # with_schedule: (later, earlier names)
    diagnostics: tuple[Diagnostic, ...] = ()  # the warnings of the trace
    trips: Mapping[int, Sequence[int]] | None = None  # of each loop, where a run has counted them
    transformed: bool = False  # the device's compiler changes it (old API); the timing model follows
    skips_middle_end: bool = False  # of that compiler: fewer changes

    # ---- reading ---------------------------------------------------------------------------------

    def walk(self, core: int = 0) -> Iterator[Instruction]:
        """Yield the instructions of a core in order, each loop's body once."""
        return walk(self.cores[core])

    def __len__(self) -> int:
        return sum(self._lengths)

    def length_of(self, core: int) -> int:
        """Return the number of instructions of a core, bodies of loops counted once."""
        return self._lengths[core]

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(sum(1 for _ in walk(items)) for items in self.cores)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Every dynamic loop, inner ones after the ones around them."""
        return tuple(loop for items in self.cores for loop in loops_in(items))

    @cached_property
    def columns(self) -> ProgramColumns:
        """The instructions and the places of their operands as arrays of numbers."""
        return ProgramColumns(self.cores, self.storages)

    @cached_property
    def effects(self) -> tuple[Effects, ...]:
        """What each instruction does, core after core."""
        return tuple(effects(i) for core in range(len(self.cores)) for i in self.walk(core))

    @cached_property
    def state(self) -> frozenset[State]:
        """All that the program touches beside its storages."""
        return frozenset(state for done in self.effects for state in done.state)

    @cached_property
    def written(self) -> frozenset[Storage]:
        return frozenset(view.storage for done in self.effects for view in done.written)

    # ---- content ---------------------------------------------------------------------------------

    def text(self, constants: bool = True) -> str:
        """Return the program as text; without `constants`, only the digests of their contents."""
        from .printer import text

        return text(self, constants)

    def __str__(self) -> str:
        return self.text()

    @cached_property
    def digest(self) -> str:
        """A hash of the content, the same in every process."""
        import hashlib

        return hashlib.sha256(self.text(constants=False).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        cores = f" on {len(self.cores)} cores" if len(self.cores) > 1 else ""
        return f"<Program {self.name}: {len(self):,} instructions for {self.machine.name}{cores}>"

    def _repr_html_(self) -> str:
        from ..markup import escape

        text = escape(self.text(constants=False))
        return f"<details><summary>{escape(repr(self))}</summary><pre>{text}</pre></details>"

    def __reduce__(self) -> Any:
        state = {name: getattr(self, name) for name in self.__dataclass_fields__}
        state["machine"] = self.machine.name
        return _rebuilt, (state,)

    @staticmethod
    def parse(text: str) -> Program:
        """Return the program that `str(program)` wrote. Executes nothing; an unknown form is an error."""
        from .parser import parse

        return Program(**parse(text))

    def save(self, path: str | os.PathLike[str] | BinaryIO) -> None:
        """Write one file: the text, and the bytes of the constants."""
        from .file import write

        write(path, self.text(constants=False), [raw for _, raw in self.constants])

    @staticmethod
    def load(path: str | os.PathLike[str] | BinaryIO) -> Program:
        """Return the program that `save` wrote. Executes nothing; the error for a damaged file names it."""
        from .file import read
        from .parser import parse

        return Program(**parse(*read(path)))

    def to_dict(self) -> dict[str, Any]:
        """Return the program as plain data; `nki trace --json` prints this."""
        from .printer import as_dict

        return as_dict(self)

    # ---- what can be done with it ----------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Count instructions, traffic and live bytes; a loop's body counts once, or its `trips`."""
        cores: Iterable[Columns] = map(self.columns.of, range(len(self.cores)))
        if self.loops:
            cores = [self.columns.of_run([i for i, _ in items]) for items in self.unrolled()]
        return Statistics.of(self.machine, cores, self.columns.storages)

    def run(self, *arrays: object) -> Any:
        """Return what the kernel returns for these values of its tensor parameters, in order."""
        return hooks.run_program(self, arrays)

    def profile(self) -> Any:
        """Return the modelled run on its machine."""
        return hooks.profile_program(self)

    def unrolled(self) -> list[list[tuple[Instruction, int]]]:
        """Return each core's instructions in the order of a run, with their positions in the walk.

        A body stands as often as its loop runs; where its trips are not known, once: see `assumed_loops`.
        """
        if not self.loops:
            return [list(zip(items, range(len(items)), strict=True)) for items in self.cores]  # type: ignore[arg-type]
        return [list(unrolled(items, self.trips or {})) for items in self.cores]

    @property
    def assumed_loops(self) -> tuple[Loop, ...]:
        """Loops whose trip count is unknown: the timing model takes them to run once."""
        counted = self.trips or {}
        return tuple(loop for loop in self.loops if loop.fixed_trips is None and loop.number not in counted)


def _rebuilt(state: dict[str, Any]) -> Program:
    return Program(**{**state, "machine": find(state["machine"])})
