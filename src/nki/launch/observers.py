"""Observers: what `nki.observe` hands every instruction to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from ..ir.instruction import Instruction

Sink = Callable[[Instruction], None]
_observers: ContextVar[tuple[Sink, ...]] = ContextVar("nki_observers", default=())


@contextlib.contextmanager
def observe(sink: Sink) -> Iterator[Sink]:
    """Hand every instruction that kernels issue in this block to `sink`, in program order.

    Kernels run their Python while they are observed, whatever the program cache knows.
    """
    token = _observers.set((*_observers.get(), sink))
    try:
        yield sink
    finally:
        _observers.reset(token)


def current() -> tuple[Sink, ...]:
    """The observers of this context."""
    return _observers.get()
