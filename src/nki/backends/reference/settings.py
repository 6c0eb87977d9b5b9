"""Settings of the whole process that differ while kernels run."""

from __future__ import annotations

import os
import threading
from typing import ClassVar


class _Depth(threading.local):
    count = 0


class WhileKernelsRun:
    """Context of a subclass: `begin` when the first kernel enters, `end` when the last one leaves."""

    _lock: ClassVar[threading.Lock]
    _users: ClassVar[int]
    _mine: ClassVar[_Depth]  # how often this thread is inside

    def __init_subclass__(cls) -> None:
        cls._lock, cls._users, cls._mine = threading.Lock(), 0, _Depth()

    def __enter__(self) -> None:
        cls = type(self)
        with cls._lock:
            if cls._users == 0:
                cls.begin()
            cls._users += 1
            cls._mine.count += 1

    def __exit__(self, *exception: object) -> None:
        cls = type(self)
        with cls._lock:
            cls._users -= 1
            cls._mine.count -= 1
            if cls._users == 0:
                cls.end()

    @classmethod
    def begin(cls) -> None:
        raise NotImplementedError

    @classmethod
    def end(cls) -> None:
        raise NotImplementedError

    @classmethod
    def after_fork(cls) -> None:
        """Reset the lock and the count: the child has one thread, and others may have held the lock."""
        cls._lock = threading.Lock()
        left, cls._users = cls._users, cls._mine.count
        if left and not cls._users:
            cls.end()


def _after_fork() -> None:
    for cls in WhileKernelsRun.__subclasses__():
        cls.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
