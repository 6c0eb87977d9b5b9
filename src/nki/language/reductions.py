"""Reductions over trailing free dimensions, and what is built from them (spec/language.md 14.1-14.3).

The functions carry the names of Python's own; this module uses none of those.
"""

from __future__ import annotations

from builtins import all as builtins_all
from collections.abc import Sequence
from math import prod as product
from typing import TypeAlias

from .. import isa
from ..errors import error
from ..ir.context import warn
from ..ir.layout import Int, is_int
from ..ir.tensor import NkiTensor
from ..isa.function import function as issue_function
from ..machine import dtypes
from ..machine.dtypes import DType, DTypeLike
from ..machine.operators import OPERATORS, Operator
from ..typing import Number, TileOrNumber
from .allocation import allocate
from .operands import check_tile, common_shape, is_number, result_dtype, stretch, watch_integers

Axis: TypeAlias = Int | Sequence[Int]

_ADD, _MULTIPLY, _SUBTRACT = OPERATORS["add"], OPERATORS["multiply"], OPERATORS["subtract"]
_MAXIMUM, _MINIMUM = OPERATORS["maximum"], OPERATORS["minimum"]
_DIVIDE, _LOGICAL_AND = OPERATORS["divide"], OPERATORS["logical_and"]
_EXP, _SQUARE, _RSQRT = OPERATORS["exp"], OPERATORS["square"], OPERATORS["rsqrt"]


def sum(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None, keepdims: bool = False) -> NkiTensor:
    """The sum over trailing free dimensions."""
    return _public("sum", _ADD, x, axis, dtype, keepdims)


def prod(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None, keepdims: bool = False) -> NkiTensor:
    """The product over trailing free dimensions."""
    return _public("prod", _MULTIPLY, x, axis, dtype, keepdims)


def max(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None, keepdims: bool = False) -> NkiTensor:
    """The largest element over trailing free dimensions; NaN if one is NaN."""
    return _public("max", _MAXIMUM, x, axis, dtype, keepdims)


def min(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None, keepdims: bool = False) -> NkiTensor:
    """The smallest element over trailing free dimensions; NaN if one is NaN."""
    return _public("min", _MINIMUM, x, axis, dtype, keepdims)


