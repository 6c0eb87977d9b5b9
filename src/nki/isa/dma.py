"""DMA: moving data between HBM and SBUF (spec/isa_dma.md)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.reference.indirect import IndexedRows, scalar_shift
from ..backends.reference.memories import memory_of
from ..ir.context import warn
from ..ir.descriptors import kind
from ..ir.instruction import In, Instruction, NkiInstruction, Out
from ..ir.layout import Int, is_int, without_ones
from ..ir.semantics import Move
from ..ir.tensor import NkiTensor
from ..ir.transfer_instruction import TransferInstruction
from ..ir.view import View
from ..launch.core import issue
from ..machine import dtypes
from ..machine.dtypes import DType, f32
from ..machine.machine import Machine
from ..machine.memories import PSUM
from . import enums, rules
from .enums import SCALAR, SYNC, UNKNOWN, dge_mode, engine, member, oob_mode
from .numerics import moves_bits, shaped
from .transposed_load import rows_and_transpose, transpose_and_rows

SKIP = oob_mode.skip
DGE = {dge_mode.swdge: "software", dge_mode.hwdge: "hardware", dge_mode.none: "static"}


class DmaInstruction(TransferInstruction):
    """A transfer with HBM or SBUF on each side, never PSUM."""

    dge_mode = dge_mode.unknown  # of transfers that leave no choice
    cost_source = "spec/machine.md 9"

    if TYPE_CHECKING:
        priority: int | None

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

    def check_priority(self, machine: Machine) -> None:
        if self.priority is None:
            return
        if not is_int(self.priority) or not 0 <= self.priority <= 3:
            raise rules.fail(self, "priority", f"priority must be None or 0 to 3, got {self.priority!r}")
        if machine.dma_priorities == 1:
            warn("priority", f"{self.public}: {machine.name} has no DMA priorities; it is ignored")

    def check_count(self, name: str) -> None:
        """The operand has as many elements as dst."""
        view = getattr(self, name)
        if self.dst.size != view.size:
            raise rules.fail(
                self,
                "shape",
                f"dst has {self.dst.size} elements, {name} has {view.size}",
                ["dst", name],
                "slice both sides to the same shape",
            )

    def check_indices(self, name: str) -> None:
        """A vector of indices holds one for each row: [n, 1]."""
        view = getattr(self, name)
        if kind(view) != "vector":
            return
        index = view.indirection.index
        if index.shape[0] != view.shape[0] or index.free_elements != 1:
            raise rules.fail(
                self,
                "shape",
                f"{name} has {view.shape[0]} rows, its indices have shape {tuple(index.shape)}",
                [name],
                f"pass one index per partition, a tile of shape ({view.shape[0]}, 1)",
            )

    # ---- for the timing model --------------------------------------------------------------------

    def uses_default_dge(self) -> bool:
        return self.dge_mode is dge_mode.unknown

    def generated_by(self, machine: Machine) -> str:
        kinds = (kind(self.dst), kind(self.src))
        if "vector" in kinds:
            return "software"
        # descriptors that are built ahead hold no address of the run
        default = machine.dma_default_mode if kinds == (None, None) or machine.has_hwdge else "software"
        return DGE.get(self.dge_mode, default)


# ---- moving elements -----------------------------------------------------------------------------


def deliver(ins: Instruction, dst: View, values: np.ndarray, source: DType, where: Any = None) -> None:
    """Write values of dtype `source` through a view, all of them or those under the mask `where`."""
    memory = memory_of(dst)
    if kind(dst) == "vector":
        rows = IndexedRows(dst, ins)
        if rows.has_duplicates():
            warn("scatter-dup", f"{ins.public}: equal indices in a scatter; the last one wins here")
        rows.store(dtypes.convert(values, source, dst.dtype))
        return
    shift = scalar_shift(dst, ins) if dst.indirection is not None else 0
    if shift is None:  # skipped: the run-time index was out of bounds
        return
    if where is None:
        transfer(memory.write(dst, shift), values, source, dst.dtype)
    else:
        where = where.reshape(dst.shape)
        picked = values.reshape(dst.shape)[where]
        memory.write(dst, shift, where=where)[where] = dtypes.convert(picked, source, dst.dtype)


def transfer(dst: np.ndarray, src: np.ndarray, source: DType, target: DType) -> None:
    """Equal dtypes move bytes; others go through float32. numpy copies where the two overlap."""
    src = shaped(src, dst)
    if not moves_bits(dst, target, src, source):
        dtypes.store(dst, f32(src, source), target)
    elif dst.dtype.kind == "V":
        dtypes.bits(dst)[...] = dtypes.bits(src)
    else:  # numpy copies its own types fast
        dst[...] = src


def fetch(src: Any) -> tuple[np.ndarray, Any]:
    """The elements of a source, and a mask of those in bounds if some are not."""
    if not isinstance(src, IndexedRows):
        return src, None
    valid = src.valid.reshape(-1, *(1,) * (len(src.shape) - 1))
    return src.load(), None if src.complete else np.broadcast_to(valid, src.shape)


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: Int | None = None,
    oob_mode: oob_mode = oob_mode.error,
    dge_mode: dge_mode = dge_mode.unknown,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src between HBM and SBUF, in any combination; casts when the dtypes differ."""
    if oob_mode.__class__ is not enums.oob_mode:
        oob_mode = member(oob_mode, enums.oob_mode, "dma_copy", "oob_mode")
    if dge_mode.__class__ is not enums.dge_mode:
        dge_mode = member(dge_mode, enums.dge_mode, "dma_copy", "dge_mode")
    if engine.__class__ is not enums.engine:
        engine = member(engine, enums.engine, "dma_copy", "engine")
    return issue(DmaCopy(dst, src, priority, oob_mode, dge_mode, engine, name))


