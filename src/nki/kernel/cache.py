"""The program cache: when a call may run the Program that an earlier call recorded (spec/language.md 3.5).

The key of a call holds the kernel's function, its arguments of plain types by type and value, and the
shapes and dtypes of its tensors. An entry also knows everything that the kernel's Python can read (`reads`),
and is used only while all of that is unchanged. Where not everything is known, nothing is cached and the
Python runs at every call. The same holds for kernels that read run-time values, print, or stop in a debugger.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..ir.caches import LRUCache
from ..ir.program import Program
from .reads import Reads, Unknown
from .user_function import plain

LARGEST = 200_000  # instructions of all programs; about 700 bytes each
PROGRAMS = 256
CONSTANT_BYTES = 1024  # of nl.shared_constant data weigh as much as an instruction


class SameFunction:
    """Compares by identity without keeping the function alive."""

    __slots__ = ("ref", "number")

    def __init__(self, function: object):
        try:
            self.ref: Any = weakref.ref(function)
        except TypeError:
            raise Unknown(f"a {type(function).__name__} as a function") from None
        self.number = id(function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameFunction) and self.ref() is not None and self.ref() is other.ref()

    def __hash__(self) -> int:
        return self.number


def call_key(function: object, arguments: object, context: tuple) -> Any:
    """Return the key of a call, from its arguments' key; None when it cannot be told from others."""
    if arguments is None:
        return None
    try:
        return SameFunction(function), arguments, context
    except Unknown:
        return None


class CachedProgram(NamedTuple):
    """A program and what decides whether it may be used again."""

    program: Program
    reads: Reads
    function: weakref.ref
    verified: dict[int, int]  # how often each loop may run: the Python was seen to allow it


class ProgramCache(LRUCache[Any, CachedProgram]):
    """Programs by the key of their call, bounded by the instructions of all of them."""

    def __init__(self, programs: int = PROGRAMS, instructions: int = LARGEST):
        super().__init__(programs, instructions)

    def find(self, key: object) -> CachedProgram | None:
        """Return the program of an equal call, unless something that its Python read has changed."""
        found = self.get(key)
        if found is not None and not found.reads.still_hold() and self.get(key) is found:
            self.discard(key)
        return super().find(key)

    def add(
        self,
        key: object,
        function: Any,
        reads: Reads | None,
        program: Program,
        verified: dict[int, int],
        files: Iterable[tuple[str, str]],
    ) -> None:
        """Cache a program, if everything that its Python can read is known and unchanged.

        `reads` was taken before the Python ran; `files` are those it read on the way: path and content hash.
        """
        if reads is None or not reads.still_hold():
            return
        reads.watch(files)
        constants = sum(raw.nbytes for _, raw in program.constants)
        weight = len(program) + constants // CONSTANT_BYTES + 1
        with self.lock:
            for old in [k for k, entry in self.items() if entry.function() is None]:
                self.discard(old)
            entry = CachedProgram(program, reads, weakref.ref(plain(function)), verified)
            self.put(key, entry, weight)


class ReadValues(LRUCache[Any, Any]):
    """Calls whose Python was seen to read values: the next equal call starts in eager mode at once."""

    def find(self, key: object) -> Any:
        """Return the earlier call, unless something that its Python read has changed."""
        found = self.get(key)
        if found is not None and found.reads is not None and not found.reads.still_hold():
            self.discard(key)
        return super().find(key)


programs = ProgramCache()
read_values = ReadValues(PROGRAMS)


def clear() -> None:
    """Remove every recorded program: each kernel runs its Python at its next call."""
    programs.clear()
    read_values.clear()


def is_debugging() -> bool:
    """Return True under a debugger, whose breakpoints in a kernel must stop every call."""
    tracer = sys.gettrace()
    if tracer is not None and not (getattr(tracer, "__module__", "") or type(tracer).__module__).startswith(
        "coverage"
    ):
        return True
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
