"""The instructions of a core as the timing model reads them: with position, effects and signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from ..ir.effects import Effects, effects
from ..ir.instruction import Instruction
from ..ir.operand_access import OperandAccess


class Entry(NamedTuple):
    """An instruction, with what is computed once for it."""

    instruction: Instruction
    at: int  # its position in the walk of its core
    done: Effects
    signature: int  # equal for instructions that differ in their data alone


class SignatureNumbers:
    """Numbers the signatures of instructions."""

    def __init__(self) -> None:
        self._known: dict[tuple, int] = {}
        self._accesses: dict[int, OperandAccess] = {}  # of replaced instructions

    def of(self, instruction: Instruction) -> int:
        return self._known.setdefault(instruction.key(), len(self._known))

    def entries(
        self,
        items: Iterable[tuple[Instruction, int]],
        most: int | None = None,
        effects: Callable[[Instruction], Effects] = effects,
    ) -> list[Entry]:
        """Return the instructions that hardware has, the first `most`."""
        known, make = self._known, tuple.__new__
        on_hardware = (item for item in items if not item[0].simulator_only)
        return [
            make(Entry, (i, at, effects(i), known.setdefault(i.key(), len(known))))
            for i, at in islice(on_hardware, most)
        ]

    def moved(self, item: Entry, instruction: Instruction) -> Entry:
        """Return the entry of the same instruction on another engine."""
        number = self._known.setdefault((item.signature, instruction.runs_on), len(self._known))
        return item._replace(instruction=instruction, signature=number)

    def replaced(self, item: Entry, instruction: Instruction) -> Entry:
        """Return the entry of another instruction at the same position."""
        number = self.of(instruction)
        instruction.access = self._accesses.setdefault(number, instruction.access)
        return Entry(instruction, item.at, effects(instruction), number)
