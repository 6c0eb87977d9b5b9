"""The program cache: when a call may replay what an earlier call recorded (language.md 3.5).

The key of a call holds the kernel's function with its closure and defaults, the compile-time arguments
and the shapes and dtypes of its tensors. Module variables that the kernel's functions name are compared
too, so an edited constant or a redefined helper runs the Python again. Not cached: kernels on two cores,
kernels that looked at run-time values, ran a dynamic loop, print or stop in a debugger, programs of more
than `LONGEST` instructions, and calls with an argument that cannot be compared, such as an open file.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from . import dtypes
from .arguments import framework_of, is_description, is_dtype, is_record, record_fields
from .execute.replay import Recording
from .operators import Operator
from .storage import Storage
from .view import View

LONGEST = 50_000  # instructions of one program
KEPT = 200_000  # instructions of all programs; about 700 bytes each
PROGRAMS = 256
CONSTANT_BYTES = 1024  # of nl.shared_constant data weigh as much as an instruction


class NotCacheable(Exception):
    """The call cannot be told from another one."""


class Leaf(NamedTuple):
    """A tensor among the arguments of a call."""

    name: str
    value: Any
    framework: Any  # None: a description


# ---- the key of a call ---------------------------------------------------------------------------


class Same:
    """Compares by identity and keeps the object alive, so that its id stays its own."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class SameFunction:
    """Compares by identity without keeping the function alive."""

    __slots__ = ("ref", "number")

    def __init__(self, function: Any):
        self.ref = weakref.ref(function)
        self.number = id(function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameFunction) and self.ref() is not None and self.ref() is other.ref()

    def __hash__(self) -> int:
        return self.number


class Keys:
    """Turns the values of one call into parts of its key, and collects its tensors on the way."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self._open: set[int] = set()  # containers and functions being looked at: they may hold themselves

    def of(self, value: Any, name: str = "") -> Any:
        """Something hashable that is equal for equal values. With a `name`, arrays are tensor arguments."""
        kind = value.__class__
        if value is None or kind in (int, bool, str, bytes):
            return (kind, value)
        if kind is float:
            return (kind, value.hex())  # tells -0.0 from 0.0, and NaN equals NaN
        if isinstance(value, np.generic):
            return self.of(value.item())
        framework = framework_of(value)
        if framework is not None or is_description(value):
            return self._tensor(value, framework, name)
        if is_dtype(value):
            return (dtypes.DType, _dtype(value))
        if id(value) in self._open:
            return (kind, "itself")
        self._open.add(id(value))
        try:
            return (kind, self._compound(value, name))
        finally:
            self._open.remove(id(value))

    def _compound(self, value: Any, name: str) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple(self.of(v, f"{name}[{i}]" if name else "") for i, v in enumerate(value))
        if type(value) in (dict, OrderedDict):
            return tuple((self.of(k), self.of(v, f"{name}[{k!r}]" if name else "")) for k, v in value.items())
        if is_record(value):
            return tuple(
                (field, self.of(getattr(value, field), f"{name}.{field}" if name else ""))
                for field in record_fields(value)
            )
        return self._opaque(value)

    def _tensor(self, value: Any, framework: Any, name: str) -> Any:
        if not name:  # in a closure or an object: its values may change between calls
            raise NotCacheable
        self.leaves.append(Leaf(name, value, framework))
        return ("tensor", tuple(value.shape), _dtype(value.dtype))

    def _opaque(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, types.MethodType):
            return self.of(value.__func__), self.of(value.__self__)
        if isinstance(value, functools.partial):
            return self.of(value.func), self.of(value.args), self.of(value.keywords)
        if hasattr(type(value), "with_schedule"):  # a Kernel
            return self.of(value._state)
        if isinstance(value, (type, Enum, Operator, types.ModuleType, types.BuiltinFunctionType)):
            return Same(value)
        if isinstance(value, (View, Storage)):
            raise NotCacheable
        if type(value).__hash__ is not object.__hash__:
            return self._hashable(value)
        fields = getattr(value, "__dict__", None)
        if fields is None:
            raise NotCacheable
        return Same(value), self.of(fields)

    @staticmethod
    def _hashable(value: Any) -> Any:
        try:
            hash(value)
        except TypeError:
            raise NotCacheable from None
        return value

    def function(self, function: types.FunctionType, with_defaults: bool = True) -> Any:
        """A function is told by identity, code, defaults, and what its closure holds."""
        cells = function.__closure__ or ()
        held = tuple(self.of(cell.cell_contents) if _is_filled(cell) else None for cell in cells)
        parts = [SameFunction(function), Same(function.__code__), held]
        if with_defaults:
            parts += [self.of(function.__defaults__), self.of(function.__kwdefaults__)]
        return tuple(parts)

    def kernel(self, function: Any) -> Any:
        """The function of the call itself: its defaults are among the arguments."""
        plain = isinstance(function, types.FunctionType)
        return self.function(function, with_defaults=False) if plain else self.of(function)

    def arguments(self, bound: inspect.BoundArguments) -> Any:
        """The bound arguments, under the names their tensors have in the kernel."""
        parts = []
        for name, value in bound.arguments.items():
            if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                parts += [(k, self.of(v, k)) for k, v in value.items()]
            else:
                parts.append((name, self.of(value, name)))
        return tuple(parts)


def call_key(function: Any, bound: inspect.BoundArguments, circumstances: tuple) -> tuple[Any, list[Leaf]]:
    """The key of a call and the tensors among its arguments; None when it cannot be cached."""
    keys = Keys()
    try:
        return (keys.kernel(function), keys.arguments(bound), circumstances), keys.leaves
    except (NotCacheable, RecursionError):
        return None, []


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=1024)
def _dtype(dtype: Any) -> dtypes.DType:
    try:
        return dtypes.resolve(dtype)
    except TypeError:  # the run itself says what is wrong
        raise NotCacheable from None


# ---- what the kernel's functions read of their modules -------------------------------------------

_SHOWS_EVERY_CALL = {"print", "breakpoint", "input"}
_DEBUGGERS = {"pdb", "ipdb", "pudb", "debugpy"}
_LIBRARIES = {"numpy", "ml_dtypes", "torch", "jax", "jaxlib", "nki"}


class Reads:
    """The module variables a kernel depends on, through its helpers too: (namespace, name, value)."""

    def __init__(self, function: Any):
        self.names: list[tuple[dict[str, Any], str, Any]] = []
        self.prints = False
        self._seen: set[int] = set()
        self._follow(function)

    def still_hold(self) -> bool:
        return all(_is_same(namespace.get(name, _MISSING), value) for namespace, name, value in self.names)

    def _follow(self, value: Any) -> None:
        value = _innermost(value)
        if isinstance(value, type):
            for member in list(vars(value).values()):
                if isinstance(member, types.FunctionType):
                    self._follow(member)
        if not isinstance(value, types.FunctionType) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if _is_library(value.__module__):
            return
        for cell in value.__closure__ or ():
            if _is_filled(cell):
                self._follow(cell.cell_contents)
        for code in _codes(value.__code__):
            self._read(code, value.__globals__)

    def _read(self, code: types.CodeType, namespace: dict[str, Any]) -> None:
        modules = []
        for name in code.co_names:
            value = namespace.get(name, _MISSING)
            if value is _MISSING:
                self.prints = self.prints or name in _SHOWS_EVERY_CALL
            elif isinstance(value, types.ModuleType):
                self.prints = self.prints or value.__name__ in _DEBUGGERS
                if not _is_library(value.__name__):
                    modules.append(vars(value))
            else:
                self._note(namespace, name, value)
        for module in modules:
            for name in code.co_names:
                if name in module:
                    self._note(module, name, module[name])

    def _note(self, namespace: dict[str, Any], name: str, value: Any) -> None:
        if _is_constant(value) or isinstance(value, type) or callable(value):
            self.names.append((namespace, name, value))
            if callable(value):
                self._follow(value)


_MISSING = object()


def _innermost(value: Any) -> Any:
    """The function inside kernels, partials, methods and other wrappers."""
    for _ in range(8):
        inner = [getattr(value, name, None) for name in ("__wrapped__", "__func__", "func")]
        value = next((found for found in inner if callable(found)), value)
    return value


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _is_library(module: str | None) -> bool:
    root = (module or "").partition(".")[0]
    return root in _LIBRARIES or root in sys.stdlib_module_names


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, (int, float, str))


def _is_same(now: Any, then: Any) -> bool:
    return now is then or (now.__class__ is then.__class__ and _is_constant(then) and repr(now) == repr(then))


# ---- the cache -----------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A recording with what is needed to hand it out again."""

    recording: Recording
    reads: Reads
    function: weakref.ref
    weight: int


