"""What if? The one engine that times a modelled run again with something changed.

It has four levels. `same_order_ns` replays the timeline: fast, and a gain is a little understated, because
another order might use the change better. `new_order_ns` simulates again on the same plan of SBUF.
`replanned_ns` edits the kernel, so that SBUF and the engines of copies are chosen anew. `retimed_us` plans
and simulates a whole program with other machine numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..ir.caches import cached_property
from ..ir.program import Program
from .change import Change
from .compiler.compilation import Compilation
from .core_simulation import CoreSimulation
from .replay import Replay
from .schedule import plan, schedule
from .simulation import Simulation, simulate
from .timeline import Timeline


class WhatIf:
    """Times a timeline again with changes."""

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        self.replay = Replay(timeline)

    @cached_property
    def unchanged_ns(self) -> float:
        """The replay without a change: what `same_order_ns` is compared with."""
        return self.replay.run()

    def same_order_ns(self, change: Change) -> float:
        """Return ns until the last result, with a change, each engine in the order it had."""
        return self.replay.run(change)

    def new_order_ns(self, change: Change) -> float:
        """Return ns until the last result, with a change, in the order that suits it best."""
        cores = Simulation([core.columns.changed(change) for core in self.timeline.cores]).run()
        return _last_result(cores)

    def replanned_ns(self, edit: Callable[[Compilation], None] | None, most: int | None = None) -> float:
        """Return ns until the last result of the edited kernel, or of its first part, planned anew."""
        plans = plan(self.timeline.program, edit, most=most)
        return _last_result(simulate(self.timeline.machine, plans))


def _last_result(cores: Sequence[CoreSimulation]) -> float:
    return max((max(core.done) for core in cores if core.done), default=0.0)


def retimed_us(program: Program, **numbers: Any) -> float:
    """Return the time of a program with other numbers of its machine, planned and scheduled anew."""
    return schedule(replace(program, machine=replace(program.machine, **numbers))).total_us
