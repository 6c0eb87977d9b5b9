"""From the sums of a projection to rows of its result: scales, bias, the way to HBM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import interleave_copy
from nkilib.core.utils.projection import (
    Activations,
    ProductBlock,
    doubles,
    lane_size,
    project_parts,
    tapered,
)
from nkilib.core.utils.tile_io import hardware_queue
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import Tiles, new_tile
from nkilib.core.utils.types import DTypeLike, Tensor


@dataclass
class ColumnTerms(nl.NKIObject):
    """What is applied to the sums of columns `column` onwards: a factor, one for each column, a bias."""

    column: int = 0
    scale: Tensor = None  # [128, 1], the same in all partitions
    column_scale: Tensor = None  # [128, columns], the same in all partitions
    bias: Any = None  # the same


def load_terms(
    scale: Tensor | None,
    column_scale: Tensor | None,
    bias: Tensor | None,
    column: int,
    columns: int,
    x: Activations,
    weight: Tensor,
) -> ColumnTerms:
    """The terms of token-major sums of x and weight: rows of HBM, in every partition. None stays None."""
    tokens = x.tile.shape[2]
    packed = lane_size(tokens, not doubles(x.tile, weight)) < PMAX
    partitions = PMAX if packed else min(tokens, PMAX)
    terms = ColumnTerms(column, scale)
    if column_scale is not None:
        terms.column_scale = broadcast_row(column_scale, column, columns, partitions, x.tiles)
    if bias is not None:
        terms.bias = broadcast_row(bias, column, columns, partitions, x.tiles)
    return terms


def broadcast_row(
    matrix: Tensor, column: int, columns: int, partitions: int, tiles: Tiles | None = None
) -> Any:
    """Row 0 of a matrix, in every partition."""
    tile = new_tile(tiles, (partitions, columns), matrix.dtype)
    nisa.dma_copy(tile, matrix[0:1, column : column + columns].broadcast(0, partitions))
    return tile


def pick(tile: Tensor, row: int, rows: int, column: int, columns: int, spread: int = 0) -> Any:
    """A part of a tile. `spread` J: column 128 j + p of the sums stands for column J p + j of the tile."""
    part = tile[row : row + rows]
    if spread == 0:
        return part[:, column : column + columns]
    by_tile = part.reshape_dim(1, (PMAX, spread)).permute((0, 2, 1))
    return by_tile[:, column // PMAX : (column + columns) // PMAX, :]


def finish(
    dst: Tensor,
    block: ProductBlock,
    terms: ColumnTerms,
    column: int,
    token_scales: Tensor | None = None,
    spread: int = 0,
) -> None:
    """dst = sums * scales + bias of a token-major block, whose columns begin at `column` of the weights."""
    at = column + block.column - terms.column
    scale = block_scale(block, terms, token_scales)
    scaled = scale is not None or terms.column_scale is not None
    value = block.sums
    if scaled:
        value = dst if terms.bias is None else beside(block)
        scale_sums(value, block, scale, terms, at, spread)
    if terms.bias is not None:
        bias = pick(terms.bias, block.lane, block.tokens, at, block.columns, spread)
        nisa.tensor_tensor(dst, value, bias, op=nl.add)
    elif not scaled:
        interleave_copy(dst, value, block.bank)  # a bank serves one engine at a time


def project_into(
    rows: list,
    at: int,
    parts: list,
    weight: Tensor,
    terms: ColumnTerms,
    column: int,
    columns: int,
    spread: int = 0,
    dtype: DTypeLike | None = None,
    taper: bool = False,
) -> None:
    """Columns column ... of x W * scales + bias, into columns `at` ... of rows, [tokens <= 128, ...] each."""
    blocks = project_parts(parts, weight, column, columns, feature_major=False, dtype=dtype, taper=taper)
    finish_into(rows, at, blocks, terms, column, parts[0].scales, spread)


def finish_into(
    rows: list,
    at: int,
    blocks: list,
    terms: ColumnTerms,
    column: int,
    token_scales: list[Tensor] | None = None,
    spread: int = 0,
) -> None:
    """`finish` of every block, into its place in the rows."""
    for block in blocks:
        tile = rows[block.token // PMAX]
        dst = pick(tile, 0, block.tokens, at + block.column, block.columns, spread)
        finish(dst, block, terms, column, token_scales, spread)


def block_scale(block: ProductBlock, terms: ColumnTerms, token_scales: Tensor | None) -> Any:
    """The factor of each partition of a token-major block, or None."""
    if token_scales is not None:
        return token_scales[block.token // PMAX]
    return None if terms.scale is None else terms.scale[block.lane : block.lane + block.tokens]


def scale_sums(
    dst: Tensor, block: ProductBlock, scale: Tensor | None, terms: ColumnTerms, at: int, spread: int
) -> None:
    """dst = sums * scale * column_scale, of which one may be None."""
    if terms.column_scale is None:
        nisa.tensor_scalar(dst, block.sums, nl.multiply, scale)
        return
    factors = pick(terms.column_scale, block.lane, block.tokens, at, block.columns, spread)
    if scale is None:
        nisa.tensor_tensor(dst, block.sums, factors, op=nl.multiply)
    else:
        nisa.scalar_tensor_tensor(dst, block.sums, nl.multiply, scale, nl.multiply, factors)


def beside(block: ProductBlock) -> Any:
    """A float32 tile for a block, in the partitions of its sums: engines read both inputs from there."""
    tile = new_tile(block.tiles, (block.lane + block.sums.shape[0], block.sums.shape[1]), nl.float32)
    return tile[block.lane :, :]


def new_rows(tokens: int, columns: int, dtype: DTypeLike, tiles: Tiles | None = None) -> list:
    """Tiles for rows of a result, [tokens <= 128, columns] each."""
    rows = []
    for token in TiledRange(tokens, PMAX):
        rows.append(new_tile(tiles, (token.size, columns), dtype))
    return rows


def store_span(out: Tensor, rows: list, at: int, column: int, columns: int, taper: bool) -> None:
    """store_rows of all tokens; of tapered columns piece by piece, alternating between two queues."""
    for piece in tapered(columns) if taper else TiledRange(columns, columns):
        start = piece.start_offset
        queue = hardware_queue() if piece.index % 2 == 1 else nisa.dge_mode.unknown
        store_rows(out, rows, at + start, 0, column + start, piece.size, queue)


def store_rows(
    out: Tensor,
    rows: list,
    at: int,
    first: int,
    column: int,
    columns: int,
    queue: Any = nisa.dge_mode.unknown,
) -> None:
    """Columns `at` ... of the rows into columns `column` ... of tokens first ... of out, [T, H] in HBM."""
    for i in range(len(rows)):
        token, count = first + i * PMAX, rows[i].shape[0]
        place = out[token : token + count, column : column + columns]
        nisa.dma_copy(place, rows[i][:, at : at + columns], dge_mode=queue)
