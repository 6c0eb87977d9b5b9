"""The instructions of a core as the timing model takes them: each with its place, its effects, its like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..ir.effects import Effects, effects
from ..ir.instruction import Instruction


class Placed(NamedTuple):
    """An instruction, with what is worked out about it once."""

    instruction: Instruction
    at: int  # its position in the walk of its core
    done: Effects
    alike: int  # instructions of one number are alike but for data


class Numbers:
    """Gives instructions that are alike, but for the data they are about, one number."""

    def __init__(self) -> None:
        self._known: dict[tuple, int] = {}

    def of(self, instruction: Instruction) -> int:
        return self._known.setdefault(instruction.key(), len(self._known))

    def placed(self, items: Iterable[tuple[Instruction, int]], done: Sequence[Effects]) -> list[Placed]:
        """The items that hardware knows; `done` are the effects by position."""
        known, make = self._known, tuple.__new__
        return [
            make(Placed, (i, at, done[at], known.setdefault(i.key(), len(known))))
            for i, at in items
            if not i.simulator_only
        ]

    def elsewhere(self, item: Placed, instruction: Instruction) -> Placed:
        """The same on another engine, where it costs something else."""
        number = self._known.setdefault((item.alike, instruction.runs_on), len(self._known))
        return item._replace(instruction=instruction, alike=number)

    def instead(self, item: Placed, instruction: Instruction) -> Placed:
        """Another instruction in the place of an item."""
        return Placed(instruction, item.at, effects(instruction), self.of(instruction))
