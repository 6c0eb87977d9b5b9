"""Tile-sized products run on one BLAS thread: more threads made them 20 times slower (design.md)."""

from __future__ import annotations

import threading
from typing import Any

_lock = threading.Lock()
_libraries: list[Any] | None = None
_users = 0
_before: list[int] = []


class one_blas_thread:
    """Context: BLAS uses one thread while any kernel runs, and as many as before afterwards."""

    def __enter__(self) -> None:
        global _libraries, _users, _before
        with _lock:
            if _libraries is None:
                import threadpoolctl

                controller = threadpoolctl.ThreadpoolController().select(user_api="blas")
                _libraries = list(controller.lib_controllers)
            if _users == 0:
                _before = [library.num_threads for library in _libraries]
                for library in _libraries:
                    library.set_num_threads(1)
            _users += 1

    def __exit__(self, *exception: object) -> None:
        global _users
        with _lock:
            _users -= 1
            if _users == 0 and _libraries is not None:
                for library, threads in zip(_libraries, _before, strict=True):
                    library.set_num_threads(threads)
