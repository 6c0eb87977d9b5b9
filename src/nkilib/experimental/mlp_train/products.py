"""Products of matrices in HBM, and transposes: each core computes a part of the rows."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.kernel_helpers import interleave_copy, program_share
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import DTypeLike, Tensor

ROW_TILES = 6  # of 128 rows that are summed at a time, each in a PSUM bank of its own
LEFT_BYTES = 96 * 1024  # in each partition, of left factors
TRANSPOSED = 512  # columns that are read and transposed at a time
STORED = 2048  # columns of the transposes that are stored at a time


def scratch(shape: tuple, dtype: DTypeLike) -> Tensor:
    """A tensor that both cores see."""
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


def ones_row(columns: int, dtype: DTypeLike) -> Tensor:
    """Ones [1, columns], a tensor of each core's own."""
    out = nl.ndarray((1, columns), dtype, buffer=nl.private_hbm)
    tile = nl.ndarray((1, min(columns, STORED)), dtype, buffer=nl.sbuf)
    nisa.memset(tile, 1.0)
    for part in TiledRange(columns, STORED):
        nisa.dma_copy(out[:, part.start_offset : part.end_offset], tile[:, 0 : part.size])
    return out


def join_cores(tensors: tuple) -> None:
    """Wait until both cores have written their parts."""
    if nl.num_programs(0) > 1:
        for tensor in tensors:
            nisa.core_barrier(tensor, (0, 1))


def own_rows(tensor: Tensor) -> TiledRangeIterator:
    """The rows that this core computes."""
    first, end = program_share(tensor.shape[0], PMAX)
    return TiledRangeIterator(end - first, 0, first, end)


def add_products(out: Tensor, pairs: list) -> None:
    """out [M, N] = the sum of left^T right over pairs (left [K, M], right [K, N]), in float32."""
    for block in TiledRange(own_rows(out), row_tiles(pairs) * PMAX):
        rows = TiledRange(block, PMAX)
        left = load_inner(pairs, 0, block)
        for columns in TiledRange(out.shape[1], BANK_COLUMNS):
            sums = []
            for row in rows:
                sums.append(nl.ndarray((row.size, columns.size), nl.float32, buffer=nl.psum))
            right = load_inner(pairs, 1, columns)
            for i in range(len(left)):
                for row in rows:
                    start = row.start_offset - block.start_offset
                    nisa.nc_matmul(sums[row.index], left[i][:, start : start + row.size], right[i])
            for row in rows:
                ready = nl.ndarray((row.size, columns.size), out.dtype, buffer=nl.sbuf)
                interleave_copy(ready, sums[row.index], row.index)
                place = out[row.start_offset : row.end_offset, columns.start_offset : columns.end_offset]
                nisa.dma_copy(place, ready)


def row_tiles(pairs: list) -> int:
    """How many tiles of 128 rows are summed at a time: their left factors stay in SBUF."""
    inner = 0
    for pair in pairs:
        inner += pair[0].shape[0]
    return max(1, min(ROW_TILES, LEFT_BYTES // (inner * sizeinbytes(pairs[0][0].dtype))))


def load_inner(pairs: list, side: int, columns: TiledRangeIterator) -> list:
    """Columns of all left or right factors, in tiles of 128 rows."""
    tiles = []
    for pair in pairs:
        for part in TiledRange(pair[side].shape[0], PMAX):
            rows = pair[side][part.start_offset : part.end_offset]
            tiles.append(load(rows[:, columns.start_offset : columns.end_offset]))
    return tiles


def transposed(source: Tensor) -> Any:
    """A copy of source [M, N] as [N, M]."""
    out = scratch((source.shape[1], source.shape[0]), source.dtype)
    for block in TiledRange(own_rows(out), TRANSPOSED):
        rows = TiledRange(block, PMAX)
        for columns in TiledRange(out.shape[1], STORED):
            ready = []
            for row in rows:
                ready.append(nl.ndarray((row.size, columns.size), out.dtype, buffer=nl.sbuf))
            for part in TiledRange(columns, PMAX):
                tile = load(
                    source[part.start_offset : part.end_offset, block.start_offset : block.end_offset]
                )
                start = part.start_offset - columns.start_offset
                for row in rows:
                    first = row.start_offset - block.start_offset
                    bank = nl.ndarray((row.size, part.size), out.dtype, buffer=nl.psum)
                    nisa.nc_transpose(bank, tile[:, first : first + row.size], engine=nisa.tensor_engine)
                    interleave_copy(ready[row.index][:, start : start + part.size], bank, row.index)
            for row in rows:
                place = out[row.start_offset : row.end_offset, columns.start_offset : columns.end_offset]
                nisa.dma_copy(place, ready[row.index])
    return out
