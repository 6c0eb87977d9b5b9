"""Python's cycle collector, while kernels run.

A kernel makes many small objects that live as long as its program is recorded, and next to no cycles:
tiles are freed by reference counts. Walking all of them again and again took a tenth of the time.
"""

from __future__ import annotations

import gc
import threading

YOUNG = 50_000  # new objects between two collections, instead of Python's 700

_lock = threading.Lock()
_users = 0
_before: tuple[int, int, int] = (0, 0, 0)


class fewer_collections:
    """Context: cycles are looked for less often while any kernel runs."""

    def __enter__(self) -> None:
        global _users, _before
        with _lock:
            if _users == 0:
                _before = gc.get_threshold()
                if 0 < _before[0] < YOUNG:  # 0: somebody switched it off
                    gc.set_threshold(YOUNG, *_before[1:])
            _users += 1

    def __exit__(self, *exception: object) -> None:
        global _users
        with _lock:
            _users -= 1
            if _users == 0 and gc.get_threshold()[0] == YOUNG:  # else somebody chose another meanwhile
                gc.set_threshold(*_before)
