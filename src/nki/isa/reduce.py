"""VectorE: reductions, scans, selections that reduce, statistics (spec/isa_vector.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.instruction import Cost, In, Instruction, NkiInstruction, Operand, OptionalOut, Out, State
from ..ir.layout import Int, is_int
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine import dtypes, operators
from ..machine.dtypes import f32, store
from ..machine.machine import Machine
from ..machine.operators import OPERATORS, Operator
from ..typing import OperatorLike, TileOrNumber
from . import accumulators, alu, rules
from .alu import BINARY, BITWISE, FOLDS, LOGICAL, MAGNITUDES
from .costs import vector_cost
from .enums import VECTOR, reduce_cmd
from .numerics import column, flat, scratch, shaped

maximum = OPERATORS["maximum"]
FP32_MIN = float(np.finfo(np.float32).min)

IDLE, REDUCE = reduce_cmd.idle, reduce_cmd.reduce
RESET_REDUCE, LOAD_REDUCE = reduce_cmd.reset_reduce, reduce_cmd.load_reduce


# ---- tensor_reduce -------------------------------------------------------------------------------


def tensor_reduce(
    dst: NkiTensor,
    op: OperatorLike,
    data: NkiTensor,
    axis: Int | Sequence[Int],
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data folded by op over its trailing axes; negate turns the sign of the result."""
    if op.__class__ is not Operator:
        op = operators.resolve(op, "tensor_reduce")
    if axis.__class__ is list:
        axis = tuple(axis)
    return issue(TensorReduce(dst, op, data, axis, negate, keepdims, name))


class TensorReduce(Instruction):
    public = "tensor_reduce"
    engines = (VECTOR,)
    indirect = ("dst", "data")
    cost_formula = "N; N/2 for add or max of bf16 into bf16 on trn1"
    cost_source = "spec/machine.md 6.2"

    dst: Out
    op: Operator
    data: In
    axis: Any
    negate: bool
    keepdims: bool

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
        kept = self.data.shape[: self.data.ndim - len(self._axes())]
        count = int(np.prod(kept[1:], dtype=int))
        if self.dst.shape[0] != kept[0] or self.dst.free_elements != count:
            raise rules.fail(
                self,
                "shape",
                f"dst is {self.dst.shape[0]} x {self.dst.free_elements}, the result is {kept[0]} x {count}",
                ["dst", "data"],
                f"allocate dst as {(kept[0], *(kept[1:] or (1,)))}",
            )

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

    def cost(self, m: Machine) -> Cost:
        narrow = self.data.dtype == self.dst.dtype == "bfloat16" and self.op.name in ("add", "maximum")
        return vector_cost(
            self, m, "vector_reduce_16bit" if narrow else "vector_reduce", self.data.free_elements
        )


# ---- tensor_scalar_reduce ------------------------------------------------------------------------


