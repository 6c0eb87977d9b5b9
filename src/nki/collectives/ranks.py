"""Which rank is this, and whose data does it hold (collectives.md 2.8, 2.9)."""

from __future__ import annotations

from ..errors import error
from ..isa.registers import RegisterInstruction, VirtualRegister
from ..program.instruction import RegisterIn, RegisterOut
from ..run.core import issue
from ..tensors import is_int
from .groups import RANK, as_group


def rank_id(name=None):
    """A register with the number of this rank in the world."""
    return _rank_register(RANK, name)


def collective_permute_implicit_current_processing_rank_id(
    iteration_id, replica_group, channel_id=0, name=None
):
    """A register with the rank whose data this one holds after `iteration_id` steps round the ring."""
    function = "collective_permute_implicit_current_processing_rank_id"
    for argument, value in (("iteration_id", iteration_id), ("channel_id", channel_id)):
        if not is_int(value) or value < 0:
            raise error("argument", f"{function}: {argument} must be an int >= 0, got {value!r}")
    ring = next(members for members in as_group(replica_group, function) if RANK in members)
    return _rank_register(ring[(ring.index(RANK) - iteration_id) % len(ring)], name)


def _rank_register(rank: int, name: str | None) -> VirtualRegister:
    register = VirtualRegister(frozen=True)
    issue(RankId(register, rank, name))
    return register


class RankId(RegisterInstruction):
    public = "rank_id"

    register: RegisterOut
    rank: RegisterIn

    def compute(self) -> None:
        self.register.set(self.rank)
