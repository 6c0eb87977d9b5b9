"""VectorE: element-wise instructions (isa_vector.md)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .. import dtypes, operators
from ..core import issue, warn
from ..dtypes import f32
from ..machine import Machine
from ..operators import Operator
from ..program import Cost, In, Instruction, Out
from ..storage import PSUM
from . import rules
from .enums import GPSIMD, SCALAR, UNKNOWN, VECTOR, engine
from .numerics import apply, emit, shaped
from .legacy import legacy_dtype

INTEGER_32 = ("int32", "uint32")


# ---- tensor_copy ---------------------------------------------------------------------------------


@legacy_dtype
def tensor_copy(dst, src, engine=engine.unknown, name=None):
    """dst = src, cast to the dtype of dst. Equal dtypes are copied bit by bit."""
    return issue(TensorCopy(dst, src, engine, name))


class TensorCopy(Instruction):
    public = "tensor_copy"
    engines = (VECTOR, SCALAR, GPSIMD)
    cost_formula = "N x mode (fp32 1/2, 16-bit 1/4, PSUM 1); GpSimd 150 + N"
    cost_source = "machine.md 6.1, 7, 8"

    dst: Out
    src: In
    engine: engine

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "src")
        if self.dst.dtype != self.src.dtype:
            rules.castable(self, "dst", "src")
        if self.engine is SCALAR and not machine.scalar_has_tensor_copy:
            warn("scalar-copy", "tensor_copy: trn1's scalar engine copies through float32")

    def compute(self, dst: np.ndarray, src: np.ndarray) -> None:
        src = shaped(src, dst)
        if self.dst.dtype == self.src.dtype:
            dtypes.bits(dst)[...] = dtypes.bits(src)
        else:
            dtypes.store(dst, f32(src, self.src.dtype), self.dst.dtype)

    def cost(self, machine: Machine) -> Cost:
        return copy_cost(self, machine, self.dst, self.src)


def copy_cost(ins: Any, m: Machine, dst: In, src: In) -> Cost:
    """tensor_copy and tensor_scalar: the fast modes of machine.md 6.1, per engine."""
    n = src.free_elements
    if ins.runs_on is GPSIMD:
        return Cost(m.gpsimd_overhead_cycles + m.gpsimd_copy * n, m.fix_gpsimd_ns, ("gpsimd_copy",))
    if ins.runs_on is SCALAR:
        narrow = dst.dtype.itemsize <= 2 and src.dtype.itemsize <= 2
        rate = m.scalar_copy_narrow if narrow else m.scalar_activation
        fix = m.fix_scalar_psum_copy_ns if src.buffer is PSUM else m.fix_scalar_copy_ns
        return Cost(max(m.min_ii_cycles, rate * n), fix, ("scalar_copy_narrow",) if narrow else ())
    field = copy_mode(m, dst, src)
    return Cost(max(m.min_ii_cycles, getattr(m, field) * n), m.fix_vector_ns, (field,))


def copy_mode(m: Machine, dst: In, src: In) -> str:
    """The Machine field with VectorE's cycles per element for a one-input move."""
    fast = (1, 2) if m.vector_fast_fp8 else (2,)
    narrow_in, narrow_out = src.dtype.itemsize in fast, dst.dtype.itemsize in fast
    in_psum = src.buffer is PSUM or dst.buffer is PSUM
    if narrow_in and narrow_out:
        if in_psum:
            return "vector_copy_16bit_psum" if src.is_contiguous() else "vector_one_input"
        both = src.is_contiguous() and dst.is_contiguous()
        return "vector_copy_16bit" if both else "vector_copy_16bit_strided"
    if in_psum:
        return "vector_psum_fp32"
    if narrow_out and not narrow_in:
        return "vector_copy_fp32_to_16bit"
    if narrow_in:
        return "vector_copy_16bit_to_fp32"
    return "vector_copy_fp32"


# ---- memset --------------------------------------------------------------------------------------


def memset(dst, value, engine=engine.unknown, name=None):
    """Fill every element of dst with a compile-time number."""
    return issue(Memset(dst, value, engine, name))


class Memset(Instruction):
    public = "memset"
    engines = (VECTOR, GPSIMD)
    cost_formula = "max(64, 0.8 N) on trn2; N/2 for a 16-bit zero on trn1; GpSimd 150 + N"
    cost_source = "machine.md 6.2, 8"

    dst: Out
    value: Any
    engine: engine

    def check(self, machine: Machine) -> None:
        value, dtype = self.value, self.dst.dtype
        if not rules.is_number(value):
            raise rules.fail(self, "memset-type", f"value must be a number, got {value!r}", ["dst"])
        if dtype.is_packed and value != 0:
            raise rules.fail(self, "memset-type", f"{dtype} takes only 0, got {value!r}", ["dst"])
        if dtype.is_integer or dtype.is_bool:
            whole = isinstance(value, (bool, int, np.integer, np.bool_))
            if not whole:
                raise rules.fail(
                    self,
                    "memset-type",
                    f"{value!r} is a float, dst is {dtype}",
                    ["dst"],
                    f"write {int(value) if np.isfinite(value) else 0}",
                )
            low = -dtype.largest - 1 if dtype.is_signed else 0
            if not low <= value <= (1 if dtype.is_bool else dtype.largest):
                raise rules.fail(self, "memset-type", f"{value} does not fit {dtype}", ["dst"])

    def compute(self, dst: np.ndarray) -> None:
        dst[...] = dtypes.scalar(self.value, self.dst.dtype)

    def cost(self, m: Machine) -> Cost:
        n = self.dst.free_elements
        if self.runs_on is GPSIMD:
            return Cost(m.gpsimd_overhead_cycles + m.gpsimd_copy * n, m.fix_gpsimd_ns, ("gpsimd_copy",))
        half = self.value == 0 and self.dst.dtype.itemsize == 2
        rate = min(m.vector_memset, m.vector_memset_zero_16bit) if half else m.vector_memset
        return Cost(max(m.min_ii_cycles, rate * n), m.fix_memset_ns, ("vector_memset", "fix_memset_ns"))


