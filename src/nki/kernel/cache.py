"""The program cache: when a call may replay what an earlier call did (spec/language.md 3.5).

The key of a call holds the kernel's function, its arguments of plain types by type and value, and the
shapes and dtypes of its tensors. An entry also knows all that the kernel's Python can read (`reads`), and
is used only while that is what it was. Programs that cannot be known so well are not kept: then the Python
runs at every call. So it does for kernels that looked at run-time values, print, or stop in a debugger.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..ir import tree
from ..ir.program import Program
from ..machine import dtypes
from .bridges import framework_of, is_description, is_dtype
from .reads import Reads, Same, Unknown, frozen
from .user_function import plain

LONGEST = 100_000  # instructions of one program
KEPT = 200_000  # instructions of all programs; about 700 bytes each
PROGRAMS = 256
CONSTANT_BYTES = 1024  # of nl.shared_constant data weigh as much as an instruction


class Leaf(NamedTuple):
    """A tensor among the arguments of a call."""

    name: str
    value: Any
    framework: Any  # None: a description


# ---- the key of a call ---------------------------------------------------------------------------


def call_key(function: Any, bound: inspect.BoundArguments, circumstances: tuple) -> tuple[Any, list[Leaf]]:
    """The key of a call and the tensors among its arguments; None when it cannot be told from others."""
    leaves: list[Leaf] = []
    try:
        parts = []
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                parts += [(k, _argument(v, k, leaves)) for k, v in value.items()]
            else:
                parts.append((name, _argument(value, name, leaves)))
        return (SameFunction(function), tuple(parts), circumstances), leaves
    except (Unknown, RecursionError):
        return None, []


class SameFunction:
    """Compares by identity without keeping the function alive."""

    __slots__ = ("ref", "number")

    def __init__(self, function: Any):
        try:
            self.ref: Any = weakref.ref(function)
        except TypeError:
            raise Unknown(f"a {type(function).__name__} as a function") from None
        self.number = id(function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameFunction) and self.ref() is not None and self.ref() is other.ref()

    def __hash__(self) -> int:
        return self.number


def _argument(value: Any, name: str, leaves: list[Leaf]) -> Any:
    """An argument's part of the key; its tensors count by shape and dtype, and are collected."""
    kind = value.__class__
    if value is None or kind in (int, bool, str):
        return (kind, value)
    if isinstance(value, np.generic):
        return _argument(value.item(), name, leaves)
    framework = framework_of(value)
    if framework is not None or is_description(value):
        leaves.append(Leaf(name, value, framework))
        return ("tensor", tuple(value.shape), _dtype(value.dtype))
    if is_dtype(value):
        return (dtypes.DType, _dtype(value))
    container = tree.container_of(value)
    if container is None:
        return Same(value) if _is_followed(value) else frozen(value)
    ways = [(way, _argument(child, f"{name}{way}", leaves)) for way, child in container.children(value)]
    return (kind, tuple(ways), tuple(map(frozen, value)) if isinstance(value, dict) else ())


def _is_followed(value: Any) -> bool:
    """Functions and classes count by identity here, and `Reads` watches what they hold."""
    return isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type, np.ufunc)) or hasattr(
        type(value), "with_schedule"
    )


@lru_cache(maxsize=1024)
def _dtype(dtype: Any) -> dtypes.DType:
    try:
        return dtypes.resolve(dtype)
    except TypeError:  # the run itself says what is wrong
        raise Unknown(str(dtype)) from None


# ---- the cache -----------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A program with what is needed to hand it out again."""

    program: Program
    reads: Reads
    function: weakref.ref
    verified: dict[int, int]  # how often each loop may run: the Python was seen to allow it
    weight: int


class ProgramCache:
    """Programs by key, the least recently used forgotten first. Safe under threads and after a fork."""

    def __init__(self, programs: int = PROGRAMS, instructions: int = KEPT):
        self.programs, self.instructions = programs, instructions
        self.kept: OrderedDict[Any, Kept] = OrderedDict()
        self.weight = 0
        self.hits = self.misses = 0
        self.lock = threading.Lock()

    def find(self, key: Any) -> Kept | None:
        """The program of an equal call, unless something that its Python read has changed."""
        with self.lock:
            found = self.kept.get(key)
            if found is not None:
                self.kept.move_to_end(key)
        holds = found is not None and found.reads.still_hold()
        with self.lock:
            if holds:
                self.hits += 1
                return found
            self.misses += 1
            if found is not None and self.kept.get(key) is found:
                self._drop(key)
        return None

    def keep(
        self,
        key: Any,
        function: Any,
        reads: Reads | None,
        program: Program,
        verified: dict[int, int],
        files: Iterable[tuple[str, str]],
    ) -> None:
        """Keep a program for the calls to come, if all that its Python can read is known and as it was.

        `reads` was taken before the Python ran, `files` are those it read on the way: path and digest.
        """
        constants = sum(raw.nbytes for _, raw in program.constants)
        weight = len(program) + constants // CONSTANT_BYTES + 1
        if weight > self.instructions:
            return
        if reads is None or not reads.still_hold():
            return
        reads.watch(files)
        kept = Kept(program, reads, weakref.ref(plain(function)), verified, weight)
        with self.lock:
            for old in [k for k, entry in self.kept.items() if entry.function() is None or k == key]:
                self._drop(old)
            self.kept[key] = kept
            self.weight += weight
            while self.weight > self.instructions or len(self.kept) > self.programs:
                self._drop(next(iter(self.kept)))

    def _drop(self, key: Any) -> None:
        """Forget an entry; the lock is held."""
        old = self.kept.pop(key, None)
        if old is not None:
            self.weight -= old.weight

    def clear(self) -> None:
        """Forget every program."""
        with self.lock:
            self.kept.clear()
            self.weight = 0


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
