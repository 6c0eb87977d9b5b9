"""Rendezvous of ranks that run on threads of a framework: the last to arrive runs all of them, in rank order.

A JAX program has a thread for each device. A kernel with collectives is called on each; all wait here until
every rank of the world has arrived, so that results are those of run_ranks.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable
from typing import Any

from ..errors import error
from ..launch.world import Described, using
from .local import run_together

TIMEOUT_S = 300.0


def described(size: int) -> contextlib.AbstractContextManager[Any]:
    """Trace kernels in this block as those of a world of so many ranks."""
    return using(Described(0, size))


class Arrivals:
    """The ranks that have arrived at one rendezvous, and the results of all."""

    def __init__(self, size: int):
        self.parts: dict[int, Callable[[], Any]] = {}
        self.size = size
        self.ended = threading.Event()
        self.results: list[Any] = []
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            self.results = run_together([self.parts[rank] for rank in range(self.size)])
        except BaseException as problem:
            self.problem = problem
        finally:
            self.ended.set()

    def missing(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.parts]


class ThreadRendezvous:
    """Runs ranks together: the n-th call of a rank at a place waits for the n-th call of all others there."""

    def __init__(self, timeout: float = TIMEOUT_S) -> None:
        self.timeout = timeout
        self.lock = threading.Lock()
        self.open: dict[Hashable, list[Arrivals]] = {}  # by place, those that still wait for a rank

    def run(self, place: Hashable, rank: int, size: int, part: Callable[[], object]) -> Any:
        """Return the result of a rank's part, once all ranks have arrived at this place with theirs."""
        with self.lock:
            waiting = self.open.setdefault(place, [])
            mine = next((g for g in waiting if rank not in g.parts), None)
            if mine is None:
                mine = Arrivals(size)
                waiting.append(mine)
            mine.parts[rank] = part
            complete = not mine.missing()
            if complete:
                waiting.remove(mine)
        if complete:
            mine.run()
        elif not mine.ended.wait(self.timeout):
            raise self._late(place, mine)
        if mine.problem is not None:
            raise mine.problem
        return mine.results[rank]

    def _late(self, place: Hashable, arrivals: Arrivals) -> Exception:
        with self.lock:
            missing = arrivals.missing()
            if arrivals in self.open.get(place, []):
                self.open[place].remove(arrivals)
        return error(
            "rank-timeout",
            f"ranks {missing} have not come after {self.timeout:g} s",
            help="every device of the mesh must call the kernel, and in one order",
        )


thread_rendezvous = ThreadRendezvous()


def _after_fork() -> None:
    thread_rendezvous.lock = threading.Lock()  # another thread may have held it
    thread_rendezvous.open = {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
