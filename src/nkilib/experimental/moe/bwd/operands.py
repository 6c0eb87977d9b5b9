"""Operands of the backward matmuls: gathered rows, and tiles with the contraction in the partitions."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_cte.routing import TokenUnit
from nkilib.core.utils.kernel_helpers import div_ceil, interleave_copy
from nkilib.core.utils.projection import Activations, multiply
from nkilib.core.utils.projection_results import new_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import bank_room, transpose_rows
from nkilib.core.utils.types import DTypeLike, Tensor


def as_dtype(tile: Tensor, dtype: DTypeLike) -> Tensor:
    """Return the tile, or a copy in another dtype."""
    if tile.dtype == dtype:
        return tile
    cast = nl.ndarray(tile.shape, dtype, buffer=nl.sbuf)
    nisa.activation(cast, nl.copy, tile)
    return cast


def gather_rows(table: Tensor, unit: TokenUnit, dtype: DTypeLike) -> list:
    """Gather the rows of the unit's tokens into tiles [128, columns]; padding gets the row of token 0."""
    rows = new_rows(unit.size, table.shape[1], dtype)
    for c in range(len(rows)):
        nisa.dma_copy(rows[c], table.vector_select(0, unit.valid_rows[:, c : c + 1]))
    return rows


def gather_columns(table: Tensor, unit: TokenUnit, rows: list) -> Activations:
    """Gather the same with columns in the partitions: directly from HBM, or from the rows by TensorE."""
    size, dtype = table.shape[1], rows[0].dtype
    full, rest = size // PMAX, size % PMAX
    tile = nl.ndarray((PMAX, div_ceil(size, PMAX), unit.size), dtype, buffer=nl.sbuf)
    if table.dtype != dtype or dtype == nl.float32:
        for c in range(len(rows)):
            transpose_rows(tile, 0, c * PMAX, rows[c])
        return Activations(tile, size)
    index = unit.valid_rows.view(nl.uint32)
    pitch = [table.strides[0], unit.size]
    if full > 0:
        source = table.ap([pitch, [PMAX, full], [1, PMAX]], vector_offset=index)
        nisa.dma_transpose(tile[:, 0:full, :], source)
    if rest > 0:
        last = table[:, full * PMAX :]
        nisa.dma_transpose(tile[0:rest, full, :], last.ap([pitch, [1, rest]], vector_offset=index))
    return Activations(tile, size)


def load_transposed(matrix: Tensor, dtype: DTypeLike) -> Tensor:
    """Load rows of HBM with their columns in the partitions: matrix[r, 128 k + p] at [p, k, r]."""
    rows, size = matrix.shape
    full, rest = size // PMAX, size % PMAX
    tile = nl.ndarray((PMAX, div_ceil(size, PMAX), rows), matrix.dtype, buffer=nl.sbuf)
    if full > 0:
        part = matrix[:, 0 : full * PMAX].reshape_dim(1, (full, PMAX))
        nisa.dma_transpose(tile[:, 0:full, :], part)
    if rest > 0:
        nisa.dma_transpose(tile[0:rest, full, :], matrix[:, full * PMAX :])
    if matrix.dtype == dtype:
        return tile
    cast = nl.ndarray(tile.shape, dtype, buffer=nl.sbuf)
    if full > 0:
        nisa.activation(cast[:, 0:full, :], nl.copy, tile[:, 0:full, :])
    if rest > 0:
        nisa.activation(cast[0:rest, full, :], nl.copy, tile[0:rest, full, :])
    return cast


def multiply_all(blocks: list, x: Activations, weights: Tensor, feature_major: bool) -> None:
    """Add the products of all tiles of the contraction, of which the last may be short."""
    full, rest = x.size // PMAX, x.size % PMAX
    if full > 0:
        multiply(blocks, x.tile, weights[:, 0:full, :], 0, feature_major)
    if rest > 0:
        multiply(blocks, x.tile, weights[0:rest, full : full + 1, :], full, feature_major)


def token_rows(rows: list, at: int, x: Activations, factors: Tensor | None = None) -> None:
    """Write a tile's tokens into the rows, from column `at` on; scaled by a factor for each token."""
    for c in range(len(rows)):
        tokens = x.tile[:, :, c * PMAX : (c + 1) * PMAX]
        for group in TiledRange(div_ceil(x.size, PMAX), bank_room(rows[c], PMAX)):
            first = group.start_offset * PMAX
            width = min(x.size, group.end_offset * PMAX) - first
            bank = nl.ndarray((PMAX, width), x.tile.dtype, buffer=nl.psum)
            for k in range(group.size):
                used = min(PMAX, width - k * PMAX)
                part = tokens[0:used, group.start_offset + k, :]
                nisa.nc_transpose(bank[:, k * PMAX : k * PMAX + used], part)
            place = rows[c][:, at + first : at + first + width]
            if factors is None:
                interleave_copy(place, bank, c + group.index)
            else:
                nisa.activation(place, nl.copy, bank, scale=factors[:, c : c + 1])
