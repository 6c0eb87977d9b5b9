"""DMA: moving data between HBM and SBUF (isa_dma.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..core import issue, warn
from ..execute.indirect import Rows
from ..machine import Machine
from ..program import Cost, In, Instruction, Out
from ..storage import PSUM
from ..view import View
from . import rules
from .enums import SCALAR, SYNC, UNKNOWN, dge_mode, engine, member, oob_mode


class DmaInstruction(Instruction):
    """What all transfers share: HBM or SBUF on each side, never PSUM."""

    on_chip = False
    cost_source = "machine.md 9"

    def check_transfer(self, machine: Machine) -> None:
        for name, value in zip(self.operand_names, self.operands(), strict=True):
            if isinstance(value, View) and value.buffer is PSUM:
                raise rules.fail(
                    self,
                    "buffer",
                    f"{name} is in PSUM, which DMA cannot reach",
                    [name],
                    "copy it to an SBUF tile first (nisa.tensor_copy)",
                )
            if isinstance(value, View) and value.on_chip and value.shape[0] > machine.partitions:
                raise rules.fail(
                    self,
                    "partition-limit",
                    f"{name} has {value.shape[0]} partitions, SBUF has {machine.partitions}",
                    [name],
                )

    def cost(self, machine: Machine) -> Cost:
        """Time on a queue is the timing model's business (machine.md 9); no engine is held here."""
        return Cost(0, 0.0)


# ---- dma_copy ------------------------------------------------------------------------------------


def dma_copy(
    dst,
    src,
    priority=None,
    oob_mode=oob_mode.error,
    dge_mode=dge_mode.unknown,
    engine=engine.unknown,
    name=None,
):
    """dst = src between HBM and SBUF, in any combination; casts when the dtypes differ."""
    return issue(DmaCopy(dst, src, priority, oob_mode, dge_mode, engine, name))


class DmaCopy(DmaInstruction):
    public = "dma_copy"
    cost_formula = "descriptors x (9 ns + bytes / rate) per engine, + issue and latency"

    dst: Out
    src: In
    priority: Any
    oob_mode: oob_mode
    dge_mode: dge_mode
    engine: engine

    def check(self, machine: Machine) -> None:
        self.check_transfer(machine)
        self.oob_mode = member(self.oob_mode, oob_mode, self.public, "oob_mode")
        self.dge_mode = member(self.dge_mode, dge_mode, self.public, "dge_mode")
        if self.dst.size != self.src.size:
            raise rules.fail(
                self,
                "shape",
                f"dst has {self.dst.size} elements, src has {self.src.size}",
                ["dst", "src"],
                "slice both sides to the same shape",
            )
        if _without_ones(self.dst) != _without_ones(self.src):
            warn(
                "dma-shape",
                "dma_copy: the shapes differ; elements are paired in row-major order",
                notes=[f"dst: {self.dst.describe()}", f"src: {self.src.describe()}"],
                help="the real compiler rejects some of these; reshape one side",
            )
        if self.dst.dtype != self.src.dtype:
            rules.castable(self, "dst", "src")
        self._check_mode(machine)
        if self.oob_mode is oob_mode.skip and not (self.dst.is_indirect() or self.src.is_indirect()):
            warn("oob-skip", "dma_copy: oob_mode.skip has no effect without a run-time index")
        if self.priority is not None:
            if self.priority not in (0, 1, 2, 3):
                raise rules.fail(self, "argument", f"priority must be None or 0 to 3, got {self.priority!r}")
            if machine.dma_priorities == 1:
                warn("priority", f"dma_copy: {machine.name} has no DMA priorities; it is ignored")

    def _check_mode(self, machine: Machine) -> None:
        vector = [v for v in (self.dst, self.src) if v.indirection and v.indirection.kind == "vector"]
        scalar = [v for v in (self.dst, self.src) if v.indirection and v.indirection.kind == "scalar"]
        if len(vector) == 2:
            raise rules.fail(
                self, "indirect-twice", "dst and src both have a vector of indices", ["dst", "src"], "use two copies"
            )
        if vector and self.dge_mode not in (dge_mode.unknown, dge_mode.swdge):
            raise rules.fail(
                self,
                "dge-mode",
                f"a vector of indices needs software DGE, got {self.dge_mode!r}",
                [],
                "leave dge_mode out, or pass nisa.dge_mode.swdge",
            )
        if self.dge_mode is dge_mode.hwdge:
            if not machine.has_hwdge:
                rules.generation(self, 3, machine, "dge_mode.hwdge")
            rules.same_dtype(self, "dst", "src")
        if self.dge_mode is dge_mode.none and scalar:
            warn("static-dma-offset", "dma_copy: a run-time offset with dge_mode.none")
        if self.engine is not UNKNOWN:
            if self.engine.__class__ is not engine or self.engine not in (SYNC, SCALAR):
                raise rules.fail(self, "engine", f"engine={self.engine!r}: only sync or scalar start a DMA")
            if self.dge_mode is not dge_mode.hwdge:
                warn("dma-engine", "dma_copy: engine= only matters with dge_mode.hwdge")

    def compute(self, dst: Any, src: Any) -> None:
        if dst is None or src is None:  # skipped: the run-time index was out of bounds
            return
        if isinstance(src, Rows):
            gather(dst, src, self.src.dtype, self.dst.dtype)
        elif isinstance(dst, Rows):
            values = dtypes.convert(src, self.src.dtype, self.dst.dtype)
            _warn_duplicates(self, dst)
            dst.store(values.reshape(dst.shape))
        else:
            transfer(dst, src, self.src.dtype, self.dst.dtype)


def transfer(dst: np.ndarray, src: np.ndarray, source: dtypes.DType, target: dtypes.DType) -> None:
    """Equal dtypes move bytes; others go through float32."""
    if src.shape != dst.shape:
        src = src.reshape(dst.shape)
    if source == target:
        if dst.dtype.kind != "V":  # numpy copies its own types fast
            dst[...] = src
        else:
            dtypes.bits(dst)[...] = dtypes.bits(src)
    else:
        dtypes.store(dst, dtypes.f32(src, source), target)


def gather(dst: np.ndarray, rows: Rows, source: dtypes.DType, target: dtypes.DType) -> None:
    """Write the rows that were in bounds; the others keep what dst held."""
    values = dtypes.convert(rows.load(), source, target)
    if rows.valid.all():
        dst[...] = values.reshape(dst.shape)
        return
    keep = dst.reshape(rows.shape).copy()
    keep[rows.valid] = values[rows.valid]
    dst[...] = keep.reshape(dst.shape)


def _without_ones(view: View) -> tuple[int, ...]:
    return tuple(s for s in view.shape if s != 1)


def _warn_duplicates(ins: Instruction, rows: Rows) -> None:
    ids = rows.ids[rows.valid]
    if len(np.unique(ids)) != len(ids):
        warn("scatter-dup", f"{ins.public}: equal indices in a scatter; the last one wins here")
