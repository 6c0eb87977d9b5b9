"""Settings of the whole process that differ while kernels run."""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

importing = threading.RLock()  # held while calls import modules
# The child of a fork would wait forever for a module that a thread of its parent was importing.


class WhileKernelsRun:
    """Context of a subclass: `change` when the first kernel enters, `restore` when the last one leaves.

    An interrupt may come between any two lines of this file, also before `__exit__` has begun. So a context
    that is gone has left, and what to restore is noted before anything is changed.
    """

    _lock: ClassVar[threading.RLock]  # the collector may run `__del__` while it is held
    _inside: ClassVar[dict[int, int]]  # the contexts that are in use, by their ids, with their threads
    _before: ClassVar[Any]  # what `restore` gets; None: nothing is changed

    def __init_subclass__(cls) -> None:
        cls._lock, cls._inside, cls._before = threading.RLock(), {}, None

    def __enter__(self) -> None:
        cls = type(self)
        try:
            with cls._lock:
                cls._inside[id(self)] = threading.get_ident()
                if cls._before is None:
                    cls._before = cls.present()
                    cls.change(cls._before)
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            self._leave()
        except BaseException:
            self._leave()
            raise

    def __del__(self) -> None:
        if id(self) in type(self)._inside:
            self._leave()

    def _leave(self) -> None:
        cls = type(self)
        with cls._lock:
            cls._inside.pop(id(self), None)
            cls._restore_if_unused()

    @classmethod
    def _restore_if_unused(cls) -> None:
        if not cls._inside and cls._before is not None:
            cls.restore(cls._before)
            cls._before = None

    @classmethod
    def present(cls) -> Any:
        """Return the setting as it is."""
        raise NotImplementedError

    @classmethod
    def change(cls, before: Any) -> None:
        """Change the setting, for kernels."""
        raise NotImplementedError

    @classmethod
    def restore(cls, before: Any) -> None:
        """Set it as it was, also where `change` did not finish, unless something else changed it."""
        raise NotImplementedError

    @classmethod
    def after_fork(cls) -> None:
        """Forget the other threads: the child has one, and others may have held the lock."""
        cls._lock = threading.RLock()
        own = threading.get_ident()
        cls._inside = {number: thread for number, thread in cls._inside.items() if thread == own}
        cls._restore_if_unused()


def _after_fork() -> None:
    for cls in WhileKernelsRun.__subclasses__():
        cls.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
    os.register_at_fork(
        before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release
    )
