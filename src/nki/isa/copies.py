"""Copies and fills: tensor_copy, memset, tensor_copy_predicated (spec/isa_vector.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.context import current_machine, warn
from ..ir.instruction import In, InOut, Instruction, InstructionCost, Operand, Out
from ..ir.semantics import Fill, Move
from ..ir.view import View
from ..machine import dtypes
from ..machine.dtypes import DType, f32
from ..machine.machine import Machine
from ..machine.memories import PSUM
from ..typing import Number
from . import rules
from .costs import VectorInstruction, gpsimd_cost, held_back, shortest, vector_cost
from .deprecated import deprecated_dtype
from .enums import GPSIMD, SCALAR, UNKNOWN, VECTOR, engine
from .numerics import shaped
from .public import public


class TensorCopy(Instruction):
    """dst = src, cast to the dtype of dst. Equal dtypes are copied bit by bit."""

    public = "tensor_copy"
    engines = (VECTOR, SCALAR, GPSIMD)
    indirect = ("dst", "src")
    cost_formula = "N x mode (fp32 1/2, 16-bit 1/4, PSUM 1); GpSimd 150 + N"
    cost_source = "spec/machine.md 6.1, 7, 8"

    dst: Out
    src: In
    engine: engine = UNKNOWN

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "src")
        through_float32 = self.engine is SCALAR and not machine.scalar_has_tensor_copy
        if through_float32:
            warn(
                "scalar-copy",
                f"tensor_copy: {machine.name}'s scalar engine copies through float32",
                help="use the vector engine, or nisa.activation with op=nl.copy",
            )
        if self.dst.dtype != self.src.dtype or through_float32:
            rules.castable(self, "dst", "src")
        if self.engine is GPSIMD and (rules.is_gathered(self.dst) or rules.is_gathered(self.src)):
            raise rules.fail(self, "engine", "the gpsimd engine copies no indirect views", ["dst", "src"])

    def meaning(self, machine: Machine) -> Move | None:
        through_float32 = self.runs_on is SCALAR and not machine.scalar_has_tensor_copy
        return None if through_float32 else Move()

    def other_engine(self) -> Any:
        """ScalarE, for floats (through float32 on trn1); GpSimdE shares VectorE's way to SBUF."""
        floats = not (self.dst.dtype.is_integer or self.src.dtype.is_integer)
        plain = self.dst.dtype.castable and self.src.dtype.castable
        direct = self.dst.indirection is None and self.src.indirection is None
        free = self.engine is UNKNOWN and self.runs_on is VECTOR
        return SCALAR if free and floats and plain and direct else None

    def compute(self, dst: np.ndarray, src: np.ndarray) -> None:
        if self.runs_on is SCALAR and not current_machine().scalar_has_tensor_copy:
            dtypes.store(dst, f32(shaped(src, dst), self.src.dtype), self.dst.dtype)
        else:
            move(dst, src, self.dst.dtype, self.src.dtype)

    def cost(self, machine: Machine) -> InstructionCost:
        if self.runs_on is GPSIMD:
            return gpsimd_cost(machine, "gpsimd_copy", self.src.free_elements)
        return copy_cost(self, machine, self.dst, self.src)


def move(dst: np.ndarray, src: np.ndarray, target: DType, source: DType) -> None:
    """Equal dtypes keep their bits; others go through float32."""
    src = shaped(src, dst)
    if target is not source:
        dtypes.store(dst, f32(src, source), target)
    elif dst.dtype.kind != "V":  # numpy copies the bits of its own types
        dst[...] = src
    else:
        dtypes.bits(dst)[...] = dtypes.bits(src)