class ProgramCache:
    """Recordings by key, the least recently used forgotten first. Safe under threads and after a fork."""

    def __init__(self, programs: int = PROGRAMS, instructions: int = KEPT):
        self.programs, self.instructions = programs, instructions
        self.kept: OrderedDict[Any, Kept] = OrderedDict()
        self.weight = 0
        self.lock = threading.Lock()

    def find(self, key: Any) -> Kept | None:
        """The recording of an equal call, unless a module variable it depends on has changed."""
        with self.lock:
            found = self.kept.get(key)
            if found is None:
                return None
            self.kept.move_to_end(key)
        if found.reads.still_hold():
            return found
        self._forget([key])
        return None

    def keep(self, key: Any, function: Any, recording: Recording) -> None:
        """Keep a recording for the calls to come."""
        reads = Reads(function)
        constants = sum(raw.nbytes for _, raw in recording.constants)
        weight = len(recording) + constants // CONSTANT_BYTES + 1
        if reads.prints or weight > self.instructions:
            return
        kept = Kept(recording, reads, weakref.ref(function), weight)
        self._forget([key, *(k for k, old in list(self.kept.items()) if old.function() is None)])
        with self.lock:
            self.kept[key] = kept
            self.weight += weight
            while self.weight > self.instructions or len(self.kept) > self.programs:
                _, oldest = self.kept.popitem(last=False)
                self.weight -= oldest.weight

    def _forget(self, keys: list[Any]) -> None:
        with self.lock:
            for key in keys:
                old = self.kept.pop(key, None)
                if old is not None:
                    self.weight -= old.weight

    def clear(self) -> None:
        """Forget every program."""
        self._forget(list(self.kept))


programs = ProgramCache()


def clear() -> None:
    """Forget every recorded program: each kernel runs its Python at its next call."""
    programs.clear()


def is_debugging() -> bool:
    """True under a debugger, whose breakpoints in a kernel must be met at every call."""
    tracer = sys.gettrace()
    if tracer is not None and not (getattr(tracer, "__module__", "") or type(tracer).__module__).startswith(
        "coverage"
    ):
        return True
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None


def _after_fork() -> None:
    programs.lock = threading.Lock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
