"""Values: what an instruction writes, never changed afterwards. Places: where elements of values lie.

Everything here counts elements. A `Place` is a strided view of a base: a value that has memory of its own, or
a storage that nobody writes. A `Value` knows the addresses its storage gives to its elements, so that a later
view of the storage is found in it again (`Value.part`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ...ir.layout import Shape, row_major
from ...ir.view import View
from ...machine.dtypes import DType


class Place(NamedTuple):
    """Elements of a base: offset, shape and strides in elements of `dtype`."""

    base: Any  # a Value with memory of its own, or a Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType


class Region(NamedTuple):
    """The partitions and bytes that a view of an on-chip storage touches; `exact`: all of them, once."""

    first: int
    last: int
    start: int
    stop: int
    exact: bool

    def overlaps(self, other: Region) -> bool:
        return (
            self.first < other.last
            and other.first < self.last
            and self.start < other.stop
            and other.start < self.stop
        )

    def covers(self, other: Region) -> bool:
        return (
            self.exact
            and self.first <= other.first
            and other.last <= self.last
            and self.start <= other.start
            and other.stop <= self.stop
        )


_regions: dict[int, Region | None] = {}
_LIMIT = 1 << 16


def region(view: View) -> Region | None:
    """Where an on-chip view lies in its memory; None where partitions are not simply counted."""
    found = _regions.get(view.sig, False)
    if found is False:
        if len(_regions) > _LIMIT:
            _regions.clear()
        found = _regions[view.sig] = _region(view)
    return found  # type: ignore[return-value]


def _region(view: View) -> Region | None:
    (rows, pitch), *free = zip(view.shape, view.strides, strict=True)
    if rows > 1 and pitch != view.row_pitch or any(s < 0 for _, s in free):
        return None
    row, offset = divmod(view.offset, view.row_pitch)
    span = sum((n - 1) * s for n, s in free) + 1
    if offset + span > view.row_pitch:
        return None
    step, exact = 1, True
    for n, s in sorted(free, key=lambda dim: dim[1]):
        if n > 1:
            exact = exact and s == step
            step *= n
    width = view.dtype.itemsize
    partition, byte = view.storage.address or (0, 0)
    start = byte + offset * width
    return Region(partition + row, partition + row + rows, start, start + span * width, exact)


MOST_RUNS = 64


@lru_cache(maxsize=1 << 12)
def _starts(dims: tuple[tuple[int, int], ...]) -> tuple[int, tuple[int, ...]] | None:
    """Free dimensions as runs of neighbouring elements: their length, and where they start."""
    run, starts = 1, [0]
    for n, stride in sorted(dims, key=lambda dim: dim[1]):
        if n == 1:
            continue
        if stride == run and len(starts) == 1:
            run *= n
        elif stride < run or n * len(starts) > MOST_RUNS:
            return None
        else:
            starts = [start + i * stride for i in range(n) for start in starts]
    return run, tuple(sorted(starts))


def runs(view: View, where: Region) -> list[Region] | None:
    """The rectangles of neighbouring bytes that a view consists of; None: too many, or some twice."""
    if where.exact:
        return [where]
    found = _starts(tuple(zip(view.shape[1:], view.strides[1:], strict=True)))
    if found is None:
        return None
    width, (length, starts) = view.dtype.itemsize, found
    if any(b - a < length for a, b in zip(starts, starts[1:], strict=False)):
        return None
    return [
        Region(where.first, where.last, where.start + s * width, where.start + (s + length) * width, True)
        for s in starts
    ]


class Value:
    """What one instruction (or a chain of matmuls) writes through one view."""

    makers: list[Any]  # the tasks that write it
    readers: list[Any]  # the tasks that read it, each as often as it does
    wide: Value | None = None  # for products: the same numbers elsewhere, in another order or dtype
    terms: list[tuple[Place, Place]] | None = None  # a sum of products: stationary and moving
    gathered: list[tuple[Region, Value]] | None = None  # put together of these, each in its rectangle
    _own: Place | None = None
    layout: tuple | None = None  # (count, address step) of each dimension, and its step in the base
    closed = False  # somebody saw it: no more terms
    by_matmul = False
    zero = False
    sunk: Place | None = None  # its memory is a part of a result
    placed: tuple[Any, int, int] | None = None  # inside a larger product: its memory, offset, pitch
    at = -1  # byte in the arena
    depth, stage = 0, -1

    def __init__(self, view: View, place: Place | None = None):
        self.view = view
        self.dtype = view.dtype
        self.start = view.offset  # address of the first element in the storage
        self.place = place  # where it lies in memory of somebody else
        self.base: Any
        if place is None:
            self.base, self.offset = self, 0
            self.size = prod(view.shape)
            self.makers, self.readers = [], []
        else:
            self.base, self.offset = place.base, place.offset

    def forget(self) -> None:
        """Nobody asks for it any more: let go of what refers back to it."""
        self.makers, self.readers = [], []
        self._own = self.wide = self.gathered = self.terms = self.base = None

    def _whole(self) -> Place:
        shape = tuple(self.view.shape)
        self._own = Place(self, 0, shape, row_major(shape), self.view.dtype)
        return self._own

    def _laid_out(self) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        shape = tuple(self.view.shape)
        strides = row_major(shape) if self.place is None else self.place.strides
        self.layout = _merged(shape, self.view.strides, strides)
        return self.layout

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def whole(self) -> Place:
        """All of it, in the shape in which it was written."""
        return self.part(self.view)  # type: ignore[return-value]

    def ungathered(self, place: Place) -> Place | None:
        """A place in a gathered value where the one piece that it lies in has it; None: in several."""
        frame = self.view
        if self.gathered is None or len(frame.shape) != 2 or place.dtype is not self.dtype:
            return None
        (_, columns), (pitch, _) = frame.shape, frame.strides
        row, column = divmod(place.offset, columns)
        strides = tuple([s // columns * pitch + s % columns for s in place.strides])
        offset = frame.offset + row * pitch + column
        view = View(frame.storage, offset, Shape(place.shape), strides, self.dtype)
        where = region(view)
        pieces = [] if where is None else [v for r, v in self.gathered if r.overlaps(where)]
        if len(pieces) != 1:
            return None
        (piece,) = pieces
        if piece.wide is None or piece.dtype is not self.dtype:
            return piece.part(view)
        found = piece.wide.part(view)
        return None if found is None else found._replace(dtype=piece.wide.dtype)

    def within(self, place: Place) -> Value:
        """The same elements in memory of somebody else."""
        return Value(self.view, place)

    def part(self, view: View) -> Place | None:
        """Where the elements of a view of the same memory lie; None where that is no strided view."""
        own, place = self.view, self.place
        if view is own or view.sig == own.sig:
            if place is None:
                return self._own or self._whole()
            return place if place.dtype is view.dtype else place._replace(dtype=view.dtype)
        if view.dtype.itemsize != own.dtype.itemsize:
            return None
        shape = tuple(view.shape)
        dims, steps = self.layout or self._laid_out()
        found = _within(dims, view.offset - self.start, shape, view.strides)
        if found is None:
            return None
        starts, ways = found
        offset = self.offset
        for dim, index in starts:
            offset += index * steps[dim]
        strides = tuple([steps[dim] * step if step else 0 for dim, step in ways])
        return Place(self.base, offset, shape, strides, view.dtype)


@lru_cache(maxsize=1 << 14)
def _merged(
    shape: tuple[int, ...], addresses: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """(count, address step) of each dimension and its step in the base; neighbours become one if they can."""
    found: list[tuple[int, int, int]] = []
    for n, address, step in zip(shape, addresses, steps, strict=True):
        if n == 1:
            continue
        if found:
            count, outer, far = found[-1]
            if outer == n * address and far == n * step:
                found[-1] = (count * n, address, step)
                continue
        found.append((n, address, step))
    return tuple((n, address) for n, address, _ in found), tuple(step for _, _, step in found)


@lru_cache(maxsize=1 << 15)
def _within(
    dims: tuple[tuple[int, int], ...], offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] | None:
    """A view among elements that lie at Σ index * address step.

    The first index in each dimension, and for each dimension of the view (dimension, step), or None.
    """
    order = sorted(range(len(dims)), key=lambda d: -dims[d][1])
    left, room = offset, {}
    starts = []
    below = 0
    for d in reversed(order):  # every step leaves room for all that is below it
        if dims[d][1] <= below:
            return None
        below += (dims[d][0] - 1) * dims[d][1]
    for d in order:
        index, left = divmod(left, dims[d][1])
        if not 0 <= index < dims[d][0]:
            return None
        starts.append((d, index))
        room[d] = dims[d][0] - 1 - index
    if left:
        return None
    ways: list[tuple[int, int]] = []
    for n, stride in zip(shape, strides, strict=True):
        if n == 1 or stride == 0:
            ways.append((0, 0))
            continue
        for d in order:
            step, rest = divmod(stride, dims[d][1])
            if step > 0 and not rest and (n - 1) * step <= room[d]:
                room[d] -= (n - 1) * step
                ways.append((d, step))
                break
        else:
            return None
    return tuple(starts), tuple(ways)


@lru_cache(maxsize=1 << 14)
def reshaped(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides that give the same elements, in order, the shape `wanted`; None where there are none."""
    if shape == wanted:
        return strides
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    found = [0] * len(wanted)
    left, stride = old.pop() if old else (1, 1)
    for d in range(len(wanted) - 1, -1, -1):  # from the fastest dimension on
        n = wanted[d]
        if n == 1:
            continue
        if left == 1:
            left, stride = old.pop()
        while left < n:  # dimensions that lie one behind the other count as one
            outer, step = old.pop()
            if step != left * stride:
                return None
            left *= outer
        if left % n:
            return None
        found[d] = stride
        left //= n
        stride *= n
    return tuple(found)


