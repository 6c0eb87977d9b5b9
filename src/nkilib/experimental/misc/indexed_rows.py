"""Rows of an HBM matrix that SBUF tiles of indices choose."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor

BANK_COLUMNS = 512  # float32 of one PSUM bank
ADD_COLUMNS = 4096  # of the rows that are added at a time: eight banks
MAX_ROWS = 2**24  # row numbers are compared in float32
FLOATS = (nl.float32, nl.bfloat16, nl.float16)


def check_index(matrix: Tensor, dim: int, index: Tensor) -> None:
    """Check what gather and scatter_add have in common."""
    shape = tuple(matrix.shape)
    kernel_assert(len(shape) == 2, f"input: got shape {shape}, expected [N, D]")
    kernel_assert(dim == 0, f"dim: got {dim}, allowed is 0")
    kernel_assert(
        len(index.shape) == 1 and index.dtype in (nl.int32, nl.uint32),
        f"index: got {index.dtype} of shape {tuple(index.shape)}, expected int32 [K]",
    )


def load_index(index: Tensor) -> Tensor:
    """Load index[128 n + p] at [p, n]."""
    count = index.shape[0]
    full, rest = count // PMAX, count % PMAX
    tile = nl.ndarray((PMAX, div_ceil(count, PMAX)), index.dtype, buffer=nl.sbuf)
    if full > 0:
        nisa.dma_copy(tile[:, 0:full], index[0 : full * PMAX].reshape((full, PMAX)).permute((1, 0)))
    if rest > 0:
        nisa.dma_copy(tile[0:rest, full : full + 1], index[full * PMAX :].expand_dim(1))
    return tile


def rows_at(matrix: Tensor, places: Tensor, column: int = 0, columns: int | None = None) -> Any:
    """The view of the rows at these places [rows, 1], or of some of their columns."""
    width = matrix.shape[1]
    pattern = [[width, places.shape[0]], [1, width if columns is None else columns]]
    return matrix.ap(pattern, offset=column, vector_offset=places)


def add_rows(matrix: Tensor, index: Tensor, source: Tensor, start: int, end: int) -> None:
    """matrix[index[i], start:end] += source[i, start:end], where equal indices may occur anywhere."""
    kernel_assert(
        matrix.dtype in FLOATS, f"input: got {matrix.dtype}, allowed are float32, bfloat16, float16"
    )
    kernel_assert(
        source.dtype == matrix.dtype, f"src: got {source.dtype}, expected {matrix.dtype} like input"
    )
    kernel_assert(
        matrix.shape[0] <= MAX_ROWS, f"input: got N = {matrix.shape[0]}, allowed is up to {MAX_ROWS}"
    )
    numbers = load_index(index)
    for tile in TiledRange(index.shape[0], PMAX):
        places = numbers[0 : tile.size, tile.index : tile.index + 1]
        same = equal_places(places, source.dtype)
        targets = first_of_equal(places, same)
        for part in TiledRange(end - start, ADD_COLUMNS):
            first = start + part.start_offset
            own = load(source[tile.start_offset : tile.end_offset, first : first + part.size])
            there = rows_at(matrix, places, first, part.size)
            old = like(own)
            nisa.dma_copy(old, there)
            for bank in TiledRange(part.size, BANK_COLUMNS):
                some = (slice(None), slice(bank.start_offset, bank.end_offset))
                total = nl.ndarray((tile.size, bank.size), nl.float32, buffer=nl.psum)
                nisa.nc_matmul(total, same, own[some], is_stationary_onezero=True)
                nisa.tensor_tensor(old[some], old[some], total, op=nl.add)
            nisa.dma_copy(rows_at(matrix, targets, first, part.size), old, oob_mode=nisa.oob_mode.skip)


def equal_places(places: Tensor, dtype: Any) -> Tensor:
    """[i, j]: 1 where the places of rows i and j are equal."""
    rows = places.shape[0]
    column = like(places, nl.float32)
    nisa.tensor_copy(column, places)
    across = nl.ndarray((rows, rows), nl.float32, buffer=nl.psum)
    nisa.nc_transpose(across, column.broadcast(1, rows))
    same = nl.ndarray((rows, rows), dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(same, across, nl.equal, column)
    return same


def first_of_equal(places: Tensor, same: Tensor) -> Tensor:
    """The places, int32, beyond the matrix where an earlier row has the same one: each is written once."""
    rows = places.shape[0]
    earlier, count = like(same, nl.float32), nl.ndarray((rows, 1), nl.float32, buffer=nl.sbuf)
    nisa.affine_select(
        earlier, [[-1, rows]], channel_multiplier=1, on_true_tile=same, on_false_value=0.0, cmp_op=nl.greater
    )
    nisa.tensor_reduce(count, nl.add, earlier, 1)
    targets = nl.ndarray((rows, 1), nl.int32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(targets, count, nl.multiply, float(MAX_ROWS), nl.add, places)
    return targets
