"""The elements that index tensors pick: one access pattern, or several where one does not suffice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nki import isa
from nki.ir.context import current
from nki.ir.layout import Shape, row_major
from nki.ir.tensor import NkiTensor
from nki.language.creation import allocate
from nki.machine import dtypes
from nki.machine.memories import SBUF

from .failures import failure
from .indices import Box, Index, full, product
from .types import DTypeLike

Piece = tuple[Box, NkiTensor]


class IndexedRegion:
    """Positions of `shape`, each an element of a tensor: one index per dimension of the tensor."""

    def __init__(
        self,
        tensor: NkiTensor,
        indices: Sequence[Index],
        shape: Sequence[int],
        rows: tuple[int, NkiTensor] | None = None,
    ):
        self.tensor = tensor
        self.shape = tuple(shape)
        self._indices = [index.spread(self.shape) for index in indices]
        self.rows = rows  # the dimension that a tile of row numbers indexes, and the tile
        self.skips = False  # rows out of bounds are skipped, not refused
        column = tensor.on_chip and len(self.shape) == 1
        self.tile_shape = Shape((*self.shape, 1) if column else self.shape)

    @property
    def indices(self) -> Sequence[Index]:
        """One index per dimension of the tensor, each with the shape of the region."""
        return self._indices

    def pieces(self, box: Box | None = None) -> list[Piece]:
        """Views of the tensor that together are the positions of a box."""
        box = full(self.shape) if box is None else box
        parts = [index.part(box) for index in self.indices]
        self._check(parts)
        if self.rows is not None:
            return [(box, self._gathered(parts, box))]
        return list(self._split(box, parts))

    def _check(self, parts: Sequence[Index]) -> None:
        for dim, (part, size) in enumerate(zip(parts, self.tensor.shape, strict=True)):
            if self.rows is not None and self.rows[0] == dim:
                continue
            low, high = part.range()
            if low < 0 or high >= size:
                raise failure(
                    "err_tensor_access_out_of_bound",
                    f"dimension {dim} has size {size}, the index reaches {low if low < 0 else high}",
                    "mask= excludes positions: mask=(i_p < size)",
                    [self.tensor.describe()],
                )

    def _split(self, box: Box, parts: Sequence[Index]) -> Iterator[Piece]:
        view = self._view(parts)
        if view is not None:
            yield box, view
            return
        sizes = [cut.stop - cut.start for cut in box]
        axis = next(k for k, n in enumerate(sizes) if n > 1)
        for i in range(sizes[axis]):
            inner = tuple(slice(i, i + 1) if k == axis else slice(0, n) for k, n in enumerate(sizes))
            outer = tuple(
                slice(cut.start + i, cut.start + i + 1) if k == axis else cut for k, cut in enumerate(box)
            )
            yield from self._split(outer, [part.part(inner) for part in parts])

    def _view(self, parts: Sequence[Index]) -> NkiTensor | None:
        """One access pattern for all positions, if there is one."""
        sizes = parts[0].shape
        if any(part.steps is None for part in parts):
            return None
        dims = list(zip(parts, self.tensor.strides, strict=True))
        if not self.tensor.on_chip:
            total, steps = _combined(dims, len(sizes))
            return None if min(steps, default=0) < 0 else self.tensor.ap(_pairs(steps, sizes), total)
        total, steps = _combined(dims[1:], len(sizes))
        partition = dims[0][0]
        assert partition.steps is not None
        rows = [s for s, n in zip(partition.steps, sizes, strict=True) if n > 1]
        first_varies = sizes[0] > 1
        wanted = [1] + [0] * (len(rows) - 1) if first_varies else [0] * len(rows)
        if rows != wanted or (first_varies and steps[0] != 0) or min(steps, default=0) < 0:
            if len(rows) and any(rows[1:] if first_varies else rows) and sizes[0] == 1:
                raise failure(
                    "err_unsupported_memory",
                    "the partition index of a tile varies along the first axis alone",
                    notes=[self.tensor.describe()],
                )
            return None
        pitch = self.tensor.strides[0]
        offset = total + pitch * partition.base
        if len(sizes) > 5:  # more axes than a pattern may have: each is still one step
            strides = [pitch, *(step for step, _ in _pairs(steps[1:], sizes[1:]))]
            start = self.tensor.offset + offset
            return self.tensor._make(start, tuple(sizes), strides, self.tensor.dtype, None)
        return self.tensor.ap([[pitch, sizes[0]], *_pairs(steps[1:], sizes[1:])], offset)

    def _gathered(self, parts: Sequence[Index], box: Box) -> NkiTensor:
        """Rows named by a tile of indices: a view of HBM that one transfer reads or writes."""
        assert self.rows is not None
        dim, ids = self.rows
        others = [
            (part, stride)
            for k, (part, stride) in enumerate(zip(parts, self.tensor.strides, strict=True))
            if k != dim
        ]
        sizes = [cut.stop - cut.start for cut in box]
        if any(part.steps is None for part, _ in others):
            raise failure("err_indirect_indices_free_dim", "beside row numbers, indices must be affine")
        total, steps = _combined(others, len(sizes))
        table = self.tensor.permute([dim, *(d for d in range(self.tensor.ndim) if d != dim)])
        pattern = [[table.strides[0], sizes[0]], *_pairs(steps[1:], sizes[1:])]
        if ids.size == 1 and sizes[0] > 1:
            pattern[0][0] = steps[0]
            return table.ap(pattern, total, scalar_offset=ids, indirect_dim=0)
        rows = ids[box[0].start : box[0].stop]
        if not self.skips:
            check_rows(rows, self.tensor, dim)
        return table.ap(pattern, total, vector_offset=rows, indirect_dim=0)


def check_rows(rows: NkiTensor, tensor: NkiTensor, dim: int) -> None:
    """Raise numpy's IndexError, which callers of the old simulator expect, if a row is outside the tensor."""
    if not current().read_back(rows.storage):
        return
    values = np.asarray(rows).reshape(-1)
    outside = values[(values < 0) | (values >= tensor.shape[dim])]
    if outside.size:
        flat = int(outside[0]) * tensor.strides[dim]
        raise IndexError(f"index {flat} is out of bounds for axis 0 with size {product(tensor.shape)}")


