"""Instructions that DMA engines run: what the timing model asks of a transfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..machine.machine import Machine
from .descriptors import Descriptors, pieces
from .instruction import Instruction, InstructionCost
from .view import View


class Wire(NamedTuple):
    """The time a transfer takes on the link between this rank and others (spec/machine.md 11)."""

    latency_ns: float  # of all hops
    busy_ns: float  # the link carries this rank's bytes
    rests_on: tuple[str, ...] = ()


class TransferInstruction(Instruction):
    """A transfer by the sixteen DMA engines. `compute` gets its output as a View."""

    reaches_hbm = True
    lazy_output = True

    if TYPE_CHECKING:

        @property
        def dst(self) -> View: ...

        @property
        def src(self) -> View: ...

    def engine_name(self) -> str:
        return "dma"

    def cost(self, machine: Machine) -> InstructionCost:
        """Return no cycles: the timing model works out the time on a queue (spec/machine.md 9)."""
        return InstructionCost(0, 0.0)

    def transfers(self) -> list[tuple[View, View]]:
        """Return (destination, source) of every stream of elements."""
        return [(self.dst, self.src)]

    def descriptors(self, machine: Machine) -> list[Descriptors]:
        """Return the contiguous pieces it is cut into (spec/machine.md 9.1)."""
        return [piece for dst, src in self.transfers() for piece in pieces(dst, src)]

    def rate_fraction(self, machine: Machine) -> float:
        """Return its throughput relative to a plain copy (spec/machine.md 9.5)."""
        return 1.0

    def generated_by(self, machine: Machine) -> str:
        """Return what makes the descriptors: "software", "hardware" or "static" (spec/machine.md 9.3)."""
        return machine.dma_default_mode

    def uses_default_dge(self) -> bool:
        """Return True if the kernel does not choose what makes the descriptors."""
        return True

    def by_hardware(self) -> TransferInstruction | None:
        """Return it with descriptors that hardware makes; None if the compiler has no choice."""
        return None

    def by_tensor_engine(self, machine: Machine) -> Sequence[Instruction]:
        """Return a load of rows and their transpose on TensorE that do the same; nothing if there is none."""
        return ()

    def wire(self, machine: Machine, cores: int) -> Wire | None:
        """Return its time on the link to other ranks, each with so many cores; None: it does not use it."""
        return None

    def members(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that take part with this one, in index order; empty: it takes no part."""
        return ()
