"""Arrays of runs that are over, for the next ones: their pages are there already."""

from __future__ import annotations

import os
import threading

import numpy as np

from ..reference.memory import aligned

KEPT = 384 << 20  # bytes that wait in all


class Pool:
    """Gives out arrays of bytes; who has one has it alone until it is given back."""

    def __init__(self, limit: int = KEPT):
        self.limit = limit
        self.waiting: list[np.ndarray] = []
        self.lock = threading.Lock()

    def take(self, nbytes: int) -> np.ndarray:
        """At least so many bytes, and not many more."""
        with self.lock:
            fitting = [i for i, a in enumerate(self.waiting) if nbytes <= a.size <= 2 * nbytes]
            if fitting:
                return self.waiting.pop(min(fitting, key=lambda i: self.waiting[i].size))
            while self.waiting and sum(a.size for a in self.waiting) + nbytes > self.limit:
                self.waiting.pop(0)  # what waits and what is new stay within the limit together
        return aligned(nbytes)

    def give_back(self, array: np.ndarray) -> None:
        if array.size == 0:
            return
        with self.lock:
            self.waiting.append(array)
            while sum(a.size for a in self.waiting) > self.limit:
                self.waiting.pop(0)


pool = Pool()


def _after_fork() -> None:
    pool.lock = threading.Lock()  # another thread may have held it
    pool.waiting.clear()  # a page that both processes have is copied when it is written: new ones cost less


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
