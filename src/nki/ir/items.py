"""What a Program consists of beside instructions: dynamic loops, declared edges, blocks, diagnostics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import Site, show
from .instruction import Instruction


@dataclass(frozen=True)
class Diagnostic:
    """A warning about a line.

    `before` is the number of the instruction of `core` that came next; None: an instruction that ran gave it.
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
        """What identifies it: one kind of warning is given once for a line."""
        return self.kind, self.site and (self.site.filename, self.site.lineno)

    def __str__(self) -> str:
        return show(f"NkiWarning[{self.kind}]: {self.message}", self.site, self.notes, self.help)


@dataclass(frozen=True, eq=False)
class Loop:
    """A dynamic loop: its body runs for index = lower, lower + step, ... below upper.

    Of a while loop, `lower` is the register of the first condition and `upper` that of the next ones: the
    body runs with the condition in `index` until it is 0. The storages allocated in it name its `number`.
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
        """How often the body runs; None where registers decide."""
        if self.is_while or not (isinstance(self.lower, int) and isinstance(self.upper, int)):
            return None
        return len(range(self.lower, self.upper, self.step))


Item = Instruction | Loop


class Edge(NamedTuple):
    """`later` starts after `earlier` has finished; both are positions in the walk of one core."""

    core: int
    later: int
    earlier: int


class OrderedBlock(NamedTuple):
    """The instructions from `first` to `last` of a core stay in program order (nl.no_reorder)."""

    core: int
    first: int
    last: int


def walk(items: Sequence[Item]) -> Iterator[Instruction]:
    """Yield the instructions in order, each loop's body once."""
    for item in items:
        if isinstance(item, Loop):
            yield from walk(item.body)
        else:
            yield item


def loops_in(items: Sequence[Item]) -> Iterator[Loop]:
    """Yield every dynamic loop, inner ones after the ones around them."""
    for item in items:
        if isinstance(item, Loop):
            yield item
            yield from loops_in(item.body)


def run_length(items: Sequence[Item], trips: Mapping[int, Sequence[int]]) -> int:
    """Return a bound of how many instructions `unrolled` yields."""
    total = 0
    for item in items:
        if isinstance(item, Loop):
            fixed = 1 if item.fixed_trips is None else item.fixed_trips
            times = max(trips[item.number], default=0) if item.number in trips else fixed
            total += times * run_length(item.body, trips)
        else:
            total += 1
    return total


def unrolled(items: Sequence[Item], trips: Mapping[int, Sequence[int]]) -> Iterator[tuple[Instruction, int]]:
    """Yield the instructions in the order of a run, with their positions in the walk.

    `trips` holds how often each loop ran, each time that it was entered. A loop without an entry runs its
    fixed number of trips, or once where that is unknown.
    """
    counts = {number: iter(counted) for number, counted in trips.items()}

    def region(items: Sequence[Item], position: int) -> Iterator[tuple[Instruction, int]]:
        for item in items:
            if isinstance(item, Loop):
                for _ in range(times(item)):
                    yield from region(item.body, position)
                position += sum(1 for _ in walk(item.body))
            else:
                yield item, position
                position += 1

    def times(loop: Loop) -> int:
        if loop.number in counts:
            return next(counts[loop.number], 0)
        return 1 if loop.fixed_trips is None else loop.fixed_trips

    return region(items, 0)
