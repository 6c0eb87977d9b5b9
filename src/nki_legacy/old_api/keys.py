"""Keys with index tensors: which region `t[key]` is.

Loops use one key again and again, with other numbers in it. The form of a key is what stays the same.
The view that a form picks is found once; then only its start is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nki.ir.caches import LRUCache
from nki.ir.tensor import NkiTensor, tensor_of

from .failures import failure
from .indices import Box, Index, as_index
from .regions import IndexedRegion, Piece

Form = tuple[Any, ...]  # None for a number, shape and steps of an index tensor, the bounds of a slice


class RowNumbers(NamedTuple):
    """An entry of a key that is a tile."""

    dim: int
    shape: tuple[int, ...]
    tile: NkiTensor
    is_element: bool  # one element of a tile: it picks one row


_BOUNDS = frozenset([int, type(None)])


def form_of(key: tuple) -> tuple[Form | None, list[int]]:
    """Return the form of a key, None if it has none, and where each entry starts.

    Keys of numbers, slices and affine index tensors have one, if there is an index tensor.
    """
    form: list[Any] = []
    starts: list[int] = []
    indexed = False
    for k in key:
        kind = type(k)
        if kind is int:
            form.append(None)
            starts.append(k)
        elif kind is Index and k.steps is not None:
            form.append((k.shape, k.steps) if k.shape else None)
            starts.append(k.base)
            indexed = indexed or bool(k.shape)
        elif kind is slice and _BOUNDS.issuperset(map(type, (k.start, k.stop, k.step))):
            form.append((k.start, k.stop, k.step))
            starts.append(0)
        else:
            return None, starts
    return tuple(form) if indexed else None, starts


class KnownView:
    """What keys of one form pick of tensors of one layout, as one view, up to its start."""

    __slots__ = ("region", "tile_shape", "box", "limits", "origin", "shape", "strides", "signatures")

    def __init__(self, region: IndexedRegion, piece: Piece, starts: Sequence[int]):
        tensor, (self.box, view) = region.tensor, piece
        self.region, self.tile_shape = region.shape, region.tile_shape
        self.limits = []  # the least and the greatest start in each dimension
        for start, index, size in zip(starts, region.indices, tensor.shape, strict=False):
            low, high = index.range()
            self.limits.append((start - low, start + size - 1 - high))
        moved = sum(start * stride for start, stride in zip(starts, tensor.strides, strict=False))
        self.origin = view.offset - tensor.offset - moved
        self.shape, self.strides = view.shape, view.strides
        self.signatures: dict[int, int] = {}  # on chip they depend on the offset

    def at(self, tensor: NkiTensor, starts: Sequence[int]) -> NkiTensor | None:
        """Return the view that starts there; None if it would leave the tensor."""
        offset = tensor.offset + self.origin
        for start, stride, (least, most) in zip(starts, tensor.strides, self.limits, strict=False):
            if not least <= start <= most:
                return None
            offset += start * stride
        place = offset if tensor.on_chip else 0
        signature = self.signatures.get(place)
        view = tensor_of(
            tensor.storage, tensor.lease, offset, self.shape, self.strides, tensor.dtype, signature
        )
        if signature is None:
            self.signatures[place] = view.sig
        return view


_KNOWN: LRUCache[tuple, KnownView] = LRUCache(1 << 12)


class NewRegion(IndexedRegion):
    """The region of a key whose form was not used before. If it is one view, that is remembered."""

    def __init__(self, tensor: NkiTensor, indices: Sequence[Index], shape: Sequence[int], key: tuple):
        super().__init__(tensor, indices, shape)
        self.key = key

    def pieces(self, box: Box | None = None) -> list[Piece]:
        found = super().pieces(box)
        if box is None and len(found) == 1 and self.tensor.plain is not None:
            form, starts = form_of(self.key)
            if form is not None:
                _KNOWN.put((self.tensor.sig, *form), KnownView(self, found[0], starts))
        return found


class RepeatedRegion(IndexedRegion):
    """The region of a key whose form was used before."""

    def __init__(self, tensor: NkiTensor, key: tuple, starts: Sequence[int], known: KnownView):
        self.tensor, self.key, self.starts, self.known = tensor, key, starts, known
        self.shape, self.tile_shape = known.region, known.tile_shape
        self.rows, self.skips = None, False

    @property
    def indices(self) -> Sequence[Index]:
        return region_of(self.tensor, self.key).indices

    def pieces(self, box: Box | None = None) -> list[Piece]:
        view = self.known.at(self.tensor, self.starts) if box is None else None
        return super().pieces(box) if view is None else [(self.known.box, view)]


def repeated_region(
    tensor: NkiTensor, key: tuple, form: Form, starts: Sequence[int]
) -> RepeatedRegion | None:
    """Return the region of a key if its form was used before on a tensor of this layout."""
    view = tensor.plain
    known = None if view is None else _KNOWN.get((view.sig, *form))
    return None if known is None else RepeatedRegion(tensor, key, starts, known)


def region_of(base: NkiTensor, key: tuple, rows: RowNumbers | None = None) -> IndexedRegion:
    """Return the region of index tensors, numbers and row numbers; slices get axes behind these."""
    given = key
    key = (*key, *[slice(None)] * (base.ndim - len(key)))
    shapes = [k.shape for k in key if isinstance(k, Index)]
    slices = [d for d, k in enumerate(key) if isinstance(k, slice)]
    shape: tuple[int, ...]
    if shapes:
        shape = np.broadcast_shapes(*shapes)
        if rows is not None and len(shape) >= 1:
            shape = np.broadcast_shapes(shape, (rows.shape[0], *[1] * (len(shape) - 1)))
    elif rows is not None:
        shape = () if slices and rows.is_element else rows.shape[:1] if slices else rows.shape
    else:
        shape = ()
    lengths = {d: range(*_range(key[d], base.shape[d])) for d in slices}
    whole = (*shape, *(len(r) for r in lengths.values()))
    indices = []
    for dim, k in enumerate(key):
        if dim in lengths:
            axis = len(shape) + slices.index(dim)
            steps = [lengths[dim].step if a == axis else 0 for a in range(len(whole))]
            indices.append(Index(whole, lengths[dim].start, steps))
        elif rows is not None and rows.dim == dim:
            indices.append(Index(whole, 0, [0] * len(whole)))
        else:
            found = as_index(k)
            if found is None:
                raise failure(
                    "err_unsupported_mixing_basic_advanced_tensor_indexing", f"an index cannot be {k!r}"
                )
            padded = found.spread(shape) if len(found.shape) <= len(shape) else found
            indices.append(_with_axes(padded, len(lengths)).spread(whole))
    if rows is None:
        return NewRegion(base, indices, whole, given)
    return IndexedRegion(base, indices, whole, (rows.dim, rows.tile))


def _with_axes(found: Index, count: int) -> Index:
    behind: tuple = (Ellipsis,) + (None,) * count
    return found[behind] if count and found.shape else found


def _range(cut: slice, size: int) -> tuple[int, int, int]:
    start = 0 if cut.start is None else cut.start if cut.start >= 0 else cut.start + size
    stop = size if cut.stop is None else cut.stop if cut.stop >= 0 else cut.stop + size
    return start, stop, cut.step or 1
