"""Turns: the cores of a launch that race advance side by side, one instruction each.

Cores run one at a time. Where they race, that order would decide; so the n-th instruction of a core after a
meeting, if it touches HBM, waits until the others have come as far. What lies on chip is a core's own, and
waits for nobody. A core that waits to meet the other, or other ranks, keeps nobody from going on.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.instruction import Instruction
from .scheduler import Baton, Patience


class Turns:
    """How many instructions each core has run since they met last."""

    def __init__(self, baton: Baton, cores: int):
        self.baton = baton
        self.done = [0] * cores

    def sink(self, core: int, run: Callable[[Instruction], None]) -> Callable[[Instruction], None]:
        """Runs an instruction of a core when its turn has come."""
        done = self.done

        def in_turn(instruction: Instruction) -> None:
            if instruction.anywhere or not instruction.on_chip:
                self.baton.wait("its turn", lambda: self._has_come(core), Patience.LITTLE, instruction.site)
            run(instruction)
            done[core] += 1

        return in_turn

    def met(self) -> None:
        """The cores stand at one point."""
        self.done[:] = [0] * len(self.done)

    def _has_come(self, core: int) -> bool:
        """The others have run as many; those before it one more. (Who has ended is not waited for.)"""
        mine = self.done[core]
        return all(n >= mine + (i < core) for i, n in enumerate(self.done) if i != core)
