"""What instructions of VectorE and GpSimdE cost (machine.md 6, 8)."""

from __future__ import annotations

from ..hardware.machine import Machine
from ..program.instruction import Cost, Instruction
from ..tensors import View

# ---- what they cost ------------------------------------------------------------------------------


def vector_cost(ins: Instruction, m: Machine, field: str, n: int, extra: float = 0.0) -> Cost:
    """n elements at the rate of a Machine field, `extra` cycles on top (machine.md 6)."""
    cycles = getattr(m, field) * n + extra
    return Cost(cycles, m.fix_vector_ns, (field, "fix_vector_ns"), shortest(ins, m) + extra)


def gpsimd_cost(m: Machine, field: str, n: int) -> Cost:
    cycles = m.gpsimd_overhead_cycles + getattr(m, field) * n
    return Cost(cycles, m.fix_gpsimd_ns, (field, "fix_gpsimd_ns"))


def shortest(ins: Instruction, m: Machine) -> int:
    """The shortest initiation interval; an address from a register takes longer (machine.md 6.2)."""
    for view in ins.operands():
        if isinstance(view, View) and view.indirection is not None and view.indirection.kind == "scalar":
            return m.dynamic_min_ii_cycles
    return m.min_ii_cycles