def _combined(dims: Sequence[tuple[Index, int]], rank: int) -> tuple[int, list[int]]:
    """Offset and steps, in elements, of indices times strides."""
    total, steps = 0, [0] * rank
    for part, stride in dims:
        assert part.steps is not None
        total += part.base * stride
        steps = [a + b * stride for a, b in zip(steps, part.steps, strict=True)]
    return total, [s if n > 1 else 0 for s, n in zip(steps, dims[0][0].shape, strict=True)] if dims else steps


def _pairs(steps: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """[step, count] for each axis; unit axes keep their place."""
    return [[step if n > 1 else 1, n] for step, n in zip(steps, sizes, strict=True)] or [[1, 1]]


def gather(region: IndexedRegion, box: Box | None = None) -> NkiTensor:
    """Return the positions of a region as one view; where no pattern describes it, as a copy."""
    pieces = region.pieces(box)
    if len(pieces) == 1:
        return pieces[0][1]
    sizes = [cut.stop - cut.start for cut in (box or full(region.shape))]
    sizes = sizes if len(sizes) > 1 else [*sizes, 1]
    out = new_tile(tuple(sizes), region.tensor.dtype, SBUF)
    copy_pieces(out, pieces, box)
    return out


def copy_pieces(out: NkiTensor, pieces: Sequence[Piece], box: Box | None = None) -> None:
    """Copy pieces to their places in a tile that begins where the box does."""
    starts = [cut.start for cut in box] if box else []
    for place, view in pieces:
        cuts = [
            slice(cut.start - start, cut.stop - start)
            for cut, start in zip(place, starts or [0] * len(place), strict=True)
        ]
        move(out[tuple(cuts)] if len(pieces) > 1 else out, view)


def move(dst: NkiTensor, src: NkiTensor) -> None:
    """Copy, by the instruction that reaches both memories."""
    if dst.on_chip and src.on_chip:
        isa.tensor_copy(dst, src)
    elif src.on_chip and src.buffer is not SBUF:
        tile = allocate("store", src.shape, src.dtype)
        isa.tensor_copy(tile, src)
        isa.dma_copy(dst, tile)
    elif dst.on_chip and dst.buffer is not SBUF:
        tile = allocate("load", dst.shape, dst.dtype)
        isa.dma_copy(tile, src)
        isa.tensor_copy(dst, tile)
    else:
        isa.dma_copy(dst, src)


def fitted(view: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """Return the same elements in the same order, with unit dimensions of a tile's rows added or removed."""
    if tuple(view.shape) == tuple(shape) or view.indirection is not None:
        return view
    pairs = view.get_pattern()
    head, rest = (pairs[:1], pairs[1:]) if view.on_chip else ([], pairs)
    used = [pair for pair in rest if pair[1] != 1]
    wanted = list(shape[1:] if view.on_chip else shape)
    if [n for _, n in used] != [n for n in wanted if n != 1]:
        raise failure(
            "err_num_partition_mismatch",
            f"shape {tuple(view.shape)} does not fit {tuple(shape)}: the first dimension is partitions",
            "nl.transpose moves a row to partitions",
            [view.describe()],
        )
    left = iter(used)
    pattern = head + [[1, 1] if n == 1 else next(left) for n in wanted]
    if len(pattern) < 2 and view.on_chip:
        pattern.append([1, 1])
    return view.ap(pattern)


def reshaped(view: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """Reshape a view; the old API allows a tile more than five dimensions."""
    if len(shape) <= 5 or not view.on_chip or shape[0] != view.shape[0]:
        return view.reshape(list(shape))
    sizes = view._with_inferred(shape, view.size, "reshape")
    strides = [view.strides[0], *view._regroup(view.shape[1:], view.strides[1:], sizes[1:])]
    return view._make(view.offset, sizes, strides, view.dtype, None)


def as_rows(index: NkiTensor) -> NkiTensor:
    """A tile of row numbers as transfers read it: (n, 1) in SBUF, 32 bits."""
    flat = index if index.ndim == 2 else index.reshape((index.shape[0], product(index.shape[1:])))
    if flat.dtype in (dtypes.int32, dtypes.uint32) and flat.buffer is SBUF:
        return flat
    out = allocate("index", flat.shape, dtypes.int32)
    isa.tensor_copy(out, flat)
    return out


def empty_of(shape: Sequence[int], dtype: DTypeLike, buffer: Any = SBUF) -> NkiTensor:
    """A new tile for a result; one of one dimension is a column."""
    return new_tile(tuple(shape) if len(shape) > 1 else (*shape, 1), dtype, buffer)


def new_tile(
    shape: tuple[int, ...],
    dtype: DTypeLike,
    buffer: Any,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """A tile. Beyond five dimensions it is a row per partition, seen with all of them."""
    if len(shape) <= 5:
        return allocate("ndarray", shape, dtype, buffer, name, address)
    flat = allocate("ndarray", (shape[0], product(shape[1:])), dtype, buffer, name, address)
    return flat._make(flat.offset, shape, row_major(shape), flat.dtype, None)
