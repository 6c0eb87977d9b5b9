"""VectorE: element-wise instructions (isa_vector.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import current_machine, warn
from ..hardware import dtypes, operators
from ..hardware.dtypes import DType, f32
from ..hardware.machine import Machine
from ..hardware.memories import PSUM
from ..hardware.operators import Operator
from ..program.instruction import Cost, In, InOut, Instruction, Operand, Out
from ..run.core import issue
from ..tensors import View
from . import alu, rules
from .alu import BINARY, BITWISE, INTEGER_32, MAGNITUDES, SHIFTS, bitwise
from .enums import GPSIMD, SCALAR, UNKNOWN, VECTOR, engine
from .legacy import legacy_dtype
from .numerics import column, emit, scratch, shaped

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


# ---- tensor_copy ---------------------------------------------------------------------------------


@legacy_dtype
def tensor_copy(dst, src, engine=engine.unknown, name=None):
    """dst = src, cast to the dtype of dst. Equal dtypes are copied bit by bit."""
    return issue(TensorCopy(dst, src, engine, name))


class TensorCopy(Instruction):
    public = "tensor_copy"
    engines = (VECTOR, SCALAR, GPSIMD)
    indirect = ("dst", "src")
    cost_formula = "N x mode (fp32 1/2, 16-bit 1/4, PSUM 1); GpSimd 150 + N"
    cost_source = "machine.md 6.1, 7, 8"

    dst: Out
    src: In
    engine: engine

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

    def compute(self, dst: np.ndarray, src: np.ndarray) -> None:
        if self.runs_on is SCALAR and not current_machine().scalar_has_tensor_copy:
            dtypes.store(dst, f32(shaped(src, dst), self.src.dtype), self.dst.dtype)
        else:
            move(dst, src, self.dst.dtype, self.src.dtype)

    def cost(self, machine: Machine) -> Cost:
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


def copy_cost(ins: Any, m: Machine, dst: In, src: In) -> Cost:
    """tensor_copy and tensor_scalar on VectorE (the fast modes of machine.md 6.1) and ScalarE."""
    n = src.free_elements
    if ins.runs_on is SCALAR:
        narrow = dst.dtype.itemsize <= 2 and src.dtype.itemsize <= 2
        rate = "scalar_copy_narrow" if narrow else "scalar_activation"
        fix = "fix_scalar_psum_copy_ns" if src.buffer is PSUM else "fix_scalar_copy_ns"
        return Cost(getattr(m, rate) * n, getattr(m, fix), (rate, fix), shortest(ins, m))
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

    def compute(self, dst: np.ndarray) -> None:
        if dst.dtype is dtypes.FLOAT32 and self.dst.dtype is not dtypes.tfloat32:
            dst.fill(self.value)
        else:
            dst[...] = dtypes.scalar(self.value, self.dst.dtype)

    def cost(self, m: Machine) -> Cost:
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
        return Cost(cycles, m.fix_memset_ns, (field, "fix_memset_ns"))


# ---- tensor_copy_predicated ----------------------------------------------------------------------


def tensor_copy_predicated(dst, src, predicate, reverse_pred=False, name=None):
    """dst = src where predicate is not 0 (or is 0, with reverse_pred); elsewhere dst stays as it is."""
    return issue(TensorCopyPredicated(dst, src, predicate, reverse_pred, name))


class TensorCopyPredicated(Instruction):
    public = "tensor_copy_predicated"
    engines = (VECTOR,)
    indirect = ("dst", "predicate")
    cost_formula = "2N; N with src or predicate in PSUM; about N for a scalar src"
    cost_source = "machine.md 6.2"

    dst: InOut
    src: Operand
    predicate: In
    reverse_pred: bool

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
        if isinstance(src, np.ndarray):
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

    def cost(self, m: Machine) -> Cost:
        return predicated_cost(self, m, self.src, self.predicate)


def predicated_cost(ins: Instruction, m: Machine, src: Any, predicate: In) -> Cost:
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
    indirect = ("dst", "data1")
    cost_formula = "2N trn1, N trn2+; N with a PSUM operand; N/2 all 16-bit in SBUF trn2+; GpSimd 150 + 2N"
    cost_source = "machine.md 6.1, 6.2, 8"

    dst: Out
    data1: In
    data2: In
    op: Operator
    engine: engine

    def check(self, machine: Machine) -> None:
        op = self.op
        rules.matching(self, "dst", "data1", "data2")
        rules.castable(self, "dst", "data1", "data2")
        rules.not_both_psum(self, "data1", "data2")
        alu.check_operator(self, "op", (*BINARY, *MAGNITUDES, "power", *BITWISE, *SHIFTS), machine)
        if op.is_bitwise:
            rules.integers(self, "dst", "data1", "data2")
            if self.engine not in (UNKNOWN, VECTOR):
                raise rules.fail(self, "engine", f"{op!r} runs on the vector engine only")
        if op.name == "power":
            if self.engine is VECTOR:
                raise rules.fail(self, "engine", "nl.power runs on the gpsimd engine only")
            rules.in_sbuf(self, "dst", "data1", "data2")

    def choose_engine(self, machine: Machine) -> Any:
        if self.op.name == "power":
            return GPSIMD
        in_psum = PSUM in (self.dst.buffer, self.data1.buffer, self.data2.buffer)
        return GPSIMD if self._is_integer() and not self.op.is_bitwise and not in_psum else VECTOR

    def _is_integer(self) -> bool:
        return (
            self.dst.dtype in INTEGER_32 and self.data1.dtype in INTEGER_32 and self.data2.dtype in INTEGER_32
        )

    def compute(self, dst: np.ndarray, data1: np.ndarray, data2: np.ndarray) -> None:
        data1, data2 = shaped(data1, dst), shaped(data2, dst)
        op = self.op
        if dst.dtype.kind in "iub" and op.is_bitwise:
            alu.store_pattern(dst, bitwise(op, data1, data2, self.data1.dtype))
        elif self.runs_on is GPSIMD and self._is_integer() and op.name != "power":
            wide = op.formula(data1.astype(np.int64), data2.astype(np.int64))  # type: ignore[misc]
            dst[...] = wide.astype(np.int64, copy=False).astype(dst.dtype)
        else:
            emit(dst, self.dst.dtype, op.formula, f32(data1, self.data1.dtype), f32(data2, self.data2.dtype))

    def cost(self, m: Machine) -> Cost:
        n = self.dst.free_elements
        if self.runs_on is GPSIMD:
            return gpsimd_cost(m, "gpsimd_two_inputs", n)
        return vector_cost(self, m, self._mode(), n)

    def _mode(self) -> str:
        views = (self.data1, self.data2, self.dst)
        if PSUM in (self.data1.buffer, self.data2.buffer):
            return "vector_two_inputs_psum"
        narrow = all(v.dtype in ("bfloat16", "float16") and v.is_contiguous() for v in views)
        if narrow and self.dst.buffer is not PSUM and self.op.name in ("add", "multiply", "subtract"):
            return "vector_two_inputs_16bit"
        return "vector_two_inputs"


# ---- tensor_scalar -------------------------------------------------------------------------------


def tensor_scalar(
    dst,
    data,
    op0,
    operand0,
    reverse0=False,
    op1=None,
    operand1=None,
    reverse1=False,
    engine=engine.unknown,
    name=None,
):
    """dst = (data <op0> operand0) <op1> operand1, where an operand is a number or one value per partition."""
    if op0.__class__ is not Operator or op0 is alu.BYPASS:
        op0 = alu.optional(op0, "tensor_scalar", "op0")
        operand0 = None if op0 is None else operand0
    if op1 is not None and (op1.__class__ is not Operator or op1 is alu.BYPASS):
        op1 = alu.optional(op1, "tensor_scalar", "op1")
        operand1 = None if op1 is None else operand1
    return issue(TensorScalar(dst, data, op0, operand0, reverse0, op1, operand1, reverse1, engine, name))


class TensorScalar(Instruction):
    """float32 arithmetic, exact 32-bit integers (isa.md 1.6) or bit patterns; an op of None is skipped."""

    public = "tensor_scalar"
    engines = (VECTOR, SCALAR, GPSIMD)
    indirect = ("dst", "data")
    cost_formula = "as tensor_copy, one operator or two; GpSimd 150 + 2N, rsqrt 150 + 4N"
    cost_source = "machine.md 6.1, 6.2, 7, 8"

    dst: Out
    data: In
    op0: Any
    operand0: Operand
    reverse0: bool
    op1: Any
    operand1: Operand
    reverse1: bool
    engine: engine

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "data")
        rules.castable(self, "dst", "data")
        exact = self._is_exact()
        unary = ("abs", "square", "relu", "rsqrt", "reciprocal", "invert")
        allowed = (*BINARY, *MAGNITUDES, "power", *unary, *BITWISE, *SHIFTS)
        if self.op0 is not None:
            alu.check_stage(self, "op0", "operand0", allowed, "data", machine, exact)
        if self.op1 is not None:
            alu.check_stage(self, "op1", "operand1", allowed, "data", machine, exact)
        elif self.operand1 is not None:
            raise rules.fail(
                self, "argument", "operand1 is given, but op1 is None", ["operand1"], "pass op1 too"
            )
        if any(op.is_bitwise for op in self._operators()):
            self._check_bitwise()
        if exact and (rules.is_gathered(self.dst) or rules.is_gathered(self.data)):
            raise rules.fail(
                self, "indirect-view", "32-bit integer arithmetic takes no indirect views", ["dst", "data"]
            )
        self._check_engine(machine, exact)

    def _operators(self) -> list[Operator]:
        return [op for op in (self.op0, self.op1) if op is not None]

    def _is_exact(self) -> bool:
        """Every part of it is a 32-bit integer."""
        return (
            self.dst.dtype in INTEGER_32
            and self.data.dtype in INTEGER_32
            and alu.is_exact_stage(self.op0, self.operand0)
            and alu.is_exact_stage(self.op1, self.operand1)
        )

    def _check_bitwise(self) -> None:
        if not all(op.is_bitwise for op in self._operators()):
            raise rules.fail(
                self,
                "op",
                f"{self.op0!r} and {self.op1!r}: one is bitwise, the other arithmetic",
                [],
                "use two instructions",
            )
        rules.integers(self, "dst", "data")
        if self.engine not in (UNKNOWN, VECTOR):
            raise rules.fail(self, "engine", "bitwise operators run on the vector engine only")

    def _check_engine(self, machine: Machine, exact: bool) -> None:
        names = tuple(op.name for op in self._operators())
        if self.engine is GPSIMD and not exact and not {"rsqrt", "power"} & set(names):
            raise rules.fail(
                self,
                "engine",
                "the gpsimd engine runs rsqrt, power and 32-bit integers only",
                [],
                "use nisa.engine.vector",
            )
        if self.engine is not SCALAR:
            return
        supported = machine.scalar_tensor_scalar
        if supported == "none":
            raise rules.fail(self, "engine", f"{machine.name}'s scalar engine has no tensor_scalar")
        if supported == "multiply-add":
            pairs = (("multiply", "add"), ("multiply",), ("add",))
            if names not in pairs or self.op0 is None or self.reverse0 or self.reverse1:
                raise rules.fail(
                    self,
                    "engine",
                    f"{machine.name}'s scalar engine runs multiply then add, multiply, or add, not reversed",
                    [],
                    "use nisa.engine.vector",
                )
        elif any(op.is_unary for op in self._operators()):
            raise rules.fail(self, "engine", "the scalar engine runs operators of two operands only")

    def choose_engine(self, machine: Machine) -> Any:
        if not any(op.name in ("rsqrt", "power") for op in self._operators()):
            return VECTOR
        in_psum = any(isinstance(v, View) and v.buffer is PSUM for v in self.operands())
        return VECTOR if in_psum else GPSIMD

    def compute(self, dst: np.ndarray, data: np.ndarray, operand0: Any, operand1: Any) -> None:
        if data.shape != dst.shape:
            data = data.reshape(dst.shape)
        first = self.op0 or self.op1
        if first is None:
            move(dst, data, self.dst.dtype, self.data.dtype)
        elif dst.dtype.kind not in "iub":
            self._compute_floats(dst, f32(data, self.data.dtype), operand0, operand1)
        elif first.is_bitwise:
            self._compute_bits(dst, data, operand0, operand1)
        elif self._is_exact():
            self._compute_integers(dst, data, operand0, operand1)
        else:
            self._compute_floats(dst, f32(data, self.data.dtype), operand0, operand1)

    def _compute_floats(self, dst: np.ndarray, x: np.ndarray, operand0: Any, operand1: Any) -> None:
        op0, op1, dtype = self.op0, self.op1, self.dst.dtype
        if op1 is None:
            alu.evaluate_into(dst, dtype, op0, x, column(operand0, self.operand0, dst.ndim), self.reverse0)
            return
        if op0 is not None:
            a = column(operand0, self.operand0, dst.ndim)
            x = alu.evaluate(op0, x, a, self.reverse0, scratch(dst.shape))
        alu.evaluate_into(dst, dtype, op1, x, column(operand1, self.operand1, dst.ndim), self.reverse1)

    def _compute_integers(self, dst: np.ndarray, x: np.ndarray, operand0: Any, operand1: Any) -> None:
        if self.op0 is not None:
            x = alu.exact(self.op0, x, operand0, self.reverse0)
        if self.op1 is not None:
            x = alu.exact(self.op1, x, operand1, self.reverse1)
        dst[...] = x.view(dst.dtype)

    def _compute_bits(self, dst: np.ndarray, x: np.ndarray, operand0: Any, operand1: Any) -> None:
        if self.op0 is not None:
            x = alu.bitwise_stage(self.op0, x, operand0, self.reverse0, self.data.dtype)
        if self.op1 is not None:
            x = alu.bitwise_stage(self.op1, x, operand1, self.reverse1, self.data.dtype)
        alu.store_pattern(dst, x)

    def cost(self, m: Machine) -> Cost:
        if self.runs_on is not GPSIMD:
            return copy_cost(self, m, self.dst, self.data)
        rsqrt = any(op.name == "rsqrt" for op in self._operators())
        return gpsimd_cost(
            m, "gpsimd_rsqrt_factor" if rsqrt else "gpsimd_two_inputs", self.data.free_elements
        )


# ---- scalar_tensor_tensor ------------------------------------------------------------------------


@legacy_dtype
def scalar_tensor_tensor(dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, name=None):
    """dst = (data <op0> operand0) <op1> operand1: a number or column first, then a tile."""
    if op0.__class__ is not Operator:
        op0 = operators.resolve(op0, "scalar_tensor_tensor", "op0")
    if op1.__class__ is not Operator:
        op1 = operators.resolve(op1, "scalar_tensor_tensor", "op1")
    return issue(ScalarTensorTensor(dst, data, op0, operand0, op1, operand1, reverse0, reverse1, name))


class ScalarTensorTensor(Instruction):
    public = "scalar_tensor_tensor"
    engines = (VECTOR,)
    cost_formula = "2N trn1, N trn2+; N for bf16 subtract then multiply of an even N"
    cost_source = "machine.md 6.2"

    dst: Out
    data: In
    op0: Operator
    operand0: Operand
    op1: Operator
    operand1: In
    reverse0: bool
    reverse1: bool

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "data", "operand1")
        rules.castable(self, "dst", "data", "operand1")
        rules.not_both_psum(self, "data", "operand1")
        alu.check_stage(self, "op0", "operand0", (*BINARY, "abs"), "data", machine)
        alu.check_operator(self, "op1", BINARY, machine)

    def compute(self, dst: np.ndarray, data: np.ndarray, operand0: Any, operand1: np.ndarray) -> None:
        x = f32(shaped(data, dst), self.data.dtype)
        a = column(operand0, self.operand0, dst.ndim)
        b = f32(shaped(operand1, dst), self.operand1.dtype)
        x = alu.evaluate(self.op0, x, a, self.reverse0, scratch(dst.shape))
        alu.evaluate_into(dst, self.dst.dtype, self.op1, x, b, self.reverse1)

    def cost(self, m: Machine) -> Cost:
        n = self.data.free_elements
        narrow = self.data.dtype == self.operand1.dtype == "bfloat16"
        fast = narrow and (self.op0.name, self.op1.name) == ("subtract", "multiply") and n % 2 == 0
        return vector_cost(self, m, f"vector_scalar_tensor_tensor{'_fast' if fast else ''}", n)


# ---- reciprocal ----------------------------------------------------------------------------------


def reciprocal(dst, data, name=None):
    """dst = 1 / data, accurate in float32."""
    return issue(Reciprocal(dst, data, name))


class Reciprocal(Instruction):
    public = "reciprocal"
    engines = (VECTOR,)
    cost_formula = "8N trn1, 6N trn2+"
    cost_source = "machine.md 6.2"

    dst: Out
    data: In

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "data")
        rules.castable(self, "dst", "data")

    def compute(self, dst: np.ndarray, data: np.ndarray) -> None:
        emit(dst, self.dst.dtype, np.reciprocal, f32(shaped(data, dst), self.data.dtype))

    def cost(self, m: Machine) -> Cost:
        return vector_cost(self, m, "vector_reciprocal", self.data.free_elements)


__all__ = [
    "memset",
    "reciprocal",
    "scalar_tensor_tensor",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_scalar",
    "tensor_tensor",
]
