"""What crosses the border between ranks: a closed set of records, as JSON with checked types. No pickle.

Arrays travel beside a record, as bytes; it has their dtypes and shapes. Reading a record calls no constructor
of the user's and imports nothing: another process or machine can change values, but it cannot run code here.
"""

from __future__ import annotations

import builtins
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from math import isfinite, prod
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from ..errors import error
from ..files import parse_json, printable
from ..ir.tree import is_record, record_fields
from ..machine import dtypes

LARGEST = 64 << 20  # bytes of a record


class Arrived(NamedTuple):
    """A rank waits for others; its bytes are in its shared memory."""

    members: list[int]
    lane: int
    number: int
    what: str
    line: str
    start: int
    size: int


class Proceed(NamedTuple):
    """All have arrived: where the bytes of each lie, and which messages of the rank have been read."""

    places: list[list[int]]  # rank, start, size
    free: list[int]


class Failed(NamedTuple):
    """A rank has raised an error."""

    rank: int | None
    kind: str  # of an NkiError, else ""
    type: str  # the nearest built-in exception
    args: list[str | int | float | bool | None]
    notes: list[str]
    help: str | None
    line: list[str | int] | None  # file, number, text, function
    shown: str  # the traceback


class Finished(NamedTuple):
    """A rank has returned: a tree, the arguments it wrote, its diagnostics, and the arrays of these."""

    result: Any
    written: list[list[Any]]  # index, tree
    diagnostics: list[list[Any]]
    arrays: list[list[Any]]  # dtype, shape, start


def dumps(record: Arrived | Proceed | Failed | Finished) -> bytes:
    """Return a record as bytes."""
    return json.dumps([type(record).__name__, *_cleaned(record)], allow_nan=False).encode()


def loads(content: bytes, *expected: type) -> Any:
    """Return the record, one of the expected; ValueError for anything else."""
    if len(content) > LARGEST:
        raise ValueError(f"a record of {len(content):,} bytes")
    value = parse_json(content)
    for cls in expected:
        if isinstance(value, list) and value[:1] == [cls.__name__]:
            forms = get_type_hints(cls).values()
            if len(value) - 1 == len(forms) and all(map(_fits, value[1:], forms)):
                return cls(*value[1:])
    raise ValueError(f"no record of {' or '.join(cls.__name__ for cls in expected)}")


def _fits(value: object, form: Any) -> bool:
    """Whether plain data has the type of an annotation."""
    if form is Any:
        return True
    if get_origin(form) is UnionType:
        return any(_fits(value, part) for part in get_args(form))
    if get_origin(form) is list:
        return isinstance(value, list) and all(_fits(part, get_args(form)[0]) for part in value)
    return type(value) is form


def _cleaned(value: Any) -> Any:
    """Return plain data whose texts can be printed: the reader refuses control characters."""
    if isinstance(value, str):
        return printable(value)
    return [_cleaned(part) for part in value] if isinstance(value, (tuple, list)) else value


# ---- trees of results ----------------------------------------------------------------------------


