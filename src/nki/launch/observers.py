"""Observers: what `nki.observe` hands every instruction to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from ..ir.instruction import Instruction

Sink = Callable[[Instruction], None]
_observers: ContextVar[tuple[Sink, ...]] = ContextVar("nki_observers", default=())
_first: ContextVar[tuple[Sink, ...]] = ContextVar("nki_first_observers", default=())


@contextlib.contextmanager
def observe(sink: Sink) -> Iterator[Sink]:
    """Hand every instruction that kernels issue in this block to `sink`, in program order.

    Kernels run their Python while they are observed, whatever the program cache knows.
    """
    with _added(_observers, sink):
        yield sink


@contextlib.contextmanager
def observe_first(sink: Sink) -> Iterator[Sink]:
    """Hand every instruction to `sink` before it is executed, inside an `observe` block."""
    with _added(_first, sink):
        yield sink


@contextlib.contextmanager
def _added(observers: ContextVar[tuple[Sink, ...]], sink: Sink) -> Iterator[None]:
    token = observers.set((*observers.get(), sink))
    try:
        yield
    finally:
        observers.reset(token)


def current() -> tuple[Sink, ...]:
    """The observers of this context."""
    return _observers.get()


def first() -> tuple[Sink, ...]:
    """The observers of this context that come before execution."""
    return _first.get()
