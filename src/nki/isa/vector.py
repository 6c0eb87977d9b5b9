"""VectorE: element-wise instructions (spec/isa_vector.md)."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from ..ir.instruction import In, Instruction, InstructionCost, NkiInstruction, Operand, Out
from ..ir.rewriting import in_place_of, replace_engine
from ..ir.semantics import Sum
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine.dtypes import f32
from ..machine.machine import Machine
from ..machine.memories import PSUM
from ..machine.operators import Operator, find
from ..typing import OperatorLike, TileOrNumber
from . import alu, rules
from .alu import BINARY, BITWISE, INTEGER_32, MAGNITUDES, SHIFTS, bitwise
from .copies import copy_cost, move
from .costs import VectorInstruction, gpsimd_cost, vector_cost
from .deprecated import deprecated_dtype
from .enums import GPSIMD, SCALAR, UNKNOWN, VECTOR, engine
from .numerics import Values, column, emit, scratch, shaped
from .public import public


class TensorTensor(Instruction):
    """dst = data1 <op> data2, element by element.

    float32 arithmetic; exact 32-bit integers on GpSimd; bit patterns for bitwise operators.
    """

    public = "tensor_tensor"
    engines = (VECTOR, GPSIMD)
    indirect = ("dst", "data1")
    cost_formula = "2N trn1, N trn2+; N with a PSUM operand; N/2 all 16-bit in SBUF trn2+; GpSimd 150 + 2N"
    cost_source = "spec/machine.md 6.1, 6.2, 8"

    dst: Out
    data1: In
    data2: In
    op: Operator
    engine: engine = UNKNOWN

    def check(self, machine: Machine) -> None:
        op = self.op
        rules.matching_values(self, "dst", "data1", "data2")
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

    def meaning(self, machine: Machine) -> Sum | None:
        return Sum() if self.op.name == "add" and self.runs_on is VECTOR else None

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

    def cost(self, m: Machine) -> InstructionCost:
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


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: OperatorLike | None,
    operand0: TileOrNumber | None,
    reverse0: bool = False,
    op1: OperatorLike | None = None,
    operand1: TileOrNumber | None = None,
    reverse1: bool = False,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = (data <op0> operand0) <op1> operand1, where an operand is a number or one value per partition."""
    if op0.__class__ is not Operator or op0 is alu.BYPASS:
        op0 = alu.optional(op0, "tensor_scalar", "op0")
        operand0 = None if op0 is None else operand0
    if op1 is not None and (op1.__class__ is not Operator or op1 is alu.BYPASS):
        op1 = alu.optional(op1, "tensor_scalar", "op1")
        operand1 = None if op1 is None else operand1
    return issue(TensorScalar(dst, data, op0, operand0, reverse0, op1, operand1, reverse1, engine, name))


