"""The program cache: when a call may run the Program that an earlier call recorded (spec/language.md 3.5).

The key of a call holds the kernel's function, its arguments of plain types by type and value, and the
shapes and dtypes of its tensors. An entry also has a snapshot of everything that the kernel's Python can
read, and is used only while all of that is unchanged. Where not everything is known, the Python runs at every
call, as it does in a debugger.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import emit_warning, user_site
from ..files import open_regular
from ..ir.caches import LRUCache
from ..ir.program import Program
from .snapshot import Snapshot, Unknown

INSTRUCTION_BYTES = 1000  # of a cached program, with its lowered form
ENTRY_BYTES = 20_000  # of a snapshot, and of what every program has
MANY = 1000  # functions whose calls are counted, before those that are gone are forgotten
THRASHING = 16  # programs that were recorded again because they had been evicted


class SameFunction:
    """Compares by identity without keeping the function alive."""

    __slots__ = ("ref", "number")

    def __init__(self, function: object):
        self.ref: weakref.ref[Any] = weakref.ref(function)
        self.number = id(function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameFunction) and self.ref() is not None and self.ref() is other.ref()

    def __hash__(self) -> int:
        return self.number


@dataclass(frozen=True)
class CacheInfo:
    """What the program cache did for the calls of a kernel."""

    hits: int  # calls that skipped the kernel's Python
    misses: int
    entries: int
    bytes: int  # of these entries, estimated
    cacheable: bool
    reason: str | None = None  # why the Python runs at every call: file, line and what it uses there


class CachedProgram(NamedTuple):
    """A program and what decides whether it may be used again."""

    program: Program | None  # None: the Python reads values of tensors, so the call starts in eager mode
    snapshot: Snapshot | None
    files: tuple[tuple[str, str], ...]  # that the Python read through nki: path, content hash
    verified: dict[int, int]  # how often each loop may run: the Python was seen to allow it

    def holds(self) -> bool:
        """Return True if nothing that the Python read has changed."""
        return (self.snapshot is None or self.snapshot.holds()) and all(
            file_digest(path) == digest for path, digest in self.files
        )


@dataclass
class _Usage:
    """What happened to the calls of one function."""

    hits: int = 0
    misses: int = 0
    refused: int = 0  # calls since what the Python can read became unknown
    reason: str | None = None


class ProgramCache(LRUCache[Any, CachedProgram]):
    """Programs by the key of their call, bounded by the bytes of all of them."""

    def __init__(self) -> None:
        super().__init__(sys.maxsize, 0)
        self._usage: dict[SameFunction, _Usage] = {}
        self._evicted: LRUCache[int, bool] = LRUCache(4096)  # hashes of keys
        self._again = 0  # evicted programs that were recorded again
        self._newest = 0  # the id of the entry at the end, where it is known
        self._functions: dict[int, SameFunction] = {}  # by id: one object for each, which is fast to compare

    def key(self, function: Any, arguments: Any, unknown: str | None, context: tuple) -> Any:
        """Return the key of a call, from that of its arguments; None when it cannot be told from others."""
        same = self._functions.get(id(function))
        if same is None or same.ref() is not function:
            try:
                same = SameFunction(function)
            except TypeError:  # an object without weak references
                return None
            if len(self._functions) > MANY:
                self._functions.clear()
            self._functions[id(function)] = same
        if unknown is None:
            return same, arguments, context
        usage = self._usage_of(same)
        usage.misses, usage.reason = usage.misses + 1, unknown
        return None

    def find(self, key: Any) -> CachedProgram | None:
        """Return the entry of an equal call, unless something that its Python read has changed."""
        return self.checked(key, self.get(key))

    def checked(self, key: Any, found: CachedProgram | None) -> CachedProgram | None:
        """Return the entry that a key has, unless something that its Python read has changed."""
        if found is not None and not found.holds():
            if self.get(key) is found:
                self.discard(key)
            found = None
        usage = self._usage_of(key[0])
        with self.lock:
            if found is None or found.program is None:
                usage.misses += 1
                self.misses += 1
                return found
            usage.hits += 1
            self.hits += 1
            if id(found) != self._newest and key in self:
                self.move_to_end(key)
                self._newest = id(found)
        return found

    def _usage_of(self, function: SameFunction) -> _Usage:
        found = self._usage.get(function)
        if found is None:
            if len(self._usage) > MANY:  # bound methods, which are gone after each call
                self._forget_functions()
            found = self._usage.setdefault(function, _Usage())
        return found

    def snapshot(self, key: Any, function: Any, arguments: list[Any]) -> Snapshot | None:
        """Note what the Python can read, before it runs. Returns None where not everything is known.

        A kernel that was refused is followed again after 2, 4, 8 ... calls: what it reads may have changed.
        """
        usage = self._usage_of(key[0])
        if usage.refused and usage.refused & (usage.refused + 1):
            usage.refused += 1
            return None
        try:
            found = Snapshot(function, arguments)
        except (Unknown, RecursionError) as problem:
            usage.refused, usage.reason = usage.refused + 1, str(problem)
            return None
        usage.refused, usage.reason = 0, None
        return found

    def refuse(self, key: Any, reason: str) -> None:
        """Note why a call was not cached."""
        self._usage_of(key[0]).reason = reason

    def add(self, key: Any, entry: CachedProgram, limit: int) -> None:
        """Cache a program, if everything that its Python can read is known and was not changed by it.

        The snapshot was taken before the Python ran.
        """
        if entry.program is not None and entry.snapshot is None:
            return
        if not entry.holds():
            self.refuse(key, "its Python changes something that it can read")
            return
        with self.lock:
            self._forget_functions()
            self._warn_of_thrashing(key, limit)
            self.limit, self._newest = limit, 0
            self.put(key, entry, _bytes(entry))

    def _forget_functions(self) -> None:
        """Remove what belongs to functions that are gone."""
        with self.lock:
            gone = [function for function in list(self._usage) if function.ref() is None]
            for function in gone:
                del self._usage[function]
            for old in [key for key in self if key[0].ref() is None] if gone else ():
                self.discard(old)

    def evict(self, key: Any) -> None:
        """Remove an entry to make room, and remember that."""
        self._evicted.put(hash(key), True)
        self.discard(key)

    def _warn_of_thrashing(self, key: Any, limit: int) -> None:
        if self._evicted.pop(hash(key), False):
            self._again += 1
            if self._again == THRASHING:
                emit_warning(
                    "cache-size",
                    f"the kernels in use need more than the {limit:,} bytes of the program cache: each "
                    "call runs its Python again; raise OPEN_NKI_CACHE_BYTES",
                    user_site(2),
                )

    def info(self, function: Any) -> CacheInfo:
        """Return what the cache did for a kernel's function."""
        key = SameFunction(function)
        usage = self._usage.get(key)
        if usage is None:
            usage = _Usage()
            try:
                Snapshot(function)
            except (Unknown, RecursionError) as problem:
                usage.reason = str(problem)
        with self.lock:
            entries = [
                other for other, entry in self.items() if other[0] == key and entry.program is not None
            ]
            size = sum(self._weights[other] for other in entries)
        return CacheInfo(usage.hits, usage.misses, len(entries), size, usage.reason is None, usage.reason)

    def clear(self) -> None:
        super().clear()
        self._usage.clear()
        self._evicted.clear()
        self._functions.clear()
        self._again = self._newest = 0


def _bytes(entry: CachedProgram) -> int:
    if entry.program is None:
        return ENTRY_BYTES
    constants = sum(raw.nbytes for _, raw in entry.program.constants)
    return ENTRY_BYTES + INSTRUCTION_BYTES * len(entry.program) + constants


def file_digest(path: str) -> str:
    """Return the hash of a file's content."""
    import hashlib  # OpenSSL behind it is slow to load

    try:
        with open_regular(path) as file:
            return hashlib.blake2b(file.read()).hexdigest()
    except OSError:
        return "not readable"


programs = ProgramCache()


def clear() -> None:
    """Remove every recorded program: each kernel runs its Python at its next call."""
    programs.clear()


def is_debugging() -> bool:
    """Return True under a debugger, whose breakpoints in a kernel must stop every call."""
    tracer = sys.gettrace()
    if tracer is not None and not (getattr(tracer, "__module__", "") or type(tracer).__module__).startswith(
        "coverage"
    ):
        return True
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
