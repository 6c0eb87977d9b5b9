"""Threads: runs the independent parts of a step on the cores that the process may use.

How a step is split does not depend on the number of threads, so its bits do not either.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ..reference.settings import importing

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_pools: dict[int, ThreadPoolExecutor] = {}


def available() -> int:
    """Return how many cores the process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def run_parts(parts: Sequence[Callable[[], None]], threads: int) -> None:
    """Run parts on this thread and on others; raise the first error when those that began have ended."""
    if threads < 2 or len(parts) < 2:
        for part in parts:
            part()
        return
    pool = _pools.get(threads)
    if pool is None:
        with importing:
            from concurrent.futures import ThreadPoolExecutor
        pool = _pools.setdefault(threads, ThreadPoolExecutor(threads, thread_name_prefix="nki-plan"))
    left = deque(parts)
    problems: list[BaseException] = []

    def work() -> None:
        with np.errstate(all="ignore"):
            while left:
                try:
                    part = left.popleft()
                except IndexError:  # another thread took the last one
                    return
                try:
                    part()
                except BaseException as problem:
                    problems.append(problem)
                    left.clear()

    helpers: list[Future[None]] = []
    try:
        for _ in range(min(threads, len(parts)) - 1):
            helpers.append(pool.submit(work))
        work()
    except BaseException as problem:  # an interrupt between two parts
        problems.append(problem)
        left.clear()
    for helper in helpers:
        while not helper.cancel() and not helper.done():
            with _noting(problems):
                helper.result()
    if problems:
        raise problems[0]


@contextmanager
def _noting(problems: list[BaseException]) -> Iterator[None]:
    """Note an interrupt that comes while others are waited for: they use the arrays of this run."""
    try:
        yield
    except BaseException as problem:
        problems.append(problem)


def run_concurrently(programs: Sequence[Callable[[], None]]) -> None:
    """Run programs at the same time, each on its own thread; raise the first error when all have ended."""
    problems: list[BaseException | None] = [None] * len(programs)
    interrupts: list[BaseException] = []

    def run(number: int) -> None:
        try:
            programs[number]()
        except BaseException as problem:
            problems[number] = problem

    others = [threading.Thread(target=run, args=(n,), name="nki-core") for n in range(1, len(programs))]
    for thread in others:
        thread.start()
    run(0)
    for thread in others:
        while thread.is_alive():
            with _noting(interrupts):
                thread.join()
    for problem in (*problems, *interrupts):
        if problem is not None:
            raise problem


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # its threads are the parent's
