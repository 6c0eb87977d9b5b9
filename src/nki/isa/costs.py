"""What instructions of VectorE and GpSimdE cost (spec/machine.md 6, 8)."""

from __future__ import annotations

from typing import ClassVar

from ..ir.instruction import Instruction, InstructionCost
from ..ir.view import View
from ..machine.machine import Machine
from ..machine.memories import SBUF
from .enums import VECTOR


class VectorInstruction(Instruction):
    """An instruction of VectorE alone."""

    engines = (VECTOR,)
    cost_source = "spec/machine.md 6.2"
    rate: ClassVar[str] = "vector_one_input"  # the Machine field with its cycles per element

    def cost(self, m: Machine) -> InstructionCost:
        """Return the cost of streaming the first input."""
        return vector_cost(self, m, self.rate, self.operands()[self.read_at[0]].free_elements)


def vector_cost(ins: Instruction, m: Machine, field: str, n: int, extra: float = 0.0) -> InstructionCost:
    """n elements at the rate of a Machine field, `extra` cycles on top (spec/machine.md 6)."""
    cycles = getattr(m, field) * n + extra
    rests_on = (field, "fix_vector_ns", "vector_access_cycles")
    return InstructionCost(cycles, m.fix_vector_ns, rests_on, shortest(ins, m) + extra, access_gap(ins, m))


def access_gap(ins: Instruction, m: Machine) -> float:
    """Cycles of VectorE that starting to read its tiles takes (spec/machine.md 3).

    On trn1 two tiles of SBUF share its port: they start, as they stream, at half rate. From trn2 on the next
    instruction begins a fixed time before the result of this one is there.
    """
    read = (ins.operands()[i] for i in ins.read_at)
    tiles = sum(isinstance(v, View) and v.free_elements > 1 and v.buffer is SBUF for v in read)
    return m.vector_access_cycles * tiles * tiles + held_back(m, m.fix_vector_ns) * m.vector_ghz


def held_back(m: Machine, fix_ns: float) -> float:
    """Return ns that a latency holds an engine beyond its work; the next instruction overlaps the rest."""
    return max(0.0, fix_ns - m.overlap_ns) if m.overlap_ns else 0.0


def gpsimd_cost(m: Machine, field: str, n: int) -> InstructionCost:
    cycles = m.gpsimd_overhead_cycles + getattr(m, field) * n
    return InstructionCost(cycles, m.fix_gpsimd_ns, (field, "fix_gpsimd_ns"))


def shortest(ins: Instruction, m: Machine) -> int:
    """The shortest initiation interval; an address from a register takes longer (spec/machine.md 6.2)."""
    for view in ins.operands():
        if isinstance(view, View) and view.indirection is not None and view.indirection.kind == "scalar":
            return m.dynamic_min_ii_cycles
    return m.min_ii_cycles
