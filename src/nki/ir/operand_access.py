"""How a backend reads and writes the operands of an instruction: the same for all of one signature."""

from __future__ import annotations

from typing import NamedTuple

from .instruction import Instruction, MatmulInstruction
from .view import View


class OperandAccess(NamedTuple):
    """The operands of an instruction as a backend sees them."""

    views: tuple[str, ...]  # the operands that are tensors
    reads: tuple[tuple[int, bool], ...]  # operand, and whether it is widened to float32
    writes: tuple[int, ...]
    accumulates: bool
    fixed: bool  # False: addresses are known at run time only, or parts of an operand count

    @staticmethod
    def of(instruction: Instruction) -> OperandAccess:
        views = {i: v for i, v in enumerate(instruction.operands()) if isinstance(v, View)}
        widened = instruction.float32_inputs if isinstance(instruction, MatmulInstruction) else ()
        reads = tuple((i, i in widened) for i in instruction.read_at if i in views)
        writes = () if instruction.lazy_output else tuple(i for i in instruction.write_at if i in views)
        fixed = (
            not instruction.partial
            and all(v.indirection is None for v in views.values())
            and not any(0 in views[i].strides and views[i].repeats() for i in writes)
        )
        return OperandAccess(
            tuple(instruction.operand_names[i] for i in views),
            reads,
            () if instruction.accumulates else writes,
            instruction.accumulates,
            fixed,
        )
