"""Output projection of attention for prefill: out = attention^T W + bias. Bound by TensorE."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.output_projection.mx import (
    OutputMxProjection,
    as_mx,
    as_weights,
    packed_heads,
    packed_tokens,
    prefill_tokens,
)
from nkilib.core.output_projection.operands import (
    FLOATS,
    OperandNames,
    Operands,
    OutputStaticScales,
    check_kinds,
    check_operands,
    column_scale,
    matmul_dtype,
    projected_ref,
    quantize,
    quantizes,
    result_dtype,
)
from nkilib.core.utils.common_types import DtypeMode, QuantizationType
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info
from nkilib.core.utils.mx_layout import WORDS
from nkilib.core.utils.projection import (
    BANK_COLUMNS,
    MAX_CHUNK_TILES,
    SUM_BANKS,
    Activations,
    load_weights,
    multiply,
    token_major_blocks,
    weight_chunks,
)
from nkilib.core.utils.projection_results import ColumnTerms, finish_into, load_terms, new_rows, store_rows
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import DTypeLike, Tensor

MAX_COLUMNS = 32768
MAX_TOKENS = 131072
ATTENTION_BYTES = 96 * 1024  # in each partition, resident while all weights stream by
LOAD_TOKENS = 512  # of attention in one transfer
LOAD_ROWS = 256
FIRST_TILES = LOAD_ROWS // PMAX  # of the weights that everything waits for
WEIGHT_BYTES = 32 * 1024  # in each partition, of the columns that all tokens are multiplied with at once


@nki.jit
def output_projection_cte(
    attention: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    input_scales: Tensor | None = None,
    weight_scales: Tensor | None = None,
    output_dtype: DTypeLike | None = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    compact_weight_scales: bool = False,
) -> Tensor:
    """out[b, s, :] = sum over n, d of attention[b, n, d, s] * weight[n D + d, :] + bias

    attention [B, N, D, S], weight [N D, H], bias [1, H]; out [B, S, H] in output_dtype, by default that of
    attention, bfloat16 where that is FP8. bfloat16, float16 or float32; attention is rounded to the dtype of
    weight. Cores share the columns, so H is a multiple of their number. B S is at most 131072.

    FP8 weights: STATIC has scales [128, 1] of both operands and quantises attention unless it is FP8;
    ROW has weight_scales [128, H], one for each column (row 0 counts), and leaves attention as it is.

    MX weights (trn3): four-packed FP8 or FP4, [N D / 4, H], row 4 p + q in lane q of word p;
    weight_scales [N D / 32, H], or, with compact_weight_scales, one for 128 x 128 weights, [N D / 128, H /
    128]. Attention becomes MXFP8, unless it is that: packed [B, 1, N D / 4, S], or [B, 1, N D / 4, 4 S] in
    bytes, with input_scales [B, N D / 32, S]. STATIC_MX: FP8 whose bytes are [N D / 4, H, 4],
    scales as STATIC. N D is then a multiple of 128.

    >>> x, w = np.ones((1, 2, 64, 200), np.float32), np.ones((128, 96), np.float32)
    >>> float(output_projection_cte(x, w)[0, 0, 0])
    128.0
    """
    names = OperandNames("input_scales", "weight_scales")
    p = Operands(attention, weight, bias, quantization_type, input_scales, weight_scales, dtype_mode, names)
    check_kinds(p, "(B, N, D, S)")
    sharding = get_verified_program_sharding_info("output_projection_cte", (0, 1), 2)
    batches, heads, depth, tokens = check_attention(p)
    if quantization_type == QuantizationType.MX and attention.dtype not in FLOATS:
        heads, depth = packed_heads(p, compact_weight_scales)
        tokens = p.attention.shape[3]
        as_weights(p, heads, depth, compact_weight_scales)
    elif quantization_type.is_mx():
        heads, depth = as_mx(p, heads, depth, compact_weight_scales, flat=True)
    else:
        kernel_assert(
            not compact_weight_scales,
            "compact_weight_scales: got True, allowed only with QuantizationType.MX",
        )
        check_operands(p, heads * depth, depth, sharding[1])
    check_columns(p, sharding[1])
    dtype = result_dtype(p) if output_dtype is None else output_dtype
    out = nl.ndarray((batches, tokens, p.weight.shape[1]), dtype, buffer=nl.shared_hbm)
    columns = p.weight.shape[1] // sharding[1]
    if quantization_type.is_mx():
        project_mx(OutputMxProjection(p, heads, depth), out, sharding[2] * columns, columns)
        return out
    rows = attention.reshape((batches, heads * depth, tokens))
    scales = OutputStaticScales(p)
    for batch in range(batches):
        for block in TiledRange(tokens, block_tokens(p)):
            part = rows[batch, :, block.start_offset : block.end_offset]
            x = load_attention(p, part, scales)
            place = out[batch, block.start_offset : block.end_offset]
            project_block(p, x, scales, place, sharding[2] * columns, columns)
    return out


def check_attention(p: Operands) -> tuple:
    """Its shape, (B, N, D, S)."""
    shape = tuple(p.attention.shape)
    count = shape[0] * shape[3]
    kernel_assert(
        count <= MAX_TOKENS, f"attention: got B * S = {count} tokens, allowed are at most {MAX_TOKENS}"
    )
    return shape


def check_columns(p: Operands, n_prgs: int) -> None:
    columns = p.weight.shape[1]
    kernel_assert(columns <= MAX_COLUMNS, f"weight: got H = {columns}, allowed are at most {MAX_COLUMNS}")
    kernel_assert(
        columns % n_prgs == 0, f"weight: got H = {columns}, {n_prgs} cores take multiples of {n_prgs}"
    )


def project_mx(mx: OutputMxProjection, out: Tensor, first: int, columns: int) -> None:
    """Columns first ... of all tokens, with MX weights."""
    batches, tokens = out.shape[0], out.shape[1]
    packed = mx.p.attention.dtype in WORDS
    by_row: Any = None if packed else mx.p.attention.reshape((batches, mx.contracted, tokens))
    for batch in range(batches):
        for block in TiledRange(tokens, BANK_COLUMNS):
            if packed:
                x = packed_tokens(mx, batch, block.start_offset, block.size)
            else:
                x = prefill_tokens(mx, by_row[batch, :, block.start_offset : block.end_offset])
            rows = new_rows(block.size, columns, out.dtype)
            mx.project_into(rows, x, first, columns)
            store_rows(out[batch], rows, 0, block.start_offset, first, columns)


def bytes_per_column(p: Operands) -> int:
    """What a column of the weights takes of each partition; attention, for a token, takes no more."""
    return div_ceil(p.weight.shape[0], PMAX) * (4 if p.weight.dtype == nl.float32 else 2)


def block_tokens(p: Operands) -> int:
    """How many tokens stay in SBUF while the weights pass by."""
    most = SUM_BANKS * PMAX
    return max(most, ATTENTION_BYTES // bytes_per_column(p) // most * most)


def span_banks(p: Operands) -> int:
    """How many banks of sums lie side by side, for long rows of results; the others are for more tokens."""
    banks = WEIGHT_BYTES // (BANK_COLUMNS * bytes_per_column(p))
    return 4 if banks >= 4 else (2 if banks >= 2 else 1)


def load_attention(p: Operands, part: Tensor, scales: OutputStaticScales) -> list:
    """[N D, tokens] of HBM, contraction in partitions as it stands there; quantised if need be.

    A tile for every LOAD_TOKENS: the first matmuls need not wait for all of them.
    """
    size, tokens = part.shape
    parts = []
    for some in TiledRange(tokens, LOAD_TOKENS):
        tiles = div_ceil(size, PMAX)
        x = nl.ndarray((PMAX, tiles, some.size), matmul_dtype(p), buffer=nl.sbuf)
        for rows in TiledRange(size, LOAD_ROWS):
            place = part[rows.start_offset : rows.end_offset, some.start_offset : some.end_offset]
            load_rows(p, x[:, rows.start_offset // PMAX :, :], place, scales)
        parts.append(Activations(x, size))
    return parts


def load_rows(p: Operands, dst: Tensor, rows: Tensor, scales: OutputStaticScales) -> None:
    """dst[p, k] = rows[128 k + p]; the last tile may be short."""
    full, rest = rows.shape[0] // PMAX, rows.shape[0] % PMAX
    if full > 0:
        whole = rows[0 : full * PMAX].reshape_dim(0, (full, PMAX)).permute((1, 0, 2))
        load_tiles(p, dst[:, 0:full, :], whole, scales)
    if rest > 0:
        load_tiles(p, dst[0:rest, full, :], rows[full * PMAX :], scales)


def load_tiles(p: Operands, dst: Tensor, source: Tensor, scales: OutputStaticScales) -> None:
    if quantizes(p):
        quantize(dst, load(source), scales)
    else:
        nisa.dma_copy(dst, source)


def first_pass_spans(columns: int, widest: int) -> list:
    """Spans of columns, the first one narrow: its weights are soon there, and many tokens need them."""
    spans = []
    first = min(columns, BANK_COLUMNS)
    for span in TiledRange(first, first):
        spans.append(span)
    for span in TiledRange(columns - first, widest):
        start, end = first + span.start_offset, first + span.end_offset
        spans.append(TiledRangeIterator(span.size, span.index + 1, start, end))
    return spans


def project_block(
    p: Operands, parts: list, scales: OutputStaticScales, out: Tensor, first: int, columns: int
) -> None:
    """out[:, first ... first + columns] of one block of tokens, which stays while the weights pass by."""
    for span in first_pass_spans(columns, span_banks(p) * BANK_COLUMNS):
        column, x = first + span.start_offset, parts[0]
        terms = load_terms(scales.sums, column_scale(p), p.bias, column, span.size, x, p.weight)
        chunks = weight_chunks(x, span.size, p.weight, FIRST_TILES if span.index == 0 else MAX_CHUNK_TILES)
        weights = []
        for chunk in chunks:
            weights.append(load_weights(p.weight, chunk, column, span.size))
        for i in range(len(parts)):
            place = out[i * LOAD_TOKENS : i * LOAD_TOKENS + parts[i].tile.shape[2]]
            project_part(parts[i].tile, chunks, weights, terms, place, column, span.size)


def project_part(
    x: Tensor, chunks: list, weights: list, terms: ColumnTerms, out: Tensor, column: int, columns: int
) -> None:
    """Columns column ... of some tokens and weights that are all in SBUF."""
    banks = div_ceil(columns, BANK_COLUMNS)
    for group in TiledRange(x.shape[2], SUM_BANKS // banks * PMAX):
        blocks = token_major_blocks(group.size, columns, packed=False)
        for i in range(len(chunks)):
            part = x[:, :, group.start_offset : group.end_offset]
            multiply(blocks, part, weights[i], chunks[i].tile, feature_major=False)
        rows = new_rows(group.size, columns, out.dtype)
        finish_into(rows, 0, blocks, terms, column)
        store_rows(out, rows, 0, group.start_offset, column, columns)


def output_projection_cte_ref(
    attention: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    input_scales: np.ndarray | None = None,
    weight_scales: np.ndarray | None = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
) -> np.ndarray:
    """The same in float64."""
    b, n, d, s = attention.shape
    x = attention.transpose(0, 3, 1, 2).reshape(b, s, n * d)
    return projected_ref(x, weight, bias, quantization_type, input_scales, weight_scales, dtype_mode)