def copy_cost(ins: Instruction, m: Machine, dst: In, src: In) -> InstructionCost:
    """tensor_copy and tensor_scalar on VectorE (the fast modes of spec/machine.md 6.1) and ScalarE."""
    n = src.free_elements
    if ins.runs_on is SCALAR:
        narrow = dst.dtype.itemsize <= 2 and src.dtype.itemsize <= 2
        rate = "scalar_copy_narrow" if narrow else "scalar_activation"
        fix = "fix_scalar_psum_copy_ns" if src.buffer is PSUM else "fix_scalar_copy_ns"
        gap = held_back(m, getattr(m, fix)) * m.scalar_ghz
        return InstructionCost(getattr(m, rate) * n, getattr(m, fix), (rate, fix), shortest(ins, m), gap)
    return vector_cost(ins, m, copy_mode(m, dst, src), n)


def copy_mode(m: Machine, dst: In, src: In) -> str:
    """The Machine field with VectorE's cycles per element for a one-input move."""
    fast = (1, 2) if m.vector_fast_fp8 else (2,)
    narrow_in, narrow_out = src.dtype.itemsize in fast, dst.dtype.itemsize in fast
    in_psum = src.buffer is PSUM or dst.buffer is PSUM
    dense = src.is_contiguous() and dst.is_contiguous()
    if narrow_in and narrow_out:
        if in_psum:
            return "vector_copy_16bit_psum" if dense else "vector_one_input"
        return "vector_copy_16bit" if dense else "vector_copy_16bit_strided"
    if in_psum:
        return "vector_psum_fp32"
    if narrow_out:
        return "vector_copy_fp32_to_16bit"
    widens = narrow_in and dst.dtype.itemsize > src.dtype.itemsize
    return "vector_copy_16bit_to_fp32" if widens else "vector_copy_fp32"


class Memset(Instruction):
    """Fill every element of dst with a compile-time number."""

    public = "memset"
    engines = (VECTOR, GPSIMD)
    cost_formula = "max(64, 0.8 N) on trn2; N/2 for a 16-bit zero on trn1; GpSimd 150 + N"
    cost_source = "spec/machine.md 6.2, 8"

    dst: Out
    value: Number
    engine: engine = UNKNOWN

    def check(self, machine: Machine) -> None:
        value, dtype = self.value, self.dst.dtype
        if not rules.is_number(value):
            raise self._refuse(
                f"value must be a number, got {value!r}", "registers and tiles: nisa.tensor_copy"
            )
        if not dtype.castable and value != 0:
            raise self._refuse(f"{dtype} takes only 0, got {value!r}", "fill a view of it: t.view(nl.uint8)")
        if dtype.is_integer or dtype.is_bool:
            self._check_integer(value, dtype)
        elif isinstance(value, int) and abs(value) > 2**127:
            raise self._refuse(f"{value} is too large for {dtype}")

    def _check_integer(self, value: Any, dtype: DType) -> None:
        if not isinstance(value, (int, np.integer, np.bool_)):
            whole = int(value) if np.isfinite(value) else 0
            if value != 0:
                raise self._refuse(f"{value!r} is a float, dst is {dtype}", f"write {whole}")
            # the bits of 0.0 are those of 0, and public kernels clear tiles of any dtype with it
            warn("memset-type", f"memset: {value!r} is a float, dst is {dtype}", help="write 0")
        low = -dtype.largest - 1 if dtype.is_integer and dtype.is_signed else 0
        if not low <= value <= dtype.largest:
            raise self._refuse(f"{value} does not fit {dtype} ({low} to {dtype.largest})")

    def _refuse(self, message: str, help: str | None = None) -> Exception:
        return rules.fail(self, "memset-type", message, ["dst"], help)

    def meaning(self, machine: Machine) -> Fill:
        return Fill(self.value)

    def compute(self, dst: np.ndarray) -> None:
        if dst.dtype is dtypes.FLOAT32 and self.dst.dtype is not dtypes.tfloat32:
            dst.fill(self.value)
        else:
            dst[...] = dtypes.scalar(self.value, self.dst.dtype)

    def cost(self, m: Machine) -> InstructionCost:
        n = self.dst.free_elements
        if self.runs_on is GPSIMD:
            return gpsimd_cost(m, "gpsimd_copy", n)
        half = self.value == 0 and self.dst.dtype.itemsize == 2
        field = (
            "vector_memset_zero_16bit"
            if half and m.vector_memset_zero_16bit < m.vector_memset
            else "vector_memset"
        )
        cycles = max(shortest(self, m), getattr(m, field) * n)
        return InstructionCost(cycles, m.fix_memset_ns, (field, "fix_memset_ns"))


