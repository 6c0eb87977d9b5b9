"""The values of tiles as heat maps: a grid of cells each, and exact figures, within a budget of bytes.

A map of few elements holds them all. A larger one holds the mean of a block of elements in each cell. If the
maps of a run exceed the budget, all become coarser. If that is not enough, only every second step has maps,
then every fourth, and so on. The figures (smallest, largest, mean, NaNs, never written) are of all elements,
and every map has them.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

CELLS = (4096, 1024, 256, 64)  # of a map, from fine to coarse
MOST_CELLS = 1 << 18  # of a map of steps that were asked for
BUDGET = 12 << 20  # bytes of all maps of a page
MOST_SIDE = 4096  # elements of a side whose blocks are summed by a product, several times as fast
CHUNK = 1 << 16  # bytes that the page unpacks at once
NEVER_WRITTEN = {2: 0xFFFF, 4: 0xFFFFFFFF, 8: 0xFFFFFFFFFFFFFFFF}  # a NaN that no computation gives


class Figures(NamedTuple):
    """What is known of all elements of a map."""

    rows: int
    columns: int
    low: float  # of the elements that are written and not NaN
    high: float
    mean: float
    nans: int
    unwritten: int


class Cells(NamedTuple):
    """The grid of a map: float32 or float64 elements, or means of blocks that are stored in 16 bits."""

    values: np.ndarray
    unwritten: np.ndarray | None
    exact: bool

    @property
    def width(self) -> int:
        """Bytes of a cell."""
        return self.values.itemsize if self.exact else 2

    @property
    def nbytes(self) -> int:
        return self.values.size * self.width

    def packed(self) -> bytes:
        """Return the cells row by row, in little endian."""
        bits = np.ascontiguousarray(self.values).view(f"u{self.values.itemsize}")
        if not self.exact:
            nans = np.isnan(self.values)
            bits = np.where(nans, 0x7FC0, (bits.astype(np.uint64) + 0x8000) >> 16).astype(np.uint16)
        elif self.unwritten is not None:
            bits = bits.copy()
        if self.unwritten is not None:
            bits[self.unwritten] = NEVER_WRITTEN[self.width]
        return bits.astype(bits.dtype.newbyteorder("<")).tobytes()


def figures_of(values: np.ndarray, unwritten: np.ndarray | None) -> Figures:
    """Return the figures of a matrix of numbers."""
    known = values if unwritten is None else values[~unwritten]
    nans = int(np.count_nonzero(np.isnan(known)))
    if nans:
        known = known[~np.isnan(known)]
    never = 0 if unwritten is None else int(np.count_nonzero(unwritten))
    rows, columns = values.shape
    if not known.size:
        return Figures(rows, columns, np.nan, np.nan, np.nan, nans, never)
    with np.errstate(invalid="ignore"):
        mean = float(known.mean(dtype=np.float64))
    return Figures(rows, columns, float(known.min()), float(known.max()), mean, nans, never)


def grid(rows: int, columns: int, most: int) -> tuple[int, int]:
    """Return rows and columns of a grid of at most so many cells, as square as the matrix allows."""
    side = int(most**0.5)
    down = min(rows, max(side, most // max(1, columns)))
    return down, min(columns, most // down)


def coarsened(cells: Cells, most: int) -> Cells:
    """Return cells, at most so many: the means of blocks. A block with a NaN is NaN."""
    values, unwritten, _ = cells
    if values.size <= most:
        return cells
    rows, columns = values.shape
    sides = list(zip(values.shape, grid(rows, columns, most), strict=True))
    if unwritten is None and max(values.shape) <= MOST_SIDE and np.isfinite(values).all():
        down, across = (_means(*side) for side in sides)
        return Cells(down @ np.asarray(values, np.float32) @ across.T, None, False)
    (tops, heights), (lefts, widths) = (_blocks(*side) for side in sides)
    if unwritten is not None:
        unwritten = np.logical_or.reduceat(np.logical_or.reduceat(unwritten, tops, 0), lefts, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.add.reduceat(np.add.reduceat(values, tops, 0, np.float64), lefts, 1)
        means = sums / np.outer(heights, widths)
        return Cells(means.astype(np.float32), unwritten, False)


def _blocks(elements: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first element and the size of each block of a side."""
    starts = np.arange(count) * elements // count
    return starts, np.diff(starts, append=elements)


@lru_cache(maxsize=64)
def _means(elements: int, count: int) -> np.ndarray:
    """Return the matrix that takes the elements of a side to the means of its blocks."""
    _, sizes = _blocks(elements, count)
    matrix = np.zeros((count, elements), np.float32)
    matrix[np.repeat(np.arange(count), sizes), np.arange(elements)] = np.repeat(1 / sizes, sizes)
    return matrix


