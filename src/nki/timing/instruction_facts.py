"""What the simulation needs of an instruction, beside its cost and its operands."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

from ..ir.instruction import Instruction, PeTile, array_use
from ..ir.view import View
from ..machine.machine import Machine
from ..machine.memories import PSUM


class Facts(NamedTuple):
    """The same for all instructions of one signature, whatever their data."""

    is_barrier: bool
    table: str | None  # the activation function whose table ScalarE needs
    slowdown: float  # of its work, by the strides of its operands
    array_rows: int
    pe_tile: PeTile


def facts_of(instruction: Instruction, engine: str, machine: Machine) -> Facts:
    rows, tile = array_use(instruction)
    return Facts(
        instruction.rendezvous() is not None,
        instruction.activation_table() if engine == "scalar" else None,
        1.0 if engine in ("tensor", "sync") else stride_slowdown(instruction, machine),
        rows,
        tile,
    )


def stride_slowdown(instruction: Instruction, machine: Machine) -> float:
    """Return the slowdown by a long step between elements (spec/machine.md 3)."""
    for view in instruction.operands():
        if isinstance(view, View) and view.on_chip:
            steps = [s for n, s in zip(view.shape[1:], view.strides[1:], strict=True) if n > 1]
            if steps and steps[-1] * view.dtype.itemsize > machine.stride_full_rate_bytes:
                return machine.stride_slowdown
    return 1.0


def psum_tiles(instruction: Instruction) -> set[Any]:
    """Return the PSUM allocations an instruction touches; explicit addresses count by bank."""
    return {
        id(v.storage) if v.storage.address is None else v.storage.address[1] // 2048
        for v in instruction.operands()
        if isinstance(v, View) and v.buffer is PSUM
    }


def cannot_overlap(mine: Set[Any], theirs: Set[Any], machine: Machine) -> bool:
    """True when instructions of VectorE and ScalarE must alternate, because of PSUM (spec/machine.md 3.1).

    Given are the PSUM allocations that each of them touches.
    """
    if machine.vector_scalar_psum_serial:
        return bool(mine and theirs)
    return machine.psum_bank_serial and bool(mine & theirs)
