"""Which rank is this, and whose data does it hold (spec/collectives.md 2.8, 2.9)."""

from __future__ import annotations

from typing import Any

from ..errors import error
from ..ir.context import current, warn
from ..ir.instruction import RegisterOut
from ..ir.layout import Int, is_int
from ..isa.registers import RegisterInstruction
from ..isa.virtual_register import VirtualRegister
from ..launch.core import issue
from .groups import GroupLike, as_group


def rank_id(
    name: str | None = None,
) -> VirtualRegister:
    """A register with the number of this rank in the world."""
    register = VirtualRegister(frozen=True)
    issue(RankId(register, name))
    return register


class RankId(RegisterInstruction):
    public = "rank_id"

    register: RegisterOut

    def compute(self) -> None:
        self.register.set(current().execution.world.rank)


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: Int | VirtualRegister,
    replica_group: GroupLike,
    channel_id: Int = 0,
    name: str | None = None,
) -> VirtualRegister:
    """A register with the rank whose data this one holds after `iteration_id` steps round the ring."""
    function = "collective_permute_implicit_current_processing_rank_id"
    for argument, value in (("iteration_id", iteration_id), ("channel_id", channel_id)):
        if not is_int(value) or value < 0:
            raise error("argument", f"{function}: {argument} must be an int >= 0, got {value!r}")
    group = as_group(replica_group, function)
    register = VirtualRegister(frozen=True)
    issue(ProcessingRank(register, int(iteration_id), group, name))
    return register


class ProcessingRank(RegisterInstruction):
    public = "collective_permute_implicit_current_processing_rank_id"

    register: RegisterOut
    iteration_id: int
    replica_group: Any

    def compute(self) -> None:
        rank = current().execution.world.rank
        ring = self.replica_group.members(rank)
        if not ring:
            warn("not-a-member", f"{self.public}: rank {rank} is in no list of the group")
        self.register.set(ring[(ring.index(rank) - self.iteration_id) % len(ring)] if ring else rank)
