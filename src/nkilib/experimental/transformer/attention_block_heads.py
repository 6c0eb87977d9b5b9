"""Queries, keys and values of the new tokens: projection, head norms, RoPE, and attention's layouts."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.qkv.qkv_checks import MOST_DECODED
from nkilib.core.qkv.qkv_decode import all_columns, decode_whole
from nkilib.core.qkv.qkv_heads import NormRows, by_head, fresh, norm_heads, over_heads, rotate_heads
from nkilib.core.qkv.qkv_mx import decode_mx
from nkilib.core.qkv.qkv_outputs import transpose_heads
from nkilib.core.qkv.qkv_parameters import (
    HeadNorm,
    QKVParameters,
    hidden_size,
    input_in_sbuf,
    token_count,
)
from nkilib.core.utils.common_types import NormType
from nkilib.core.utils.kernel_helpers import largest_value
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.transformer.attention_block_parameters import (
    BlockCaches,
    BlockSizes,
    HeadNormOptions,
    RotaryTables,
)


def projected_rows(p: QKVParameters, n_prgs: int, core: int) -> list:
    """Return tiles [tokens <= 128, (N + 2) d] in float32, complete on every core.

    Tokens are projected in parts that fit into PSUM.
    """
    x, rows = p.input, []
    whole = x if input_in_sbuf(p) else x.reshape((1, token_count(p), hidden_size(p)))
    for tokens in TiledRange(token_count(p), MOST_DECODED):
        p.input = whole[:, tokens.start_offset : tokens.end_offset, :]
        rows.extend(rows_of_part(p, n_prgs, core))
    p.input = x
    return rows


def rows_of_part(p: QKVParameters, n_prgs: int, core: int) -> list:
    if p.mx_map is None:
        return decode_whole(p, n_prgs, core, None, nl.float32)
    tiles = []
    for own in decode_mx(p, n_prgs, core, None, None, nl.float32):
        tiles.append(all_columns(p, n_prgs, core, own))
    return tiles


def hidden_tile(x: Tensor) -> Tensor:
    """Load X of the transposed layout, [128, cores, H / 128 / cores, T] in HBM, as [128, T, H / 128]."""
    tiles, tokens = x.shape[1] * x.shape[2], x.shape[3]
    tile = nl.ndarray((x.shape[0], tiles, tokens), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x.reshape((x.shape[0], tiles, tokens)))
    return tile.permute((0, 2, 1))


class RotaryRows(nl.NKIObject):
    """Rows of cos and sin for new tokens first ..., [tokens, d / 2]."""

    def __init__(self, tables: RotaryTables, first: int, tokens: int):
        self.cos = table_rows(tables.cos, first, tokens)
        self.sin = table_rows(tables.sin, first, tokens)
        self.contiguous = tables.contiguous


def table_rows(table: Tensor, first: int, tokens: int) -> Tensor:
    """Load [tokens, d / 2] and transpose on TensorE, as DMA would move single elements."""
    half, total = table.shape[0], table.shape[1] * table.shape[2]
    tile = nl.ndarray((half, tokens), table.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, table.reshape((half, total))[:, first : first + tokens])
    bank = nl.ndarray((tokens, half), table.dtype, buffer=nl.psum)
    nisa.nc_transpose(bank, tile)
    rows = nl.ndarray((tokens, half), table.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(rows, bank)
    return rows


def head_norm(o: HeadNormOptions) -> NormRows | None:
    """Return the RMSNorm of queries and keys, or None."""
    if not o.enabled:
        return None
    norms = (NormType.RMS_NORM, NormType.RMS_NORM)
    return NormRows(HeadNorm(norms, (o.q_gamma, o.k_gamma), (None, None), o.eps))


def change_section(
    rows: Tensor,
    depth: int,
    section: int,
    before: NormRows | None,
    rotary: RotaryRows | None,
    after: NormRows | None,
) -> Tensor:
    """Return norm(RoPE(norm(rows))) of one section, [tokens, heads, d] in float32."""
    value = by_head(rows, depth)
    if before is not None:
        value = norm_section(value, section, before)
    if rotary is not None:
        rotated = fresh(value)
        rotate(rotated, value, rotary)
        value = rotated
    return value if after is None else norm_section(value, section, after)


def norm_section(value: Tensor, section: int, norm: NormRows) -> Tensor:
    out = fresh(value)
    norm_heads(out, value, section, norm)
    return out


def rotate(dst: Tensor, x: Tensor, rotary: RotaryRows) -> None:
    """Apply RoPE to pairs (i, i + d / 2), or (2 i, 2 i + 1)."""
    half = x.shape[2] // 2
    if rotary.contiguous:
        both = nl.ndarray((x.shape[0], 2 * half), rotary.cos.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(both[:, 0:half], rotary.cos)
        nisa.tensor_copy(both[:, half:], rotary.cos)
        rotate_heads(dst, x, both, rotary.sin)
        return
    pairs, out = x.reshape_dim(2, (half, 2)), dst.reshape_dim(2, (half, 2))
    lower, upper = pairs[:, :, :, 0], pairs[:, :, :, 1]
    cos, sin = over_heads(rotary.cos, lower), over_heads(rotary.sin, lower)
    lower_cos, lower_sin, upper_cos, upper_sin = fresh(lower), fresh(lower), fresh(lower), fresh(lower)
    nisa.tensor_tensor(lower_cos, lower, cos, op=nl.multiply)
    nisa.tensor_tensor(upper_sin, upper, sin, op=nl.multiply)
    nisa.tensor_tensor(out[:, :, :, 0], lower_cos, upper_sin, op=nl.subtract)
    nisa.tensor_tensor(upper_cos, upper, cos, op=nl.multiply)
    nisa.tensor_tensor(lower_sin, lower, sin, op=nl.multiply)
    nisa.tensor_tensor(out[:, :, :, 1], upper_cos, lower_sin, op=nl.add)


# ---- layouts of attention ------------------------------------------------------------------------


def queries_by_batch(transposed: Tensor, n: BlockSizes) -> Tensor:
    """Return [d, N, tokens] as [d, B, N, S]."""
    if n.tokens() == 1:
        return transposed.reshape((n.depth, 1, n.heads, 1))
    out = nl.ndarray((n.depth, n.batch, n.heads, n.active), transposed.dtype, buffer=nl.sbuf)
    by_batch = transposed.reshape_dim(2, (n.batch, n.active))
    nisa.tensor_copy(out, by_batch.permute((0, 2, 1, 3)))
    return out


def transpose_queries(transposed: Tensor, q: Tensor, scale: float) -> None:
    """Write q [tokens, N, d], times the softmax scale, as [d, N, tokens]."""
    rounded = nl.ndarray(q.shape, transposed.dtype, buffer=nl.sbuf)
    nisa.activation(rounded, nl.copy, q, scale=scale)
    transpose_heads(rounded, transposed)


def cache_values(rows: Tensor, scale: Tensor | None, cache: Tensor, dtype: DTypeLike) -> Tensor:
    """Return keys or values [tokens, d] as the cache stores them: clip(rows * scale), or in `dtype`."""
    tokens = rows.shape[0]
    if scale is None:
        ready = nl.ndarray(rows.shape, dtype, buffer=nl.sbuf)
        nisa.tensor_copy(ready, rows)
        return ready
    factor = broadcast_row(scale.reshape((1, scale.size)), 0, 1, tokens)
    largest = largest_value(cache.dtype)
    scaled = nl.ndarray(rows.shape, nl.float32, buffer=nl.sbuf)
    ready = nl.ndarray(rows.shape, cache.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(scaled, rows, nl.multiply, factor, op1=nl.minimum, operand1=largest)
    nisa.tensor_scalar(ready, scaled, nl.maximum, -largest)
    return ready


def new_keys_and_values(k: Tensor, v: Tensor, c: BlockCaches, dtype: DTypeLike) -> tuple:
    """Return (keys [tokens, d], values [tokens, d]) of float32 rows, rounded or quantised."""
    return cache_values(k, c.scales[0], c.keys, dtype), cache_values(v, c.scales[1], c.values, dtype)
