"""Batched products: products of one shape, with factors of equal layouts, as one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from ...machine.dtypes import DType, float32
from ..fused.products import ALIGNED, NARROW, Factor, Gemm
from ..fused.values import Elements
from .batches import DeviceStep, owner
from .grids import GridCopy, OperandGrid, OperandLayout, grid_copies, layout_of, worthwhile_parts


class BatchedGemm(DeviceStep):
    """Products of one shape, with factors of equal layouts."""

    def outputs_of(self, item: Gemm) -> list[Any]:
        return [] if item.result is None else [item.result]

    def inputs_of(self, item: Gemm) -> Iterable[Any]:
        for factor in (item.left, item.right):
            yield from owner(factor.view)
            for tile in factor.tiles:
                yield from owner(tile.elements)

    def stored_at(self, item: Gemm) -> int:
        return 0 if item.target is None else item.target.offset

    def finish(self) -> Iterator[DeviceStep]:
        gemms, first = self.items, self.items[0]
        if self.count > 1 and first.left.view is not None and first.right.view is not None:
            grids = [OperandGrid.of([f.view for f in side if f.view]) for side in self._factors()]
            grids.append(self._results())
            parts = worthwhile_parts(grids, 1, dims=1)
            if len(parts) > 1:
                for part in parts:
                    yield from BatchedGemm(gemms[part.start : part.stop], self.stage).finish()
                return
        self.left, self.right = (BatchedFactor(side) for side in self._factors())
        self.dtype = _common_dtype(self.left, self.right)
        self.rows, self.columns = first.left.columns, first.right.columns
        self.results = self._results()
        self.copies = []
        for k, (value, row, column) in enumerate(first.copies):
            height = value.view.shape[0]
            window = slice(row, row + height), slice(column, column + value.size // height)
            places = [elements for g in gemms if (elements := g.copies[k][0].stored_at) is not None]
            self.copies.append((window, OperandGrid.of(places)))
        self.products = sum(g.products for g in gemms)
        self.items = gemms[:1]
        yield self

    def _factors(self) -> tuple[list[Factor], list[Factor]]:
        return [g.left for g in self.items], [g.right for g in self.items]

    def _results(self) -> OperandGrid:
        """Return where the products go: to HBM, or to their buffers, with all columns of these."""
        first: Gemm = self.items[0]
        if first.result is None:
            return OperandGrid.of([g.target for g in self.items if g.target is not None])
        pitch = first.result.pitch
        layout = OperandLayout(None, (first.left.columns, pitch), (pitch, 1), float32)
        return OperandGrid(layout, [g.result.at // 4 for g in self.items])


class BatchedFactor:
    """A factor of every product of a step: a view, or tiles that are packed.

    A packed factor is [count, K, pitch]; or, where the columns of its tiles are contiguous,
    [count, M, K]. `pitch` is M or more: the columns beyond M are not defined.
    """

    def __init__(self, factors: Sequence[Factor]):
        first = factors[0]
        self.count, self.rows, self.columns = len(factors), first.rows, first.columns
        self.view: OperandGrid | None = None
        self.copies: list[GridCopy] = []
        self.longest: BatchedFactor | None = None  # what to pack: this one is its first rows
        self.pitch, self.transposed = self.columns, False
        if first.view is not None:
            self.view = OperandGrid.of([f.view for f in factors if f.view is not None])
            return
        self.transposed = _is_mostly_transposed(first)
        if not self.transposed:
            self.pitch = -(-self.columns // ALIGNED) * ALIGNED
        across, down = (first.rows, 1) if self.transposed else (1, self.pitch)  # steps of a column and a row
        kinds: dict[Any, tuple[list[int], list[Elements]]] = {}
        for number, factor in enumerate(factors):
            base = number * first.rows * self.pitch
            for tile, row, elements in factor.packed():
                key = (tile.rows, tile.columns, layout_of(elements))
                offsets, places = kinds.setdefault(key, ([], []))
                offsets.append(base + row * down + tile.column * across)
                places.append(elements)
        for (rows, columns, _), (offsets, places) in kinds.items():
            layout = OperandLayout("pack", (rows, columns), (down * first.terms, across), float32)
            self.copies += grid_copies(OperandGrid(layout, offsets), OperandGrid.of(places))

    def is_begin_of(self, other: BatchedFactor) -> bool:
        """Return whether the rows of this packed factor are the first rows of another."""
        if len(self.copies) != 1 or len(other.copies) != 1 or self.transposed or other.transposed:
            return False
        if (self.count, self.pitch) != (other.count, other.pitch) or other.rows < self.rows:
            return False
        (own,), (others,) = self.copies, other.copies
        if own.target.layout != others.target.layout or own.source.layout != others.source.layout:
            return False
        if own.target.count % self.count or others.target.count % self.count:
            return False
        rows = [c.source.offsets.reshape(self.count, -1) for c in (own, others)]
        places = [_places(f, c) for f, c in ((self, own), (other, others))]
        tiles = rows[0].shape[1]
        return all(np.array_equal(a, b[:, :tiles]) for a, b in (rows, places))

    @property
    def dtypes(self) -> set[DType]:
        """The dtypes of all its tiles."""
        return {grid.layout.dtype for grid in (self.view, *[c.source for c in self.copies]) if grid}


def _places(factor: BatchedFactor, copy: GridCopy) -> np.ndarray:
    """Return where the tiles of each packed factor begin in it."""
    offsets = copy.target.offsets.reshape(factor.count, -1)
    return offsets - (np.arange(factor.count) * factor.rows * factor.pitch)[:, None]


def share_factors(steps: Sequence[DeviceStep]) -> None:
    """Let the products of a stage whose moving factors begin equally pack the longest one alone."""
    for _, stage in groupby(steps, key=lambda step: (step.stage, step.__class__)):
        sides = [s.right for s in stage if isinstance(s, BatchedGemm) and s.right.view is None]
        for longest in sorted(sides, key=lambda side: -side.rows):
            if longest.longest is None:
                same = [side for side in sides if side.longest is None and side.is_begin_of(longest)]
                for side in same if len(same) > 1 else ():
                    side.longest = longest


def _is_mostly_transposed(factor: Factor) -> bool:
    """Return whether most elements are in tiles whose columns are contiguous."""
    transposed = 0
    for tile, _, elements in factor.packed():
        if len(elements.shape) == 2 and tile.rows > 1 and tile.columns > 1:
            transposed += tile.rows * tile.columns * ((elements.strides[0] == 1) - (elements.strides[1] == 1))
    return transposed > 0


def _common_dtype(left: BatchedFactor, right: BatchedFactor) -> DType:
    """Return the dtype to multiply in: that of all tiles, where their products are exact in float32."""
    (first, *others) = left.dtypes | right.dtypes
    return first if not others and first in NARROW else float32