def all(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where every element over trailing free dimensions is non-zero, else 0."""
    out = _public("all", _LOGICAL_AND, x, axis, dtype, False)
    out.is_comparison = True
    return out


def mean(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None, keepdims: bool = False) -> NkiTensor:
    """The mean over trailing free dimensions."""
    x, axes = _operand("mean", x, axis)
    out = allocate("mean", _shape(x, axes, keepdims), result_dtype("mean", dtype, x))
    _mean_into(out, x, axes)
    watch_integers("mean", out, x)
    return out


def var(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None, keepdims: bool = False) -> NkiTensor:
    """The variance (divisor n) over trailing free dimensions, which stay with size 1 whatever keepdims."""
    x, axes = _operand("var", x, axis)
    out = allocate("var", _shape(x, axes, True), result_dtype("var", dtype, x))
    middle = allocate("var", out.shape, dtypes.float32)
    _mean_into(middle, x, axes)
    deviation = _against(_SUBTRACT, x, middle, dtypes.float32)
    isa.tensor_tensor(deviation, deviation, deviation, _MULTIPLY)
    _mean_into(out, deviation, axes)
    watch_integers("var", out, x)
    return out


def softmax(x: NkiTensor, axis: Axis = -1, dtype: DTypeLike | None = None) -> NkiTensor:
    """exp(x - max) / sum(exp(x - max)) over trailing free dimensions."""
    x, axes = _operand("softmax", x, axis)
    target = result_dtype("softmax", dtype, x)
    largest = _reduce(_MAXIMUM, x, axes)
    powers = _against(_SUBTRACT, x, largest, dtypes.float32)
    isa.activation(powers, _EXP, powers)
    total = _reduce(_ADD, powers, axes)
    isa.reciprocal(total, total)
    return _against(_MULTIPLY, powers, total, target)


def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Axis,
    n: Number,
    epsilon: TileOrNumber = 1e-06,
    dtype: DTypeLike | None = None,
    compute_dtype: DTypeLike | None = None,
) -> NkiTensor:
    """x / sqrt(sum(x * x) / n + epsilon) * w over trailing free dimensions; w is broadcast to x."""
    x, axes = _operand("rms_norm", x, axis)
    w = check_tile("rms_norm", "w", w)
    if not is_number(n) or not n > 0:
        raise error("argument", f"rms_norm: n must be a positive number, got {n!r}")
    target = result_dtype("rms_norm", dtype, x)
    inside = (
        dtypes.float32 if compute_dtype is None else dtypes.resolve(compute_dtype, "rms_norm: compute_dtype")
    )
    if common_shape("rms_norm", x=x, w=w) != tuple(x.shape):
        raise error("shape", f"rms_norm: w {tuple(w.shape)} does not broadcast to x {tuple(x.shape)}")
    squares = allocate("rms_norm", x.shape, inside)
    isa.activation(squares, _SQUARE, x)
    scale = _reduce(_ADD, squares, axes)
    isa.tensor_scalar(scale, scale, _MULTIPLY, 1.0 / n, op1=_ADD, operand1=epsilon)
    isa.activation(scale, _RSQRT, scale)
    return _MULTIPLY(_against(_MULTIPLY, x, scale, inside), w, target)


# as op= these are the operators they reduce with
sum.operator = _ADD  # type: ignore[attr-defined]
prod.operator = _MULTIPLY  # type: ignore[attr-defined]
max.operator = _MAXIMUM  # type: ignore[attr-defined]
min.operator = _MINIMUM  # type: ignore[attr-defined]


def _public(
    function: str, op: Operator, x: NkiTensor, axis: Axis, dtype: DTypeLike | None, keepdims: bool
) -> NkiTensor:
    """Issue one tensor_reduce; if axis 0 is among the axes, another engine reduces the partitions."""
    across = _partitions_too(function, op, x, axis)
    if across is not None:
        return _across(function, op, *across, dtype, keepdims)
    x, axes = _operand(function, x, axis)
    out = allocate(function, _shape(x, axes, keepdims), result_dtype(function, dtype, x))
    isa.tensor_reduce(out, op, x, axes, keepdims=bool(keepdims))
    watch_integers(function, out, x)
    return out


def _partitions_too(
    function: str, op: Operator, x: NkiTensor, axis: Axis
) -> tuple[NkiTensor, list[int]] | None:
    """Return the tile and its free axes to reduce, if axis 0 is given and an instruction can reduce it."""
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    if op not in (_ADD, _MAXIMUM) or not given or not builtins_all(is_int(a) for a in given):
        return None
    x = check_tile(function, "x", x)
    axes = sorted({int(a) % x.ndim for a in given if -x.ndim <= a < x.ndim})
    if len(axes) != len(given) or axes[0] != 0 or axes[1:] != [*range(x.ndim - len(axes) + 1, x.ndim)]:
        return None
    warn(
        "axis",
        f"{function}: axis={axis!r}: only the last dimensions can be reduced together",
        [
            f"x: {x.describe()}",
            "tensor_partition_reduce reduces the partitions here; a compiler would refuse",
        ],
        "reduce the free dimensions, then use nisa.tensor_partition_reduce, or a matmul with ones",
    )
    return x, axes[1:]


def _across(
    function: str, op: Operator, x: NkiTensor, free: list[int], dtype: DTypeLike | None, keepdims: bool
) -> NkiTensor:
    """Reduce the free axes, then the partitions: the result is in one of them."""
    rows = _reduce(op, x, tuple(free)) if free else x
    remaining = tuple(rows.shape[1:]) if keepdims or not free else tuple(rows.shape[1 : free[0]]) or (1,)
    out = allocate(function, (1, *remaining), result_dtype(function, dtype, x))
    isa.tensor_partition_reduce(out, op, rows.reshape((rows.shape[0], *remaining)))
    return out


def _reduce(op: Operator, x: NkiTensor, axes: tuple[int, ...]) -> NkiTensor:
    """Reduce in float32 and keep the reduced dimensions with size 1, to be broadcast against x."""
    out = allocate(op.name, _shape(x, axes, True), dtypes.float32)
    isa.tensor_reduce(out, op, x, axes, keepdims=True)
    return out


def _mean_into(out: NkiTensor, x: NkiTensor, axes: tuple[int, ...]) -> None:
    """Issue a float32 sum, then one division."""
    total = _reduce(_ADD, x, axes)
    issue_function(out, _DIVIDE, total, float(product(x.shape[a] for a in axes)))


def _against(op: Operator, x: NkiTensor, statistic: NkiTensor, dtype: DType) -> NkiTensor:
    """Return x <op> a reduction of x."""
    out = allocate(op.name, x.shape, dtype)
    if statistic.free_elements == 1:
        isa.tensor_scalar(out, x, op, statistic)
    else:
        isa.tensor_tensor(out, x, stretch(statistic, x.shape), op)
    return out


def _operand(function: str, x: NkiTensor, axis: Axis) -> tuple[NkiTensor, tuple[int, ...]]:
    """Return the tile, and its axes checked to be the trailing ones."""
    x = check_tile(function, "x", x)
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    axes = []
    for a in given:
        if not is_int(a) or not -x.ndim <= a < x.ndim:
            raise error(
                "axis",
                f"{function}: axis={axis!r} of a tile with {x.ndim} dimensions",
                notes=[f"x: {x.describe()}"],
                help=f"an axis is an int from 1 to {x.ndim - 1}, or negative",
            )
        axes.append(int(a) % x.ndim)
    axes.sort()
    if not axes or axes[0] == 0 or axes != [*range(axes[0], x.ndim)]:
        raise error(
            "axis",
            f"{function}: axis={axis!r}: only the last dimensions can be reduced together",
            notes=[f"x: {x.describe()}"],
            help="t.permute brings another free dimension to the end; "
            "nisa.nc_transpose or nisa.tensor_partition_reduce serve the partition dimension",
        )
    return x, tuple(axes)


def _shape(x: NkiTensor, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """Return the shape of a reduction: the axes go, or stay with size 1; a tile keeps two dimensions."""
    remaining = tuple(x.shape[: axes[0]])
    if keepdims:
        return remaining + (1,) * len(axes)
    return remaining if len(remaining) > 1 else (*remaining, 1)
