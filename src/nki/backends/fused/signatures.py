"""Kinds: what all instructions of one signature have in common, found out once.

The result of validation is shared by all instructions of a signature, and with it their `access`: what an
instruction means, touches and reads from HBM is the same for all of them.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ...ir.instruction import Instruction, State
from ...ir.program import Item, Loop
from ...ir.semantics import MatrixProduct, Meaning
from ...ir.view import View
from ...machine.machine import Machine

ORDERED = frozenset((State.vector_accumulator, State.scalar_accumulator))  # states that plans keep in order


class Kind:
    """Of one signature."""

    __slots__ = ("access", "fence", "memory", "meaning", "flops", "states", "hbm_reads", "hbm_writes")

    def __init__(self, instruction: Instruction, machine: Machine):
        self.access = access = instruction.access
        self.states = instruction.touches() if instruction.state else ()
        self.fence = (
            not access.fixed
            or not ORDERED.issuperset(self.states)
            or any(
                getattr(getattr(instruction, name), "is_register", False) for name in instruction.registers
            )
        )
        self.meaning: Meaning | None = instruction.meaning(machine)
        self.memory = (
            instruction.lazy_output and self.meaning is None
        )  # its compute asks for the memory itself
        self.flops = _flops(instruction) if self.meaning.__class__ is MatrixProduct else 0
        names, operands = instruction.operand_names, instruction.operands()
        reads = [i for i, _ in access.reads]
        written = [i for i in instruction.write_at if isinstance(operands[i], View)]
        self.hbm_reads = tuple(names[i] for i in reads if not operands[i].storage.on_chip)
        self.hbm_writes = tuple(
            (names[i], i in instruction.read_at) for i in written if not operands[i].storage.on_chip
        )


def _flops(product: Any) -> int:
    (k, *m), n = product.stationary.shape, product.moving.shape
    return 2 * k * prod(m) * prod(n[1:])


class Kinds(dict[int, Kind]):
    """By the identity of an `access`, which its Kind keeps alive."""

    def __init__(self, machine: Machine):
        super().__init__()
        self.machine = machine

    def of(self, instruction: Instruction) -> Kind:
        found = self.get(id(instruction.access))
        if found is None:
            found = self[id(instruction.access)] = Kind(instruction, self.machine)
        return found

    def is_fence(self, item: Item) -> bool:
        """The item is run by the numpy executor, and nothing is moved across it."""
        return item.__class__ is Loop or self.of(item).fence  # type: ignore[arg-type]


__all__ = ["Kind", "Kinds"]