class TensorScalar(Instruction):
    """float32 arithmetic, exact 32-bit integers (spec/isa.md 1.6) or bit patterns; skips an op of None."""

    public = "tensor_scalar"
    engines = (VECTOR, SCALAR, GPSIMD)
    indirect = ("dst", "data")
    cost_formula = "as tensor_copy, one operator or two; GpSimd 150 + 2N, rsqrt 150 + 4N"
    cost_source = "spec/machine.md 6.1, 6.2, 7, 8"

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
        rules.matching_values(self, "dst", "data")
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

    def alternative(self, machine: Machine) -> Instruction | None:
        """ScalarE scales and shifts floats, too."""
        names = [op.name for op in self._operators()]
        plain = names in (["multiply"], ["add"], ["subtract"], ["multiply", "add"], ["multiply", "subtract"])
        direct = self.dst.indirection is None and self.data.indirection is None
        floats = self.dst.dtype.is_float and self.data.dtype.is_float
        free = self.engine is UNKNOWN and self.runs_on is VECTOR
        return replace_engine(self, SCALAR) if free and plain and direct and floats else None

    def choose_engine(self, machine: Machine) -> Any:
        if not any(op.name in ("rsqrt", "power") for op in self._operators()):
            return VECTOR
        in_psum = any(isinstance(v, View) and v.buffer is PSUM for v in self.operands())
        return VECTOR if in_psum else GPSIMD

    def compute(self, dst: np.ndarray, data: np.ndarray, operand0: Values, operand1: Values) -> None:
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

    def _compute_floats(self, dst: np.ndarray, x: np.ndarray, operand0: Values, operand1: Values) -> None:
        op0, op1, dtype = self.op0, self.op1, self.dst.dtype
        if op1 is None:
            alu.evaluate_into(dst, dtype, op0, x, column(operand0, self.operand0, dst.ndim), self.reverse0)
            return
        if op0 is not None:
            a = column(operand0, self.operand0, dst.ndim)
            x = alu.evaluate(op0, x, a, self.reverse0, scratch(dst.shape, dst))
        alu.evaluate_into(dst, dtype, op1, x, column(operand1, self.operand1, dst.ndim), self.reverse1)

    def _compute_integers(self, dst: np.ndarray, x: np.ndarray, operand0: Values, operand1: Values) -> None:
        if self.op0 is not None:
            x = alu.exact(self.op0, x, operand0, self.reverse0)
        if self.op1 is not None:
            x = alu.exact(self.op1, x, operand1, self.reverse1)
        dst[...] = x.view(dst.dtype)

    def _compute_bits(self, dst: np.ndarray, x: np.ndarray, operand0: Values, operand1: Values) -> None:
        if self.op0 is not None:
            x = alu.bitwise_stage(self.op0, x, operand0, self.reverse0, self.data.dtype)
        if self.op1 is not None:
            x = alu.bitwise_stage(self.op1, x, operand1, self.reverse1, self.data.dtype)
        alu.store_pattern(dst, x)

    def cost(self, m: Machine) -> InstructionCost:
        if self.runs_on is not GPSIMD:
            found = copy_cost(self, m, self.dst, self.data)
            columns = sum(isinstance(operand, View) for operand in (self.operand0, self.operand1))
            field = "scalar_operand_ns" if self.runs_on is SCALAR else "vector_operand_ns"
            wait = columns * getattr(m, field)
            clock = m.scalar_ghz if self.runs_on is SCALAR else m.vector_ghz
            rests_on = (*found.rests_on, field) if columns else found.rests_on
            return InstructionCost(
                found.cycles, found.fix_ns + wait, rests_on, found.shortest, found.gap + wait * clock
            )
        rsqrt = any(op.name == "rsqrt" for op in self._operators())
        return gpsimd_cost(
            m, "gpsimd_rsqrt_factor" if rsqrt else "gpsimd_two_inputs", self.data.free_elements
        )


class ScalarTensorTensor(VectorInstruction):
    """dst = (data <op0> operand0) <op1> operand1: a number or column first, then a tile."""

    public = "scalar_tensor_tensor"
    cost_formula = "2N trn1, N trn2+; N for bf16 subtract then multiply of an even N"

    dst: Out
    data: In
    op0: Operator
    operand0: Operand | None
    op1: Operator
    operand1: In
    reverse0: bool = False
    reverse1: bool = False

    def check(self, machine: Machine) -> None:
        rules.matching_values(self, "dst", "data", "operand1")
        rules.not_both_psum(self, "data", "operand1")
        alu.check_stage(self, "op0", "operand0", (*BINARY, "abs"), "data", machine)
        alu.check_operator(self, "op1", BINARY, machine)

    def compute(self, dst: np.ndarray, data: np.ndarray, operand0: Values, operand1: np.ndarray) -> None:
        x = f32(shaped(data, dst), self.data.dtype)
        a = column(operand0, self.operand0, dst.ndim)
        b = f32(shaped(operand1, dst), self.operand1.dtype)
        x = alu.evaluate(self.op0, x, a, self.reverse0, scratch(dst.shape, dst))
        alu.evaluate_into(dst, self.dst.dtype, self.op1, x, b, self.reverse1)

    def cost(self, m: Machine) -> InstructionCost:
        n = self.data.free_elements
        narrow = self.data.dtype == self.operand1.dtype == "bfloat16"
        fast = narrow and (self.op0.name, self.op1.name) == ("subtract", "multiply") and n % 2 == 0
        return vector_cost(self, m, f"vector_scalar_tensor_tensor{'_fast' if fast else ''}", n)


class Reciprocal(VectorInstruction):
    """dst = 1 / data, accurate in float32."""

    public = "reciprocal"
    rate = "vector_reciprocal"
    cost_formula = "8N trn1, 6N trn2+"

    dst: Out
    data: In

    def check(self, machine: Machine) -> None:
        rules.matching_values(self, "dst", "data")

    def grouped(self) -> Instruction:
        return copy(self)

    def alternative(self, machine: Machine) -> Instruction | None:
        if not machine.reciprocal_by_division:
            return None
        one = find("reciprocal")
        new = TensorScalar(self.dst, self.data, one, None, False, None, None, False, VECTOR, self.name)
        return in_place_of(new, self, machine)

    def compute(self, dst: np.ndarray, data: np.ndarray) -> None:
        emit(dst, self.dst.dtype, np.reciprocal, f32(shaped(data, dst), self.data.dtype))


tensor_tensor = public(TensorTensor)
scalar_tensor_tensor = deprecated_dtype(public(ScalarTensorTensor))
reciprocal = public(Reciprocal)
