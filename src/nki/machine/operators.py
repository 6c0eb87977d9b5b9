"""Operators: the `nl` functions as `op=` arguments of instructions.

Each has its formula here, on float32 arrays (spec/isa.md 2 and 3). `nki.language` adds the function that runs
when a kernel calls `nl.add(x, y)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import error, nearest
from . import activations as special

Formula = Callable[..., np.ndarray]


class Operator:
    """`nl.add` and its kind. Identity is equality; use them as dict keys and `op=` arguments.

    kind is "arithmetic", "comparison", "logical", "bitwise" (bit patterns of integers), "unary",
    "bitwise-unary", "activation" (ScalarE functions alone) or "token" (has no call of its own).
    """

    def __init__(
        self,
        name: str,
        kind: str,
        formula: Formula | None = None,
        activation: Formula | None = None,
        since: int = 2,
    ):
        self.name = name
        self.kind = kind
        self.formula = formula
        self.activation = activation
        self.since = since  # oldest generation whose ALU has it
        self.function: Callable | None = None
        self.__doc__ = "An operator token."

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def is_unary(self) -> bool:
        return self.kind in ("unary", "bitwise-unary", "activation")

    @property
    def is_bitwise(self) -> bool:
        return self.kind.startswith("bitwise")

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if self.function is None:
            raise TypeError(f"{self!r} is an operator token: pass it as op=, it cannot be called")
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Operator:
        return self  # like a static function on a class; with it help() shows a function

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __reduce__(self) -> tuple[Callable[[str], Operator], tuple[str]]:
        return (find, (self.name,))

    def __copy__(self) -> Operator:
        return self

    def __deepcopy__(self, memo: object) -> Operator:
        return self


def _abs_max(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(np.abs(a) > np.abs(b), a, b)


def _abs_min(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(np.abs(a) < np.abs(b), a, b)


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return np.float32(1) / np.sqrt(x)


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, np.float32(0))


OPERATORS: dict[str, Operator] = {}


def _define(kind: str, **formulas: Formula | None) -> None:
    for name, formula in formulas.items():
        OPERATORS[name] = Operator(name, kind, formula)


def _numpy(*names: str) -> dict[str, Formula]:
    """Return numpy's functions of these names."""
    return {name: getattr(np, name) for name in names}


_ARITHMETIC = _numpy("add", "subtract", "multiply", "maximum", "minimum", "power")
_COMPARISON = _numpy("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_LOGICAL = _numpy("logical_and", "logical_or", "logical_xor")
_BITWISE = _numpy("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")

_define("arithmetic", **_ARITHMETIC, divide=np.true_divide, mod=np.mod, fmod=np.fmod)
_define("arithmetic", abs_max=_abs_max, abs_min=_abs_min)
_define("comparison", **_COMPARISON)
_define("logical", **_LOGICAL)
_define("bitwise", **_BITWISE)
_define("bitwise-unary", invert=np.invert)
_define("unary", abs=np.abs, square=np.square, relu=_relu, rsqrt=_rsqrt, reciprocal=np.reciprocal)
_define("activation", **special.ACTIVATIONS_ONLY)
_define("token", average=None, prelu=None, bypass=None)
_define("function", logical_not=None, negative=np.negative, ceil=np.ceil, floor=np.floor, trunc=np.trunc)
_define("function", cos=special.cos, tan=special.tan)

for _name, _function in special.ACTIVATIONS.items():
    OPERATORS[_name].activation = _function
for _name in ("abs_max", "abs_min", "square", "relu"):
    OPERATORS[_name].since = 4

# what numpy calls an operator: the ufunc of its name, and the reductions
_UNARY = _numpy("invert", "abs", "square", "exp", "log", "sqrt", "sin", "tanh", "sign", "reciprocal")
_NAMED = _ARITHMETIC | _COMPARISON | _LOGICAL | _BITWISE | _UNARY
_NUMPY: dict[Any, str] = {function: name for name, function in _NAMED.items()}
_NUMPY |= {np.max: "maximum", np.min: "minimum", np.sum: "add", np.prod: "multiply"}


def find(name: str) -> Operator:
    return OPERATORS[name]


def resolve(op: object, function: str, argument: str = "op") -> Operator:
    """Return the operator for an nl function, the numpy ufunc of the same meaning, or nl.max for maximum."""
    if isinstance(op, Operator):
        return op
    reduction = getattr(op, "operator", None)
    if isinstance(reduction, Operator):
        return reduction
    try:
        name = _NUMPY.get(op)  # type: ignore[call-overload]
    except TypeError:
        name = None
    if name is not None:
        return OPERATORS[name]
    close = nearest(op, OPERATORS) if isinstance(op, str) else None
    got = "a tensor: the arguments are in another order" if hasattr(op, "shape") else repr(op)
    raise error(
        "op",
        f"{function}: {argument} must be an nl operator, got {got}",
        help=f"pass nl.{close}" if close else "pass one like nl.add or nl.maximum",
    )
