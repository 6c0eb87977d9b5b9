"""The instructions of a core as the timing model reads them: with position, signature and effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from ..ir.effects import Effects, effects
from ..ir.instruction import Instruction
from ..ir.operand_access import OperandAccess

_ACCESS: Callable[[Instruction], OperandAccess] = attrgetter("access")


class Entry(NamedTuple):
    """An instruction, with what is computed once for it."""

    instruction: Instruction
    at: int  # its position in the walk of its core
    done: Effects
    signature: int  # equal for instructions that differ in their data alone


class CoreInstructions(NamedTuple):
    """The instructions of a core, as one list per field."""

    instructions: Sequence[Instruction]
    at: Sequence[int]
    signatures: Sequence[int]

    def entries(self) -> list[Entry]:
        """Return an object for each; bodies of dynamic loops are there many times."""
        once, make = cache(effects), tuple.__new__
        return [make(Entry, (i, at, once(i), number)) for i, at, number in zip(*self, strict=True)]

    @staticmethod
    def of(entries: Sequence[Entry]) -> CoreInstructions:
        found = [*zip(*entries, strict=True)] or [(), (), (), ()]
        return CoreInstructions(found[0], found[1], found[3])


class SignatureNumbers:
    """Numbers the signatures of instructions."""

    def __init__(self) -> None:
        self._known: dict[tuple, int] = {}
        self._accesses: dict[int, OperandAccess] = {}  # of replaced instructions

    def of(self, instruction: Instruction) -> int:
        return self._known.setdefault(instruction.key(), len(self._known))

    def listed(
        self, instructions: Sequence[Instruction], at: Sequence[int], most: int | None = None
    ) -> CoreInstructions:
        """Return the instructions that hardware has, the first `most`, given their positions."""
        kinds: set[type[Instruction]] = {*map(type, instructions)}
        if any(kind.simulator_only for kind in kinds):
            chosen = [number for number, i in enumerate(instructions) if not i.simulator_only]
            instructions, at = [instructions[n] for n in chosen], [at[n] for n in chosen]
        instructions, at = instructions[:most], at[:most]
        keys = [*map(id, map(_ACCESS, instructions))]  # equal for instructions of one signature
        numbers = {key: self.of(one) for key, one in dict(zip(keys, instructions, strict=True)).items()}
        return CoreInstructions(instructions, at, [*map(numbers.__getitem__, keys)])

    def of_moved(self, signature: int, instruction: Instruction) -> int:
        """Return the number of an instruction that had this signature on another engine."""
        return self._known.setdefault((signature, instruction.runs_on), len(self._known))

    def moved(self, item: Entry, instruction: Instruction) -> Entry:
        """Return the entry of the same instruction on another engine."""
        return item._replace(instruction=instruction, signature=self.of_moved(item.signature, instruction))

    def replaced(self, item: Entry, instruction: Instruction) -> Entry:
        """Return the entry of another instruction at the same position."""
        number = self.of(instruction)
        if number not in self._accesses:
            self._accesses[number] = OperandAccess.of(instruction)
        instruction.access = self._accesses[number]  # instructions that share it have one signature
        return Entry(instruction, item.at, effects(instruction), number)