def as_matrix(place: Place, rows: int) -> tuple[int, int] | None:
    """Strides of a place taken as [rows, everything else], or None."""
    found = reshaped(place.shape, place.strides, (rows, prod(place.shape) // rows))
    return None if found is None else (found[0], found[1])


def moved(place: Place, order: Any, shape: Sequence[int]) -> Place | None:
    """The elements of a place permuted as a Move says, in the shape of its dst; None: no strided view."""
    if order == "transpose":
        rows = place.shape[0]
        found = as_matrix(place, rows)
        if found is None:
            return None
        place = place._replace(shape=(prod(place.shape) // rows, rows), strides=(found[1], found[0]))
    elif order is not None:
        place = place._replace(
            shape=tuple(place.shape[d] for d in order), strides=tuple(place.strides[d] for d in order)
        )
    wanted = tuple(shape)
    if place.shape == wanted:
        return place
    strides = reshaped(place.shape, place.strides, wanted)
    return None if strides is None else Place(place.base, place.offset, wanted, strides, place.dtype)


def of_storage(view: View) -> Place:
    """A view of a storage in HBM."""
    return Place(view.storage, view.offset, tuple(view.shape), view.strides, view.dtype)


__all__ = [
    "Place",
    "Region",
    "Value",
    "as_matrix",
    "moved",
    "of_storage",
    "region",
    "reshaped",
    "runs",
]
