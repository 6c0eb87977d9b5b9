"""Spaces: the configurations that a tuner may choose from."""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from ..errors import error

Config = dict[str, Any]
Where = str | Callable[[Config], bool] | None


class Space:
    """Every combination of the values of each name for which `where` holds.

    `where` is an expression over the names, like "TM*TN <= 65536", or a function of a configuration.
    """

    def __init__(self, vary: Mapping[str, Sequence[object]], where: Where = None):
        self.vary = {name: list(values) for name, values in vary.items()}
        for name, values in self.vary.items():
            if not values:
                raise error("tune-space", f"{name} has no value to choose from")
        if not self.vary:
            raise error("tune-space", "there is nothing to vary", help='vary={"TN": [128, 256, 512]}')
        self.text = where if isinstance(where, str) else None
        self.where = Condition(where, set(self.vary)) if isinstance(where, str) else where

    @property
    def size(self) -> int:
        """Return the number of combinations, including those that `where` refuses."""
        return prod(len(values) for values in self.vary.values())

    def __iter__(self) -> Iterator[Config]:
        for values in itertools.product(*self.vary.values()):
            config = dict(zip(self.vary, values, strict=True))
            if self.allows(config):
                yield config

    def allows(self, config: Config) -> bool:
        return self.where is None or bool(self.where(config))

    def key(self) -> tuple[list[list[Any]], str | list[Config] | None]:
        """Return what identifies the space in a cache."""
        condition = self.text if self.text is not None else None if self.where is None else list(self)
        return [[name, values] for name, values in self.vary.items()], condition


# ---- from the command line -----------------------------------------------------------------------


def parse_vary(text: str) -> tuple[str, list[Any]]:
    """`TN=128,256,512`, `BUFFERS=1..4` or `K=0..512..64` as a name and its values."""
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals or not name.isidentifier() or not values.strip():
        raise error("tune-space", f"--vary {text}: write NAME=VALUES", help="TN=128,256,512 or BUFFERS=1..4")
    found: list[Any] = []
    for part in values.split(","):
        found += _values(part.strip(), text)
    return name, list(dict.fromkeys(found))


def _values(part: str, text: str) -> list[Any]:
    match = re.fullmatch(r"(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?", part)
    if match is not None:
        low, high, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if high < low or step < 1:
            raise error("tune-space", f"--vary {text}: {part} is an empty range")
        return list(range(low, high + 1, step))
    try:
        return [ast.literal_eval(part)]
    except (ValueError, SyntaxError):
        return [part]


# ---- conditions ----------------------------------------------------------------------------------

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class Condition:
    """An expression over the names of a space: arithmetic, comparisons, and, or, not; nothing else runs."""

    def __init__(self, text: str, names: set[str]):
        self.text, self.names = text, names
        try:
            self.body = ast.parse(text, mode="eval").body
        except SyntaxError:
            raise self._wrong("it is no expression") from None
        self._check(self.body)

    def _wrong(self, why: str) -> Exception:
        return error("tune-space", f"where {self.text!r}: {why}", help='write it like "TM*TN <= 65536"')

    def _check(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name) and node.id not in self.names:
            raise self._wrong(f"{node.id} is not varied")
        allowed = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Name, ast.Constant)
        parts = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)
        if not isinstance(node, (*allowed, *parts)):
            raise self._wrong(f"{type(node).__name__} is not allowed in it")
        for child in ast.iter_child_nodes(node):
            self._check(child)

    def __call__(self, config: Config) -> bool:
        try:
            return bool(self._value(self.body, config))
        except (TypeError, ZeroDivisionError, KeyError) as problem:
            raise self._wrong(str(problem)) from None

    def _value(self, node: ast.expr, config: Config) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return config[node.id]
        if isinstance(node, ast.BinOp):
            return _BINARY[type(node.op)](self._value(node.left, config), self._value(node.right, config))
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, config)
            return not value if isinstance(node.op, ast.Not) else -value
        if isinstance(node, ast.BoolOp):
            values = (self._value(part, config) for part in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        assert isinstance(node, ast.Compare)
        left = self._value(node.left, config)
        for op, part in zip(node.ops, node.comparators, strict=True):
            right = self._value(part, config)
            if not _COMPARE[type(op)](left, right):
                return False
            left = right
        return True
