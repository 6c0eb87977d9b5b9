"""How much the time of a kernel depends on assumptions: it is timed again with each of them at its limits.

Every assumed number that the timeline uses (measures.assumptions) takes in turn the least and the most that
machine/ranges.py allows. The interval is the time with all of them at the limits that made the kernel faster,
and at those that made it slower, widened by what the model leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..ir.program import Program
from ..machine.ranges import ends
from .measures import assumptions
from .timeline import Timeline
from .what_if import retimed_us

# What the model leaves out is not a number of the machine: the factors were chosen so that nine of ten
# published times of each group lie within them (docs/accuracy.md).
# By platform: as written, and transformed by the compiler.
SPREAD = {"trn1": (1.3, 1.5), "trn2": (1.1, 1.25), "trn3": (1.3, 2.0)}


class Mover(NamedTuple):
    """An assumption, and the time of the kernel at its limits. Times in us."""

    field: str
    value: Any
    low: Any  # the least it can be
    high: Any
    low_us: float  # of the kernel then
    high_us: float
    reason: str

    @property
    def moves_us(self) -> float:
        """The difference between the fastest and the slowest."""
        return abs(self.high_us - self.low_us)


class Uncertainty(NamedTuple):
    """The time of a kernel as an interval, and the assumptions that move it, most first."""

    low_us: float
    total_us: float
    high_us: float
    movers: tuple[Mover, ...]


def uncertainty(
    program: Program, timeline: Timeline, stage: Callable[[str], None] = lambda what: None
) -> Uncertainty:
    """Return the interval of a program's time, given its timeline."""
    machine, total = program.machine, timeline.total_us
    movers = []
    fields = list(assumptions(timeline))
    for number, field in enumerate(fields):
        stage(f"timing again with {field} ({number + 1} of {len(fields)})")
        value, (low, high) = getattr(machine, field), ends(machine, field)
        early, late = (total if end == value else retimed_us(program, **{field: end}) for end in (low, high))
        movers.append(Mover(field, value, low, high, early, late, machine.assumptions[field]))
    movers.sort(key=lambda mover: (-mover.moves_us, mover.field))
    fast = {m.field: m.low if m.low_us <= m.high_us else m.high for m in movers if m.moves_us}
    slow = {m.field: m.high if m.low_us <= m.high_us else m.low for m in movers if m.moves_us}
    stage("timing again with all of them")
    low, high = (retimed_us(program, **limits) if limits else total for limits in (fast, slow))
    spread = SPREAD[machine.name][program.transformed]
    return Uncertainty(min(low, total) / spread, total, max(high, total) * spread, tuple(movers))
