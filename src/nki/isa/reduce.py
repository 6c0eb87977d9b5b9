"""VectorE: reductions, scans, selections that reduce, statistics (isa_vector.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import warn
from ..hardware import dtypes, operators
from ..hardware.dtypes import f32, store
from ..hardware.machine import Machine
from ..hardware.operators import OPERATORS, Operator
from ..program.instruction import Cost, In, Instruction, Operand, OptionalOut, Out, State
from ..run.core import Core, issue
from ..tensors import View, is_int
from . import accumulators, alu, rules
from .alu import BINARY, BITWISE, FOLDS, LOGICAL, MAGNITUDES
from .enums import VECTOR, reduce_cmd
from .numerics import column, flat, scratch, shaped
from .vector import predicated_cost, vector_cost

maximum = OPERATORS["maximum"]
FP32_MIN = float(np.finfo(np.float32).min)

IDLE, REDUCE = reduce_cmd.idle, reduce_cmd.reduce
RESET_REDUCE, LOAD_REDUCE = reduce_cmd.reset_reduce, reduce_cmd.load_reduce


# ---- tensor_reduce -------------------------------------------------------------------------------


def tensor_reduce(dst, op, data, axis, negate=False, keepdims=False, name=None):
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
    cost_source = "machine.md 6.2"

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
    dst,
    data,
    op0,
    operand0,
    reduce_op,
    reduce_res=None,
    reverse0=False,
    reduce_cmd=reduce_cmd.reset_reduce,
    reduce_init=None,
    reduce_res_negate=False,
    name=None,
):
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
    cost_source = "machine.md 6.2"

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
        self, core: Core, dst: np.ndarray, data: np.ndarray, operand0: Any, reduce_res: Any, reduce_init: Any
    ) -> None:
        x = f32(shaped(data, dst), self.data.dtype)
        operand0 = column(operand0, self.operand0, dst.ndim)
        init = _start(reduce_init, self.reduce_init)
        values = alu.evaluate_into(dst, self.dst.dtype, self.op0, x, operand0)
        acc = accumulators.step(core, "vector", self.reduce_cmd, self.reduce_op, values, init, self.public)
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
    dst, src, op0, op1, imm0, imm1=None, reduce_cmd=reduce_cmd.reset_reduce, name=None
):
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
    cost_source = "machine.md 6.2"

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

    def compute(self, core: Core, dst: np.ndarray, src: np.ndarray, imm0: Any, imm1: Any) -> None:
        x = flat(f32(src, self.src.dtype))
        values = alu.evaluate(self.op0, x, column(imm0, self.imm0, 2), False, np.empty(x.shape, np.float32))
        start = _start(imm1, self.imm1)
        acc = accumulators.begin(core, "vector", self.reduce_cmd, self.op1, len(x), start, self.public)
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


def tensor_tensor_scan(dst, data0, data1, initial, op0, op1, reverse0=False, reverse1=False, name=None):
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
    cost_source = "machine.md 6.2"

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
    dst, src, max_value=0.0, reduce_res=None, reduce_cmd=reduce_cmd.idle, reduce_init=0.0, name=None
):
    """dst = exp(src - max_value), and its sum over all free elements (trn3)."""
    return issue(Exponential(dst, src, max_value, reduce_res, reduce_cmd, reduce_init, name))


class Exponential(Instruction):
    public = "exponential"
    engines = (VECTOR,)
    since = 4
    state = (State.vector_accumulator,)
    indirect = ("dst", "src")
    cost_formula = "N/4, the sum included"
    cost_source = "machine.md 6.2"

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
        self, core: Core, dst: np.ndarray, src: np.ndarray, max_value: Any, reduce_res: Any, reduce_init: Any
    ) -> None:
        x = f32(shaped(src, dst), self.src.dtype)
        values = np.subtract(x, column(max_value, self.max_value, dst.ndim), out=scratch(dst.shape))
        np.exp(values, out=values)
        init = _start(reduce_init, self.reduce_init)
        acc = accumulators.step(core, "vector", self.reduce_cmd, _ADD, values, init, self.public)
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


# ---- range_select --------------------------------------------------------------------------------


def range_select(
    dst,
    on_true_tile,
    comp_op0,
    comp_op1,
    bound0,
    bound1,
    reduce_cmd=reduce_cmd.reset_reduce,
    reduce_res=None,
    reduce_op=maximum,
    range_start=0,
    on_false_value=FP32_MIN,
    name=None,
):
    """dst = on_true_tile where the index satisfies both bounds, else FP32_MIN; and the maximum (trn2)."""
    if comp_op0.__class__ is not Operator:
        comp_op0 = operators.resolve(comp_op0, "range_select", "comp_op0")
    if comp_op1.__class__ is not Operator:
        comp_op1 = operators.resolve(comp_op1, "range_select", "comp_op1")
    if reduce_op.__class__ is not Operator:
        reduce_op = operators.resolve(reduce_op, "range_select", "reduce_op")
    return issue(
        RangeSelect(
            dst,
            on_true_tile,
            comp_op0,
            comp_op1,
            bound0,
            bound1,
            reduce_cmd,
            reduce_res,
            reduce_op,
            range_start,
            on_false_value,
            name,
        )
    )


class RangeSelect(Instruction):
    public = "range_select"
    engines = (VECTOR,)
    since = 3
    state = (State.vector_accumulator,)
    cost_formula = "max(64, N)"
    cost_source = "machine.md 6.2"

    dst: Out
    on_true_tile: In
    comp_op0: Operator
    comp_op1: Operator
    bound0: In
    bound1: In
    reduce_cmd: reduce_cmd
    reduce_res: OptionalOut
    reduce_op: Operator
    range_start: Any
    on_false_value: Any

    def dst_is_byproduct(self) -> bool:
        return accumulators.takes_result(self)

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "on_true_tile")
        rules.castable(self, "dst", "on_true_tile")
        for name in ("dst", "on_true_tile"):
            if not getattr(self, name).dtype.is_float:
                raise rules.fail(self, "dtype", f"{name} must have a float dtype", [name])
        for name in ("bound0", "bound1"):
            rules.column(self, name, "on_true_tile")
            rules.dtype_in(self, name, ("float32",), "convert it with nisa.tensor_copy into a float32 tile")
        for name in ("comp_op0", "comp_op1"):
            rules.operator(self, name, ("equal", "less", "less_equal", "greater", "greater_equal"))
        rules.operator(self, "reduce_op", ("maximum",))
        accumulators.check(self, (RESET_REDUCE, REDUCE, IDLE), "on_true_tile")
        self._check_fill()
        self._check_range()

    def _check_fill(self) -> None:
        value = self.on_false_value
        if not rules.is_number(value) or np.float32(value) != np.float32(FP32_MIN):
            raise rules.fail(
                self,
                "fp32-min",
                f"on_false_value must be the smallest float32, {np.float32(FP32_MIN)}, got {value!r}",
                [],
                "leave it out, and replace the filled elements afterwards",
            )

    def _check_range(self) -> None:
        if not is_int(self.range_start):
            raise rules.fail(
                self, "argument", f"range_start must be a compile-time int, got {self.range_start!r}"
            )
        last = self.range_start + self.on_true_tile.free_elements
        if last >= 2**24:
            warn(
                "range-index",
                f"range_select: indices up to {last} are compared in float32, which is exact below 2**24",
                help="subtract a base from range_start and from the bounds",
            )

    def compute(
        self,
        core: Core,
        dst: np.ndarray,
        on_true_tile: np.ndarray,
        bound0: np.ndarray,
        bound1: np.ndarray,
        reduce_res: Any,
    ) -> None:
        x = flat(f32(on_true_tile, self.on_true_tile.dtype))
        index = np.arange(self.range_start, self.range_start + x.shape[1]).astype(np.float32)
        mask = self.comp_op0.formula(index, flat(bound0))  # type: ignore[misc]
        mask &= self.comp_op1.formula(index, flat(bound1))  # type: ignore[misc]
        values = scratch(x.shape)
        values.fill(FP32_MIN)
        np.copyto(values, x, where=mask)
        acc = accumulators.step(core, "vector", self.reduce_cmd, maximum, values, user=self.public)
        store(dst, values.reshape(dst.shape), self.dst.dtype)
        _read_out(self, acc, reduce_res)

    def cost(self, m: Machine) -> Cost:
        return vector_cost(self, m, "vector_one_input", self.on_true_tile.free_elements)


# ---- select_reduce -------------------------------------------------------------------------------


def select_reduce(
    dst,
    predicate,
    on_true,
    on_false,
    reduce_res=None,
    reduce_cmd=reduce_cmd.idle,
    reduce_op=maximum,
    reverse_pred=False,
    name=None,
):
    """dst = on_true where predicate is not 0, else on_false (a number or column); and the maximum."""
    if reduce_op.__class__ is not Operator:
        reduce_op = operators.resolve(reduce_op, "select_reduce", "reduce_op")
    return issue(
        SelectReduce(dst, predicate, on_true, on_false, reduce_res, reduce_cmd, reduce_op, reverse_pred, name)
    )


class SelectReduce(Instruction):
    public = "select_reduce"
    engines = (VECTOR,)
    state = (State.vector_accumulator,)
    cost_formula = "as tensor_copy_predicated: 2N; N with on_true or predicate in PSUM"
    cost_source = "machine.md 6.2"

    dst: Out
    predicate: In
    on_true: In
    on_false: Operand
    reduce_res: OptionalOut
    reduce_cmd: reduce_cmd
    reduce_op: Operator
    reverse_pred: bool

    def dst_is_byproduct(self) -> bool:
        return accumulators.takes_result(self)

    def check(self, machine: Machine) -> None:
        rules.matching(self, "dst", "predicate", "on_true")
        rules.castable(self, "dst", "on_true", "on_false")
        rules.dtype_in(self, "predicate", ("int8", "uint8", "int16", "uint16", "bool"))
        if self.on_true.dtype in ("tfloat32", "int32", "uint32"):
            raise rules.fail(
                self,
                "dtype",
                f"on_true has dtype {self.on_true.dtype}, which select_reduce does not take",
                ["on_true"],
                "convert it with nisa.tensor_copy into a float32 tile",
            )
        rules.not_both_psum(self, "predicate", "on_true")
        alu.check_given(self, "on_false")
        rules.float32_column(self, "on_false", "on_true")
        rules.operator(self, "reduce_op", ("maximum",))
        accumulators.check(self, (IDLE, RESET_REDUCE, REDUCE), "on_true", res_floats=True)

    def compute(
        self,
        core: Core,
        dst: np.ndarray,
        predicate: np.ndarray,
        on_true: np.ndarray,
        on_false: Any,
        reduce_res: Any,
    ) -> None:
        mask = (np.equal if self.reverse_pred else np.not_equal)(shaped(predicate, dst), 0)
        values = scratch(dst.shape)
        np.copyto(values, column(on_false, self.on_false, dst.ndim))
        np.copyto(values, f32(shaped(on_true, dst), self.on_true.dtype), where=mask)
        acc = accumulators.step(core, "vector", self.reduce_cmd, maximum, values, user=self.public)
        store(dst, values, self.dst.dtype)
        _read_out(self, acc, reduce_res)

    def cost(self, m: Machine) -> Cost:
        return predicated_cost(self, m, self.on_true, self.predicate)


# ---- bn_stats, bn_aggr ---------------------------------------------------------------------------


def bn_stats(dst, data, name=None):
    """dst = count, mean and variance * count of the even elements of each partition, then of the odd ones."""
    return issue(BnStats(dst, data, name))


class BnStats(Instruction):
    public = "bn_stats"
    engines = (VECTOR,)
    cost_formula = "max(64, N)"
    cost_source = "machine.md 6.2"

    dst: Out
    data: In

    def check(self, machine: Machine) -> None:
        rules.castable(self, "dst", "data")
        rules.at_most(
            self,
            "data",
            self.data.free_elements,
            machine.bn_stats_max,
            "elements per partition",
            "take pieces of nl.tile_size.bn_stats_fmax and combine them with nisa.bn_aggr",
        )
        _check_statistics(self, 6, " (count, mean, M2 of even and odd elements)")

    def compute(self, dst: np.ndarray, data: np.ndarray) -> None:
        x = flat(f32(data, self.data.dtype))
        result = np.zeros((len(x), 6), np.float32)
        for half in (0, 1):
            values = x[:, half::2]
            if values.shape[1]:
                mean = values.mean(axis=1, keepdims=True, dtype=np.float32)
                result[:, 3 * half] = values.shape[1]
                result[:, 3 * half + 1] = mean[:, 0]
                result[:, 3 * half + 2] = np.square(values - mean).sum(axis=1)
        store(dst, result.reshape(dst.shape), self.dst.dtype)

    def cost(self, m: Machine) -> Cost:
        return vector_cost(self, m, "vector_bn_stats", self.data.free_elements)


def bn_aggr(dst, data, name=None):
    """dst = mean and population variance of what the (count, mean, M2) triples in data describe."""
    return issue(BnAggr(dst, data, name))


class BnAggr(Instruction):
    public = "bn_aggr"
    engines = (VECTOR,)
    cost_formula = "max(64, 13 N/3)"
    cost_source = "machine.md 6.2"

    dst: Out
    data: In

    def check(self, machine: Machine) -> None:
        rules.castable(self, "dst", "data")
        if self.data.free_elements % 3:
            raise rules.fail(
                self,
                "shape",
                f"data has {self.data.free_elements} elements per partition, not a multiple of 3",
                ["data"],
                "bn_stats writes two (count, mean, M2) triples per call",
            )
        _check_statistics(self, 2, " (mean, variance)")

    def compute(self, dst: np.ndarray, data: np.ndarray) -> None:
        triples = f32(data, self.data.dtype).reshape(len(data), -1, 3)
        count, mean, m2 = triples[:, :, 0], triples[:, :, 1], triples[:, :, 2]
        total = count.sum(axis=1, keepdims=True)
        overall = (count * mean).sum(axis=1, keepdims=True) / total
        spread = (m2 + count * np.square(mean - overall)).sum(axis=1, keepdims=True)
        result = np.concatenate([overall, spread / total], axis=1)
        store(dst, result.reshape(dst.shape), self.dst.dtype)

    def cost(self, m: Machine) -> Cost:
        return vector_cost(self, m, "vector_bn_aggr", self.data.free_elements)


def _check_statistics(ins: Any, count: int, what: str) -> None:
    if ins.dst.shape[0] != ins.data.shape[0]:
        raise rules.fail(
            ins,
            "shape",
            f"dst has {ins.dst.shape[0]} partitions, data has {ins.data.shape[0]}",
            ["dst", "data"],
        )
    rules.elements(ins, "dst", count, what)


__all__ = [
    "bn_aggr",
    "bn_stats",
    "exponential",
    "range_select",
    "select_reduce",
    "tensor_reduce",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor_scan",
]
