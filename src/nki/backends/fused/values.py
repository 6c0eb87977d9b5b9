"""SSA values: what an instruction writes through one view, never changed afterwards.

Everything here counts elements. `Elements` are a strided selection from a base: a value that has memory of
its own, or a storage that is never written. An `SSAValue` knows the addresses that its storage gives to its
elements, so that a later view of the storage is located in it (`SSAValue.locate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ...ir.boxes import Box, rectangle
from ...ir.caches import LRUCache
from ...ir.layout import Shape, regrouped, row_major
from ...ir.view import View
from ...machine.dtypes import DType


class Elements(NamedTuple):
    """A strided selection from a base: offset, shape and strides in elements of `dtype`."""

    base: Any  # an SSAValue with memory of its own, or a Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType


_elements = tuple.__new__  # a plan makes very many Elements: this is faster than their own __new__


_row_major = lru_cache(maxsize=1 << 12)(row_major)


def as_dtype(elements: Elements, dtype: DType) -> Elements:
    """Return the same elements as another dtype."""
    base, offset, shape, strides, _ = elements
    return _elements(Elements, (base, offset, shape, strides, dtype))


class SSAValue:
    """What one instruction (or a chain of matmuls) writes through one view."""

    producers: list[Any]  # the nodes that write it
    readers: list[Any]  # the nodes that read it, each as often as it does
    origin: SSAValue | None = None  # for products: the same numbers before they were transposed or widened
    terms: list[tuple[Elements, Elements]] | None = None  # a sum of products: stationary and moving
    from_values = False  # of the terms, some are of values
    pieces: list[tuple[Box, SSAValue]] | None = None  # gathered from these, each in its box
    own: Elements | None = None  # all elements, where it has memory of its own
    sealed = False  # it was read: no more terms are added
    by_matmul = False
    is_zero = False
    stored_at: Elements | None = None  # it is computed into a part of a result
    in_product: tuple[Any, int, int] | None = None  # a block of a larger product: its buffer, offset, pitch
    at = -1  # byte offset in the arena, or in the region of its chain
    in_region = False
    depth, window = 0, -1

    def __init__(self, view: View, elements: Elements | None = None):
        self.view = view
        self.dtype = view.dtype
        self.elements = elements  # where it lies in the memory of another base
        self.base: Any
        if elements is None:
            self.base, self.offset = self, 0
            self.size = prod(view.shape)
            self.producers, self.readers = [], []
        else:
            self.base, self.offset = elements.base, elements.offset

    def unlink(self) -> None:
        """Drop the references that form cycles; the value is not used any more."""
        self.producers, self.readers = [], []
        self.own = self.origin = self.pieces = self.terms = self.base = None

    def _whole(self) -> Elements:
        shape = tuple(self.view.shape)
        self.own = _elements(Elements, (self, 0, shape, _row_major(shape), self.view.dtype))
        return self.own

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def whole(self) -> Elements:
        """Return all elements, in the shape in which they were written."""
        return self.locate(self.view)  # type: ignore[return-value]

    def in_single_piece(self, elements: Elements) -> Elements | None:
        """Locate elements of a gathered value in the one piece that holds them; None if several do."""
        frame = self.view
        if self.pieces is None or len(frame.shape) != 2 or elements.dtype is not self.dtype:
            return None
        (_, columns), (pitch, _) = frame.shape, frame.strides
        row, column = divmod(elements.offset, columns)
        strides = tuple([s // columns * pitch + s % columns for s in elements.strides])
        offset = frame.offset + row * pitch + column
        view = View(frame.storage, offset, Shape(elements.shape), strides, self.dtype)
        where = rectangle(view)
        pieces = [] if where is None else [v for r, v in self.pieces if r.overlaps(where)]
        if len(pieces) != 1:
            return None
        (piece,) = pieces
        if piece.origin is None or piece.dtype is not self.dtype:
            return piece.locate(view)
        found = piece.origin.locate(view)
        return None if found is None else as_dtype(found, piece.origin.dtype)

    def relocated(self, elements: Elements) -> SSAValue:
        """Return the same value in the memory of another base."""
        return SSAValue(self.view, elements)

    def locate(self, view: View) -> Elements | None:
        """Return the elements of a view of the same memory; None where they are no strided selection."""
        own, elements = self.view, self.elements
        dtype, sig, own_sig = view.dtype, view._sig or view.sig, own._sig or own.sig
        if sig == own_sig:
            if elements is None:
                return self.own or self._whole()
            return elements if elements.dtype is dtype else as_dtype(elements, dtype)
        if dtype.itemsize != own.dtype.itemsize:
            return None
        # both are on chip, where a signature has offset, shape and strides
        key = (own_sig, sig, None if elements is None else elements.strides)
        found = _LOCATED.get(key)
        if found is None:
            steps = row_major(own.shape) if elements is None else elements.strides
            found = _located(own, view, steps) or ()
            _LOCATED.put(key, found)
        if not found:
            return None
        offset, shape, strides = found
        return _elements(Elements, (self.base, self.offset + offset, shape, strides, dtype))


class LoadedValue(SSAValue):
    """A copy of HBM that is never written. Equal copies share it, and what was located in it."""

    def __init__(self, view: View, elements: Elements):
        super().__init__(view, elements)
        self.parts: dict[int, Elements] = {}  # by signature of a view

    def locate_part(self, view: View) -> Elements | None:
        """Locate a view in a tile that holds nothing else; None where its values must be looked at."""
        found = None if rectangle(view) is None else self.locate(view)
        if found is not None:
            self.parts[view.sig] = found
        return found


Located = tuple[int, tuple[int, ...], tuple[int, ...]]

# signatures of two views, and the steps of the first one in a base -> offset, shape and strides of the second
_LOCATED: LRUCache[tuple, Located | tuple[()]] = LRUCache(1 << 16)


def _located(own: View, view: View, steps: tuple[int, ...]) -> Located | None:
    """Return where the elements of a view are among those of `own`, which have these steps; or None."""
    dims, steps = _merged(tuple(own.shape), own.strides, steps)
    shape = tuple(view.shape)
    found = _within(dims, view.offset - own.offset, shape, view.strides)
    if found is None:
        return None
    starts, ways = found
    offset = sum([index * steps[dim] for dim, index in starts])
    return offset, shape, tuple([steps[dim] * step if step else 0 for dim, step in ways])


@lru_cache(maxsize=1 << 14)
def _merged(
    shape: tuple[int, ...], addresses: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Return (count, address step) of each dimension and its step in the base, with dimensions merged."""
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
    """Locate a view among elements that lie at Σ index * address step.

    Returns the first index in each dimension, and for each dimension of the view (dimension, step); or None.
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
def reshape_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return strides that give the same elements, in order, the shape `wanted`; None where there are none."""
    if shape == wanted:
        return strides
    found = regrouped(shape, strides, wanted)
    return None if found is None else tuple([s if n > 1 else 0 for n, s in zip(wanted, found, strict=True)])


