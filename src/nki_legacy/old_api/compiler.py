"""`neuronxcc.nki.compiler`: the placement of tiles, which has no effect here, and decorators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

from nki.machine.memories import PSUM, SBUF, MemoryRegion


class PlacedBuffer:
    """`ncc.sbuf` and `ncc.psum`, and what their allocators return: a memory. Addresses have no effect."""

    def __init__(self, region: MemoryRegion):
        self.region = region

    def alloc(self, func: Callable | None = None) -> PlacedBuffer:
        return PlacedBuffer(self.region)

    def mod_alloc(self, **_: object) -> PlacedBuffer:
        return PlacedBuffer(self.region)

    def auto_alloc(self, **_: object) -> PlacedBuffer:
        return PlacedBuffer(self.region)

    def __eq__(self, other: object) -> bool:
        return getattr(other, "region", other) is self.region

    def __hash__(self) -> int:
        return hash(self.region)


sbuf, psum = PlacedBuffer(SBUF), PlacedBuffer(PSUM)


def _unchanged(func: Any = None, **_: object) -> Any:
    """A decorator for the compiler: the function itself."""
    return (lambda function: function) if func is None else func


enable_stack_allocator = force_auto_alloc = _unchanged

_as_written: WeakSet[Any] = WeakSet()


def skip_middle_end_transformations(func: Any = None, **_: object) -> Any:
    """A decorator for the compiler: the timing model takes the function as written."""
    if func is None:
        return skip_middle_end_transformations
    _as_written.add(getattr(func, "user", func))
    return func


def is_as_written(function: Any) -> bool:
    """Return True if a kernel was decorated with `skip_middle_end_transformations`."""
    return function in _as_written


@contextlib.contextmanager
def _scope(*_: object, **__: object) -> Iterator[None]:
    yield


no_reorder = multi_buffer = allocation_scope = _scope
