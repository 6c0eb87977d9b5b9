"""Dimensions split and merged where the layout allows it without a copy (spec/tensor.md 5.8 to 5.11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeVar

from ..errors import error
from .context import running
from .dimensions import Dimensioned
from .hooks import hooks
from .layout import Int, as_list, is_int, regrouped, row_major, shown

V = TypeVar("V", bound="Reshaped")  # jedi knows it, but not typing.Self


class Reshaped(Dimensioned):
    """Views that can be reshaped."""

    __slots__ = ()

    def reshape_dim(self: V, dim: Int, shape: Int | Sequence[Int]) -> V:
        """Split one dimension into several; one size may be -1."""
        view = self._split(dim, shape)
        view._check_rank(view.ndim, "reshape_dim")
        return view

    def _split(self: V, dim: Int, shape: Int | Sequence[Int]) -> V:
        dim = self._dim(dim, "reshape_dim")
        sizes = self._with_inferred(shape, self.shape[dim], "reshape_dim")
        if len(sizes) != 1:
            self._guard_partition_dim(dim, "reshape_dim", "partitions cannot be split; slice them instead")
            self._not_indirect_dim(dim, "reshape_dim")
        stride = self.strides[dim]
        new_shape = [*self.shape[:dim], *sizes, *self.shape[dim + 1 :]]
        new_strides = [*self.strides[:dim], *(stride * s for s in row_major(sizes)), *self.strides[dim + 1 :]]
        return self._same(
            shape=new_shape, strides=new_strides, indirect_dim=self._shifted(dim + 1, len(sizes) - 1)
        )

    def _with_inferred(self, shape: Int | Sequence[Int], total: int, method: str) -> list[int]:
        """Return the sizes of `shape` with one -1 worked out, checked to hold `total` elements."""
        sizes: list[int] = []
        for size in [shape] if is_int(shape) else as_list(shape, f"{method}: shape"):
            if not is_int(size):
                raise error(
                    "argument", f"{method}: sizes must be ints, got {shown(size)}", notes=[self.describe()]
                )
            sizes.append(int(size))
        if sizes.count(-1) == 1:
            known = -prod(sizes)
            if known <= 0 or total % known:
                self._fail(
                    "shape", f"{method}: -1 cannot be worked out of {tuple(sizes)} for {total} elements"
                )
            sizes[sizes.index(-1)] = total // known
        if any(s < 1 for s in sizes) or prod(sizes) != total:
            self._fail(
                "shape", f"{method}: {tuple(sizes)} holds {prod(sizes)} elements, the tensor has {total}"
            )
        return sizes

    def flatten_dims(self: V, start_dim: Int, end_dim: Int) -> V:
        """Merge neighbouring dimensions start_dim..end_dim (inclusive) into one."""
        first, last = self._dim(start_dim, "flatten_dims"), self._dim(end_dim, "flatten_dims")
        if first > last:
            self._fail("index", f"flatten_dims: start_dim {first} lies behind end_dim {last}")
        if first == last:
            return self._same()
        self._guard_partition_dim(first, "flatten_dims", "partitions and free elements cannot merge")
        for d in range(first, last + 1):
            self._not_indirect_dim(d, "flatten_dims")
        real = [d for d in range(first, last + 1) if self.shape[d] != 1]
        for outer, inner in zip(real, real[1:], strict=False):
            if self.strides[outer] != self.strides[inner] * self.shape[inner]:
                self._fail(
                    "layout",
                    f"flatten_dims: dimensions {outer} and {inner} are not adjacent in memory",
                    help="copy to a dense tensor first",
                )
        stride = self.strides[real[-1]] if real else self.strides[last]
        shape = [*self.shape[:first], prod(self.shape[first : last + 1]), *self.shape[last + 1 :]]
        strides = [*self.strides[:first], stride, *self.strides[last + 1 :]]
        return self._same(shape=shape, strides=strides, indirect_dim=self._shifted(last + 1, first - last))

    def reshape(self: V, shape: Int | Sequence[Int]) -> V:
        """Return the same elements in another shape, where the layout allows it without a copy."""
        sizes = self._with_inferred(shape, self.size, "reshape")
        self._not_gathered("reshape")
        if self._guards_dim0() and sizes[0] != self.shape[0]:
            copied: V | None = hooks.move_across_partitions(self, sizes) if running() is not None else None
            if copied is not None:
                return copied
            self._fail(
                "partition-dim",
                f"reshape: dimension 0 must stay {self.shape[0]}, got {sizes[0]}",
                help="reshape the HBM tensor before loading it",
            )
        self._check_rank(len(sizes), "reshape")
        ind = self.indirection
        fixed = {0} if self._guards_dim0() else set()
        if ind is not None and ind.dim is not None:
            fixed.add(ind.dim)
        strides: list[int] = []
        place, old, new = -1, 0, 0
        for dim in sorted(fixed):  # what lies between two fixed dimensions is regrouped by itself
            place = self._place_of(dim, sizes)
            strides += self._regroup(self.shape[old:dim], self.strides[old:dim], sizes[new:place])
            strides.append(self.strides[dim])
            old, new = dim + 1, place + 1
        strides += self._regroup(self.shape[old:], self.strides[old:], sizes[new:])
        moved = place if ind is not None and ind.dim is not None else -1
        return self._same(shape=sizes, strides=strides, indirect_dim=moved)

    def _place_of(self, dim: int, sizes: list[int]) -> int:
        """Return the index among the new sizes of dimension `dim`, which must not change."""
        before = prod(self.shape[:dim])
        for place, size in enumerate(sizes):
            if size == self.shape[dim] and prod(sizes[:place]) == before:
                return place
        self._not_indirect_dim(dim, "reshape")
        raise AssertionError("the partition dimension is compared before")

    def _regroup(self, shape: Sequence[int], strides: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Return strides of `sizes` over the memory that (shape, strides) describe (spec/tensor.md 5.10)."""
        found = regrouped(shape, strides, sizes)
        if found is None:
            self._fail(
                "layout",
                f"reshape: {tuple(sizes)} would need a copy of this layout",
                help="copy to a dense tensor first (nisa.tensor_copy on chip, nisa.dma_copy in HBM)",
            )
        return found

    def rearrange(
        self: V,
        src_pattern: Sequence[str | Sequence[str]],
        dst_pattern: Sequence[str | Sequence[str]],
        fixed_sizes: Mapping[str, int] | None = None,
    ) -> V:
        """Split, permute and merge by named axes: ("b", ("h", "w")) -> ("b", "w", "h"), {"h": 4}."""
        fixed = dict(fixed_sizes or {})
        src, dst = self._axis_groups(src_pattern), self._axis_groups(dst_pattern)
        names = [axis for group in src for axis in group]
        if len(src) != self.ndim:
            self._fail("pattern", f"rearrange: {len(src)} source entries for {self.ndim} dimensions")
        if len(set(names)) != len(names) or sorted(names) != sorted(axis for group in dst for axis in group):
            self._fail("pattern", "rearrange: both patterns must hold the same names, each once")
        unknown = [axis for axis in fixed if axis not in names]
        if unknown:
            self._fail("pattern", f"rearrange: fixed_sizes names {unknown[0]!r}, which no pattern has")
        view = self
        position = 0
        for group, total in zip(src, self.shape, strict=True):
            sizes = [fixed.get(axis, -1) for axis in group]
            if sizes.count(-1) > 1:
                self._fail("pattern", f"rearrange: give the sizes of all but one axis of {group}")
            if len(group) > 1:
                view = view._split(position, sizes)
            elif sizes[0] not in (-1, total):
                self._fail("shape", f"rearrange: axis {group[0]!r} has size {total}, not {sizes[0]}")
            position += len(group)
        view = view.permute([names.index(axis) for group in dst for axis in group])
        for position, group in enumerate(dst):
            if len(group) > 1:
                view = view.flatten_dims(position, position + len(group) - 1)
        view._check_rank(view.ndim, "rearrange")
        return view

    def _axis_groups(self, pattern: Sequence[str | Sequence[str]]) -> list[tuple[str, ...]]:
        """Return a pattern of rearrange as one tuple of names per dimension."""
        if not isinstance(pattern, (tuple, list)):
            self._fail(
                "pattern",
                f"rearrange: a pattern is a tuple of names or of tuples of names, got {shown(pattern)}",
            )
        groups = [tuple(entry) if isinstance(entry, (tuple, list)) else (entry,) for entry in pattern]
        for axis in (axis for group in groups for axis in group or [()]):
            if not isinstance(axis, str):
                self._fail("pattern", f"rearrange: an axis is a name, got {shown(axis)}")
        return groups