class TensorCopyPredicated(VectorInstruction):
    """dst = src where predicate is not 0 (or is 0, with reverse_pred); elsewhere dst stays as it is."""

    public = "tensor_copy_predicated"
    indirect = ("dst", "predicate")
    cost_formula = "2N; N with src or predicate in PSUM; about N for a scalar src"

    dst: InOut
    src: Operand
    predicate: In
    reverse_pred: bool = False

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "src", "predicate")
        rules.dtype_in(
            self,
            "predicate",
            ("uint8", "uint16", "uint32", "bool"),
            "view signed integers as unsigned ones: t.view",
        )
        rules.not_both_psum(self, "src", "predicate")
        if isinstance(self.src, View):
            self._check_dtypes()
        elif not rules.is_number(self.src):
            raise rules.not_a_tensor(self, "src", self.src)
        elif not self.dst.dtype.castable:
            rules.castable(self, "dst")

    def _check_dtypes(self) -> None:
        if self.src.dtype == self.dst.dtype:
            return
        rules.castable(self, "dst", "src")
        warn(
            "dtype-differs",
            f"tensor_copy_predicated: src is {self.src.dtype}, dst is {self.dst.dtype}; the values are cast",
            notes=[f"dst: {self.dst.describe()}", f"src: {self.src.describe()}"],
            help="hardware asks for equal dtypes; convert src first (nisa.tensor_copy)",
        )

    def compute(self, dst: np.ndarray, src: Any, predicate: np.ndarray) -> None:
        mask = (np.equal if self.reverse_pred else np.not_equal)(shaped(predicate, dst), 0)
        values = self._selected(dst, src)
        np.copyto(dtypes.bits(dst), dtypes.bits(values), where=mask)

    def _selected(self, dst: np.ndarray, src: Any) -> np.ndarray:
        """What to write where the predicate holds, in the dtype of dst."""
        target = self.dst.dtype
        if isinstance(self.src, View):
            src = shaped(src, dst)
            if self.src.dtype is target:
                return src
            values, src = np.empty_like(dst), f32(src, self.src.dtype)
        elif target.is_integer:
            return np.asarray(saturated(src, target))
        else:
            values = np.empty((1,) * dst.ndim, dst.dtype)
            src = np.full(values.shape, src, np.float32)
        dtypes.store(values, src, target)
        return values

    def cost(self, m: Machine) -> InstructionCost:
        return predicated_cost(self, m, self.src, self.predicate)


def predicated_cost(ins: Instruction, m: Machine, src: object, predicate: In) -> InstructionCost:
    """tensor_copy_predicated and select_reduce."""
    if not isinstance(src, View):
        field = "vector_predicated_scalar"
    elif src.buffer is PSUM or predicate.buffer is PSUM:
        field = "vector_predicated_psum"
    else:
        field = "vector_predicated"
    return vector_cost(ins, m, field, predicate.free_elements)


def saturated(value: Any, dtype: DType) -> Any:
    """A number cast to a dtype; integers stay exact, and what does not fit ends at the nearest one."""
    if dtype.is_integer and isinstance(value, (int, np.integer)):
        low = -dtype.largest - 1 if dtype.is_signed else 0
        value = min(max(int(value), low), dtype.largest)
    return dtypes.scalar(value, dtype)


tensor_copy = deprecated_dtype(public(TensorCopy))
memset = public(Memset)
tensor_copy_predicated = public(TensorCopyPredicated)
