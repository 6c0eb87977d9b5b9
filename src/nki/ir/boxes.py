"""Boxes: which bytes a view touches, and whether two views share some.

There are two levels of precision. A `Box` is a rectangle of rows and bytes that holds every byte of a view:
cheap, and two views whose boxes do not overlap share nothing. A `ByteSet` describes the bytes of an HBM view
exactly, so that `share_bytes` knows that two views certainly share one.

Boxes are compared within one space (`space_of`): a storage, or the physical memory of a core for tiles that
were placed in it with `address=`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .caches import LRUCache
from .storage import Storage
from .view import View

MAX_RUNS = 64  # exact boxes of one view
MAX_WORK = 1 << 16  # steps that numpy may take to decide whether two strided views share a byte


class Box(NamedTuple):
    """Rows `first` to `last` and bytes `start` to `stop` of each row; both ends are exclusive.

    Rows are partitions on chip, and rows along the last dimension in HBM. `exact`: the view touches all bytes
    of the box, each of them once. It is False where that is not known.
    """

    first: int
    last: int
    start: int
    stop: int
    exact: bool = False

    def overlaps(self, other: Box) -> bool:
        """True when the rectangles have a byte in common."""
        return (
            self.first < other.last
            and other.first < self.last
            and self.start < other.stop
            and other.start < self.stop
        )

    def contains(self, other: Box) -> bool:
        """True when the rectangle holds the other one."""
        return (
            self.first <= other.first
            and other.last <= self.last
            and self.start <= other.start
            and other.stop <= self.stop
        )

    def covers(self, other: Box) -> bool:
        """True when the view of this box touches every byte of the other box."""
        return self.exact and self.contains(other)

    def common(self, other: Box) -> Box:
        """Return the rectangle that two overlapping boxes share."""
        return Box(
            max(self.first, other.first),
            min(self.last, other.last),
            max(self.start, other.start),
            min(self.stop, other.stop),
            self.exact and other.exact,
        )

    @property
    def nbytes(self) -> int:
        return (self.last - self.first) * (self.stop - self.start)


def space_of(storage: Storage) -> Hashable:
    """Return what the box of a storage lies in; only boxes in the same space can overlap."""
    return storage if storage.address is None else storage.buffer


def whole_box(storage: Storage) -> Box:
    """Return the box of a whole storage."""
    if not storage.on_chip:
        row = storage.shape[-1] * storage.dtype.itemsize
        return Box(0, storage.nbytes // row if row else 0, 0, row, True)
    partition, byte = storage.address or (0, 0)
    return Box(partition, partition + storage.partitions, byte, byte + storage.pitch, True)


def box(view: View) -> Box:
    """Return a rectangle that holds every byte a view may touch.

    It is that of the whole storage where the address is known at run time only.
    """
    if view.indirection is None:
        found = _rectangles.get(view._sig or view.sig)  # most views were seen before
        if found is None:
            found = rectangle(view) if view.storage.on_chip else _hbm_box(view)
        if found is not None:
            return found
    return whole_box(view.storage)._replace(exact=False)


_rectangles: LRUCache[int, Box | None] = LRUCache(1 << 16)  # of on-chip views, by signature


def rectangle(view: View) -> Box | None:
    """Return the smallest box of an on-chip view; None where its partitions do not simply count up."""
    sig = view._sig or view.sig
    found = _rectangles.get(sig, False)
    if found is False:
        found = _rectangle(view)
        _rectangles.put(sig, found)
    return found  # type: ignore[return-value]


def _rectangle(view: View) -> Box | None:
    (rows, stride), *free = zip(view.shape, view.strides, strict=True)
    if rows > 1 and stride != view.row_pitch or any(s < 0 for _, s in free):
        return None
    row, offset = divmod(view.offset, view.row_pitch)
    reach = sum((n - 1) * s for n, s in free) + 1
    if offset + reach > view.row_pitch:
        return None
    step, exact = 1, True
    for n, s in sorted(free, key=lambda dim: dim[1]):
        if n > 1:
            exact = exact and s == step
            step *= n
    width = view.dtype.itemsize
    partition, byte = view.storage.address or (0, 0)
    start = byte + offset * width
    return Box(partition + row, partition + row + rows, start, start + reach * width, exact)


def _hbm_box(view: View) -> Box | None:
    """Return the rows and bytes of an HBM view; all bytes of its rows where it goes over the end of one."""
    width, row = view.dtype.itemsize, view.storage.shape[-1] * view.storage.dtype.itemsize
    begin = view.offset * width
    inside = outside = 0
    even = True
    for n, stride in zip(view.shape, view.strides, strict=True):
        step = stride * width
        if step < row:
            if step < 0:
                return None
            inside += (n - 1) * step
        else:
            outside += (n - 1) * step
            even = even and (n == 1 or step % row == 0)
    last = begin + inside + outside
    if even and begin % row + inside + width <= row:
        return Box(begin // row, last // row + 1, begin % row, begin % row + inside + width)
    return Box(begin // row, (last + width - 1) // row + 1, 0, row)


def exact_boxes(view: View, around: Box) -> list[Box] | None:
    """Return the exact boxes that an on-chip view consists of; None: too many, or some bytes twice.

    `around` is the rectangle of the view.
    """
    if around.exact:
        return [around]
    found = _runs(tuple(zip(view.shape[1:], view.strides[1:], strict=True)))
    if found is None:
        return None
    width, (length, starts) = view.dtype.itemsize, found
    if any(b - a < length for a, b in zip(starts, starts[1:], strict=False)):
        return None
    first, last, begin = around.first, around.last, around.start
    return [Box(first, last, begin + s * width, begin + (s + length) * width, True) for s in starts]


@lru_cache(maxsize=1 << 12)
def _runs(dims: tuple[tuple[int, int], ...]) -> tuple[int, tuple[int, ...]] | None:
    """Return free dimensions as runs of neighbouring elements: their length, and where they start."""
    run, starts = 1, [0]
    for n, stride in sorted(dims, key=lambda dim: dim[1]):
        if n == 1:
            continue
        if stride == run and len(starts) == 1:
            run *= n
        elif stride < run or n * len(starts) > MAX_RUNS:
            return None
        else:
            starts = [start + i * stride for i in range(n) for start in starts]
    return run, tuple(sorted(starts))


# ---- exact bytes ---------------------------------------------------------------------------------


ByteLayout = tuple[int, tuple[int, ...], tuple[int, ...], int, bool]  # what a ByteSet is made of


def byte_layout(view: View, value_of: Callable[[Any], int | None]) -> ByteLayout:
    """Return the layout of a view in bytes; `value_of` returns a register's value, or None."""
    width = view.dtype.itemsize
    found, offset = view.indirection, view.offset * width
    if found is None:
        return offset, view.shape, view.strides, width, False
    value = value_of(found.index) if found.kind == "scalar" and not isinstance(found.index, View) else None
    if value is not None:
        offset += value * found.scale
    return offset, view.shape, view.strides, width, value is None


