"""Transfers that begin together with those of the other core, or of other ranks."""

from __future__ import annotations

from collections import Counter

from ..ir.instruction import Instruction, State
from ..ir.transfer_instruction import TransferInstruction
from .columns import CoreColumns
from .timing_rules import DMA


def joint_transfers(columns: CoreColumns, rank: int, ranks: int) -> dict[int, tuple]:
    """Return the rendezvous point, and the visit, of transfers that begin together with others'."""
    found: dict[int, tuple] = {}
    if columns.sharers == 1 and ranks == 1:
        return found
    visits: Counter[tuple] = Counter()
    for index, (kind, position) in enumerate(zip(columns.kinds, columns.positions, strict=True)):
        if kind != DMA or position < 0:
            continue
        point = _rendezvous(columns, columns.plan.instructions[position], rank, ranks)
        if point is not None:
            visits[point] += 1
            found[index] = (*point, visits[point])
    return found


def _rendezvous(columns: CoreColumns, instruction: Instruction, rank: int, ranks: int) -> tuple | None:
    """Return where a transfer waits for others: the other core (sendrecv), or all ranks (collective)."""
    two_cores = columns.sharers > 1
    if instruction.rendezvous() is not None:
        return ("transfer", rank, instruction.rendezvous()) if two_cores else None
    assert isinstance(instruction, TransferInstruction)
    members = tuple(sorted(instruction.members(rank))) if ranks > 1 else ()
    joint = two_cores and State.ranks in instruction.state and State.peer in instruction.touches()
    if not joint and len(members) < 2:
        return None
    return ("ranks", -1 if joint else columns.plan.core, members or (rank,))
