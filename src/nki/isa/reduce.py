"""VectorE: reductions (spec/isa_vector.md)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from ..ir.instruction import In, Instruction, InstructionCost, Operand, OptionalOut, Out
from ..ir.layout import Int, is_int
from ..machine import dtypes
from ..machine.dtypes import f32, store
from ..machine.machine import Machine
from ..machine.operators import OPERATORS, Operator
from . import accumulators, alu, rules
from .accumulators import VectorReduction
from .alu import BINARY, BITWISE, LOGICAL, MAGNITUDES, REDUCERS
from .costs import VectorInstruction, vector_cost
from .enums import IDLE, LOAD_REDUCE, REDUCE, RESET_REDUCE, reduce_cmd
from .numerics import Array, Values, column, scratch, shaped
from .public import public


class TensorReduce(VectorInstruction):
    """dst = data reduced by op over its trailing axes; negate changes the sign of the result."""

    public = "tensor_reduce"
    indirect = ("dst", "data")
    cost_formula = "N; N/2 for add or max of bf16 into bf16 on trn1"

    dst: Out
    op: Operator
    data: In
    axis: Int | Sequence[Int]
    negate: bool = False
    keepdims: bool = False

    def check(self, machine: Machine) -> None:
        alu.check_operator(self, "op", (*alu.ARITHMETIC, *LOGICAL, *BITWISE), machine)
        rules.castable(self, "dst", "data")
        self._check_axes()
        self._check_shape()
        if self.op.is_bitwise:
            rules.integers(self, "dst", "data")
            if self.negate:
                raise rules.fail(self, "op", f"negate is arithmetic, {self.op!r} works on bit patterns")

    def _axes(self) -> tuple[Any, ...]:
        return self.axis if isinstance(self.axis, tuple) else (self.axis,)

    def _check_axes(self) -> None:
        axes, n = self._axes(), self.data.ndim
        if not axes or not all(is_int(a) for a in axes):
            raise rules.fail(self, "axis", f"axis must be an int or a tuple of ints, got {self.axis!r}")
        if not all(-n <= a < n for a in axes):
            raise rules.fail(self, "axis", f"axis {self.axis} of a tile with {n} dimensions", ["data"])
        found = sorted(int(a) % n for a in axes)
        if found[0] == 0:
            raise rules.fail(
                self,
                "axis",
                "axis 0 is the partition dimension, which the vector engine cannot reduce",
                ["data"],
                "multiply by ones with nisa.nc_matmul, transpose first, or use nisa.tensor_partition_reduce",
            )
        if found != list(range(n - len(found), n)):
            wanted = tuple(range(found[0], n))
            raise rules.fail(
                self,
                "axis",
                f"axis {self.axis} must be the last dimensions, without a gap",
                ["data"],
                f"pass axis={wanted}, or permute a view of the tile (t.permute)",
            )

    def _check_shape(self) -> None:
        rest = self.data.shape[: self.data.ndim - len(self._axes())]
        count = int(np.prod(rest[1:], dtype=int))
        if self.dst.shape[0] != rest[0] or self.dst.free_elements != count:
            raise rules.fail(
                self,
                "shape",
                f"dst is {self.dst.shape[0]} x {self.dst.free_elements}, the result is {rest[0]} x {count}",
                ["dst", "data"],
                f"allocate dst as {(rest[0], *(rest[1:] or (1,)))}",
            )

    def grouped(self) -> Instruction:
        new, n = copy(self), self.data.ndim
        new.axis = tuple(int(a) % n + 1 for a in self._axes())
        return new

    def compute(self, dst: np.ndarray, data: np.ndarray) -> None:
        count = len(self._axes())
        axes = tuple(range(data.ndim - count, data.ndim))
        op = self.op
        if op.is_bitwise:
            bits = op.formula.reduce(dtypes.bits(data), axis=axes)  # type: ignore[union-attr]
            alu.store_pattern(dst, bits.view(self.data.dtype.storage).reshape(dst.shape))
            return
        x = f32(data, self.data.dtype)
        if op.name == "subtract":  # x0 - x1 - x2 ...: one sequence
            x = x.reshape(*x.shape[:-count], -1)
            axes = (x.ndim - 1,)
        result = op.formula.reduce(x, axis=axes).reshape(dst.shape)  # type: ignore[union-attr]
        if self.negate:
            result = np.negative(result, dtype=np.float32)
        store(dst, result.astype(np.float32, copy=False), self.dst.dtype)

    def cost(self, m: Machine) -> InstructionCost:
        narrow = self.data.dtype == self.dst.dtype == "bfloat16" and self.op.name in ("add", "maximum")
        return vector_cost(
            self, m, "vector_reduce_16bit" if narrow else "vector_reduce", self.data.free_elements
        )


class TensorScalarReduce(VectorReduction):
    """dst = data <op0> operand0, and its reduction by reduce_op over all free elements."""

    public = "tensor_scalar_reduce"
    indirect = ("dst", "data")
    cost_formula = "max(64, N) + 64"

    dst: Out
    data: In
    op0: Operator
    operand0: Operand | None
    reduce_op: Operator
    reduce_res: OptionalOut = None
    reverse0: bool = False
    reduce_cmd: reduce_cmd = RESET_REDUCE
    reduce_init: Operand | None = None
    reduce_res_negate: bool = False

    def check(self, machine: Machine) -> None:
        rules.matching_values(self, "dst", "data")
        unary = ("abs", "square", "relu", "reciprocal")
        alu.check_stage(self, "op0", "operand0", (*BINARY, *MAGNITUDES, *unary), "data", machine)
        rules.operator(self, "reduce_op", REDUCERS)
        accumulators.check(self, (RESET_REDUCE, REDUCE, LOAD_REDUCE), "data")
        accumulators.check_init(self, "reduce_init", "data")
        if self.reverse0:
            raise rules.fail(
                self,
                "argument",
                "reverse0=True is not supported",
                [],
                "reverse it with nisa.tensor_scalar and reduce with nisa.tensor_reduce",
            )

    def compute(
        self, dst: Array, data: Array, operand0: Values, reduce_res: Array | None, reduce_init: Any
    ) -> None:
        x = f32(shaped(data, dst), self.data.dtype)
        operand0 = column(operand0, self.operand0, dst.ndim)
        init = accumulators.start_value(reduce_init, self.reduce_init)
        values = alu.evaluate_into(dst, self.dst.dtype, self.op0, x, operand0)
        acc = accumulators.step("vector", self.reduce_cmd, self.reduce_op, values, init, self.public)
        accumulators.read_out(self, acc, reduce_res, self.reduce_res_negate)

    def cost(self, m: Machine) -> InstructionCost:
        return vector_cost(self, m, "vector_one_input", self.data.free_elements, extra=m.min_ii_cycles)


class Exponential(VectorReduction):
    """dst = exp(src - max_value), and its sum over all free elements (trn3)."""

    public = "exponential"
    since = 4
    indirect = ("dst", "src")
    rate = "vector_exponential"
    cost_formula = "N/4, the sum included"

    dst: Out
    src: In
    max_value: Operand = 0.0
    reduce_res: OptionalOut = None
    reduce_cmd: reduce_cmd = IDLE
    reduce_init: Operand = 0.0

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "src")
        for name in ("dst", "src"):
            view = getattr(self, name)
            if view.ndim > 4:
                raise rules.fail(self, "rank", f"{name} has {view.ndim} dimensions, the limit is 4", [name])
        rules.dtype_in(self, "dst", (*_EXPONENTIAL_DTYPES, "tfloat32"))
        rules.dtype_in(self, "src", (*_EXPONENTIAL_DTYPES, "uint32"))
        alu.check_given(self, "max_value")
        rules.castable(self, "max_value")
        rules.float32_column(self, "max_value", "src")
        accumulators.check(self, (IDLE, RESET_REDUCE, REDUCE, LOAD_REDUCE), "src", res_floats=True)
        accumulators.check_init(self, "reduce_init", "src", unset=0.0)

    def compute(
        self, dst: Array, src: Array, max_value: Values, reduce_res: Array | None, reduce_init: Any
    ) -> None:
        x = f32(shaped(src, dst), self.src.dtype)
        values = np.subtract(x, column(max_value, self.max_value, dst.ndim), out=scratch(dst.shape, dst))
        np.exp(values, out=values)
        init = accumulators.start_value(reduce_init, self.reduce_init)
        acc = accumulators.step("vector", self.reduce_cmd, _ADD, values, init, self.public)
        store(dst, values, self.dst.dtype)
        accumulators.read_out(self, acc, reduce_res)


_ADD = OPERATORS["add"]
_EXPONENTIAL_DTYPES = (
    "float8_e4m3",
    "float8_e5m2",
    "float16",
    "bfloat16",
    "float32",
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
)


tensor_reduce = public(TensorReduce)
tensor_scalar_reduce = public(TensorScalarReduce)
exponential = public(Exponential)
