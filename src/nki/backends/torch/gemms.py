"""Batched products: products of one shape, with factors of equal layouts, as one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import groupby
from typing import Any

import numpy as np

from ...machine.dtypes import DType, float32
from ..fused.products import ALIGNED, NARROW, Factor, Gemm
from ..fused.values import Elements
from .batches import DeviceStep, owner
from .grids import (
    GATHERED,
    GridCopy,
    OperandGrid,
    OperandLayout,
    grid_copies,
    layout_of,
    regular_parts,
)
from .repetitions import Repetitions


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

    def finish(self, repetitions: Repetitions) -> Iterator[DeviceStep]:
        gemms, first = self.items, self.items[0]
        self.left = BatchedFactor([g.left for g in gemms], repetitions)
        self.right = BatchedFactor([g.right for g in gemms], repetitions)
        self.dtype = _common_dtype(self.left, self.right)
        self.rows, self.columns = first.left.columns, first.right.columns
        self.results = self._results(repetitions)
        self.copies = []
        for k, (value, row, column) in enumerate(first.copies):
            height = value.view.shape[0]
            window = slice(row, row + height), slice(column, column + value.size // height)
            self.copies.append((window, repetitions.grid([g.copies[k][0].stored_at for g in gemms])))
        self.count *= repetitions.number
        self.items = gemms[:1]
        yield from self._parts()

    def _results(self, repetitions: Repetitions) -> OperandGrid:
        """Return where the products go: to HBM, or to their buffers, with all columns of these."""
        first: Gemm = self.items[0]
        if first.result is None:
            return repetitions.grid([g.target for g in self.items])
        pitch = first.result.pitch
        layout = OperandLayout(None, (first.left.columns, pitch), (pitch, 1), float32)
        return repetitions.grid_of_owners(layout, [g.result for g in self.items])

    def _parts(self) -> Iterator[BatchedGemm]:
        """Iterate over parts of the step in which factors and results are regular, if there are few."""
        grids = [grid for grid in (self.left.view, self.right.view, self.results) if grid is not None]
        irregular = [grid.nbytes for grid in grids if grid.regular((self.count,)) is None]
        parts = regular_parts(grids, 1) if irregular and len(grids) == 3 else []
        if len(parts) < 2 or len(parts) * GATHERED > sum(irregular):
            yield self
            return
        for start, stop in ((part.start, part.stop) for part in parts):
            found = copy(self)
            found.count = stop - start
            found.left, found.right = self.left.part(start, stop), self.right.part(start, stop)
            found.results = self.results.part(start, stop)
            found.copies = [(window, grid.part(start, stop)) for window, grid in self.copies]
            yield found


class BatchedFactor:
    """A factor of every product of a step: a view, or tiles that are packed.

    A packed factor is [count, K, pitch]; or, where the columns of its tiles are contiguous,
    [count, M, K]. `pitch` is M or more: the columns beyond M are not defined.
    """

    def __init__(self, factors: Sequence[Factor], repetitions: Repetitions):
        first = factors[0]
        self.members = (len(factors), repetitions.number)
        self.count = len(factors) * repetitions.number
        self.rows, self.columns = first.rows, first.columns
        self.view: OperandGrid | None = None
        self.copies: list[GridCopy] = []
        self.longest: BatchedFactor | None = None  # what to pack: this one is its first rows
        self.pitch, self.transposed = self.columns, False
        if first.view is not None:
            self.view = repetitions.grid([f.view for f in factors if f.view is not None])
            return
        self.transposed = _is_mostly_transposed(first)
        if not self.transposed:
            self.pitch = -(-self.columns // ALIGNED) * ALIGNED
        across, down = (first.rows, 1) if self.transposed else (1, self.pitch)  # steps of a column and a row
        kinds: dict[Any, tuple[list[np.ndarray], list[Elements]]] = {}
        for factor, base in zip(factors, self._begins(), strict=True):
            for tile, row, elements in factor.packed():
                key = (tile.rows, tile.columns, layout_of(elements))
                offsets, places = kinds.setdefault(key, ([], []))
                offsets.append(base + row * down + tile.column * across)
                places.append(elements)
        for (rows, columns, _), (offsets, places) in kinds.items():
            layout = OperandLayout("pack", (rows, columns), (down * first.terms, across), float32)
            target = OperandGrid(layout, np.concatenate(offsets))
            self.copies += grid_copies(target, repetitions.grid(places))

    def part(self, start: int, stop: int) -> BatchedFactor:
        """Return the views of some products."""
        found = copy(self)
        assert self.view is not None
        found.count, found.view = stop - start, self.view.part(start, stop)
        return found

    def _begins(self) -> np.ndarray:
        """Return where each packed factor begins: [factors, repetitions]."""
        return np.arange(self.count).reshape(self.members) * (self.rows * self.pitch)

    def is_begin_of(self, other: BatchedFactor) -> bool:
        """Return whether the rows of this packed factor are the first rows of another."""
        if len(self.copies) != 1 or len(other.copies) != 1 or self.transposed or other.transposed:
            return False
        if (self.members, self.pitch) != (other.members, other.pitch) or other.rows < self.rows:
            return False
        (own,), (others,) = self.copies, other.copies
        if own.target.layout != others.target.layout or own.source.layout != others.source.layout:
            return False
        if own.target.count % self.count or others.target.count % self.count:
            return False
        sources = [factor._by_tile(factor.copies[0].source) for factor in (self, other)]
        places = [
            factor._by_tile(factor.copies[0].target) - factor._begins()[:, None] for factor in (self, other)
        ]
        tiles = sources[0].shape[1]
        return all(np.array_equal(a, b[:, :tiles]) for a, b in (sources, places))

    def _by_tile(self, grid: OperandGrid) -> np.ndarray:
        """Return the offsets of the tiles as [factors, tiles of each, repetitions]."""
        factors, repetitions = self.members
        return grid.offsets.reshape(factors, -1, repetitions)

    @property
    def dtypes(self) -> set[DType]:
        """The dtypes of all its tiles."""
        return {grid.layout.dtype for grid in (self.view, *[c.source for c in self.copies]) if grid}


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
