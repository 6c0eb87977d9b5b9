"""Interleaving: cores that race advance side by side, one instruction each.

Cores run one at a time. Where they race, that order would decide the result. So the n-th instruction of a
core after a barrier waits, if it touches HBM, until the others have run as many. On-chip memory is private to
a core and needs no order. A core that waits at a barrier, or for other ranks, does not hold the others back.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.instruction import Instruction
from .scheduler import GivesUp, Scheduler


class Interleaving:
    """Counts the instructions that each core has run since the last barrier."""

    def __init__(self, scheduler: Scheduler, cores: int):
        self.scheduler = scheduler
        self.done = [0] * cores

    def sink(self, core: int, run: Callable[[Instruction], None]) -> Callable[[Instruction], None]:
        """Return a sink that runs an instruction of a core when it is that core's turn."""
        done = self.done

        def in_turn(instruction: Instruction) -> None:
            if instruction.reaches_hbm:
                self.scheduler.wait(
                    "its turn", lambda: self._is_turn_of(core), GivesUp.FIRST, instruction.site
                )
            run(instruction)
            done[core] += 1

        return in_turn

    def reset(self) -> None:
        """Start counting again: all cores are at one barrier."""
        self.done[:] = [0] * len(self.done)

    def _is_turn_of(self, core: int) -> bool:
        """The others have run as many; those before it one more. A core that has ended is not waited for."""
        mine = self.done[core]
        return all(n >= mine + (i < core) for i, n in enumerate(self.done) if i != core)
