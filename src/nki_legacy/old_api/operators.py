"""Python's operators on tensors of the old API.

Each is an `nl` function. Tensors are below these functions, so they get their operators here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .assignment import assign
from .elementwise import ELEMENTWISE, accumulate
from .tensor import Tensor, Updated, index

_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "pow": "power",
    "mod": "mod",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
}
_COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
_UNARY = {"neg": "negative", "invert": "invert", "abs": "abs"}


def _forward(name: str) -> Callable:
    function = ELEMENTWISE[name]

    def operator(self: Any, other: Any) -> Any:
        if other is None or isinstance(other, str):
            return NotImplemented
        return function(self, other)

    return operator


def _backward(name: str) -> Callable:
    function = ELEMENTWISE[name]
    return lambda self, other: function(other, self)


def _in_place(name: str) -> Callable:
    return lambda self, other: accumulate(self, other, name)


def _set_item(self: Tensor, key: Any, value: Any) -> None:
    if not isinstance(value, Updated):  # t[key] += value has been done
        assign(index(self, key), value)


_OPERATORS: dict[str, Callable] = {
    **{f"__{short}__": _forward(name) for short, name in {**_BINARY, **_COMPARISONS}.items()},
    **{f"__r{short}__": _backward(name) for short, name in _BINARY.items()},
    **{f"__i{short}__": _in_place(name) for short, name in _BINARY.items()},
    **{f"__{short}__": lambda self, name=name: ELEMENTWISE[name](self) for short, name in _UNARY.items()},
    "__setitem__": _set_item,
}


def give_operators() -> None:
    """Give tensors Python's operators."""
    for method, function in _OPERATORS.items():
        setattr(Tensor, method, function)