class ByteSet:
    """The bytes of an HBM view: `width` bytes at `offset`, repeated by (count, step in bytes).

    `unknown` marks an address that only a run knows: the bytes may lie anywhere in the storage. `low` and
    `high` are the coordinates in the storage between which the bytes lie; the last coordinate counts bytes.
    `exact`: the view touches all bytes between them.
    """

    __slots__ = ("storage", "offset", "repeats", "width", "unknown", "low", "high", "exact")

    def __init__(self, storage: Storage, layout: ByteLayout):
        self.storage = storage
        self.offset, shape, strides, width, self.unknown = layout
        self.width = width
        # a broadcast dimension is one element
        self.repeats = tuple([(n, s * width) for n, s in zip(shape, strides, strict=True) if n > 1 and s])
        self.low, self.high, self.exact = _coordinates(self)

    @property
    def nbytes(self) -> int:
        return prod(count for count, _ in self.repeats) * self.width

    @property
    def bounds(self) -> tuple[int, int]:
        """The first byte, and the one after the last."""
        low = self.offset + sum(min(0, (n - 1) * s) for n, s in self.repeats)
        high = self.offset + sum(max(0, (n - 1) * s) for n, s in self.repeats) + self.width
        return low, high

    def covers_storage(self) -> bool:
        return not self.unknown and self.nbytes == self.storage.nbytes and self.exact


