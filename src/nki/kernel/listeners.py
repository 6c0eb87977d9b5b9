"""Listeners that are notified of every call of a kernel: the profilers that scripts start and stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Listener = Callable[[Any, tuple, dict], None]
listeners: list[Listener] = []


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener(kernel, args, kwargs)` before every kernel call in this block."""
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)
