"""Transfers that transpose (spec/isa_dma.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.context import current, warn
from ..ir.descriptors import Descriptors, contiguous_run, kind
from ..ir.instruction import In, Instruction, NkiInstruction, Out
from ..ir.layout import Int, without_ones
from ..ir.rewriting import in_place_of
from ..ir.semantics import Move
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine.machine import Machine
from . import enums, rules
from .dma import SKIP, DmaCopy, DmaInstruction, check_mode, deliver, fetch
from .enums import UNKNOWN, dge_mode, member, oob_mode
from .transposed_load import rows_and_transpose

AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[Int] | None = None,
    priority: Int | None = None,
    dge_mode: dge_mode = dge_mode.unknown,
    oob_mode: oob_mode = oob_mode.error,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src with its first and last dimensions exchanged."""
    dge_mode = member(dge_mode, enums.dge_mode, "dma_transpose", "dge_mode")
    oob_mode = member(oob_mode, enums.oob_mode, "dma_transpose", "oob_mode")
    axes = tuple(axes) if isinstance(axes, (list, tuple)) else axes
    if not current().execution.options.since("0.4"):
        dst = _padded(dst, src, axes)
    return issue(DmaTranspose(dst, src, axes, priority, dge_mode, oob_mode, name))


def _padded(dst: object, src: Any, axes: Any) -> Any:
    """Before NKI 0.4, a dst of lower rank whose missing dimensions have size 1 was taken."""
    if not isinstance(dst, View) or not isinstance(src, View) or dst.ndim >= src.ndim:
        return dst
    wanted = [src.shape[a] for a in axes or AXES.get(src.ndim, ())]
    return dst.reshape(wanted) if without_ones(wanted) == without_ones(dst.shape) else dst


