"""First-order recurrences along the rows of a matrix, in tiles that hand over a float32 carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

from .kernel_helpers import program_share
from .tile_io import load, store
from .tiled_range import TiledRange

if TYPE_CHECKING:
    from nkilib.core.utils.tiled_range import TiledRangeIterator

SCAN_TILE = 2048  # columns: half a mebibyte and more for each DMA, and short enough to begin early


def scan_rows(
    result: Tensor,
    data: Tensor,
    decay: Tensor | None = None,
    initial: Tensor | None = None,
    final: Tensor | None = None,
) -> None:
    """result[r, t] = decay[r, t] * result[r, t - 1] + data[r, t], for this core's share of the rows.

    Args:
        result, data, decay: [R, L] in HBM, of any float dtypes. Without `decay` it is 1: a running sum.
        initial: [R, 1] in HBM, what stands before the first column; 0 without it.
        final: [R, 1] in HBM, receives the last column before it is rounded to the dtype of `result`.
    """
    ones = nl.ndarray((PMAX, 1), nl.float32, buffer=nl.sbuf)
    nisa.memset(ones, 1.0)
    for block in row_blocks(data.shape):
        last = None if initial is None else load(block.of(initial), nl.float32)
        for columns in TiledRange(data.shape[1], SCAN_TILE):
            x = load(block.piece(data, columns))
            if decay is None:
                factors = ones[0 : block.partitions].expand_dim(1).broadcast(1, block.rows)
                factors = factors.broadcast(2, columns.size)
            else:
                factors = load(block.piece(decay, columns))
            last = scan_block(block.piece(result, columns), factors, x, last)
        if final is not None:
            store_last(block.of(final), last)


class RowBlock(nl.NKIObject):
    """Neighbouring rows of a matrix, `rows` of them in each partition."""

    def __init__(self, start: int, partitions: int, rows: int):
        self.start = start
        self.partitions = partitions
        self.rows = rows
        self.end = start + partitions * rows

    def of(self, matrix: Tensor) -> Any:
        """[partitions, rows, columns]"""
        return matrix[self.start : self.end].reshape_dim(0, (self.partitions, self.rows))

    def piece(self, matrix: Tensor, columns: TiledRangeIterator) -> Any:
        return self.of(matrix)[:, :, columns.start_offset : columns.end_offset]


def row_blocks(shape: tuple[int, ...]) -> list[RowBlock]:
    """The blocks of this core's share. Short rows go several to a partition: DMA then moves more at once."""
    start, end = program_share(shape[0])
    rows = max(1, min(SCAN_TILE // shape[1], (end - start) // PMAX))
    blocks = []
    while end - start >= PMAX * rows:
        blocks.append(RowBlock(start, PMAX, rows))
        start += PMAX * rows
    for tile in TiledRange(end - start, PMAX):
        blocks.append(RowBlock(start + tile.start_offset, tile.size, 1))
    return blocks


def scan_block(result: Tensor, factors: Tensor, x: Tensor, before: Tensor | None) -> Any:
    """Scan each row of a tile [partitions, rows, columns] and store it; returns its last column."""
    columns = x.shape[2]
    sums = nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)
    for row in range(x.shape[1]):
        carry = 0.0 if before is None else before[:, row, :]
        nisa.tensor_tensor_scan(
            sums[:, row, :], factors[:, row, :], x[:, row, :], carry, op0=nl.multiply, op1=nl.add
        )
    store(result, sums)
    return sums[:, :, columns - 1 : columns]


def store_last(final: Tensor, last: Tensor) -> None:
    """Collect the last column first: DMA would move it element by element."""
    collected = nl.ndarray(last.shape, nl.float32, buffer=nl.sbuf)
    nisa.activation(collected, nl.copy, last)
    nisa.dma_copy(final, collected)