class DmaCopy(DmaInstruction):
    public = "dma_copy"
    cost_formula = "descriptors x (7 ns, 21 on trn1, + bytes / rate) per engine, + issue and latency"

    dst: Out
    src: In
    priority: Any
    oob_mode: oob_mode
    dge_mode: dge_mode
    engine: engine

    def by_hardware(self) -> TransferInstruction | None:
        if not self.uses_default_dge() or kind(self.dst) is not None or kind(self.src) is not None:
            return None
        new = copy(self)
        new.dge_mode = dge_mode.hwdge
        return new

    def by_tensor_engine(self, machine: Machine) -> Sequence[Instruction]:
        if (
            not self.uses_default_dge()
            or self.src.indirection is not None
            or self.dst.indirection is not None
        ):
            return ()
        change = transpose_and_rows if self.src.on_chip else rows_and_transpose
        return change(self, self.dst, self.src, machine)

    def grouped(self) -> Instruction:
        return copy(self)

    def check(self, machine: Machine) -> None:
        self.check_transfer(machine)
        self.check_priority(machine)
        self.check_count("src")
        if without_ones(self.dst.shape) != without_ones(self.src.shape):
            warn(
                "dma-shape",
                "dma_copy: the shapes differ; elements are paired in row-major order",
                notes=[f"dst: {self.dst.describe()}", f"src: {self.src.describe()}"],
                help="the real compiler rejects some of these; reshape one side",
            )
        if self.dst.dtype != self.src.dtype:
            rules.castable(self, "dst", "src")
        self._check_mode(machine)
        self._check_engine()
        if self.oob_mode is SKIP and not (self.dst.is_indirect() or self.src.is_indirect()):
            warn("oob-skip", "dma_copy: oob_mode.skip has no effect without a run-time index")

    def _check_mode(self, machine: Machine) -> None:
        kinds = (kind(self.dst), kind(self.src))
        self.check_indices("dst")
        self.check_indices("src")
        if kinds == ("vector", "vector"):
            raise rules.fail(
                self,
                "indirect-twice",
                "dst and src both have a vector of indices",
                ["dst", "src"],
                "use two copies",
            )
        if "vector" in kinds:
            check_mode(self, "a vector of indices", dge_mode.swdge)
        if self.dge_mode is dge_mode.hwdge:
            rules.generation(self, 3, machine, "dge_mode.hwdge")
            if self.dst.dtype != self.src.dtype:
                raise rules.fail(
                    self,
                    "dtype",
                    f"dge_mode.hwdge moves bytes as they are: dst is {self.dst.dtype}, src {self.src.dtype}",
                    ["dst", "src"],
                    "leave dge_mode out, or copy to a tile of that dtype and convert with nisa.tensor_copy",
                )
        if self.dge_mode is dge_mode.none and "scalar" in kinds:
            warn("static-dma-offset", "dma_copy: a run-time offset with dge_mode.none")

    def _check_engine(self) -> None:
        if self.engine is UNKNOWN:
            return
        if self.engine not in (SYNC, SCALAR):
            raise rules.fail(
                self,
                "engine",
                f"engine={self.engine!r} cannot start a DMA",
                [],
                "use nisa.engine.sync or scalar",
            )
        if self.dge_mode is dge_mode.hwdge:
            return
        if self.engine is SYNC:
            raise rules.fail(
                self,
                "engine",
                "engine= is for hardware DGE only",
                [],
                "pass dge_mode=nisa.dge_mode.hwdge, or leave engine out",
            )
        warn("dma-engine", "dma_copy: engine=nisa.engine.scalar has no effect without dge_mode.hwdge")

    def meaning(self, machine: Machine) -> Move:
        return Move()

    def compute(self, dst: View, src: Any) -> None:
        if self.access.fixed:
            transfer(memory_of(dst).write(dst), src, self.src.dtype, dst.dtype)
        elif src is not None:  # else skipped: the run-time index was out of bounds
            values, where = fetch(src)
            deliver(self, dst, values, self.src.dtype, where)


def check_mode(ins: DmaInstruction, what: str, *allowed: dge_mode) -> None:
    """The descriptor generation asked for can do this; `unknown` always can."""
    if ins.dge_mode not in (dge_mode.unknown, *allowed):
        names = " or ".join(f"nisa.dge_mode.{mode.name}" for mode in allowed)
        raise rules.fail(
            ins,
            "dge-mode",
            f"{what} cannot use {ins.dge_mode!r}",
            [],
            f"leave dge_mode out, or pass {names}",
        )
