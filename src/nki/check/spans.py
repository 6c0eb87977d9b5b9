"""Spans: exactly which bytes of an HBM tensor a view touches, and whether two of them share any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..ir.storage import Storage
from ..ir.view import View

HARDEST = 1 << 16  # steps that numpy may take to tell whether two strided views share a byte


class Span(NamedTuple):
    """Bytes of a storage: `width` bytes at `offset`, repeated by (count, step in bytes).

    `somewhere` marks an address that is known at run time only: it is one place or another in the storage.
    """

    storage: Storage
    offset: int
    repeats: tuple[tuple[int, int], ...]
    width: int
    somewhere: bool = False

    @property
    def nbytes(self) -> int:
        return prod(count for count, _ in self.repeats) * self.width

    @property
    def bounds(self) -> tuple[int, int]:
        """The first byte, and the one behind the last."""
        low = self.offset + sum(min(0, (n - 1) * s) for n, s in self.repeats)
        high = self.offset + sum(max(0, (n - 1) * s) for n, s in self.repeats) + self.width
        return low, high

    def covers_storage(self) -> bool:
        return not self.somewhere and self.nbytes == self.storage.nbytes and self.box.exact

    @property
    def box(self) -> Box:
        return box_of(self)


class Box(NamedTuple):
    """The coordinates of a storage between which a span lies; the last one counts bytes.

    `exact`: the span has all that lies between them.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    exact: bool


def plain_span(
    storage: Storage, offset: int, shape: Sequence[int], strides: Sequence[int], width: int
) -> Span:
    """What a view touches whose address is known; a broadcast dimension is one element."""
    repeats = tuple([(n, s * width) for n, s in zip(shape, strides, strict=True) if n > 1 and s])
    return Span(storage, offset * width, repeats, width)


def span(view: View, value_of: Callable[[Any], int | None]) -> Span:
    """What a view touches; `value_of` tells the value of a register, where it is known."""
    known = plain_span(view.storage, view.offset, view.shape, view.strides, view.dtype.itemsize)
    found = view.indirection
    if found is None:
        return known
    value = value_of(found.index) if found.kind == "scalar" and not isinstance(found.index, View) else None
    if value is None:
        return known._replace(somewhere=True)
    return known._replace(offset=known.offset + value * found.scale)


def box_of(span: Span) -> Box:
    """A view that is sliced from the storage has a box of its own; others have all of it."""
    shape = (*span.storage.shape[:-1], span.storage.shape[-1] * span.storage.dtype.itemsize)
    everything = Box((0,) * len(shape), shape, False)
    low, high = span.bounds
    if span.somewhere or low < 0 or high > span.storage.nbytes:
        return everything
    steps = [*accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1)][::-1]
    first, rest = [], low
    for step in steps:
        first.append(rest // step)
        rest %= step
    last, exact = list(first), True
    last[-1] += span.width - 1
    for count, stride in span.repeats:
        stride = abs(stride)
        dim = next(d for d, step in enumerate(steps) if step <= stride)
        times, uneven = divmod(stride, steps[dim])
        if uneven:
            return everything
        unit = span.width if dim == len(shape) - 1 else 1
        exact = exact and times == unit and last[dim] == first[dim] + unit - 1
        last[dim] += (count - 1) * times
    if any(end >= size for end, size in zip(last, shape, strict=True)):
        return _flat(span, shape, everything)
    return Box(tuple(first), tuple(end + 1 for end in last), exact)


def _flat(span: Span, shape: Sequence[int], everything: Box) -> Box:
    """A dense run of bytes that goes over the end of a row: whole rows, if it has nothing else."""
    step = span.width
    for count, stride in sorted(span.repeats, key=lambda repeat: abs(repeat[1])):
        if abs(stride) != step:
            return everything
        step *= count
    row = prod(shape[1:])
    low, high = span.bounds
    exact = low % row == 0 and high % row == 0
    return Box((low // row, *everything.low[1:]), (-(-high // row), *everything.high[1:]), exact)


def share_bytes(one: Span, other: Span) -> bool:
    """True when some byte belongs to both for certain."""
    if one.somewhere or other.somewhere:
        return one.covers_storage() or other.covers_storage()
    a, b = one.box, other.box
    if a.exact and b.exact:
        return True  # whoever asks has seen that their boxes meet
    try:
        hardest: Any = HARDEST
        return bool(np.shares_memory(_shadow(one), _shadow(other), max_work=hardest))
    except np.exceptions.TooHardError:
        return False


class _Shadow:
    """Lies in an address space as a span lies in its storage. There is nothing at that address."""

    def __init__(self, span: Span):
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{span.width}",
            "data": ((1 << 20) + span.offset, True),
            "shape": tuple(count for count, _ in span.repeats) or (1,),
            "strides": tuple(step for _, step in span.repeats) or (span.width,),
        }


def _shadow(span: Span) -> np.ndarray:
    return np.asarray(_Shadow(span))


def meeting_pairs(ones: Sequence[Span], others: Sequence[Span]) -> np.ndarray:
    """The (i, j) whose boxes meet, in order."""
    a, b = [s.box for s in ones], [s.box for s in others]
    low, high = np.array([x.low for x in a]).T, np.array([x.high for x in a]).T
    other_low, other_high = np.array([x.low for x in b]).T, np.array([x.high for x in b]).T
    found = []
    rows = max(1, (1 << 22) // len(b))
    for start in range(0, len(a), rows):
        part = slice(start, start + rows)
        meet = np.ones((len(a[part]), len(b)), bool)
        for d in range(len(low)):
            meet &= low[d, part, None] < other_high[d]
            meet &= other_low[d] < high[d, part, None]
        i, j = np.nonzero(meet)
        found.append(np.stack([i + start, j], axis=1))
    return np.concatenate(found)
