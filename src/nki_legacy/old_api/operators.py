"""Operators on tensors of the old API: each becomes an `nl` function."""

from __future__ import annotations

from typing import Any


class Operators:
    """`a + b`, `a += b`, `a < b` and their kind."""

    __array_ufunc__ = None
    __hash__ = object.__hash__


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
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
_UNARY = {"neg": "negative", "invert": "invert", "abs": "abs"}
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


FUNCTIONS: dict[str, Any] = {}  # filled by those who have them: tensors are below the language


def _function(name: str) -> Any:
    return FUNCTIONS[name]


def _give(short: str, name: str) -> None:
    def forward(self: Any, other: Any) -> Any:
        if other is None or isinstance(other, str):
            return NotImplemented
        return _function(name)(self, other)

    def backward(self: Any, other: Any) -> Any:
        return _function(name)(other, self)

    def inplace(self: Any, other: Any) -> Any:
        return _function("accumulate")(self, other, name)

    methods = {f"__{short}__": forward}
    if short not in _COMPARISONS:
        methods |= {f"__r{short}__": backward, f"__i{short}__": inplace}
    for method, function in methods.items():
        function.__name__ = method
        setattr(Operators, method, function)


for _short, _name in _BINARY.items():
    _give(_short, _name)
for _short, _name in _UNARY.items():
    setattr(Operators, f"__{_short}__", lambda self, name=_name: _function(name)(self))
