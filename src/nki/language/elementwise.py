"""Element-wise functions: what a call of an operator does (spec/language.md 13).

Called, `nl.add(x, y)` issues the instruction that adds and returns a new SBUF tile; passed as `op=`, the
same object is the operator token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from .. import isa
from ..errors import error
from ..ir.context import current, warn
from ..ir.tensor import NkiTensor
from ..isa.function import function as issue_function
from ..machine import dtypes
from ..machine.dtypes import DType, DTypeLike
from ..machine.memories import PSUM
from ..machine.operators import OPERATORS, Operator
from ..typing import TileOrNumber
from .allocation import allocate
from .operands import (
    cast,
    check_operand,
    check_tile,
    common_shape,
    in_sbuf,
    is_number,
    result_dtype,
    spread,
    stretch,
    watch_integers,
    wrong_argument,
)

_Operand: TypeAlias = NkiTensor | int | float  # as check_operand returns it

BINARY = {
    "add": "x + y",
    "subtract": "x - y",
    "multiply": "x * y",
    "divide": "x / y",
    "maximum": "the larger of x and y; NaN if either is NaN",
    "minimum": "the smaller of x and y; NaN if either is NaN",
    "abs_max": "x if abs(x) > abs(y) else y (trn3)",
    "abs_min": "x if abs(x) < abs(y) else y (trn3)",
    "power": "x to the power of y",
    "mod": "the remainder of x / y, with the sign of y",
    "fmod": "the remainder of x / y, with the sign of x",
    "equal": "1 where x == y, else 0",
    "not_equal": "1 where x != y, else 0",
    "less": "1 where x < y, else 0",
    "less_equal": "1 where x <= y, else 0",
    "greater": "1 where x > y, else 0",
    "greater_equal": "1 where x >= y, else 0",
    "logical_and": "1 where x and y are both non-zero, else 0",
    "logical_or": "1 where x or y is non-zero, else 0",
    "logical_xor": "1 where exactly one of x and y is non-zero, else 0",
    "bitwise_and": "x & y of integers",
    "bitwise_or": "x | y of integers",
    "bitwise_xor": "x ^ y of integers",
    "left_shift": "x << y of integers; zeros enter, a count of the width or more gives 0",
    "right_shift": "x >> y of integers; zeros enter even for signed types",
}
UNARY = {
    "abs": "the absolute value of x",
    "square": "x * x",
    "exp": "e to the power of x",
    "log": "the natural logarithm of x",
    "sqrt": "the square root of x",
    "rsqrt": "1 / sqrt(x); x in SBUF",
    "reciprocal": "1 / x",
    "sin": "the sine of x, accurate everywhere",
    "cos": "the cosine of x, accurate everywhere",
    "tan": "the tangent of x, accurate everywhere",
    "arctan": "the inverse tangent of x",
    "tanh": "the hyperbolic tangent of x",
    "sigmoid": "1 / (1 + exp(-x))",
    "relu": "max(x, 0)",
    "gelu": "x * Phi(x), Phi the normal distribution",
    "gelu_dx": "the derivative of gelu",
    "gelu_apprx_sigmoid": "x * sigmoid(1.702 x)",
    "gelu_apprx_sigmoid_dx": "the derivative of gelu_apprx_sigmoid",
    "gelu_apprx_tanh": "0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))",
    "silu": "x * sigmoid(x)",
    "silu_dx": "the derivative of silu",
    "softplus": "log(1 + exp(x))",
    "mish": "x * tanh(softplus(x))",
    "erf": "the error function of x",
    "erf_dx": "the derivative of erf",
    "sign": "-1, 0 or 1",
    "negative": "-x",
    "ceil": "the smallest integer >= x",
    "floor": "the largest integer <= x",
    "trunc": "x without its fraction",
    "copy": "x, in a new SBUF tile; bit by bit for equal dtypes",
    "invert": "x with every bit flipped, of integers",
    "logical_not": "x xor 1 for integers, x == 0 for floats",
}

_NOT_ON_HARDWARE = ("divide", "mod", "fmod")
_KEEPS_INTEGERS = (
    "abs",
    "square",
    "relu",
    "sign",
    "negative",
    "ceil",
    "floor",
    "trunc",
    "copy",
    "invert",
    "logical_not",
)
_EXACT = ("add", "subtract", "multiply", "maximum", "minimum")  # 32-bit integers too (spec/isa.md 1.6)
_INTEGER_32 = (dtypes.int32, dtypes.uint32)
_MULTIPLY = OPERATORS["multiply"]


# ---- two operands --------------------------------------------------------------------------------


def _binary(op: Operator, x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None) -> NkiTensor:
    name = op.name
    x, y = check_operand(name, "x", x), check_operand(name, "y", y)
    tiles = {key: value for key, value in (("x", x), ("y", y)) if not is_number(value)}
    if not tiles:
        raise wrong_argument(f"{name}: x and y are both numbers, at least one must be a tile")
    target = _target_dtype(op, dtype, *tiles.values())
    _check_pair(op, x, y, dtype)
    shape = common_shape(name, **tiles)
    if op.is_bitwise and not _holds_bits(target):  # bits first, the cast afterwards
        out = cast(_binary(op, x, y, None), target)
    else:
        out = allocate(name, shape, target)
        x, y = (value if is_number(value) else spread(value, shape[0]) for value in (x, y))
        binary_into(out, op, x, y)
    watch_integers(name, out, x, y)
    out.is_comparison = op.kind in ("comparison", "logical")
    return out


def _target_dtype(op: Operator, dtype: DTypeLike | None, *tiles: NkiTensor) -> DType:
    if op.kind in ("comparison", "logical"):
        tiles = tiles[:1]
    return result_dtype(op.name, dtype, *tiles)


def _check_pair(op: Operator, x: _Operand, y: _Operand, dtype: DTypeLike | None) -> None:
    if op.name in _NOT_ON_HARDWARE or (op.name == "power" and is_number(y)):
        warn(
            "not-on-hardware",
            f"{op.name}: no engine has this operation, current compilers may refuse it",
            help=_INSTEAD[op.name],
        )
    if op.is_bitwise:
        _check_bits(op, x, y)
        return
    tile, number = (y, x) if is_number(x) else (x, y)
    if dtype is not None or op.kind != "arithmetic" or is_number(tile) or not is_number(number):
        return
    if tile.dtype.is_integer and not _is_whole(number):
        warn(
            "weak-scalar",
            f"{op.name}: {number} meets a tile of {tile.dtype}, and the result is rounded to {tile.dtype}",
            notes=[tile.describe()],
            help="pass dtype=nl.float32 to keep the fraction",
        )


_INSTEAD = {
    "divide": "multiply by nl.reciprocal(y)",
    "mod": "multiply by nl.reciprocal(y), round down, and subtract the product",
    "fmod": "multiply by nl.reciprocal(y), cut off the fraction, and subtract the product",
    "power": "use nl.square, nl.sqrt, nl.rsqrt or nl.exp(y * nl.log(x))",
}


def _is_whole(number: int | float) -> bool:
    return isinstance(number, int) or number.is_integer()


def _holds_bits(dtype: DType) -> bool:
    return dtype.is_integer or dtype.is_bool


def _check_bits(op: Operator, *values: _Operand) -> None:
    tiles = [value for value in values if not is_number(value)]
    for value in values:
        wrong = not isinstance(value, int) if is_number(value) else not _holds_bits(value.dtype)
        if wrong:
            shown = f"the number {value!r}" if is_number(value) else value.dtype
            raise error(
                "dtype",
                f"{op.name}: works on the bits of integers, got {shown}",
                notes=[tile.describe() for tile in tiles],
                help="reinterpret the bits of a tile with t.view(nl.int32)",
            )
    if len({tile.dtype.itemsize for tile in tiles}) > 1:
        raise error(
            "dtype",
            f"{op.name}: x is {tiles[0].dtype} and y is {tiles[1].dtype}; both must have the same width",
            notes=[tile.describe() for tile in tiles],
            help="convert one of them with nl.copy(t, dtype=...)",
        )


def binary_into(out: NkiTensor, op: Operator, x: _Operand, y: _Operand) -> None:
    """Issue out = x <op> y of tiles that broadcast to out, or numbers; partitions are equal.

    By tensor_scalar where one operand is a number or (P, 1), else by tensor_tensor.
    """
    if op.name in _NOT_ON_HARDWARE:
        issue_function(out, op, *_one_in_psum(_stretched(x, out), _stretched(y, out)))
    elif _is_column(y, out) and not is_number(x):
        isa.tensor_scalar(out, _stretched(x, out), op, _column(y, x, out, op))
    elif _is_column(x, out) and not is_number(y):
        isa.tensor_scalar(out, _stretched(y, out), op, _column(x, y, out, op), reverse0=True)
    else:
        left, right = _one_in_psum(_stretched(x, out), _stretched(y, out))
        if op.name == "power":  # on GpSimd, which cannot reach PSUM
            left, right = in_sbuf(left), in_sbuf(right)
        isa.tensor_tensor(out, left, right, op)


def _is_column(value: _Operand, out: NkiTensor) -> bool:
    return is_number(value) or (value.free_elements == 1 and out.free_elements > 1)


def _stretched(value: _Operand, out: NkiTensor) -> Any:
    return value if is_number(value) else stretch(value, out.shape)


def _column(value: _Operand, data: NkiTensor, out: NkiTensor, op: Operator) -> _Operand:
    """Return a number or (P, 1) tile as tensor_scalar reads it: float32, or integers where exact."""
    if is_number(value) or op.is_bitwise or value.dtype == dtypes.float32:
        return value
    integers = all(tile.dtype in _INTEGER_32 for tile in (value, data, out))
    if integers and (op.name in _EXACT or op.kind == "comparison"):
        return value
    return cast(value, dtypes.float32)


def _one_in_psum(x: _Operand, y: _Operand) -> tuple[Any, Any]:
    """Return both operands; if both are in PSUM, copy the second to SBUF, for the engine reads one."""
    if not is_number(x) and not is_number(y) and x.buffer is PSUM and y.buffer is PSUM:
        return x, in_sbuf(y)
    return x, y


# ---- one operand ---------------------------------------------------------------------------------


def _unary(op: Operator, x: TileOrNumber, dtype: DTypeLike | None) -> NkiTensor:
    name = op.name
    x = check_tile(name, "x", x)
    target = result_dtype(name, dtype, x)
    if name == "invert":
        _check_bits(op, x)
    if dtype is None and x.dtype.is_integer and name not in _KEEPS_INTEGERS:
        warn(
            "weak-scalar",
            f"{name}: x is {x.dtype}, so the result is rounded to {x.dtype}",
            notes=[f"x: {x.describe()}"],
            help="pass dtype=nl.float32 to keep the fraction",
        )
    if name in ("invert", "logical_not") and _holds_bits(x.dtype) and not _holds_bits(target):
        out = cast(_unary(op, x, None), target)
    else:
        out = allocate(name, x.shape, target)
        unary_into(out, op, x)
    watch_integers(name, out, x)
    return out


def _rsqrt(out: NkiTensor, op: Operator, x: NkiTensor) -> None:
    if not current().execution.options.since("0.5"):  # by the scalar engine until then, which reaches PSUM
        isa.activation(out, op, x)
        return
    if x.buffer is PSUM:
        raise error(
            "buffer",
            "rsqrt: x is in PSUM, which the gpsimd engine cannot reach",
            notes=[f"x: {x.describe()}"],
            help="copy it to SBUF first (nl.copy)",
        )
    isa.tensor_scalar(out, x, op, None, engine=isa.engine.gpsimd)


def _logical_not(out: NkiTensor, op: Operator, x: NkiTensor) -> None:
    if _holds_bits(x.dtype):
        isa.tensor_scalar(out, x, OPERATORS["bitwise_xor"], 1)
    else:
        isa.tensor_scalar(out, x, OPERATORS["equal"], 0.0)


_Issues: TypeAlias = Callable[[NkiTensor, Operator, NkiTensor], object]
_UNARY_BY: dict[str, _Issues] = {
    **dict.fromkeys(("abs", "invert"), lambda out, op, x: isa.tensor_scalar(out, x, op, None)),
    **dict.fromkeys(("sin", "cos", "tan", "arctan", "ceil", "floor", "trunc"), issue_function),
    "copy": lambda out, op, x: isa.tensor_copy(out, x),
    "reciprocal": lambda out, op, x: isa.reciprocal(out, x),
    "negative": lambda out, op, x: isa.tensor_scalar(out, x, _MULTIPLY, -1 if x.dtype.is_integer else -1.0),
    "rsqrt": _rsqrt,
    "logical_not": _logical_not,
}


def unary_into(out: NkiTensor, op: Operator, x: NkiTensor) -> None:
    """Issue out = op(x), by the instruction that has it."""
    _UNARY_BY.get(op.name, isa.activation)(out, op, x)


# ---- giving the tokens their functions -----------------------------------------------------------


def _give(op: Operator, function: Callable, doc: str) -> None:
    function.__name__ = function.__qualname__ = op.name
    op.function = function
    op.__doc__ = doc
    op.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]


def _give_binary(op: Operator, doc: str) -> None:
    def function(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
        return _binary(op, x, y, dtype)

    _give(op, function, f"{doc}; element by element, in a new SBUF tile.")


def _give_unary(op: Operator, doc: str) -> None:
    def function(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
        return _unary(op, x, dtype)

    _give(op, function, f"{doc}; element by element, in a new SBUF tile.")


for _name, _doc in BINARY.items():
    _give_binary(OPERATORS[_name], _doc)
for _name, _doc in UNARY.items():
    _give_unary(OPERATORS[_name], _doc)
for _name, _doc in {
    "average": "Operator token: the mean over partitions in nisa.tensor_partition_reduce.",
    "prelu": "Operator token: x if x >= 0 else relu_param * x, for activation instructions.",
    "bypass": "Operator token: passes its data through unchanged.",
}.items():
    OPERATORS[_name].__doc__ = _doc
