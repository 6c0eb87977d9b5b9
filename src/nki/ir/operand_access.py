"""How a backend reads and writes the operands of an instruction: the same for all of one signature."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from .instruction import Instruction, MatmulInstruction
from .storage import Storage
from .view import View


class OperandAccess(NamedTuple):
    """The operands of an instruction as a backend sees them."""

    views: tuple[str, ...]  # the operands that are tensors
    reads: tuple[tuple[int, bool], ...]  # operand, and whether it is widened to float32
    writes: tuple[int, ...]
    accumulates: bool
    fixed: bool  # False: addresses are known at run time only, or parts of an operand count
    storages: Callable[[Instruction], tuple[Storage, ...]]  # of the views; one may be there twice

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
        names = tuple(instruction.operand_names[i] for i in views)
        return OperandAccess(
            names,
            reads,
            () if instruction.accumulates else writes,
            instruction.accumulates,
            fixed,
            _storages_of(names),
        )


@cache  # equal for all of one signature
def _storages_of(names: tuple[str, ...]) -> Callable[[Instruction], tuple[Storage, ...]]:
    """Return a function of C that gets the storages of operands: it runs once per instruction."""
    if not names:
        return _nothing
    return attrgetter(*[f"{name}.storage" for name in (names if len(names) > 1 else names * 2)])


def _nothing(instruction: Instruction) -> tuple[Storage, ...]:
    return ()
