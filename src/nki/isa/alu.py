"""The operators of the vector engine's ALU: which instruction takes which, and formulas (spec/isa.md 2).

A stage is one operator with its operand: float32 arithmetic (`evaluate`), exact 32-bit integers (`exact`)
or bit patterns (`bitwise`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import error
from ..ir.instruction import Instruction
from ..ir.view import View
from ..machine import dtypes
from ..machine.dtypes import DType
from ..machine.machine import Machine
from ..machine.operators import OPERATORS, Operator, resolve
from . import rules
from .numerics import Values, all_hold, is_array, scratch

REDUCERS = ("add", "multiply", "maximum", "minimum")
ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum")
COMPARISONS = ("equal", "not_equal", "greater_equal", "greater", "less_equal", "less")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
BINARY = ARITHMETIC + COMPARISONS + LOGICAL
MAGNITUDES = ("abs_max", "abs_min")
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")
SHIFTS = ("left_shift", "right_shift")
EXACT = ARITHMETIC + COMPARISONS
INTEGER_32 = ("int32", "uint32")
BYPASS = OPERATORS["bypass"]


def optional(op: object, function: str, argument: str) -> Operator | None:
    """The operator of a stage that may be left out."""
    if op is None or op is BYPASS:
        return None
    return op if op.__class__ is Operator else resolve(op, function, argument)


# ---- what a stage demands ------------------------------------------------------------------------


def check_stage(
    ins: Instruction,
    op_name: str,
    name: str,
    allowed: tuple[str, ...],
    like: str,
    machine: Machine,
    exact: bool = False,
) -> None:
    """The operator is possible here, and its operand is a number or a [P, 1] tile; `exact`: of integers."""
    check_operator(ins, op_name, allowed, machine)
    op, operand = getattr(ins, op_name), getattr(ins, name)
    if op.is_unary:
        _check_no_operand(ins, op, name)
        return
    check_given(ins, name)
    rules.castable(ins, name)
    if op.is_bitwise:
        _check_pattern(ins, op, name, like)
    elif exact:
        rules.column(ins, name, like)
    else:
        rules.float32_column(ins, name, like)
    if isinstance(operand, int) and abs(operand) > 2**127 and not op.is_bitwise:
        raise rules.fail(ins, "argument", f"{name} is too large for float32", [name])


def check_operator(ins: Instruction, name: str, allowed: tuple[str, ...], machine: Machine) -> None:
    op = getattr(ins, name)
    rules.operator(ins, name, allowed)
    rules.generation(ins, op.since, machine, f"{name}={op!r}")


def _check_no_operand(ins: Instruction, op: Operator, name: str) -> None:
    operand = getattr(ins, name)
    if isinstance(operand, View) or not (operand is None or (rules.is_number(operand) and operand == 0)):
        raise rules.fail(
            ins, "argument", f"{op!r} takes no operand, {name} must be None or 0", [name], f"pass {name}=None"
        )


def check_given(ins: Instruction, name: str) -> None:
    if getattr(ins, name) is None:
        raise rules.fail(ins, "argument", f"{name} is missing", [], "pass a number or a [P, 1] tile")


def _check_pattern(ins: Instruction, op: Operator, name: str, like: str) -> None:
    """A bitwise operator's operand is an integer, as number or as tile."""
    operand = getattr(ins, name)
    rules.column(ins, name, like)
    rules.integers(ins, name)
    if not isinstance(operand, View) and not _is_whole(operand):
        raise rules.fail(ins, "dtype", f"{op!r} needs an integer, {name} is {operand!r}", [name])
    counts = op.name in SHIFTS and not getattr(ins, name.replace("operand", "reverse"), False)
    if counts and not isinstance(operand, View) and operand < 0:
        raise rules.fail(ins, "op", f"{op!r} by {operand}: a shift count is at least 0", [name])


def _is_whole(operand: object) -> bool:
    """An integer number, or a tile of 32-bit integers."""
    if isinstance(operand, View):
        return operand.dtype in INTEGER_32
    return isinstance(operand, (int, np.integer, np.bool_))


def is_exact_stage(op: Operator | None, operand: object) -> bool:
    """The stage keeps 32-bit integers exact (spec/isa.md 1.6)."""
    return op is None or (op.name in EXACT and _is_whole(operand))