class TreeWriter:
    """Writes trees as plain data. `arrays` collects their arrays."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []

    def write(self, value: Any) -> Any:
        kind = type(value)
        if kind in (NoneType, bool, int) or kind is float and isfinite(value):
            return value
        if kind in (float, complex, str, bytes):
            raw = value.encode("utf-8", "surrogatepass") if kind is str else value
            return [kind.__name__, raw.hex() if isinstance(raw, bytes) else repr(raw)]
        if kind in (tuple, list):
            return [kind.__name__, [self.write(part) for part in value]]
        if kind is dict:
            return ["dict", [[self.write(key), self.write(part)] for key, part in value.items()]]
        if isinstance(value, dtypes.DType):
            return ["dtype", str(value)]
        if isinstance(value, (np.ndarray, np.generic)):
            self.arrays.append(np.asarray(value))
            return ["array" if isinstance(value, np.ndarray) else "scalar", len(self.arrays) - 1]
        if hasattr(value, "_fields") and isinstance(value, tuple):
            return ["named", kind.__module__, kind.__qualname__, [self.write(part) for part in value]]
        if is_record(value):
            parts = [[name, self.write(getattr(value, name))] for name in record_fields(value)]
            return ["record", kind.__module__, kind.__qualname__, parts]
        raise error(
            "not-supported",
            f"a {kind.__module__}.{kind.__qualname__} cannot be sent from one process to another",
            help="return tensors and plain values, or leave backend='processes' out",
        )


class TreeReader:
    """Reads trees from plain data; ValueError for what TreeWriter does not write."""

    def __init__(self, arrays: Sequence[np.ndarray]):
        self.arrays = arrays

    def read(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        try:
            name, *rest = value
            return self.KINDS[name](self, *rest)
        except (TypeError, AttributeError, LookupError) as problem:
            raise ValueError(f"no part of a result: {problem}") from None

    def _float(self, text: str) -> float:
        return float(text)

    def _complex(self, text: str) -> complex:
        return complex(text)

    def _str(self, text: str) -> str:
        return bytes.fromhex(text).decode("utf-8", "surrogatepass")

    def _bytes(self, text: str) -> bytes:
        return bytes.fromhex(text)

    def _tuple(self, parts: list[Any]) -> tuple:
        return tuple(map(self.read, parts))

    def _list(self, parts: list[Any]) -> list:
        return list(map(self.read, parts))

    def _dict(self, parts: list[list[Any]]) -> dict:
        return {self.read(key): self.read(part) for key, part in parts}

    def _dtype(self, name: str) -> dtypes.DType:
        return dtypes.resolve(name)

    def _array(self, index: int) -> np.ndarray:
        return self.arrays[index]

    def _scalar(self, index: int) -> Any:
        return self.arrays[index][()]

    def _named(self, module: str, name: str, parts: list[Any]) -> Any:
        cls = _loaded_class(module, name)
        fields = getattr(cls, "_fields", None)
        if not issubclass(cls, tuple) or fields is None or len(fields) != len(parts):
            raise ValueError(f"{name} is no named tuple of {len(parts)} fields")
        return tuple.__new__(cls, map(self.read, parts))

    def _record(self, module: str, name: str, parts: list[tuple[str, Any]]) -> Any:
        cls = _loaded_class(module, name)
        if not (dataclasses.is_dataclass(cls) or getattr(cls, "is_nki_object", False) is True):
            raise ValueError(f"{name} is no dataclass")
        made: Any = object.__new__(cls)
        for field, part in parts:
            if isinstance(getattr(cls, field, None), property):
                raise ValueError(f"{field} is computed")
            object.__setattr__(made, field, self.read(part))
        return made

    KINDS: dict[str, Callable[..., Any]] = {
        **{"float": _float, "complex": _complex, "str": _str, "bytes": _bytes, "dtype": _dtype},
        **{"tuple": _tuple, "list": _list, "dict": _dict, "array": _array, "scalar": _scalar},
        **{"named": _named, "record": _record},
    }


def _loaded_class(module: str, name: str) -> type:
    """Return a class of a module that is loaded already."""
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = vars(found)[part]
    if not isinstance(found, type):
        raise ValueError(f"{name} is no class")
    return found


# ---- arrays --------------------------------------------------------------------------------------


def array_head(array: np.ndarray, start: int) -> list[Any]:
    """Return what describes an array whose bytes begin at `start`."""
    known = [text for text in (array.dtype.name, array.dtype.str) if _dtype(text) == array.dtype]
    if not known:
        raise error("not-supported", f"an array of {array.dtype} cannot be sent from one process to another")
    return [known[0], list(array.shape), start]


def described(head: list[Any]) -> tuple[np.dtype, list[int], int, int]:
    """Return the dtype, shape, start and bytes that a head describes; ValueError if it describes none."""
    if len(head) == 3 and all(map(_fits, head, (str, list[int], int))):
        name, shape, start = head
        dtype = _dtype(name)
        if dtype is not None and min([start, *shape]) >= 0:
            return dtype, shape, start, prod(shape) * dtype.itemsize
    raise ValueError("no description of an array")


def _dtype(name: str) -> np.dtype | None:
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        return None
    return None if dtype.hasobject else dtype


# ---- errors --------------------------------------------------------------------------------------

EXCEPTIONS = {
    name: cls
    for name, cls in vars(builtins).items()
    if isinstance(cls, type) and issubclass(cls, Exception) and not issubclass(cls, Warning)
}


def plain_exception(problem: BaseException) -> tuple[str, list[Any]]:
    """Return the nearest built-in exception by name, and its arguments if they are plain, else its text."""
    name = next(cls.__name__ for cls in type(problem).__mro__ if EXCEPTIONS.get(cls.__name__) is cls)
    own = type(problem) is EXCEPTIONS[name]
    if own and all(_fits(arg, str | int | bool | None) for arg in problem.args):
        return name, list(problem.args)
    return name, [str(problem) if own else f"{type(problem).__name__}: {problem}"]


def built_in(name: str, args: list[Any]) -> Exception:
    """Return the built-in exception of a name; RuntimeError if it does not take these arguments."""
    try:
        return EXCEPTIONS[name](*args)
    except (KeyError, TypeError):
        return RuntimeError(*args)
