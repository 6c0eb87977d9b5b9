"""Masks of the old API: which positions of a tile `mask=` means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from nki.errors import error
from nki.ir.caches import LRUCache

from .indices import Box, IndexMask, full

MaskLike: TypeAlias = "IndexMask | bool | np.bool_ | int | None"


class Where:
    """A mask on a tile of some shape: nothing, everything, a box, or any positions."""

    __slots__ = ("box", "array")

    def __init__(self, box: Box | None, array: np.ndarray | None = None):
        self.box = box  # the smallest that holds all positions; None for no position at all
        self.array = array  # which of the tile's positions; None for all those of the box

    def covers(self, shape: Sequence[int]) -> bool:
        if self.box is None or self.array is not None:
            return False
        return all(cut.start == 0 and cut.stop == n for cut, n in zip(self.box, shape, strict=True))


def where(mask: MaskLike, shape: Sequence[int]) -> Where:
    """What `mask=` means for a tile of this shape."""
    if mask is None or mask is True or (isinstance(mask, np.bool_) and mask):
        return Where(full(shape))
    if isinstance(mask, (bool, np.bool_, int)):
        return Where(full(shape) if mask else None)
    if not isinstance(mask, IndexMask):
        raise error("argument", f"mask= takes a comparison of index tensors, got {type(mask).__name__}")
    if mask.terms is None or any(index.steps is None for index, _ in mask.terms):
        return _where_true(mask.array, shape)
    form = (tuple(shape), *[(name, i.shape, i.base, i.steps) for i, name in mask.terms])
    known = _PLACES.get(form)
    if known is None:
        known = _where_true(mask.array, shape)
        if known.array is None:
            _PLACES.put(form, known)
    return known


_PLACES: LRUCache[tuple, Where] = LRUCache(1 << 12)  # of masks that are boxes, by shape and comparisons


def _where_true(mask: np.ndarray, shape: Sequence[int]) -> Where:
    """Return where an array holds on a tile of this shape."""
    array = _fitted(mask, tuple(shape))
    if not array.any():
        return Where(None)
    cuts = []
    for axis in range(array.ndim):
        along = np.flatnonzero(array.any(axis=tuple(a for a in range(array.ndim) if a != axis)))
        cuts.append(slice(int(along[0]), int(along[-1]) + 1))
    box = tuple(cuts)
    return Where(box, None if array[box].all() else array)


def _fitted(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the mask at every position of a tile; unit axes may come and go."""
    if array.ndim == len(shape):
        fits = all(n in (1, m) for n, m in zip(array.shape, shape, strict=True))
        if fits:
            return np.broadcast_to(array, shape)
    if array.size == 1:
        return np.broadcast_to(array.reshape(()), shape)
    own = [n for n in array.shape if n != 1]
    places = [k for k, n in enumerate(shape) if n != 1]
    if own == [shape[k] for k in places]:
        return np.broadcast_to(array.reshape([n if n != 1 else 1 for n in shape]), shape)
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise error("shape", f"mask= has shape {array.shape}, the tile has {shape}") from None


def rows_of(array: np.ndarray) -> Iterator[tuple[Box, np.ndarray]]:
    """Yield the boxes of single runs of a mask, row by row along its last axis."""
    for place in np.ndindex(array.shape[:-1]):
        row = np.flatnonzero(array[place])
        if row.size:
            cuts = tuple(slice(i, i + 1) for i in place)
            for run in np.split(row, np.flatnonzero(np.diff(row) > 1) + 1):
                yield (*cuts, slice(int(run[0]), int(run[-1]) + 1)), run
