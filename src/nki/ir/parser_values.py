"""Reads the values of a listing: numbers, texts, views, registers, enums, records. Nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NoReturn

import ml_dtypes  # noqa: F401  names of numpy dtypes
import numpy as np

from ..files import printable
from ..machine import dtypes
from ..machine.engines import FastEnum
from ..machine.memories import MemoryRegion
from ..machine.operators import OPERATORS
from .layout import Indirection, Shape, row_major
from .storage import Storage
from .tree import leaves
from .view import View

LARGEST = 1 << 48  # bytes, elements, positions: more than any of them can be
RECORDS: dict[str, Callable[..., Any]] = {}  # classes of options, by the name a listing gives them
REGISTER: list[Callable[[Any], Any]] = []  # the class of registers


def register_value(name: str) -> Callable:
    """Let a record of this name in a listing be made by the decorated class."""

    def register(cls: Any) -> Any:
        RECORDS[name] = cls
        return cls

    return register


class Damaged(Exception):
    """A listing that cannot be read."""


class ValueReader:
    """Reads values; it knows the storages and registers that were declared."""

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}
        self.registers: dict[str, Any] = {}

    def call(self, node: ast.expr) -> tuple[str, list, dict]:
        if not isinstance(node, ast.Call):
            raise Damaged("a call is missing")
        args = [self._value(arg) for arg in node.args]
        kwargs = {str(k.arg): self._value(k.value) for k in node.keywords}
        return ast.unparse(node.func), args, kwargs

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand)
            if not isinstance(value, (int, float)):
                raise Damaged("only numbers are negative")
            return -value
        if isinstance(node, (ast.Tuple, ast.List)):
            items = [self._value(item) for item in node.elts]
            return tuple(items) if isinstance(node, ast.Tuple) else items
        if isinstance(node, ast.Dict):
            keys = [self._value(key) for key in node.keys if key is not None]
            return dict(zip(keys, map(self._value, node.values), strict=True))
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.Subscript):
            return self._part(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._made(node)
        raise Damaged("a value of an unknown form")

    def _named(self, name: str) -> Any:
        if name in self.storages:
            storage = self.storages[name]
            return View(storage, 0, Shape(storage.shape), row_major(storage.shape), storage.dtype)
        if name in self.registers:
            return self.registers[name]
        if name in MemoryRegion.__members__:
            return MemoryRegion[name]
        return dtypes.resolve(name)

    def _part(self, node: ast.Subscript) -> View:
        whole, part = self._value(node.value), node.slice
        if not isinstance(whole, View) or not isinstance(part, ast.Slice):
            raise Damaged("no part of a storage")
        assert part.lower is not None and part.upper is not None and part.step is not None
        offset, shape = as_count(self._value(part.lower)), tuple(map(as_size, self._value(part.upper)))
        strides = tuple(map(as_count, self._value(part.step)))
        if len(shape) != len(strides):
            raise Damaged("as many strides as sizes")
        return View(whole.storage, offset, Shape(shape), strides, whole.dtype)

    def _attribute(self, node: ast.Attribute) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id in ENUMS:
            return ENUMS[node.value.id][node.attr]
        view = self._value(node.value)
        if not isinstance(view, View):
            raise Damaged("only views have a dtype")
        return View(view.storage, view.offset, view.shape, view.strides, dtypes.resolve(node.attr))

    def _made(self, node: ast.Call) -> Any:
        name, args, kwargs = self.call(node)
        if name in ("scalar", "vector", "tensor") and args and isinstance(args[0], View):
            view, index, scale, dim, *base = args
            if dim is not None and as_count(dim) >= len(view.shape):
                raise Damaged("a run-time index has a dimension of its view")
            ind = Indirection(name, index, as_count(scale), dim, base[0] if base else None)
            return View(view.storage, view.offset, view.shape, view.strides, view.dtype, ind)
        if name == "number":
            return float(as_text(args[0]))
        if name == "op":
            return OPERATORS[as_text(args[0])]
        if name == "scalar":
            raw, dtype = bytes.fromhex(as_text(args[1])), np.dtype(as_text(args[0]))
            return np.frombuffer(raw, dtype)[0] if len(raw) == dtype.itemsize else _wrong("a number", args[1])
        if name == "record":
            if any(name.startswith("__") for name in kwargs):
                raise Damaged("a field that Python uses")
            made = RECORDS.get(as_text(args[0]))
            return Record.named(as_name(args[0]), kwargs) if made is None else made(**kwargs)
        raise Damaged(f"{name} makes no value")


class Record:
    """A dataclass or named tuple among the results of a program that was read: a class of its name."""

    is_nki_object = True

    def __init__(self, fields: Mapping[str, object]):
        self.__dict__.update(fields)

    @staticmethod
    def named(name: str, fields: Mapping[str, object]) -> Record:
        return type(name, (Record,), {})(fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class _Enums(dict[str, Any]):
    """The enums of nki.isa by name, as they come to exist."""

    def __missing__(self, name: str) -> type[Enum]:
        for cls in FastEnum.__subclasses__():
            if cls.__name__ == name:
                self[name] = cls
                return cls
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(cls.__name__ == name for cls in FastEnum.__subclasses__())


ENUMS = _Enums()


def check_views(value: object) -> None:
    """Check that every view of a tree, and of its indices, lies inside its storage."""
    for view in leaves(value, View):
        ind, spans = view.indirection, [(n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)]
        if ind is not None:
            check_views([ind.index, ind.base])
            spans = spans[1:] if ind.kind == "vector" else spans
        if (view.offset + sum(spans) + 1) * view.dtype.itemsize > view.storage.nbytes:
            raise Damaged(f"a view of {view.storage!r} reaches outside it")


def as_name(value: object) -> str:
    """Return a text that is shown: without control characters, which a terminal would obey."""
    text = as_text(value)
    return text if printable(text) == text else _wrong("a printable text", text)


def as_whole(value: object) -> int:
    return value if isinstance(value, int) and abs(value) < LARGEST else _wrong("a whole number", value)


def as_text(value: object) -> str:
    return value if isinstance(value, str) else _wrong("a text", value)


def as_count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
        _wrong("a whole number", value)
    return value


def as_size(value: object) -> int:
    return as_count(value) or _wrong("a size", value)


def _wrong(wanted: str, value: object) -> NoReturn:
    raise Damaged(f"{wanted} is missing, there is {str(value)[:40]!r}")
