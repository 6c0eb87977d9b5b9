"""How far the time of a kernel rests on assumptions: it is timed again with each of them at its ends.

One after another, every assumed number that the timeline uses (measures.assumptions) takes the least and the
most that the register allows (hardware/ranges.py). The interval is the time with all of them at the ends that
made the kernel faster, and at those that made it slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from ..ir.program import Program
from ..machine.machine import Machine
from ..machine.ranges import ends
from .measures import assumptions
from .schedule import schedule
from .timeline import Timeline


class Mover(NamedTuple):
    """An assumption and the time of the kernel at its ends. Times in us."""

    field: str
    value: Any
    low: Any  # the least it may be
    high: Any
    low_us: float  # of the kernel then
    high_us: float
    reason: str

    @property
    def moves_us(self) -> float:
        """Between the fastest and the slowest."""
        return abs(self.high_us - self.low_us)


class Uncertainty(NamedTuple):
    """The time of a kernel as an interval; what moves it, most first."""

    low_us: float
    total_us: float
    high_us: float
    movers: tuple[Mover, ...]


def uncertainty(
    program: Program, timeline: Timeline, stage: Callable[[str], None] = lambda what: None
) -> Uncertainty:
    """The interval of a program's time, given its timeline."""
    machine, total = program.machine, timeline.total_us
    movers = []
    fields = list(assumptions(timeline))
    for number, field in enumerate(fields):
        stage(f"timing again with {field} ({number + 1} of {len(fields)})")
        low, high = ends(machine, field)
        sooner, later = (_time(program, replace(machine, **{field: end}), total) for end in (low, high))
        why = machine.assumptions[field]
        movers.append(Mover(field, getattr(machine, field), low, high, sooner, later, why))
    movers.sort(key=lambda mover: (-mover.moves_us, mover.field))
    fast = {m.field: m.low if m.low_us <= m.high_us else m.high for m in movers if m.moves_us}
    slow = {m.field: m.high if m.low_us <= m.high_us else m.low for m in movers if m.moves_us}
    stage("timing again with all of them")
    low, high = (_time(program, replace(machine, **all_of), total) for all_of in (fast, slow))
    return Uncertainty(min(low, total), total, max(high, total), tuple(movers))


def _time(program: Program, machine: Machine, total_us: float) -> float:
    if machine == program.machine:
        return total_us
    return schedule(replace(program, machine=machine)).total_us
