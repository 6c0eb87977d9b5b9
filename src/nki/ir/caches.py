"""Caches: one class with bounds, for values by key, and decorators, for what is derived from an object."""

from __future__ import annotations

import functools
import inspect
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeVar

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")
P = ParamSpec("P")


class LRUCache(OrderedDict[K, V], Generic[K, V]):
    """A mapping that evicts the least recently used entry when it has too many, or when they weigh too much.

    `get` is a plain look-up, for tables that are read at every instruction. `find` also marks the entry as
    used and counts hits and misses. Both are safe under threads; a forked child gets locks of its own.
    """

    def __init__(self, entries: int, weight: int | None = None):
        super().__init__()
        self.entries, self.limit = entries, weight
        self.weight = self.hits = self.misses = 0
        self._weights: dict[K, int] = {}
        self.lock = threading.RLock()
        _caches.add(self)

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__

    def find(self, key: K) -> V | None:
        """Return the value of a key and mark it as used; None if there is none."""
        with self.lock:
            found = self.get(key)
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
                self.move_to_end(key)
            return found

    def put(self, key: K, value: V, weight: int = 0) -> None:
        """Add or replace an entry, and evict old ones; one that exceeds the limit by itself is not added."""
        with self.lock:
            if self.limit is None:
                self[key] = value
                if len(self) > self.entries:
                    self.popitem(last=False)
                return
            self.discard(key)
            if weight > self.limit:
                return
            self[key], self._weights[key] = value, weight
            self.weight += weight
            while len(self) > self.entries or self.weight > self.limit:
                self.evict(next(iter(self)))

    def evict(self, key: K) -> None:
        """Remove an entry to make room."""
        self.discard(key)

    def discard(self, key: K) -> None:
        """Remove an entry if there is one."""
        with self.lock:
            self.pop(key, None)
            self.weight -= self._weights.pop(key, 0)

    def clear(self) -> None:
        """Remove every entry."""
        with self.lock:
            super().clear()
            self._weights.clear()
            self.weight = 0


_caches: weakref.WeakSet[LRUCache] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_caches):
        cache.lock = threading.RLock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def per_program(make: Callable[Concatenate[T, P], V]) -> Callable[Concatenate[T, P], V]:
    """Cache what a function derives from a Program or its lowered form, by identity and other arguments.

    The value goes when the Program does, so it must not refer to the Program.
    """
    signature = inspect.signature(make)
    known: dict[int, tuple[weakref.ref[T], dict[tuple, V]]] = {}

    @wraps(make)
    def cached(program: T, *args: P.args, **kwargs: P.kwargs) -> V:
        number = id(program)
        entry = known.get(number)
        if entry is None:
            forget = weakref.ref(program, lambda _: known.pop(number, None) and None)
            entry = known.setdefault(number, (forget, {}))
        values = entry[1]
        key = signature.bind(program, *args, **kwargs).args[1:] if kwargs else args
        if key not in values:
            values.setdefault(key, make(program, *args, **kwargs))
        return values[key]

    return cached


if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """Cache a property without the lock that Python 3.10 and 3.11 hold for all objects of a class.

        A process forked while another thread holds it would wait forever. Threads may compute it twice.
        """

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return vars(instance).setdefault(self.attrname, self.func(instance))
