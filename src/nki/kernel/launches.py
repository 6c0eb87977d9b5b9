"""Who is told of every call of a kernel: the profilers that scripts switch on around their work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Listener = Callable[[Any, tuple, dict], None]
_listeners: list[Listener] = []


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener(kernel, args, kwargs)` of every call in this block, before it runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(kernel: Any, args: tuple, kwargs: dict) -> None:
    for listener in tuple(_listeners):
        listener(kernel, args, kwargs)
