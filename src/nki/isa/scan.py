"""VectorE: running reductions along a partition (spec/isa_vector.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.instruction import In, InstructionCost, Operand, Out
from ..ir.view import View
from ..machine.dtypes import f32, store
from ..machine.machine import Machine
from ..machine.operators import OPERATORS, Operator
from . import accumulators, alu, rules
from .accumulators import VectorReduction
from .alu import BINARY, REDUCERS
from .costs import VectorInstruction, vector_cost
from .enums import LOAD_REDUCE, REDUCE, RESET_REDUCE, reduce_cmd
from .numerics import Values, column, flat
from .public import public


class TensorScalarCumulative(VectorReduction):
    """dst = the running reduction of src <op0> imm0: acc = op1(value, acc)."""

    public = "tensor_scalar_cumulative"
    indirect = ("dst", "src")
    rate = "vector_cumulative"
    cost_formula = "2N"

    dst: Out
    src: In
    op0: Operator
    op1: Operator
    imm0: Operand
    imm1: Operand | None = None
    reduce_cmd: reduce_cmd = RESET_REDUCE

    def dst_is_byproduct(self) -> bool:
        return True

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "src")
        for name in ("dst", "src"):
            rules.dtype_in(
                self, name, _CUMULATIVE_DTYPES, "the engine scans no 32-bit integers; use nl.float32"
            )
        alu.check_stage(self, "op0", "imm0", (*BINARY, "abs"), "src", machine)
        rules.operator(self, "op1", alu.ARITHMETIC)
        accumulators.check_command(self, (RESET_REDUCE, REDUCE, LOAD_REDUCE))
        accumulators.check_init(self, "imm1", "src")

    def compute(self, dst: np.ndarray, src: np.ndarray, imm0: Values, imm1: Values) -> None:
        x = flat(f32(src, self.src.dtype))
        values = alu.evaluate(self.op0, x, column(imm0, self.imm0, 2), False, np.empty_like(x, np.float32))
        start = accumulators.start_value(imm1, self.imm1)
        acc = accumulators.begin("vector", self.reduce_cmd, self.op1, len(x), start, self.public)
        running = _running_reduction(self.op1, values, acc)
        acc[...] = running[:, -1]
        store(dst, running.reshape(dst.shape), self.dst.dtype)


_CUMULATIVE_DTYPES = (
    "bfloat16",
    "float16",
    "float32",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "bool",
)


def _running_reduction(op: Operator, values: np.ndarray, acc: np.ndarray) -> np.ndarray:
    """acc = op(value, acc) along the last axis of `values` [P, F], which is overwritten."""
    if op.name == "subtract":
        # value - acc is -(acc - value): with every second sign changed, a running sum that rounds the same
        values[:, 1::2] *= np.float32(-1)
        running = _running_reduction(OPERATORS["add"], values, -acc)
        running[:, 1::2] *= np.float32(-1)
        return running
    ufunc: Any = op.formula
    ufunc(values[:, 0], acc, out=values[:, 0])
    return ufunc.accumulate(values, axis=1)


class TensorTensorScan(VectorInstruction):
    """dst[i] = (data0[i] <op0> dst[i-1]) <op1> data1[i] along the free axis, in float32."""

    public = "tensor_tensor_scan"
    cost_formula = "max(64, 2N)"

    dst: Out
    data0: In
    data1: In
    initial: Operand
    op0: Operator
    op1: Operator
    reverse0: bool = False
    reverse1: bool = False

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "data0", "data1")
        rules.castable(self, "dst", "data0", "data1", "initial")
        rules.not_both_psum(self, "data0", "data1")
        alu.check_operator(self, "op0", BINARY, machine)
        alu.check_operator(self, "op1", BINARY, machine)
        alu.check_given(self, "initial")
        rules.column(self, "initial", "data0")

    def compute(self, dst: np.ndarray, data0: np.ndarray, data1: np.ndarray, initial: Values) -> None:
        x0, x1 = flat(f32(data0, self.data0.dtype)), flat(f32(data1, self.data1.dtype))
        state = np.empty_like(x0[:, 0], np.float32)
        state[...] = column(initial, self.initial, 1)
        result = self._as_running_reduction(x0, x1, state)
        if result is None:
            result = self._step_by_step(x0, x1, state)
        store(dst, result.reshape(dst.shape), self.dst.dtype)

    def _as_running_reduction(self, x0: np.ndarray, x1: np.ndarray, state: np.ndarray) -> np.ndarray | None:
        """Return the scan as one running reduction of data0 and data1 in turn, if that rounds the same."""
        is_linear = self.op0.name == "multiply" and self.op1.name == "add"
        if is_linear and x0.__class__ is np.ndarray and (x0 == 1).all():  # a running sum of data1
            return _running_reduction(self.op1, x1.copy(), state)
        reducer0 = _reducer_of(self.op0, carry_is_left=bool(self.reverse0))
        reducer1 = _reducer_of(self.op1, carry_is_left=not self.reverse1)
        if reducer0 is None or reducer1 is None or reducer0[0] != reducer1[0]:
            return None
        turns = np.empty_like(x0, np.float32, shape=(*x0.shape, 2))
        np.multiply(x0, reducer0[1], out=turns[:, :, 0])
        np.multiply(x1, reducer1[1], out=turns[:, :, 1])
        return _running_reduction(OPERATORS[reducer0[0]], turns.reshape(len(x0), -1), state)[:, 1::2]

    def _step_by_step(self, x0: np.ndarray, x1: np.ndarray, state: np.ndarray) -> np.ndarray:
        """One step after the other, all partitions at once."""
        x0, x1 = x0.T.copy(), x1.T.copy()  # a step is a row
        result = np.empty_like(x0)
        op0, op1 = self.op0.formula, self.op1.formula  # ufuncs, all of them
        assert op0 is not None and op1 is not None
        for first, second, out in zip(x0, x1, result, strict=True):
            if self.reverse0:
                op0(state, first, out=out)
            else:
                op0(first, state, out=out)
            if self.reverse1:
                op1(second, out, out=out)
            else:
                op1(out, second, out=out)
            state = out
        return result.T

    def cost(self, m: Machine) -> InstructionCost:
        cost = vector_cost(self, m, "vector_scan", self.data0.free_elements)
        if not isinstance(self.initial, View):
            return cost
        waits = cost.fix_ns + m.vector_scan_initial_ns
        return cost._replace(fix_ns=waits, rests_on=(*cost.rests_on, "vector_scan_initial_ns"))


def _reducer_of(op: Operator, carry_is_left: bool) -> tuple[str, np.float32] | None:
    """Return (reducer, sign): op with the carry reduces the carry and sign times the other operand."""
    if op.name in REDUCERS:
        return op.name, np.float32(1)
    if op.name == "subtract" and carry_is_left:
        return "add", np.float32(-1)
    return None


tensor_scalar_cumulative = public(TensorScalarCumulative)
tensor_tensor_scan = public(TensorTensorScan)
