"""Ranks that others' threads bring: the last to come runs all of them, in rank order, as "local" does.

A program of JAX has a thread for each device. A kernel with collectives is called on each; all wait here
until every rank of the world has come, so that results are those of run_ranks.
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
    """Kernels that are traced in this block are those of a world of so many ranks."""
    return using(Described(0, size))


class Gathering:
    """One meeting: the parts of its ranks, and how it ended."""

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


class Gatherings:
    """The n-th call of a rank at a place meets the n-th call there of all others."""

    def __init__(self, timeout: float = TIMEOUT_S) -> None:
        self.timeout = timeout
        self.lock = threading.Lock()
        self.open: dict[Hashable, list[Gathering]] = {}  # by place, those that still wait for somebody

    def run(self, place: Hashable, rank: int, size: int, part: Callable[[], Any]) -> Any:
        """What a rank's part gives, once all ranks have come to this place with theirs."""
        with self.lock:
            waiting = self.open.setdefault(place, [])
            mine = next((g for g in waiting if rank not in g.parts), None)
            if mine is None:
                mine = Gathering(size)
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

    def _late(self, place: Hashable, gathering: Gathering) -> Exception:
        with self.lock:
            missing = gathering.missing()
            if gathering in self.open.get(place, []):
                self.open[place].remove(gathering)
        return error(
            "rank-timeout",
            f"ranks {missing} have not come after {self.timeout:g} s",
            help="every device of the mesh must call the kernel, and in one order",
        )


gatherings = Gatherings()


def _after_fork() -> None:
    gatherings.lock = threading.Lock()  # another thread may have held it
    gatherings.open = {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