# ---- tensor_tensor -------------------------------------------------------------------------------


def tensor_tensor(dst, data1, data2, op, engine=engine.unknown, name=None):
    """dst = data1 <op> data2, element by element."""
    if op.__class__ is not Operator:
        op = operators.resolve(op, "tensor_tensor")
    return issue(TensorTensor(dst, data1, data2, op, engine, name))


class TensorTensor(Instruction):
    """float32 arithmetic; exact 32-bit integers on GpSimd; bit patterns for bitwise operators."""

    public = "tensor_tensor"
    engines = (VECTOR, GPSIMD)
    cost_formula = "2N trn1, N trn2+; N with a PSUM operand; N/2 all 16-bit in SBUF trn2+; GpSimd 150 + 2N"
    cost_source = "machine.md 6.1, 6.2, 8"
    FORBIDDEN: ClassVar[tuple[str, ...]] = ("divide", "mod", "fmod")

    dst: Out
    data1: In
    data2: In
    op: Operator
    engine: engine

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "data1", "data2")
        rules.castable(self, "dst", "data1", "data2")
        rules.not_both_psum(self, "data1", "data2")
        op = self.op
        if op.kind not in ("arithmetic", "comparison", "logical", "bitwise") or op.name in self.FORBIDDEN:
            raise rules.fail(self, "op", f"{op!r} is not an operator of two tiles", [], "see nl.add, nl.maximum")
        rules.generation(self, op.since, machine, f"op={op!r}")
        if op.is_bitwise:
            rules.integers(self, "dst", "data1", "data2")
            if self.engine not in (UNKNOWN, VECTOR):
                raise rules.fail(self, "engine", f"{op!r} runs on the vector engine only")
        if op.name == "power":
            if self.engine is VECTOR:
                raise rules.fail(self, "engine", "nl.power runs on the gpsimd engine only")
            rules.in_sbuf(self, "dst", "data1", "data2")

    def choose_engine(self, machine: Machine) -> engine:
        if self.op.name == "power":
            return GPSIMD
        views = (self.dst, self.data1, self.data2)
        exact = all(v.dtype in INTEGER_32 and v.buffer is not PSUM for v in views)
        return GPSIMD if exact and not self.op.is_bitwise else VECTOR

    def compute(self, dst: np.ndarray, data1: np.ndarray, data2: np.ndarray) -> None:
        data1, data2 = shaped(data1, dst), shaped(data2, dst)
        op = self.op
        if op.is_bitwise:
            dst[...] = bitwise(op, data1, data2, self.data1.dtype).astype(dst.dtype)
        elif self.runs_on is GPSIMD and op.name != "power" and self._is_integer():
            exact = op.formula(data1.astype(np.int64), data2.astype(np.int64))  # type: ignore[misc]
            dst[...] = exact.astype(np.int64).astype(dst.dtype)
        else:
            emit(dst, self.dst.dtype, op.formula, f32(data1, self.data1.dtype), f32(data2, self.data2.dtype))

    def _is_integer(self) -> bool:
        return all(v.dtype in INTEGER_32 for v in (self.dst, self.data1, self.data2))

    def cost(self, m: Machine) -> Cost:
        n = self.dst.free_elements
        if self.runs_on is GPSIMD:
            return Cost(
                m.gpsimd_overhead_cycles + m.gpsimd_two_inputs * n, m.fix_gpsimd_ns, ("gpsimd_two_inputs",)
            )
        field = self._mode()
        return Cost(max(m.min_ii_cycles, getattr(m, field) * n), m.fix_vector_ns, (field,))

    def _mode(self) -> str:
        views = (self.data1, self.data2, self.dst)
        if PSUM in (self.data1.buffer, self.data2.buffer):
            return "vector_two_inputs_psum"
        narrow = all(v.dtype in ("bfloat16", "float16") and v.is_contiguous() for v in views)
        if narrow and self.dst.buffer is not PSUM and self.op.name in ("add", "multiply", "subtract"):
            return "vector_two_inputs_16bit"
        return "vector_two_inputs"


def bitwise(op: Operator, a: np.ndarray, b: Any, dtype: dtypes.DType) -> np.ndarray:
    """Bit patterns at the width of `dtype`; shifts are logical, a count of the width or more gives 0."""
    bits = dtypes.bits(a)
    width = 8 * dtype.itemsize
    if not isinstance(b, np.ndarray):
        b = np.asarray(int(b) % (1 << width), bits.dtype)
    elif "shift" not in op.name:
        b = b.astype(bits.dtype)
    if "shift" in op.name:
        count = b.astype(np.int64)
        shifted = op.formula(bits, np.minimum(count, width - 1).astype(bits.dtype))  # type: ignore[misc]
        result = np.where((count >= width) | (count < 0), bits.dtype.type(0), shifted)
    elif op.is_unary:
        result = op.formula(bits)  # type: ignore[misc]
    else:
        result = op.formula(bits, b)  # type: ignore[misc]
    return result.astype(bits.dtype).view(dtype.storage)


__all__ = ["apply"]