Coordinates = tuple[tuple[int, ...], tuple[int, ...], bool]


def _coordinates(found: ByteSet) -> Coordinates:
    """Return `low`, `high` and `exact`: all of the storage for a view that is not sliced from it."""
    storage = found.storage
    shape = (*storage.shape[:-1], storage.shape[-1] * storage.dtype.itemsize)
    everything = (0,) * len(shape), shape, False
    low, high = found.bounds
    if found.unknown or low < 0 or high > storage.nbytes:
        return everything
    steps = [*accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1)][::-1]
    first, rest = [], low
    for step in steps:
        first.append(rest // step)
        rest %= step
    last, exact = list(first), True
    last[-1] += found.width - 1
    for count, stride in found.repeats:
        stride = abs(stride)
        dim = next(d for d, step in enumerate(steps) if step <= stride)
        times, uneven = divmod(stride, steps[dim])
        if uneven:
            return everything
        unit = found.width if dim == len(shape) - 1 else 1
        exact = exact and times == unit and last[dim] == first[dim] + unit - 1
        last[dim] += (count - 1) * times
    if any(end >= size for end, size in zip(last, shape, strict=True)):
        return _whole_rows(found, everything)
    return tuple(first), tuple(end + 1 for end in last), exact


def _whole_rows(found: ByteSet, everything: Coordinates) -> Coordinates:
    """Return the rows of a dense run of bytes that goes over the end of one."""
    step = found.width
    for count, stride in sorted(found.repeats, key=lambda repeat: abs(repeat[1])):
        if abs(stride) != step:
            return everything
        step *= count
    (_, *low_rest), (_, *high_rest), _ = everything
    row = prod(high_rest)
    low, high = found.bounds
    exact = low % row == 0 and high % row == 0
    return (low // row, *low_rest), (-(-high // row), *high_rest), exact


def share_bytes(one: ByteSet, other: ByteSet) -> bool:
    """True when some byte certainly belongs to both; their coordinates must overlap."""
    if one.unknown or other.unknown:
        return one.covers_storage() or other.covers_storage()
    if one.exact and other.exact:
        return True
    try:
        limit: Any = MAX_WORK
        return bool(np.shares_memory(_array(one), _array(other), max_work=limit))
    except np.exceptions.TooHardError:
        return False


class _Interface:
    """The interface of an array at addresses that are never read."""

    def __init__(self, start: int, shape: tuple[int, ...], strides: tuple[int, ...], width: int):
        data = ((1 << 20) + start, True)
        self.__array_interface__ = {"version": 3, "typestr": f"|V{width}", "data": data}
        self.__array_interface__ |= {"shape": shape, "strides": strides}


def addresses(start: int, shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> np.ndarray:
    """Return an array to compare with others by `np.shares_memory`: there is nothing at its addresses."""
    return np.asarray(_Interface(start, shape, strides, width))


def _array(found: ByteSet) -> np.ndarray:
    shape, strides = (tuple(part) for part in zip(*found.repeats, strict=True)) if found.repeats else ((), ())
    return addresses(found.offset, shape or (1,), strides or (found.width,), found.width)


def overlapping_pairs(ones: Sequence[ByteSet], others: Sequence[ByteSet]) -> np.ndarray:
    """Return the (i, j) whose coordinates overlap, in order."""
    low, high = np.array([x.low for x in ones]).T, np.array([x.high for x in ones]).T
    other_low, other_high = np.array([x.low for x in others]).T, np.array([x.high for x in others]).T
    found = []
    rows = max(1, (1 << 22) // len(others))
    for start in range(0, len(ones), rows):
        part = slice(start, start + rows)
        overlap = np.ones((len(ones[part]), len(others)), bool)
        for d in range(len(low)):
            overlap &= low[d, part, None] < other_high[d]
            overlap &= other_low[d] < high[d, part, None]
        i, j = np.nonzero(overlap)
        found.append(np.stack([i + start, j], axis=1))
    return np.concatenate(found)
