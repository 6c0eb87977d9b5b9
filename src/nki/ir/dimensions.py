"""Dimensions reordered, repeated, inserted and removed; bits read as another dtype (spec/tensor.md 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..machine import dtypes
from .indexing import Indexed
from .layout import Int, as_list, is_int, shown

V = TypeVar("V", bound="Dimensioned")  # jedi knows it, but not typing.Self


class Dimensioned(Indexed):
    """Views whose dimensions can be rearranged one at a time."""

    __slots__ = ()

    def permute(self: V, dims: Sequence[Int]) -> V:
        """Reorder the dimensions; the partition dimension stays first."""
        order = [self._dim(d, "permute") for d in as_list(dims, "permute: dims")]
        if sorted(order) != list(range(self.ndim)):
            self._fail(
                "pattern", f"permute: {tuple(order)} is not a permutation of the {self.ndim} dimensions"
            )
        if self._guards_dim0() and order[0] != 0:
            self._fail(
                "partition-dim",
                "permute: dimension 0 must stay first",
                help="nisa.nc_transpose or nisa.dma_transpose moves data between partitions",
            )
        ind = self.indirection
        moved = order.index(ind.dim) if ind is not None and ind.dim is not None else -1
        return self._same(
            shape=[self.shape[d] for d in order], strides=[self.strides[d] for d in order], indirect_dim=moved
        )

    def broadcast(self: V, dim: Int, size: Int) -> V:
        """Repeat a size-1 dimension without copying: its stride becomes 0."""
        dim = self._dim(dim, "broadcast")
        self._guard_partition_dim(dim, "broadcast", "nl.broadcast_to copies one partition to many")
        self._not_indirect_dim(dim, "broadcast")
        if self.shape[dim] != 1:
            self._fail("shape", f"broadcast: dimension {dim} has size {self.shape[dim]}, only size 1 repeats")
        if not is_int(size) or size < 1:
            self._fail("shape", f"broadcast: size must be a positive int, got {shown(size)}")
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = int(size), 0
        return self._same(shape=shape, strides=strides)

    def expand_dim(self: V, dim: Int) -> V:
        """Insert a size-1 dimension before `dim`."""
        dim = self._dim(dim, "expand_dim", extra=1)
        self._guard_partition_dim(dim, "expand_dim", "the partition dimension stays first")
        self._not_gathered("expand_dim")
        self._check_rank(self.ndim + 1, "expand_dim")
        stride = self.strides[dim] * self.shape[dim] if dim < self.ndim else 1
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(dim, 1)
        strides.insert(dim, stride)
        return self._same(shape=shape, strides=strides, indirect_dim=self._shifted(dim, +1))

    def squeeze_dim(self: V, dim: Int) -> V:
        """Remove a size-1 dimension."""
        dim = self._dim(dim, "squeeze_dim")
        self._guard_partition_dim(dim, "squeeze_dim", "a tile keeps its partition dimension")
        self._not_indirect_dim(dim, "squeeze_dim")
        if self.shape[dim] != 1:
            self._fail("shape", f"squeeze_dim: dimension {dim} has size {self.shape[dim]}, not 1")
        self._check_rank(self.ndim - 1, "squeeze_dim")
        shape, strides = list(self.shape), list(self.strides)
        del shape[dim], strides[dim]
        return self._same(shape=shape, strides=strides, indirect_dim=self._shifted(dim, -1))

    def view(self: V, dtype: dtypes.DTypeLike) -> V:
        """Return the same bytes as another dtype; the last dimension grows or shrinks."""
        target = dtypes.resolve(dtype)
        if self.indirection is not None:
            self._fail(
                "indirect-view",
                "view: not possible after a run-time index",
                help="reinterpret the tensor first, then select",
            )
        old, new = self.dtype.itemsize, target.itemsize
        if old == new:
            return self._make(self.offset, self.shape, self.strides, target, None)
        *outer, last = self.strides
        if last != 1 and self.shape[-1] != 1:
            self._fail("layout", f"view: the last dimension must be dense, its stride is {last}")
        if old > new:
            ratio = old // new
            shape, strides = (*self.shape[:-1], self.shape[-1] * ratio), (*(s * ratio for s in outer), 1)
            return self._make(self.offset * ratio, shape, strides, target, None)
        ratio = new // old
        # the stride of a size-1 dimension addresses nothing; on chip the rows themselves must divide
        counted = [s for s, n in zip(outer, self.shape, strict=False) if n != 1]
        counted += [self.row_pitch] if self.on_chip else []
        odd = [x for x in (self.shape[-1], self.offset, *counted) if x % ratio]
        if odd:
            self._fail(
                "alignment",
                f"view: {odd[0]} elements of {self.dtype} do not divide into {target} ({ratio}:1)",
            )
        shape, strides = (*self.shape[:-1], self.shape[-1] // ratio), (*(s // ratio for s in outer), 1)
        return self._make(self.offset // ratio, shape, strides, target, None)

    reinterpret_cast = view