def _stays(step: int) -> int:
    """Return how long a step has maps while `every` grows: the largest power of two that divides it."""
    return step & -step or 1 << 62


class HeatMaps:
    """The maps of a run, numbered as they come.

    `sampled(step)` tells which steps have maps; those of the others are dropped when `every` grows.
    """

    def __init__(self, budget: int = BUDGET, steps: range | None = None) -> None:
        self.budget = budget
        self.steps = steps  # those to show; None: all
        self.figures: list[Figures] = []
        self.cells: list[Cells | None] = []
        self.used: list[int] = []  # of the steps that show each map, the one that stays longest
        self.nbytes = 0
        self.levels = CELLS if steps is None else (MOST_CELLS, *CELLS)
        self.level = 0
        self.every = 1

    def sampled(self, step: int) -> bool:
        """Return True if a step has maps."""
        return step % self.every == 0 and (self.steps is None or step in self.steps)

    def add(self, step: int, values: np.ndarray, unwritten: np.ndarray | None) -> int:
        """Return the number of a new map of a matrix; the matrix may change afterwards."""
        self.figures.append(figures_of(values, unwritten))
        self.used.append(step)
        self.cells.append(None)
        if self.sampled(step):
            self.store(len(self.figures) - 1, step, values, unwritten)
        return len(self.figures) - 1

    def store(self, number: int, step: int, values: np.ndarray, unwritten: np.ndarray | None) -> None:
        """Store the cells of a map that has none yet."""
        cells = coarsened(Cells(values, unwritten, True), self.levels[self.level])
        if cells.exact:
            cells = Cells(values.copy(), None if unwritten is None else unwritten.copy(), True)
        self.cells[number], self.used[number] = cells, step
        self.nbytes += cells.nbytes
        while self.nbytes > self.budget:
            self._shrink()

    def use(self, number: int, step: int) -> None:
        """Show a map again at another step: it stays as long as that step does."""
        if self.sampled(step) and _stays(step) > _stays(self.used[number]):
            self.used[number] = step

    def _shrink(self) -> None:
        if self.level + 1 < len(self.levels):
            self.level += 1
            most = self.levels[self.level]
            self.cells = [None if cells is None else coarsened(cells, most) for cells in self.cells]
        else:
            self.every *= 2
            self.cells = [
                cells if cells is not None and self.sampled(step) else None
                for cells, step in zip(self.cells, self.used, strict=True)
            ]
        self.nbytes = sum(cells.nbytes for cells in self.cells if cells is not None)

    # ---- for the page ----------------------------------------------------------------------------

    def columns(self) -> dict[str, np.ndarray]:
        """Return the figures and where the cells of each map lie: chunk (0: nowhere), offset, width."""
        chunk = np.zeros(len(self.cells), np.uint32)
        start, down, across = (np.zeros(len(self.cells), np.uint32) for _ in range(3))
        width = np.zeros(len(self.cells), np.uint8)
        for number, cells, place, offset in self._placed():
            chunk[number], start[number], width[number] = place + 1, offset, cells.width
            down[number], across[number] = cells.values.shape
        rows = np.array(self.figures, np.float64).reshape(-1, len(Figures._fields)).T
        types = (np.uint32, np.uint32, np.float32, np.float32, np.float32, np.uint32, np.uint32)
        with np.errstate(over="ignore"):
            known = {
                f"map_{name}": row.astype(dtype)
                for name, row, dtype in zip(Figures._fields, rows, types, strict=True)
            }
        cells_at = {"map_chunk": chunk, "map_start": start, "map_width": width}
        return {**known, **cells_at, "map_down": down, "map_across": across}

    def _placed(self) -> Iterator[tuple[int, Cells, int, int]]:
        """Yield number, cells, chunk and offset of every map that has cells."""
        chunk = offset = 0
        for number, cells in enumerate(self.cells):
            if cells is None:
                continue
            if offset and offset + cells.nbytes > CHUNK:
                chunk, offset = chunk + 1, 0
            yield number, cells, chunk, offset
            offset += -(-cells.nbytes // 8) * 8  # typed arrays begin at multiples of their width

    def chunks(self) -> Iterable[str]:
        """Yield the cells, chunk after chunk: deflate, then base64."""
        parts: list[list[bytes]] = []
        for _, cells, chunk, _ in self._placed():
            if chunk == len(parts):
                parts.append([])
            raw = cells.packed()
            parts[chunk].append(raw + bytes(-len(raw) % 8))
        for part in parts:
            yield base64.b64encode(zlib.compress(b"".join(part), 6)).decode("ascii")
