"""Queries, keys and values of swa_fused_cte: x W + b with RoPE, in rows [T, (Nq + 2 Nkv) d]."""

from __future__ import annotations

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from nkilib.core.qkv.qkv_heads import by_head, rotate_heads
from nkilib.core.utils.kernel_helpers import div_ceil, program_share
from nkilib.core.utils.projection import BANK_COLUMNS, Activations, project, span_columns
from nkilib.core.utils.projection_results import ColumnTerms, broadcast_row, finish_into, new_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import Tensor

FAST_TOKENS = 16  # DMA transposes multiples of it fast


@dataclass
class Rotation(nl.NKIObject):
    """RoPE of the first `columns` of a row, heads of `depth`: cos and sin are [T, d] or [T, d / 2]."""

    cos: Tensor
    sin: Tensor
    columns: int
    depth: int


def project_qkv(out: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, rope: Rotation) -> None:
    """Set this core's rows of out [T, I] from hidden [T, H] and weight [H, I]."""
    columns = weight.shape[1]
    terms = ColumnTerms()
    if bias is not None:
        terms.bias = broadcast_row(bias.reshape((1, columns)), 0, columns, PMAX)
    start, end = program_share(hidden.shape[0], FAST_TOKENS)
    for block in TiledRange(TiledRangeIterator(end - start, 0, start, end), BANK_COLUMNS):
        x = load_tokens(hidden, block)
        rows = new_rows(block.size, columns, nl.float32)
        for span in TiledRange(columns, span_columns(x, weight)):
            sums = project(x, weight, span.start_offset, span.size, feature_major=False)
            finish_into(rows, span.start_offset, sums, terms, span.start_offset)
        for part in TiledRange(block, PMAX):
            store_tokens(out, rows[part.index], part, rope)


def load_tokens(hidden: Tensor, block: TiledRangeIterator) -> Activations:
    """Tokens with their columns in the partitions; the last tile of columns may be short."""
    size = hidden.shape[1]
    full, rest = size // PMAX, size % PMAX
    tile = nl.ndarray((PMAX, div_ceil(size, PMAX), block.size), hidden.dtype, buffer=nl.sbuf)
    rows = hidden[block.start_offset : block.end_offset]
    if full > 0:
        nisa.dma_transpose(tile[:, 0:full, :], rows[:, 0 : full * PMAX].reshape_dim(1, (full, PMAX)))
    if rest > 0:
        nisa.dma_transpose(tile[0:rest, full, :], rows[:, full * PMAX :])
    return Activations(tile, size)


def store_tokens(out: Tensor, rows: Tensor, part: TiledRangeIterator, rope: Rotation) -> None:
    """Rotate queries and keys of float32 rows and store all of them."""
    ready = nl.ndarray(rows.shape, out.dtype, buffer=nl.sbuf)
    cos, sin = load_angles(rope.cos, part, rope.depth), load_angles(rope.sin, part, rope.depth)
    heads = by_head(rows[:, 0 : rope.columns], rope.depth)
    rotate_heads(by_head(ready[:, 0 : rope.columns], rope.depth), heads, cos, sin)
    nisa.activation(ready[:, rope.columns :], nl.copy, rows[:, rope.columns :])
    nisa.dma_copy(out[part.start_offset : part.end_offset], ready)


def load_angles(table: Tensor, part: TiledRangeIterator, depth: int) -> Tensor:
    """[tokens, d] of a table whose rows have d or d / 2 numbers."""
    tile = nl.ndarray((part.size, depth), table.dtype, buffer=nl.sbuf)
    width = table.shape[1]
    for i in range(depth // width):
        nisa.dma_copy(tile[:, i * width : (i + 1) * width], table[part.start_offset : part.end_offset])
    return tile
