"""Settings of the whole process that differ while kernels run."""

from __future__ import annotations

import threading
from typing import ClassVar


class WhileKernelsRun:
    """Context of a subclass: `begin` when the first kernel enters, `end` when the last one leaves."""

    _lock: ClassVar[threading.Lock]
    _users: ClassVar[int]

    def __init_subclass__(cls) -> None:
        cls._lock, cls._users = threading.Lock(), 0

    def __enter__(self) -> None:
        cls = type(self)
        with cls._lock:
            if cls._users == 0:
                cls.begin()
            cls._users += 1

    def __exit__(self, *exception: object) -> None:
        cls = type(self)
        with cls._lock:
            cls._users -= 1
            if cls._users == 0:
                cls.end()

    @classmethod
    def begin(cls) -> None:
        raise NotImplementedError

    @classmethod
    def end(cls) -> None:
        raise NotImplementedError
