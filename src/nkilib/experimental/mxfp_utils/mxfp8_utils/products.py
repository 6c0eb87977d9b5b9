"""Products of MXFP8 operands: sums over k of lhs[m, k] rhs[n, k].

One operand, or as much of it as fits, stays in SBUF; the other is streamed in blocks, each quantised once.
All of K is summed in PSUM.

`finish(sums, row, rows, column, columns)` of a results object processes the sums: a PSUM tile
[rows, columns] for each rhs operand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import Tensor
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import (
    MxBlock,
    MxOperand,
    load_quantized,
    scale_view,
    tile_count,
    tile_rows,
)

RESIDENT_BYTES = 112 * 1024  # in each partition, of the operand that stays
BLOCK_BYTES = 32 * 1024  # of a streamed block; two of them are in SBUF at a time
CHUNK = 512  # resident features loaded at once: work begins with the first chunk
MOVING = 1024  # columns of a matmul: two PSUM banks
LONG_TILES = 64  # of the contraction: beyond that K is streamed in chunks, and neither operand stays
CHUNK_TILES = 16  # of a chunk of K: a multiple of four, so that it has whole blocks of packed scales


class Results(Protocol):
    """Processes the sums of a product, tile by tile."""

    def finish(self, sums: list, row: int, rows: int, column: int, columns: int) -> None:
        """Process the PSUM tiles [rows, columns] of each rhs operand at (row, column) of the product."""


@dataclass
class Stored(nl.NKIObject):
    """Stores sums to out[self.row + row, self.column + column], rounded to its dtype."""

    out: Tensor
    row: int = 0
    column: int = 0
    count: int = 0

    def finish(self, sums: list, row: int, rows: int, column: int, columns: int) -> None:
        tile = nl.ndarray((rows, columns), self.out.dtype, buffer=nl.sbuf)
        evict(tile, sums[0], self.count)
        self.count = self.count + 1
        place = self.out[self.row + row : self.row + row + rows]
        nisa.dma_copy(place[:, self.column + column : self.column + column + columns], tile)


def evict(tile: Tensor, sums: Tensor, index: int) -> None:
    """Copy sums out of PSUM, alternating between ScalarE and VectorE."""
    if index % 2 == 0:
        nisa.activation(tile, nl.copy, sums)
    else:
        nisa.tensor_copy(tile, sums, engine=nisa.vector_engine)


# ---- loops over blocks -----------------------------------------------------------------------------


def multiply(lhs: MxOperand, rhs: list, results: Results) -> None:
    """Call results.finish for every tile of lhs x rhs[i]; all rhs operands have the same size."""
    if lhs.features == 0 or rhs[0].features == 0:
        return
    if tile_count(lhs) > LONG_TILES:
        multiply_long(lhs, rhs, results)
        return
    if cost_of(lhs, rhs[0], 1, len(rhs)) <= cost_of(rhs[0], lhs, len(rhs), 1):
        for part in groups_of(lhs, 1):
            multiply_resident_lhs(lhs, rhs, results, part)
    else:
        for part in groups_of(rhs[0], len(rhs)):
            multiply_resident_rhs(lhs, rhs, results, part)


def cost_of(stays: MxOperand, passes: MxOperand, staying: int, passing: int) -> int:
    """Return the bytes moved when `stays` is loaded once, in groups, and `passes` once for each group."""
    once = staying * stays.features * weight_of(stays)
    each_time = passing * passes.features * weight_of(passes)
    return once + len(groups_of(stays, staying)) * each_time


def weight_of(operand: MxOperand) -> int:
    """Return the bytes that are loaded for each element."""
    return 1 if operand.form == "quantized" else 2


def groups_of(operand: MxOperand, operands: int) -> tuple[TiledRangeIterator, ...]:
    """Divide the features into groups of similar size, each small enough to stay in SBUF."""
    most = max(1, RESIDENT_BYTES // (operands * tile_count(operand) * 4) // PMAX)
    tiles = div_ceil(operand.features, PMAX)
    return TiledRange(operand.features, div_ceil(tiles, div_ceil(tiles, most)) * PMAX)


def block_columns(operand: MxOperand, operands: int) -> int:
    """Return the number of features of a streamed block."""
    columns = MOVING
    while columns > PMAX and operands * columns * tile_count(operand) * 4 > BLOCK_BYTES:
        columns = columns // 2
    return columns


def multiply_resident_lhs(lhs: MxOperand, rhs: list, results: Results, group: TiledRangeIterator) -> None:
    """Hold a group of rows in SBUF and stream the columns."""
    resident = []
    for columns in TiledRange(rhs[0].features, block_columns(rhs[0], len(rhs))):
        moving = []
        for operand in rhs:
            moving.append(load_quantized(operand, columns.start_offset, columns.size))
        for chunk in TiledRange(group, CHUNK):
            if columns.index == 0:
                resident.append(load_quantized(lhs, chunk.start_offset, chunk.size))
            multiply_blocks(resident[chunk.index], moving, results)


def multiply_resident_rhs(lhs: MxOperand, rhs: list, results: Results, group: TiledRangeIterator) -> None:
    """Hold a group of columns in SBUF and stream the rows."""
    resident = []
    width = block_columns(rhs[0], len(rhs))
    for rows in TiledRange(lhs.features, min(CHUNK, block_columns(lhs, 1))):
        stationary = load_quantized(lhs, rows.start_offset, rows.size)
        for chunk in TiledRange(group, width):
            if rows.index == 0:
                moving = []
                for operand in rhs:
                    moving.append(load_quantized(operand, chunk.start_offset, chunk.size))
                resident.append(moving)
            multiply_blocks(stationary, resident[chunk.index], results)


def multiply_blocks(stationary: MxBlock, moving: list, results: Results) -> None:
    """Compute all products of two blocks that are in SBUF."""
    for rows in TiledRange(stationary.features, PMAX):
        for columns in TiledRange(moving[0].features, MOVING // len(moving)):
            sums = []
            for operand in moving:
                tile = nl.ndarray((rows.size, columns.size), nl.float32, buffer=nl.psum)
                add_products(tile, stationary, rows, operand, columns)
                sums.append(tile)
            row, column = stationary.start + rows.start_offset, moving[0].start + columns.start_offset
            results.finish(sums, row, rows.size, column, columns.size)


def add_products(
    sums: Tensor,
    stationary: MxBlock,
    rows: TiledRangeIterator,
    moving: MxBlock,
    columns: TiledRangeIterator,
) -> None:
    """Set sums += stationary[rows] x moving[columns], tile by tile of the contraction."""
    m, n = slice(rows.start_offset, rows.end_offset), slice(columns.start_offset, columns.end_offset)
    for tile in range(stationary.data.shape[1]):
        partitions = tile_rows(stationary, tile)
        nisa.nc_matmul_mx(
            sums,
            stationary.data[0:partitions, tile, m],
            moving.data[0:partitions, tile, n],
            scale_view(stationary, tile)[:, m],
            scale_view(moving, tile)[:, n],
        )


# ---- a contraction too long for SBUF ---------------------------------------------------------------


def multiply_long(lhs: MxOperand, rhs: list, results: Results) -> None:
    """Hold one block of sums at a time in PSUM and stream K in chunks."""
    columns = CHUNK // len(rhs)
    for row in TiledRange(lhs.features, 4 * PMAX):
        for column in TiledRange(rhs[0].features, columns):
            sums = new_sums(row, column, len(rhs))
            for tiles in TiledRange(tile_count(lhs), CHUNK_TILES):
                stationary = load_quantized(lhs, row.start_offset, row.size, tiles)
                for i in range(len(rhs)):
                    moving = load_quantized(rhs[i], column.start_offset, column.size, tiles)
                    for rows in TiledRange(row.size, PMAX):
                        whole = TiledRange(column.size, column.size)[0]
                        add_products(sums[rows.index][i], stationary, rows, moving, whole)
            for rows in TiledRange(row.size, PMAX):
                first = row.start_offset + rows.start_offset
                results.finish(sums[rows.index], first, rows.size, column.start_offset, column.size)


def new_sums(row: TiledRangeIterator, column: TiledRangeIterator, operands: int) -> list:
    """Allocate the PSUM tiles of a block, by rows and operands."""
    sums = []
    for rows in TiledRange(row.size, PMAX):
        tiles = []
        for _ in range(operands):
            tiles.append(nl.ndarray((rows.size, column.size), nl.float32, buffer=nl.psum))
        sums.append(tiles)
    return sums