class DmaTranspose(DmaInstruction):
    """Bits move. With a vector of indices, the rows of src are gathered first."""

    public = "dma_transpose"
    cost_formula = (
        "as a copy at 90 % (from HBM) or 50 % (from SBUF) of its rate; trn1: one descriptor per element"
    )

    dst: Out
    src: In
    axes: Any
    priority: Any
    dge_mode: dge_mode
    oob_mode: oob_mode

    def check(self, machine: Machine) -> None:
        self.check_transfer(machine)
        self.check_priority(machine)
        self._check_shape(machine)
        rules.same_dtype(self, "dst", "src")
        if self.src.dtype.itemsize == 1:
            raise rules.fail(
                self,
                "dtype",
                f"src is {self.src.dtype}, a transpose moves elements of 2 or 4 bytes",
                ["src"],
                "view pairs of bytes as a 2-byte dtype, or cast first",
            )
        if kind(self.dst) == "vector":
            raise rules.fail(self, "indirect-view", "dst cannot have a vector of indices", ["dst"])
        if self.oob_mode is SKIP and not self.src.is_indirect():
            raise rules.fail(self, "oob-skip", "oob_mode.skip needs a src with a run-time index", ["src"])
        if not self.dst.on_chip:
            warn(
                "transpose-hbm",
                "dma_transpose: dst is in HBM, it is documented for SBUF",
                notes=[f"dst: {self.dst.describe()}"],
            )
        if kind(self.src) == "vector":
            self._check_gather(machine)
        else:
            check_mode(self, "a transpose without indices", dge_mode.hwdge, dge_mode.none)
        if self.dge_mode is dge_mode.hwdge:
            self._check_hwdge(machine)

    def _check_shape(self, machine: Machine) -> None:
        src = self.src
        if src.ndim not in AXES:
            raise rules.fail(self, "rank", f"src must have 2, 3 or 4 dimensions, it has {src.ndim}", ["src"])
        if self.order != AXES[src.ndim]:
            raise rules.fail(
                self,
                "axis",
                f"axes={self.axes!r} is not possible for {src.ndim} dimensions",
                ["src"],
                f"only {AXES[src.ndim]}: leave axes out",
            )
        indexed = kind(src) == "vector"
        if (self.dst.on_chip or indexed) and src.shape[-1] > machine.partitions:
            raise rules.fail(
                self,
                "partition-limit",
                f"src ends in {src.shape[-1]} elements, which become at most {machine.partitions} partitions",
                ["src"],
            )
        wanted = tuple(src.shape[a] for a in self.order)
        if tuple(self.dst.shape) != wanted:
            raise rules.fail(
                self,
                "shape",
                f"dst has shape {tuple(self.dst.shape)}, the transpose has {wanted}",
                ["dst", "src"],
                "the rank must be equal too: reshape or .ap() one side",
            )

    def _check_hwdge(self, machine: Machine) -> None:
        rules.generation(self, 3, machine, "dge_mode.hwdge")
        shape, dtype = self.src.shape, self.src.dtype
        if dtype.itemsize != 2:
            raise rules.fail(self, "dtype", f"hardware DGE transposes 2-byte dtypes, src is {dtype}", ["src"])
        rows, columns = machine.hwdge_transpose_rows, machine.hwdge_transpose_columns
        if shape[-1] > columns:
            raise rules.fail(
                self, "shape", f"hardware DGE takes up to {columns} columns, src has {shape[-1]}", ["src"]
            )
        if len(shape) == 2 and shape[0] != rows:
            raise rules.fail(
                self, "shape", f"hardware DGE transposes {rows} rows at a time, src has {shape[0]}", ["src"]
            )
        if len(shape) > 2 and (rows % shape[0] or shape[0] * shape[-2] % rows):
            raise rules.fail(
                self,
                "shape",
                f"hardware DGE takes 1, 2, 4, 8 or {rows} in the first dimension of src, and multiples of "
                f"{rows} in first x last but one; src has {shape[0]} and {shape[0] * shape[-2]}",
                ["src"],
            )

    def _check_gather(self, machine: Machine) -> None:
        rules.generation(self, 3, machine, "a vector of indices")
        check_mode(self, "a vector of indices", dge_mode.swdge)
        src = self.src
        index: View = src.indirection.index  # type: ignore[union-attr]
        if src.dtype.itemsize != 2:
            raise rules.fail(
                self, "dtype", f"gathered rows must be of a 2-byte dtype, src is {src.dtype}", ["src"]
            )
        if index.dtype != "uint32":
            raise rules.fail(self, "dtype", f"the indices must be uint32, they are {index.dtype}", ["src"])
        for wrong, what in self._gather_faults(index):
            if wrong:
                notes = ", ".join(map(str, index.shape))
                raise rules.fail(self, "shape", f"{what}; the indices have shape ({notes})", ["src"])

    def _gather_faults(self, index: View) -> list[tuple[bool, str]]:
        shape, rows = self.src.shape, self.src.shape[0]
        partitions = index.shape[0]
        return [
            (index.ndim != 2, "the indices must have two dimensions"),
            (rows % 16 != 0, f"src has {rows} rows, a multiple of 16 is needed"),
            (index.size < rows, f"src has {rows} rows, there are {index.size} indices"),
            (
                not 16 <= partitions <= 128 or partitions % 16 != 0,
                "16, 32, ... 128 partitions of indices are needed",
            ),
            (index.shape[-1] > 1 and partitions != 128, "several columns of indices need 128 partitions"),
            (len(shape) == 4 and 1 not in shape[1:3], f"src is {tuple(shape)}: dimension 1 or 2 must be 1"),
        ]

    @property
    def order(self) -> Any:
        return AXES.get(self.src.ndim) if self.axes is None else self.axes

    def meaning(self, machine: Machine) -> Move:
        return Move(self.order)

    def compute(self, dst: View, src: Any) -> None:
        if src is None:  # skipped: the run-time index was out of bounds
            return
        values, where = fetch(src)
        where = None if where is None else where.transpose(self.order)
        deliver(self, dst, values.transpose(self.order), self.src.dtype, where)

    def by_tensor_engine(self, machine: Machine) -> Sequence[Instruction]:
        whole = self.src.ndim == 2 and self.src.indirection is None and self.uses_default_dge()
        if not whole or machine.dma_transpose_hbm_fraction:  # DMA engines transpose from trn2 on
            return ()
        columns = self.src.permute((1, 0))
        plain = DmaCopy(self.dst, columns, self.priority, self.oob_mode, self.dge_mode, UNKNOWN, self.name)
        return rows_and_transpose(in_place_of(plain, self, machine), self.dst, columns, machine)

    def descriptors(self, machine: Machine) -> list[Descriptors]:
        dst = self.dst
        rows = dst.shape[0]
        row = dst.size // rows
        run = min(contiguous_run(dst), row) if machine.dma_transpose_hbm_fraction else 1
        first = dst.start_partition if dst.on_chip else 0
        return [Descriptors(first, rows, run * dst.dtype.itemsize, row // run)]

    def rate_fraction(self, machine: Machine) -> float:
        inside = self.dst.on_chip and self.src.on_chip
        fraction = machine.dma_transpose_sbuf_fraction if inside else machine.dma_transpose_hbm_fraction
        return fraction or 1.0  # element by element on trn1: the descriptors have it
