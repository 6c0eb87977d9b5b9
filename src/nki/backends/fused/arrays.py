"""A pool of arrays that finished runs used: their pages are mapped already."""

from __future__ import annotations

import os
import threading

import numpy as np

from ..reference.memory import aligned

LIMIT = 384 << 20  # bytes in the pool


class ArrayPool:
    """Lends arrays of bytes; each has one user until it is given back."""

    def __init__(self, limit: int = LIMIT):
        self.limit = limit
        self.free: list[np.ndarray] = []
        self.lock = threading.Lock()

    def take(self, nbytes: int) -> np.ndarray:
        """Return an array of at least `nbytes` bytes, and at most twice as many."""
        with self.lock:
            fitting = [i for i, a in enumerate(self.free) if nbytes <= a.size <= 2 * nbytes]
            if fitting:
                return self.free.pop(min(fitting, key=lambda i: self.free[i].size))
            while self.free and sum(a.size for a in self.free) + nbytes > self.limit:
                self.free.pop(0)  # what is free and what is new stay within the limit together
        return aligned(nbytes)

    def give_back(self, array: np.ndarray) -> None:
        if array.size == 0:
            return
        with self.lock:
            self.free.append(array)
            while sum(a.size for a in self.free) > self.limit:
                self.free.pop(0)


pool = ArrayPool()


def _after_fork() -> None:
    pool.lock = threading.Lock()  # another thread may have held it
    pool.free.clear()  # writing to a page that both processes share copies it: a new one costs less


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
