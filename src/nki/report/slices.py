"""Which part of its tensor an operand is, in few numbers: `rhs[256:384, 0:512]`.

The shapes belong to a kind of bar; where the part begins is one number for each bar.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ..ir.view import View

MOST_OPERANDS = 4  # of a bar, whose beginnings are stored


class Slices:
    """The extents of views, each layout worked out once."""

    def __init__(self) -> None:
        self.known: dict[tuple, Any] = {}

    def __call__(self, view: View) -> Any:
        """(strides and shape of the tensor, elements taken along each); None for all of it or no slice."""
        s = view.storage
        key = (s.shape, s.dtype, s.on_chip, view.shape, view.strides, view.dtype, view.indirection is None)
        if key not in self.known:
            self.known[key] = extents(view)
        return self.known[key]


def extents(view: View) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """(strides and shape of the storage, elements that the view takes along each of its dimensions)."""
    storage = view.storage
    if view.indirection is not None or view.dtype != storage.dtype or not storage.shape:
        return None
    strides = [prod(storage.shape[axis + 1 :]) for axis in range(len(storage.shape))]
    if storage.on_chip:
        strides[0] = view.row_pitch
    taken = [1] * len(strides)
    for size, step in zip(view.shape, view.strides, strict=True):
        if size == 1 or step == 0:
            continue
        fits = [a for a, s in enumerate(strides) if s == step and taken[a] == 1 and size <= storage.shape[a]]
        if not fits:
            return None
        taken[fits[0]] = size
    if tuple(taken) == tuple(storage.shape):
        return None  # all of it: its shape is enough
    return tuple(strides), tuple(storage.shape), tuple(taken)
