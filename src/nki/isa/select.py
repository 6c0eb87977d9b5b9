"""Selections that may reduce: range_select and select_reduce (spec/isa_vector.md)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..ir.context import warn
from ..ir.instruction import In, InstructionCost, Operand, OptionalOut, Out
from ..ir.layout import is_int
from ..machine.dtypes import f32, store
from ..machine.machine import Machine
from ..machine.operators import OPERATORS, Operator
from ..typing import Number, TileOrNumber
from . import accumulators, alu, rules
from .accumulators import VectorReduction
from .copies import predicated_cost
from .enums import IDLE, REDUCE, RESET_REDUCE, reduce_cmd
from .numerics import Array, Values, column, flat, scratch, shaped
from .public import public

maximum = OPERATORS["maximum"]
FP32_MIN = float(np.finfo(np.float32).min)


class RangeSelect(VectorReduction):
    """dst = on_true_tile where the index satisfies both bounds, else FP32_MIN; and the maximum (trn2)."""

    public = "range_select"
    since = 3
    cost_formula = "max(64, N)"

    dst: Out
    on_true_tile: In
    comp_op0: Operator
    comp_op1: Operator
    bound0: In
    bound1: In
    reduce_cmd: reduce_cmd = RESET_REDUCE
    reduce_res: OptionalOut = None
    reduce_op: Operator = maximum
    range_start: TileOrNumber = 0
    on_false_value: Number = FP32_MIN

    def check(self, machine: Machine) -> None:
        rules.matching_values(self, "dst", "on_true_tile")
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
        self, dst: Array, on_true_tile: Array, bound0: Array, bound1: Array, reduce_res: Array | None
    ) -> None:
        x = flat(f32(on_true_tile, self.on_true_tile.dtype))
        index = _indices(self.range_start, x.shape[1])
        masks = [
            op.formula(index, bound)  # type: ignore[misc]
            for op, bound in ((self.comp_op0, flat(bound0)), (self.comp_op1, flat(bound1)))
            if not _holds_everywhere(op, index, bound)
        ]
        values = x
        if masks:
            mask = masks[0]
            for other in masks[1:]:
                mask &= other
            values = scratch(x.shape, x)
            values.fill(FP32_MIN)
            np.copyto(values, x, where=mask)
        acc = accumulators.step("vector", self.reduce_cmd, maximum, values, user=self.public)
        store(dst, values.reshape(dst.shape), self.dst.dtype)
        accumulators.read_out(self, acc, reduce_res)


@lru_cache(maxsize=64)
def _indices(start: Any, count: int) -> np.ndarray:
    """Return float32 numbers from `start` on."""
    return np.arange(start, start + count).astype(np.float32)


def _holds_everywhere(op: Operator, index: np.ndarray, bound: np.ndarray) -> bool:
    """Return whether a comparison holds for every element: those with an order are asked at both ends."""
    if op.name == "equal" or bound.__class__ is not np.ndarray:
        return False  # elsewhere a look costs more than the comparison
    return bool(op.formula(index[:: max(index.size - 1, 1)], bound).all())  # type: ignore[misc]


class SelectReduce(VectorReduction):
    """dst = on_true where predicate is not 0, else on_false (a number or column); and the maximum."""

    public = "select_reduce"
    cost_formula = "as tensor_copy_predicated: 2N; N with on_true or predicate in PSUM"

    dst: Out
    predicate: In
    on_true: In
    on_false: Operand
    reduce_res: OptionalOut = None
    reduce_cmd: reduce_cmd = IDLE
    reduce_op: Operator = maximum
    reverse_pred: bool = False

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
        self, dst: Array, predicate: Array, on_true: Array, on_false: Values, reduce_res: Array | None
    ) -> None:
        mask = (np.equal if self.reverse_pred else np.not_equal)(shaped(predicate, dst), 0)
        values = scratch(dst.shape, dst)
        np.copyto(values, column(on_false, self.on_false, dst.ndim))
        np.copyto(values, f32(shaped(on_true, dst), self.on_true.dtype), where=mask)
        acc = accumulators.step("vector", self.reduce_cmd, maximum, values, user=self.public)
        store(dst, values, self.dst.dtype)
        accumulators.read_out(self, acc, reduce_res)

    def cost(self, m: Machine) -> InstructionCost:
        return predicated_cost(self, m, self.on_true, self.predicate)


range_select = public(RangeSelect)
select_reduce = public(SelectReduce)