def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: OperatorLike,
    operand0: TileOrNumber | None,
    reduce_op: OperatorLike,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_init: TileOrNumber | None = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data <op0> operand0, and its fold by reduce_op over all free elements."""
    if op0.__class__ is not Operator:
        op0 = operators.resolve(op0, "tensor_scalar_reduce", "op0")
    if reduce_op.__class__ is not Operator:
        reduce_op = operators.resolve(reduce_op, "tensor_scalar_reduce", "reduce_op")
    return issue(
        TensorScalarReduce(
            dst,
            data,
            op0,
            operand0,
            reduce_op,
            reduce_res,
            reverse0,
            reduce_cmd,
            reduce_init,
            reduce_res_negate,
            name,
        )
    )


class TensorScalarReduce(Instruction):
    public = "tensor_scalar_reduce"
    engines = (VECTOR,)
    state = (State.vector_accumulator,)
    indirect = ("dst", "data")
    cost_formula = "max(64, N) + 64"
    cost_source = "spec/machine.md 6.2"

    dst: Out
    data: In
    op0: Operator
    operand0: Operand
    reduce_op: Operator
    reduce_res: OptionalOut
    reverse0: bool
    reduce_cmd: reduce_cmd
    reduce_init: Operand
    reduce_res_negate: bool

    def dst_is_byproduct(self) -> bool:
        return accumulators.takes_result(self)

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "data")
        rules.castable(self, "dst", "data")
        unary = ("abs", "square", "relu", "reciprocal")
        alu.check_stage(self, "op0", "operand0", (*BINARY, *MAGNITUDES, *unary), "data", machine)
        rules.operator(self, "reduce_op", FOLDS)
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
        self, dst: np.ndarray, data: np.ndarray, operand0: Any, reduce_res: Any, reduce_init: Any
    ) -> None:
        x = f32(shaped(data, dst), self.data.dtype)
        operand0 = column(operand0, self.operand0, dst.ndim)
        init = _start(reduce_init, self.reduce_init)
        values = alu.evaluate_into(dst, self.dst.dtype, self.op0, x, operand0)
        acc = accumulators.step("vector", self.reduce_cmd, self.reduce_op, values, init, self.public)
        _read_out(self, acc, reduce_res, self.reduce_res_negate)

    def cost(self, m: Machine) -> Cost:
        return vector_cost(self, m, "vector_one_input", self.data.free_elements, extra=m.min_ii_cycles)


def _start(value: Any, view: Any) -> Any:
    """The start value of load_reduce, copied: dst may lie over its tile."""
    return f32(value, view.dtype).copy() if isinstance(view, View) else value


def _read_out(ins: Any, acc: np.ndarray, reduce_res: Any, negate: Any = False) -> None:
    """reduce_res = the registers, as the last thing the instruction writes."""
    if reduce_res is not None:
        values = -acc if negate else acc
        store(reduce_res, values.reshape(reduce_res.shape), ins.reduce_res.dtype)


# ---- tensor_scalar_cumulative --------------------------------------------------------------------


def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: OperatorLike,
    op1: OperatorLike,
    imm0: TileOrNumber,
    imm1: TileOrNumber | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    name: str | None = None,
) -> NkiInstruction:
    """dst = the running fold of src <op0> imm0: acc = op1(value, acc)."""
    if op0.__class__ is not Operator:
        op0 = operators.resolve(op0, "tensor_scalar_cumulative", "op0")
    if op1.__class__ is not Operator:
        op1 = operators.resolve(op1, "tensor_scalar_cumulative", "op1")
    return issue(TensorScalarCumulative(dst, src, op0, op1, imm0, imm1, reduce_cmd, name))


class TensorScalarCumulative(Instruction):
    public = "tensor_scalar_cumulative"
    engines = (VECTOR,)
    state = (State.vector_accumulator,)
    indirect = ("dst", "src")
    cost_formula = "2N"
    cost_source = "spec/machine.md 6.2"

    dst: Out
    src: In
    op0: Operator
    op1: Operator
    imm0: Operand
    imm1: Operand
    reduce_cmd: reduce_cmd

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

    def compute(self, dst: np.ndarray, src: np.ndarray, imm0: Any, imm1: Any) -> None:
        x = flat(f32(src, self.src.dtype))
        values = alu.evaluate(self.op0, x, column(imm0, self.imm0, 2), False, np.empty_like(x, np.float32))
        start = _start(imm1, self.imm1)
        acc = accumulators.begin("vector", self.reduce_cmd, self.op1, len(x), start, self.public)
        running = _running_fold(self.op1, values, acc)
        acc[...] = running[:, -1]
        store(dst, running.reshape(dst.shape), self.dst.dtype)

    def cost(self, m: Machine) -> Cost:
        return vector_cost(self, m, "vector_cumulative", self.src.free_elements)


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


def _running_fold(op: Operator, values: np.ndarray, acc: np.ndarray) -> np.ndarray:
    """acc = op(value, acc) along the last axis of `values` [P, F], which is overwritten."""
    if op.name == "subtract":
        # value - acc is -(acc - value): with every second sign turned it is a running sum, rounded alike
        values[:, 1::2] *= np.float32(-1)
        running = _running_fold(OPERATORS["add"], values, -acc)
        running[:, 1::2] *= np.float32(-1)
        return running
    ufunc: Any = op.formula
    ufunc(values[:, 0], acc, out=values[:, 0])
    return ufunc.accumulate(values, axis=1)


# ---- tensor_tensor_scan --------------------------------------------------------------------------


def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: TileOrNumber,
    op0: OperatorLike,
    op1: OperatorLike,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst[i] = (data0[i] <op0> dst[i-1]) <op1> data1[i] along the free axis, in float32."""
    if op0.__class__ is not Operator:
        op0 = operators.resolve(op0, "tensor_tensor_scan", "op0")
    if op1.__class__ is not Operator:
        op1 = operators.resolve(op1, "tensor_tensor_scan", "op1")
    return issue(TensorTensorScan(dst, data0, data1, initial, op0, op1, reverse0, reverse1, name))