# ---- what a stage means --------------------------------------------------------------------------


def evaluate(op: Operator, x: np.ndarray, operand: Values, reverse: bool, out: np.ndarray) -> np.ndarray:
    """op on float32 operands, into the float32 array `out`; unary operators ignore the operand."""
    formula: Any = op.formula
    if op.kind == "unary":
        out[...] = formula(x)
    elif formula.__class__ is np.ufunc:
        formula(operand, x, out=out) if reverse else formula(x, operand, out=out)
    else:
        out[...] = formula(operand, x) if reverse else formula(x, operand)
    return out


def evaluate_into(
    dst: np.ndarray, dtype: DType, op: Operator, x: np.ndarray, operand: Values, reverse: bool = False
) -> np.ndarray:
    """dst = cast(op(x, operand)); returns the float32 values before the cast."""
    if dst.dtype is dtypes.FLOAT32 and dtype is not dtypes.tfloat32:
        return evaluate(op, x, operand, reverse, dst)
    values = evaluate(op, x, operand, reverse, scratch(dst.shape, dst))
    dtypes.store(dst, values, dtype)
    return values


def exact(op: Operator, x: np.ndarray, operand: Values, reverse: bool) -> np.ndarray:
    """op on 32-bit integers of the dtype of `x`, modulo 2^32; comparisons give 1 and 0."""
    if is_array(operand):
        b = operand.view(x.dtype).reshape(len(operand), *(1,) * (x.ndim - 1))
    else:
        b = np.asarray(int(operand) & 0xFFFFFFFF, np.uint32).view(x.dtype)  # type: ignore[arg-type]
    result = op.formula(b, x) if reverse else op.formula(x, b)  # type: ignore[misc]
    return result.astype(x.dtype, copy=False)


def bitwise(op: Operator, a: object, b: object, dtype: DType) -> np.ndarray:
    """Bit patterns at the width of `dtype`; shifts are logical, a count of the width or more gives 0."""
    bits = _pattern(a, dtype)
    if op.is_unary:
        result = op.formula(bits)  # type: ignore[misc]
    elif op.name in SHIFTS:
        result = _shift(op, bits, b, 8 * dtype.itemsize)
    else:
        result = op.formula(bits, _pattern(b, dtype))  # type: ignore[misc]
    if dtype.is_bool:
        return (result & np.uint8(1)).view(np.bool_)
    return result.view(dtype.storage)


def _pattern(value: Any, dtype: DType) -> np.ndarray:
    """An integer or an array of them as unsigned integers of the width of `dtype`."""
    if not is_array(value):
        return np.asarray(int(value) % (1 << 8 * dtype.itemsize), dtype.bits)
    if value.itemsize == dtype.itemsize:
        return dtypes.bits(value)
    return value.astype(dtype.bits)


def _shift(op: Operator, bits: np.ndarray, count: Any, width: int) -> np.ndarray:
    if is_array(count):
        if count.dtype.kind == "i" and not all_hold(count >= 0):
            raise error("op", f"{op!r} by {count.min()}: a shift count is at least 0")
        count = np.minimum(count, count.dtype.type(width)) if count.dtype.kind != "b" else count
        inside = (count % width).astype(bits.dtype)
    else:
        count = min(int(count), width)
        inside = bits.dtype.type(count % width)
    return np.where(count < width, op.formula(bits, inside), bits.dtype.type(0))  # type: ignore[misc]


def store_pattern(dst: np.ndarray, values: np.ndarray) -> None:
    """Truncate or extend integers to the width of dst: by sign where their dtype has one."""
    dst[...] = values if dst.dtype == values.dtype else values.astype(dst.dtype)


def bitwise_stage(op: Operator, x: np.ndarray, operand: Values, reverse: bool, dtype: DType) -> np.ndarray:
    """`bitwise` with a number or a [P, 1] tile as the second operand, or as the first with `reverse`."""
    if is_array(operand):
        operand = operand.reshape(len(operand), *(1,) * (x.ndim - 1))
    if reverse and not op.is_unary:
        return np.broadcast_to(bitwise(op, operand, x, dtype), x.shape)
    return bitwise(op, x, operand, dtype)
