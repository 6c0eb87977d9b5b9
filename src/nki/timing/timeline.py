"""Timeline: when everything happened, and the profiler's figures about it (machine.md 12)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..machine import Machine
from ..view import View
from .operations import Operation, Planner

if TYPE_CHECKING:
    from .schedule import Simulation

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")


class Timeline:
    """The modelled run of a kernel. Times are ns from its first instruction."""

    def __init__(self, machine: Machine, planners: list[Planner], simulation: Simulation):
        self.machine = machine
        self.planners = planners
        self.cores = simulation.cores
        self.operations: list[Operation] = [op for p in planners for op in p.operations]

    # ---- times -----------------------------------------------------------------------------------

    @cached_property
    def work_ns(self) -> float:
        """First start to last result, without the fixed cost of a kernel run."""
        return max((t for core in self.cores for t in core.done), default=0.0)

    @property
    def total_ns(self) -> float:
        return self.work_ns + self.machine.kernel_overhead_ns

    @property
    def total_us(self) -> float:
        return self.total_ns / 1e3

    def intervals(self, engine: str, core: int = 0) -> np.ndarray:
        """(start, end) of every bar on an engine, or of every transfer for "dma"."""
        c = self.cores[core]
        wanted = [
            op.index for op in c.operations if (op.is_dma if engine == "dma" else op.kind == engine)
        ]
        bars = [(c.start[i], c.end[i]) for i in wanted]
        if engine == "scalar":
            bars += [(start, end) for start, end, _ in c.table_loads]
        return np.array(sorted(bars), np.float64).reshape(-1, 2)

    def active_ns(self, engine: str, core: int = 0) -> float:
        """Length of the union of an engine's bars."""
        return union_length(self.intervals(engine, core))

    def active_percent(self, engine: str, core: int = 0) -> float:
        return 100 * self.active_ns(engine, core) / self.total_ns if self.total_ns else 0.0

    @cached_property
    def packet_ns(self) -> float:
        """Sum of DMA packet durations over all engines."""
        return sum(t.packet_ns for core in self.cores for t in core.transfers.values())

    # ---- work ------------------------------------------------------------------------------------

    @cached_property
    def flops(self) -> int:
        """2 x MACs of all matrix products, transposes left out."""
        return sum(matmul_flops(op) for op in self.operations)

    @property
    def mfu_percent(self) -> float:
        peak = self.machine.peak_flops() * len(self.cores)
        return 100 * self.flops / (peak * self.total_ns * 1e-9) if self.total_ns else 0.0

    @cached_property
    def hbm_bytes(self) -> tuple[int, int]:
        """HBM bytes (read, written), spills included."""
        read = written = 0
        for core in self.cores:
            for index, transfer in core.transfers.items():
                op = core.operations[index]
                if op.instruction is None:
                    read += transfer.nbytes if op.kind == "reload" else 0
                    written += transfer.nbytes if op.kind == "spill" else 0
                    continue
                operands = op.instruction.operands()
                read += sum(_hbm_bytes(operands[i]) for i in op.instruction.read_at)
                written += sum(_hbm_bytes(operands[i]) for i in op.instruction.write_at)
        return read, written

    @property
    def mbu_percent(self) -> float:
        moved = sum(self.hbm_bytes)
        return 100 * moved / (self.machine.hbm_gbs * self.total_ns) if self.total_ns else 0.0

    @property
    def spill_bytes(self) -> int:
        return sum(p.spill_bytes for p in self.planners)

    def __repr__(self) -> str:
        return f"<Timeline {self.total_us:.1f} us, {len(self.operations)} operations on {self.machine.name}>"


def union_length(intervals: np.ndarray) -> float:
    """Total length covered by sorted (start, end) pairs."""
    if len(intervals) == 0:
        return 0.0
    starts, ends = intervals[:, 0], np.maximum.accumulate(intervals[:, 1])
    gaps = np.maximum(0.0, starts[1:] - ends[:-1]).sum()
    return float(ends[-1] - starts[0] - gaps)


def matmul_flops(op: Operation) -> int:
    ins: Any = op.instruction
    if op.kind != "tensor" or getattr(ins, "is_transpose", False) or ins.public == "nc_transpose":
        return 0
    stationary, moving = ins.stationary, ins.moving
    halves = 2 if getattr(ins, "is_double_row", False) else 1
    lanes = 4 if stationary.dtype.is_packed else 1
    rows = stationary.shape[0] * lanes * halves
    return 2 * rows * (stationary.free_elements // halves) * (moving.free_elements // halves)


def _hbm_bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, View) and not value.on_chip else 0