class TensorTensorScan(Instruction):
    public = "tensor_tensor_scan"
    engines = (VECTOR,)
    cost_formula = "max(64, 2N)"
    cost_source = "spec/machine.md 6.2"

    dst: Out
    data0: In
    data1: In
    initial: Operand
    op0: Operator
    op1: Operator
    reverse0: bool
    reverse1: bool

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "data0", "data1")
        rules.castable(self, "dst", "data0", "data1", "initial")
        rules.not_both_psum(self, "data0", "data1")
        alu.check_operator(self, "op0", BINARY, machine)
        alu.check_operator(self, "op1", BINARY, machine)
        alu.check_given(self, "initial")
        rules.column(self, "initial", "data0")

    def compute(self, dst: np.ndarray, data0: np.ndarray, data1: np.ndarray, initial: Any) -> None:
        x0, x1 = flat(f32(data0, self.data0.dtype)), flat(f32(data1, self.data1.dtype))
        state = np.empty(len(x0), np.float32)
        state[...] = np.asarray(column(initial, self.initial, 1))
        result = self._as_fold(x0, x1, state)
        if result is None:
            result = self._step_by_step(x0, x1, state)
        store(dst, result.reshape(dst.shape), self.dst.dtype)

    def _as_fold(self, x0: np.ndarray, x1: np.ndarray, state: np.ndarray) -> np.ndarray | None:
        """The scan as one running fold of data0 and data1 taking turns, where that rounds the same."""
        is_linear = self.op0.name == "multiply" and self.op1.name == "add"
        if is_linear and (x0 == 1).all():  # a running sum of data1
            return _running_fold(self.op1, x1.copy(), state)
        fold0 = _fold_of(self.op0, carry_is_left=bool(self.reverse0))
        fold1 = _fold_of(self.op1, carry_is_left=not self.reverse1)
        if fold0 is None or fold1 is None or fold0[0] != fold1[0]:
            return None
        turns = np.empty((len(x0), x0.shape[1], 2), np.float32)
        np.multiply(x0, fold0[1], out=turns[:, :, 0])
        np.multiply(x1, fold1[1], out=turns[:, :, 1])
        return _running_fold(OPERATORS[fold0[0]], turns.reshape(len(x0), -1), state)[:, 1::2]

    def _step_by_step(self, x0: np.ndarray, x1: np.ndarray, state: np.ndarray) -> np.ndarray:
        """One step after the other, all partitions at once."""
        x0, x1 = np.ascontiguousarray(x0.T), np.ascontiguousarray(x1.T)
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

    def cost(self, m: Machine) -> Cost:
        cost = vector_cost(self, m, "vector_scan", self.data0.free_elements)
        if not isinstance(self.initial, View):
            return cost
        waits = cost.fix_ns + m.vector_scan_initial_ns
        return cost._replace(fix_ns=waits, rests_on=(*cost.rests_on, "vector_scan_initial_ns"))


def _fold_of(op: Operator, carry_is_left: bool) -> tuple[str, np.float32] | None:
    """(fold, sign) so that op with the carry is the fold of the carry and sign times the other operand."""
    if op.name in FOLDS:
        return op.name, np.float32(1)
    if op.name == "subtract" and carry_is_left:
        return "add", np.float32(-1)
    return None


# ---- exponential ---------------------------------------------------------------------------------


def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: TileOrNumber = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_init: TileOrNumber = 0.0,
    name: str | None = None,
) -> NkiInstruction:
    """dst = exp(src - max_value), and its sum over all free elements (trn3)."""
    return issue(Exponential(dst, src, max_value, reduce_res, reduce_cmd, reduce_init, name))


class Exponential(Instruction):
    public = "exponential"
    engines = (VECTOR,)
    since = 4
    state = (State.vector_accumulator,)
    indirect = ("dst", "src")
    cost_formula = "N/4, the sum included"
    cost_source = "spec/machine.md 6.2"

    dst: Out
    src: In
    max_value: Operand
    reduce_res: OptionalOut
    reduce_cmd: reduce_cmd
    reduce_init: Operand

    def dst_is_byproduct(self) -> bool:
        return accumulators.takes_result(self)

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
        self, dst: np.ndarray, src: np.ndarray, max_value: Any, reduce_res: Any, reduce_init: Any
    ) -> None:
        x = f32(shaped(src, dst), self.src.dtype)
        values = np.subtract(x, column(max_value, self.max_value, dst.ndim), out=scratch(dst.shape, dst))
        np.exp(values, out=values)
        init = _start(reduce_init, self.reduce_init)
        acc = accumulators.step("vector", self.reduce_cmd, _ADD, values, init, self.public)
        store(dst, values, self.dst.dtype)
        _read_out(self, acc, reduce_res)

    def cost(self, m: Machine) -> Cost:
        return vector_cost(self, m, "vector_exponential", self.src.free_elements)


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


__all__ = [
    "exponential",
    "tensor_reduce",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor_scan",
]
