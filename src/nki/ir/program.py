"""A Program: what a kernel does, as data that everything reads.

One sequence of instructions per core, dynamic loops as structured regions, storages, parameters,
constants by content, results, declared edges, and what was said while tracing. Nothing in it changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..errors import Site, show
from ..machine.generations import find
from ..machine.machine import Machine
from .context import service
from .effects import Effects, effects
from .effects import storages as storages_of
from .instruction import Instruction, State
from .statistics import Statistics
from .storage import Storage
from .tree import leaves
from .view import View


@dataclass(frozen=True)
class Diagnostic:
    """A warning about a line.

    `before` is the number of the instruction of `core` that came next; None: one that ran said it.
    """

    kind: str
    message: str
    notes: list[str]
    help: str | None = None
    site: Site | None = None
    core: int = 0
    before: int | None = None

    @property
    def line(self) -> tuple:
        """Things of one kind are said once about a line."""
        return self.kind, self.site and (self.site.filename, self.site.lineno)

    def __str__(self) -> str:
        return show(f"NkiWarning[{self.kind}]: {self.message}", self.site, self.notes, self.help)


@dataclass(frozen=True, eq=False)
class Loop:
    """A dynamic loop: its body runs for index = lower, lower + step, ... below upper.

    Of a while loop, `lower` is the register of the first condition and `upper` that of the next ones: the
    body runs with the condition in `index` until it is 0. `number` is what its tiles' storages name.
    """

    function: str  # "fori_loop", "dynamic_range" or "while_loop"
    number: int
    index: Any  # the register that counts
    lower: Any  # an int or a register
    upper: Any
    step: int
    body: tuple[Instruction | Loop, ...]
    site: Site | None = None

    @property
    def is_while(self) -> bool:
        return self.function == "while_loop"

    @property
    def fixed_trips(self) -> int | None:
        """How often the body runs, where no register says it."""
        if self.is_while or not (isinstance(self.lower, int) and isinstance(self.upper, int)):
            return None
        return len(range(self.lower, self.upper, self.step))


Item = Instruction | Loop


class Edge(NamedTuple):
    """`later` starts after `earlier` has finished; both are positions in the walk of one core."""

    core: int
    later: int
    earlier: int


class Block(NamedTuple):
    """The instructions from `first` to `last` of a core stay in program order (nl.no_reorder)."""

    core: int
    first: int
    last: int


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
    blocks: tuple[Block, ...] = ()
    schedule: tuple[tuple[str, tuple[str, ...]], ...] = ()  # with_schedule: (later, earlier names)
    said: tuple[Diagnostic, ...] = ()
    trips: Mapping[int, Sequence[int]] | None = None  # of each loop, where a run has counted them

    # ---- reading ---------------------------------------------------------------------------------

    def walk(self, core: int = 0) -> Iterator[Instruction]:
        """The instructions of a core in order, each loop's body once."""
        return walk(self.cores[core])

    def __len__(self) -> int:
        return sum(self._lengths)

    def length_of(self, core: int) -> int:
        """Instructions of a core, bodies of loops counted once."""
        return self._lengths[core]

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(sum(1 for _ in walk(items)) for items in self.cores)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Every dynamic loop, inner ones after the ones around them."""
        return tuple(loop for items in self.cores for loop in _loops(items))

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
        """The program as text. Without `constants`, their contents are named by their digests alone."""
        return service("program.text")(self, constants)

    def __str__(self) -> str:
        return self.text()

    @cached_property
    def digest(self) -> str:
        """Of the content, the same in every process."""
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
        from html import escape

        text = escape(self.text(constants=False))
        return f"<details><summary>{escape(repr(self))}</summary><pre>{text}</pre></details>"

    def __reduce__(self) -> Any:
        state = {name: getattr(self, name) for name in self.__dataclass_fields__}
        state["machine"] = self.machine.name
        return _rebuilt, (state,)

    @staticmethod
    def parse(text: str) -> Program:
        """The program that `str(program)` wrote. Executes nothing; refuses what it does not understand."""
        return service("program.parse")(text)

    def save(self, path: str | os.PathLike) -> None:
        """Write one file: the text, and the constants as plain arrays."""
        service("program.save")(self, path)

    @staticmethod
    def load(path: str | os.PathLike) -> Program:
        """What `save` wrote. Executes nothing; a damaged file is refused by name."""
        return service("program.load")(path)

    def to_dict(self) -> dict[str, Any]:
        """The program as plain data; `nki trace --json` prints this."""
        return service("program.to_dict")(self)

    # ---- what can be done with it ----------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Counts of instructions, traffic and live bytes; a loop's body counts once, or its `trips`."""
        return Statistics.of(self.machine, [[i for i, _ in items] for items in self.unrolled()])

    def run(self, *arrays: Any) -> Any:
        """What the kernel returns for these values of its tensor parameters, in order."""
        return service("program.run")(self, arrays)

    def profile(self) -> Any:
        """The modelled run on its machine."""
        return service("program.profile")(self)

    def unrolled(self) -> list[list[tuple[Instruction, int]]]:
        """Each core's instructions as hardware meets them, with their positions in the walk.

        A body stands as often as its loop runs; where nobody counted the trips, once: see `assumed_loops`.
        """
        if not self.loops:
            return [list(zip(items, range(len(items)), strict=True)) for items in self.cores]  # type: ignore[arg-type]
        return [list(_unroll(items, 0, _Trips(self.trips or {}))) for items in self.cores]

    @property
    def assumed_loops(self) -> tuple[Loop, ...]:
        """Loops whose trip count nobody knows: they are taken to run once."""
        counted = self.trips or {}
        return tuple(loop for loop in self.loops if loop.fixed_trips is None and loop.number not in counted)