def matrix_strides(elements: Elements, rows: int) -> tuple[int, int] | None:
    """Return the strides of elements as a matrix [rows, everything else], or None."""
    found = reshape_strides(elements.shape, elements.strides, (rows, prod(elements.shape) // rows))
    return None if found is None else (found[0], found[1])


def permuted(elements: Elements, order: Any, shape: Sequence[int]) -> Elements | None:
    """Return elements in the order of a Move and the shape of its dst; None: no strided selection."""
    if order == "transpose":
        rows = elements.shape[0]
        found = matrix_strides(elements, rows)
        if found is None:
            return None
        elements = _selected(elements, (prod(elements.shape) // rows, rows), (found[1], found[0]))
    elif order is not None:
        shape_, strides_ = elements.shape, elements.strides
        elements = _selected(elements, tuple([shape_[d] for d in order]), tuple([strides_[d] for d in order]))
    wanted = tuple(shape)
    if elements.shape == wanted:
        return elements
    strides = reshape_strides(elements.shape, elements.strides, wanted)
    return None if strides is None else _selected(elements, wanted, strides)


def split_view(view: View, dim: int, count: int) -> list[View]:
    """Return a view in equal parts along a dimension; none where it has no such parts."""
    size, rest = divmod(view.shape[dim], count) if count else (0, 1)
    if rest:
        return []
    shape = Shape((*view.shape[:dim], size, *view.shape[dim + 1 :]))
    step = size * view.strides[dim]
    return [View(view.storage, view.offset + i * step, shape, view.strides, view.dtype) for i in range(count)]


def joined(parts: Sequence[Elements | None], dim: int) -> Elements | None:
    """Return parts along a dimension as one strided selection; None if there is none."""
    first, second = parts[:2]
    if first is None or second is None:
        return None
    size, step = first.shape[dim], second.offset - first.offset
    if size > 1 and step != size * first.strides[dim]:
        return None
    for number, part in enumerate(parts):
        if part != _at(first, first.offset + number * step):
            return None
    shape = (*first.shape[:dim], size * len(parts), *first.shape[dim + 1 :])
    strides = (*first.strides[:dim], step // size, *first.strides[dim + 1 :])
    return _selected(first, shape, strides)


def _at(elements: Elements, offset: int) -> Elements:
    return _elements(Elements, (elements.base, offset, *elements[2:]))


def _selected(elements: Elements, shape: tuple[int, ...], strides: tuple[int, ...]) -> Elements:
    """Return elements with another shape and other strides."""
    return _elements(Elements, (elements.base, elements.offset, shape, strides, elements.dtype))


def storage_elements(view: View) -> Elements:
    """Return the elements of a view of a storage in HBM."""
    return _elements(Elements, (view.storage, view.offset, tuple(view.shape), view.strides, view.dtype))
