"""Operands of the backward matmuls: gathered rows, and tiles with the contraction in the partitions."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_cte.routing import Unit
from nkilib.core.utils.kernel_helpers import div_ceil, interleave_copy
from nkilib.core.utils.projection import PARTITIONS, Activations, multiply
from nkilib.core.utils.projection_results import new_rows
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import bank_room, transpose_rows


def as_dtype(tile: Any, dtype: Any) -> Any:
    """The tile, or a copy in another dtype."""
    if tile.dtype == dtype:
        return tile
    cast = nl.ndarray(tile.shape, dtype, buffer=nl.sbuf)
    nisa.activation(cast, nl.copy, tile)
    return cast


def gather_rows(table: Any, unit: Unit, dtype: Any) -> list:
    """Rows of the unit's tokens, [128, columns] a tile; padding has those of token 0."""
    rows = new_rows(unit.size, table.shape[1], dtype)
    for c in range(len(rows)):
        nisa.dma_copy(rows[c], table.vector_select(0, unit.valid_rows[:, c : c + 1]))
    return rows


def gather_columns(table: Any, unit: Unit, rows: list) -> Activations:
    """The same with columns in the partitions: straight from HBM, or from the rows by TensorE."""
    size, dtype = table.shape[1], rows[0].dtype
    full, rest = size // PARTITIONS, size % PARTITIONS
    tile = nl.ndarray((PARTITIONS, div_ceil(size, PARTITIONS), unit.size), dtype, buffer=nl.sbuf)
    if table.dtype != dtype or dtype == nl.float32:
        for c in range(len(rows)):
            transpose_rows(tile, 0, c * PARTITIONS, rows[c])
        return Activations(tile, size)
    index = unit.valid_rows.view(nl.uint32)
    pitch = [table.strides[0], unit.size]
    if full > 0:
        source = table.ap([pitch, [PARTITIONS, full], [1, PARTITIONS]], vector_offset=index)
        nisa.dma_transpose(tile[:, 0:full, :], source)
    if rest > 0:
        last = table[:, full * PARTITIONS :]
        nisa.dma_transpose(tile[0:rest, full, :], last.ap([pitch, [1, rest]], vector_offset=index))
    return Activations(tile, size)


def load_transposed(matrix: Any, dtype: Any) -> Any:
    """matrix[r, 128 k + p] at [p, k, r]: rows of HBM with their columns in the partitions."""
    rows, size = matrix.shape
    full, rest = size // PARTITIONS, size % PARTITIONS
    tile = nl.ndarray((PARTITIONS, div_ceil(size, PARTITIONS), rows), matrix.dtype, buffer=nl.sbuf)
    if full > 0:
        part = matrix[:, 0 : full * PARTITIONS].reshape_dim(1, (full, PARTITIONS))
        nisa.dma_transpose(tile[:, 0:full, :], part)
    if rest > 0:
        nisa.dma_transpose(tile[0:rest, full, :], matrix[:, full * PARTITIONS :])
    if matrix.dtype == dtype:
        return tile
    cast = nl.ndarray(tile.shape, dtype, buffer=nl.sbuf)
    if full > 0:
        nisa.activation(cast[:, 0:full, :], nl.copy, tile[:, 0:full, :])
    if rest > 0:
        nisa.activation(cast[0:rest, full, :], nl.copy, tile[0:rest, full, :])
    return cast


def multiply_all(blocks: list, x: Activations, weights: Any, feature_major: bool) -> None:
    """Add the products of all tiles of the contraction, of which the last may be short."""
    full, rest = x.size // PARTITIONS, x.size % PARTITIONS
    if full > 0:
        multiply(blocks, x.tile, weights[:, 0:full, :], 0, feature_major)
    if rest > 0:
        multiply(blocks, x.tile, weights[0:rest, full : full + 1, :], full, feature_major)


def token_rows(rows: list, at: int, x: Activations, factors: Any = None) -> None:
    """Columns at ... of the rows = the tile's, tokens in the partitions; times a factor for each token."""
    for c in range(len(rows)):
        tokens = x.tile[:, :, c * PARTITIONS : (c + 1) * PARTITIONS]
        for group in TiledRange(div_ceil(x.size, PARTITIONS), bank_room(rows[c], PARTITIONS)):
            first = group.start_offset * PARTITIONS
            width = min(x.size, group.end_offset * PARTITIONS) - first
            bank = nl.ndarray((PARTITIONS, width), x.tile.dtype, buffer=nl.psum)
            for k in range(group.size):
                used = min(PARTITIONS, width - k * PARTITIONS)
                part = tokens[0:used, group.start_offset + k, :]
                nisa.nc_transpose(bank[:, k * PARTITIONS : k * PARTITIONS + used], part)
            place = rows[c][:, at + first : at + first + width]
            if factors is None:
                interleave_copy(place, bank, c + group.index)
            else:
                nisa.activation(place, nl.copy, bank, scale=factors[:, c : c + 1])