def _rebuilt(state: dict[str, Any]) -> Program:
    return Program(**{**state, "machine": find(state["machine"])})


def walk(items: Sequence[Item]) -> Iterator[Instruction]:
    """The instructions in order, each loop's body once."""
    for item in items:
        if isinstance(item, Loop):
            yield from walk(item.body)
        else:
            yield item


def _loops(items: Sequence[Item]) -> Iterator[Loop]:
    for item in items:
        if isinstance(item, Loop):
            yield item
            yield from _loops(item.body)


class _Trips:
    """Deals out the trip counts of each loop in the order in which the loop was entered."""

    def __init__(self, counted: Mapping[int, Sequence[int]]):
        self.counted = {number: iter(counts) for number, counts in counted.items()}

    def next(self, loop: Loop) -> int:
        if loop.number in self.counted:
            return next(self.counted[loop.number], 0)
        fixed = loop.fixed_trips
        return 1 if fixed is None else fixed


def _unroll(items: Sequence[Item], position: int, trips: _Trips) -> Iterator[tuple[Instruction, int]]:
    for item in items:
        if isinstance(item, Loop):
            for _ in range(trips.next(item)):
                yield from _unroll(item.body, position, trips)
            position += sum(1 for _ in walk(item.body))
        else:
            yield item, position
            position += 1


def with_body(loop: Loop, body: tuple[Item, ...]) -> Loop:
    """The loop with another body."""
    return replace(loop, body=body)


def rewritten(items: Sequence[Item], change: Callable[[Instruction], Sequence[Instruction]]) -> tuple:
    """The items with every instruction replaced by what `change` makes of it."""
    found: list[Item] = []
    for item in items:
        if isinstance(item, Loop):
            found.append(with_body(item, rewritten(item.body, change)))
        else:
            found += change(item)
    return tuple(found)


def rebuilt(
    program: Program,
    cores: Sequence[Sequence[Item]],
    stands_for: Mapping[Instruction, Instruction] | None = None,
) -> Program:
    """The program with other items; everything that names a position follows its instruction.

    Instructions may be missing, or stand elsewhere in their core; a new one tells in `stands_for` whose place
    it takes. Of a missing instruction, edges are dropped (nobody is left to wait), a block shrinks, and what
    was said before it is said before the next one that is left.
    """
    names = stands_for or {}
    places = []
    for core, items in enumerate(cores):
        new = {names.get(i, i): position for position, i in enumerate(walk(items))}
        places.append([new.get(i) for i in program.walk(core)])
    kept = {loop.number for items in cores for loop in _loops(items)}
    trips = program.trips and {n: counts for n, counts in program.trips.items() if n in kept}
    return replace(
        program,
        cores=tuple(map(tuple, cores)),
        storages=_storages(program, cores),
        constants=_used_constants(program, cores),
        edges=tuple(edge for old in program.edges for edge in _moved_edge(old, places[old.core])),
        blocks=tuple(block for old in program.blocks for block in _moved_block(old, places[old.core])),
        said=tuple(_moved_diagnostic(d, places[d.core]) for d in program.said),
        trips=trips,
    )


def _used(program: Program, cores: Sequence[Sequence[Item]]) -> dict[Storage, None]:
    used = dict.fromkeys(storage for _, storage in program.parameters)
    used.update(dict.fromkeys(view.storage for view in leaves(program.result, View)))
    used.update(dict.fromkeys(s for items in cores for s in storages_of(walk(items))))
    return used


def _storages(program: Program, cores: Sequence[Sequence[Item]]) -> tuple[Storage, ...]:
    """The old ones that are left in their order, then the new ones."""
    used = _used(program, cores)
    old = [storage for storage in program.storages if storage in used]
    return tuple(dict.fromkeys([*old, *used]))


def _used_constants(program: Program, cores: Sequence[Sequence[Item]]) -> tuple:
    used = _used(program, cores)
    return tuple((storage, raw) for storage, raw in program.constants if storage in used)


def _moved_edge(edge: Edge, places: list[int | None]) -> list[Edge]:
    later, earlier = places[edge.later], places[edge.earlier]
    return [] if later is None or earlier is None else [Edge(edge.core, later, earlier)]


def _moved_block(block: Block, places: list[int | None]) -> list[Block]:
    left = [p for p in places[block.first : block.last + 1] if p is not None]
    return [Block(block.core, min(left), max(left))] if left else []


def _moved_diagnostic(diagnostic: Diagnostic, places: list[int | None]) -> Diagnostic:
    if diagnostic.before is None:
        return diagnostic
    left = (p for p in places[diagnostic.before :] if p is not None)
    return replace(diagnostic, before=next(left, sum(p is not None for p in places)))
