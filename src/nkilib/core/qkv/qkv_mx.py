"""QKV projection with microscaling (MX) weights: words [H / 4, I], four rows of a column to a word.

Tokens are transposed so that partition p and lane q of tile t hold what row 128 t + p of the words has in
its lane q; `QKVParameters.mx_map` names the element of the hidden dimension.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import castable
from nkilib.core.qkv.qkv_decode import own_columns
from nkilib.core.qkv.qkv_outputs import store_result
from nkilib.core.qkv.qkv_parameters import (
    SCALE_BYTES,
    QKVParameters,
    arrives_quantized,
    columns_of,
    hidden_size,
    input_in_sbuf,
    result_dtype,
    token_count,
)
from nkilib.core.qkv.qkv_terms import load_terms
from nkilib.core.qkv.qkv_tokens import (
    QKVRowSource,
    TokenRows,
    in_scale_of,
    load_rows,
    normalized,
    sixteen_bits,
)
from nkilib.core.utils.common_types import QKVWeightLayout, QuantizationType
from nkilib.core.utils.fp8 import reciprocal_of
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert, value_assert
from nkilib.core.utils.mx_layout import GROUP, LANES, SCALE_DTYPES, TILE, as_words
from nkilib.core.utils.mx_projection import (
    MxTokens,
    narrow_tokens,
    ones_tile,
    project_rows_mx,
    quantize_tokens,
    round_tokens,
)
from nkilib.core.utils.mx_weight_loads import MxWeights
from nkilib.core.utils.norms import CHUNK_COLUMNS
from nkilib.core.utils.projection import BANK_COLUMNS, FP8, SUM_BANKS, token_major_blocks
from nkilib.core.utils.projection_results import finish_into, new_rows
from nkilib.core.utils.tile_io import store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import transpose_rows
from nkilib.core.utils.types import DTypeLike, Tensor

# which element of the hidden dimension stands in lane q of row r = 128 t + p
INNERMOST = "innermost"  # 4 r + q
PAIRS = "pairs"  # q // 2 H / 2 + 2 r + q % 2
QUARTER = "quarter"  # as it arrives, q H / 4 + r: the caller has moved it there from 4 r + q
PAIR = 2


# ---- what was asked for --------------------------------------------------------------------------


def as_mx(p: QKVParameters, swizzled: bool, layout: QKVWeightLayout) -> None:
    """Check the options of MX, and give p its weights as words [H / 4, I]."""
    kind = p.quantization
    if not kind.is_mx():
        name = "allowed only with an MX quantization_type"
        kernel_assert(not swizzled, f"{p.names.swizzled}: got True, {name}")
        kernel_assert(layout == QKVWeightLayout.CONTIGUOUS, f"weight_layout: got {layout}, {name}")
        return
    kernel_assert(
        nisa.get_nc_version() >= nisa.nc_version.gen4,
        f"{p.names.quantization}: got {kind}, allowed from trn3 on",
    )
    paired = layout == QKVWeightLayout.MX_INTERLEAVED
    kernel_assert(not (swizzled and paired), f"{p.names.swizzled}: got True with MX_INTERLEAVED weights")
    p.mx_map = QUARTER if swizzled else (PAIRS if paired else INNERMOST)
    size = given_size(p)
    kernel_assert(size % TILE == 0, f"{p.names.input}: got H = {size}, MX takes multiples of {TILE}")
    p.weight = words_of(p, size)
    check_tokens(p)
    if kind == QuantizationType.MX:
        kernel_assert(p.w_scale is not None, f"{p.names.w_scale}: got None, needed by {kind}")
        assert_shape(p.w_scale, (size // LANES // GROUP, columns_of(p)), p.names.w_scale)
        kernel_assert(
            p.w_scale.dtype in SCALE_DTYPES,
            f"{p.names.w_scale}: got {p.w_scale.dtype}, allowed are uint8 and float8_e8m0fnu",
        )


def given_size(p: QKVParameters) -> int:
    """H, of the input."""
    shape = tuple(p.input.shape)
    kernel_assert(len(shape) == 3, f"{p.names.input}: got shape {shape}, expected 3 dimensions")
    if input_in_sbuf(p):
        return PMAX * shape[2]
    size = shape[1] if p.transposed_in else shape[2]
    return size - SCALE_BYTES if arrives_quantized(p) and size % LANES == 0 and size % TILE != 0 else size


def words_of(p: QKVParameters, size: int) -> Any:
    """Weights [H / 4, I] of four-packed words, [H / 4, I, 4] of FP8, or [H, I], a view of that."""
    weight, name = p.weight, p.names.weight
    words = weight
    if weight.dtype in FP8:
        kernel_assert(
            weight.size % size == 0 and weight.shape[0] in (size, size // LANES),
            f"{name}: got shape {tuple(weight.shape)}, expected ({size // LANES}, I, 4)",
        )
        words = weight.reshape((size // LANES, weight.size // size * LANES))
    words = as_words(name, words)
    value_assert(
        len(words.shape) == 2 and words.shape[0] == size // LANES,
        f"{p.names.input}: got H = {size}, {name} has words of shape {tuple(words.shape)}",
    )
    return words


def check_tokens(p: QKVParameters) -> None:
    """MX quantises all tokens, STATIC_MX those that are not yet, ROW_MX none."""
    quantized, kind = arrives_quantized(p), p.quantization
    kernel_assert(
        not (quantized and kind == QuantizationType.MX),
        f"{p.names.input}: got {p.input.dtype} with MX, MX quantises",
    )
    kernel_assert(
        quantized or kind != QuantizationType.ROW_MX,
        f"{p.names.input}: got {p.input.dtype} with ROW_MX, expected FP8 [B, S, H + 4] with a float32 scale",
    )


# ---- tokens --------------------------------------------------------------------------------------


def new_mx_tokens(p: QKVParameters, count: int) -> Tensor:
    """A tile [128, H / 128, tokens, an even number] in 16 bits; a last one that only pads is zero."""
    even = count + count % 2
    tile = nl.ndarray((PMAX, hidden_size(p) // PMAX, even), sixteen_bits(p), buffer=nl.sbuf)
    if even > count:
        nisa.memset(tile[:, :, count:even], 0.0)
    return tile


def transpose_rows_mx(p: QKVParameters, source: QKVRowSource, x: Tensor, token: int, rows: TokenRows) -> None:
    """Normalised rows into tokens `token` ... of x, as the weights have the hidden dimension."""
    for chunk in TiledRange(rows.tile.shape[1], CHUNK_COLUMNS):
        part = normalized(p, source, rows, chunk.start_offset, chunk.size)
        values = castable(part, sixteen_bits(p))
        if p.mx_map == PAIRS:
            transpose_pairs(p, x, token, values, chunk.start_offset)
        else:
            adjacent = LANES if p.mx_map == INNERMOST else 1
            transpose_rows(x, chunk.start_offset // PMAX, token, values, adjacent)


def transpose_pairs(p: QKVParameters, x: Tensor, token: int, values: Tensor, column: int) -> None:
    """Of each half of the hidden dimension neighbours are two lanes of a row."""
    half = hidden_size(p) // 2
    for run in TiledRange(values.shape[1], PAIR * PMAX):
        first = column + run.start_offset
        tile = LANES * (first % half // (PAIR * PMAX)) + PAIR * (first // half)
        transpose_rows(x, tile, token, values[:, run.start_offset : run.end_offset], PAIR)


class QKVMxProjection(nl.NKIObject):
    """The weights by tiles of the contraction, and what quantises the tokens."""

    def __init__(self, p: QKVParameters):
        self.p = p
        tiles = hidden_size(p) // TILE
        scales = None
        if p.quantization == QuantizationType.MX:
            scales = p.w_scale.reshape_dim(0, (tiles, PMAX // GROUP)).permute((1, 0, 2))
        self.weights = MxWeights(p.weight.reshape_dim(0, (tiles, PMAX)).permute((1, 0, 2)), scales, True)
        static = p.quantization == QuantizationType.STATIC_MX and not arrives_quantized(p)
        self.inverse = reciprocal_of(in_scale_of(p)) if static else None
        self.ones = ones_tile(BANK_COLUMNS)

    def quantized(self, x: Tensor) -> MxTokens:
        """Tokens [128, H / 128, tokens] in FP8."""
        tiles, even = x.shape[1] // LANES, x.shape[2]
        if self.p.mx_map == QUARTER:
            lanes = x.reshape((PMAX, LANES, tiles, even)).permute((0, 2, 3, 1))
        else:
            lanes = x.reshape((PMAX, tiles, LANES, even)).permute((0, 1, 3, 2))
        if self.inverse is not None:
            return round_tokens(lanes, self.inverse, self.ones)
        if arrives_quantized(self.p):
            return narrow_tokens(lanes, self.ones)
        return quantize_tokens(lanes, self.ones)

    def project(self, x: MxTokens, count: int, column: int, columns: int) -> list:
        """Blocks of sums of some columns, without a token that only pads."""
        blocks = token_major_blocks(x.words.shape[2], columns, packed=False)
        project_rows_mx(x, self.weights, blocks, column, columns)
        for block in blocks:
            block.tokens = min(block.tokens, count - block.token)
            block.sums = block.sums[0 : block.tokens]
        return blocks


def span_columns_mx(tokens: int) -> int:
    """How many columns have their sums in half of PSUM."""
    return BANK_COLUMNS * max(1, SUM_BANKS // len(TiledRange(tokens, PMAX)))


# ---- decode --------------------------------------------------------------------------------------


def decode_mx(
    p: QKVParameters, n_prgs: int, core: int, out: Tensor, add_out: Tensor, dtype: DTypeLike | None = None
) -> list:
    """Columns of this core as tiles [tokens <= 128, columns]; stored when ready, if out is given.

    add_out receives the input with its residuals; `dtype` is that of the tiles, by default of the result.
    """
    mx, source, tokens = QKVMxProjection(p), QKVRowSource(p), token_count(p)
    tile = new_mx_tokens(p, tokens)
    token_scales = []
    for token in TiledRange(tokens, PMAX):
        rows = load_rows(p, token.start_offset, token.size)
        if add_out is not None:
            store(add_out[token.start_offset : token.end_offset], rows.tile)
        if rows.scale is not None:
            token_scales.append(rows.scale)
        transpose_rows_mx(p, source, tile, token.start_offset, rows)
    x = mx.quantized(tile)
    first, columns = own_columns(p, n_prgs, core)
    results = new_rows(tokens, columns, result_dtype(p) if dtype is None else dtype)
    terms = load_terms(p, first, columns, PMAX)
    for span in TiledRange(columns, span_columns_mx(tokens)):
        at, column = span.start_offset, first + span.start_offset
        blocks = mx.project(x, tokens, column, span.size)
        finish_into(results, at, blocks, terms, column, token_scales if len(token_scales) > 0 else None)
        if out is not None:
            for i in range(len(results)):
                store_result(p, out, results[i][:, at : at + span.size], i * PMAX, column)
    return results
