"""Output projections with microscaling (MX) weights: words [N D / 4, H], four rows of a column to a word.

Attention is contracted as the words have it, k = n D + d = 4 row + lane. Heads share a tile of the
contraction, as many as divide N and fit into 128 partitions, a quarter of D each.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.output_projection.operands import FLOATS, Operands
from nkilib.core.utils.common_types import QuantizationType
from nkilib.core.utils.fp8 import load_scalar, product_of, reciprocal_of
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert, refuse_without_effect
from nkilib.core.utils.kernel_helpers import is_hbm_buffer
from nkilib.core.utils.mx_layout import GROUP, LANES, ONE, QUADRANT, SCALE_DTYPES, WORDS, as_words, filled
from nkilib.core.utils.mx_projection import (
    MxTokens,
    narrow_tokens,
    ones_tile,
    project_rows_mx,
    quantize_tokens,
    round_tokens,
)
from nkilib.core.utils.mx_weight_loads import BLOCK, SCALE_ROWS, MxWeights
from nkilib.core.utils.projection import BANK_COLUMNS, FP8, SUM_BANKS, token_major_blocks
from nkilib.core.utils.projection_results import ColumnTerms, broadcast_row, finish_into
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import close_scope, new_tile, open_scope
from nkilib.core.utils.types import Tensor


def mx_heads(heads: int, depth: int, flat: bool, compact: bool) -> tuple[int, int]:
    """(N, D) as tiles are made of them. Where N and D stand `flat`, N D alone counts: small pieces.

    That N D is a multiple of 128 is what published tests want refused otherwise.
    """
    piece = BLOCK if compact else GROUP * LANES
    if flat:
        kernel_assert(
            heads * depth % BLOCK == 0, f"attention: got N D = {heads * depth}, MX takes multiples of {BLOCK}"
        )
        return heads * depth // piece, piece
    kernel_assert(depth % piece == 0, f"attention: got D = {depth}, MX takes 32, 64, 96, 128")
    return heads, depth


def as_mx(p: Operands, heads: int, depth: int, compact_scales: bool, flat: bool) -> tuple[int, int]:
    """Check, and give p its weights as words [N D / 4, H]. Returns (N, D) as tiles are made of them."""
    kind = p.quantization
    kernel_assert(
        kind in (QuantizationType.MX, QuantizationType.STATIC_MX),
        f"{p.names.quantization}: got {kind}, allowed are NONE, STATIC, ROW, MX and STATIC_MX",
    )
    kernel_assert(
        not compact_scales or kind == QuantizationType.MX,
        f"compact_weight_scales: got True with {kind}, allowed only with QuantizationType.MX",
    )
    static = kind == QuantizationType.STATIC_MX
    kernel_assert(
        p.attention.dtype in FLOATS or (static and p.attention.dtype in FP8),
        f"attention: got {p.attention.dtype} with {kind}, allowed are {FLOATS}, and FP8 with STATIC_MX",
    )
    kernel_assert(
        nisa.get_nc_version() >= nisa.nc_version.gen4,
        f"{p.names.quantization}: got {kind}, allowed from trn3 on",
    )
    kernel_assert(depth <= PMAX, f"attention: got D = {depth}, allowed are at most 128")
    heads, depth = mx_heads(heads, depth, flat, compact_scales)
    if kind == QuantizationType.STATIC_MX and p.weight.dtype in FP8:  # [N D, H] is a view of [N D / 4, H, 4]
        shape = tuple(p.weight.shape)
        kernel_assert(
            len(shape) == 2 and shape[0] == heads * depth,
            f"{p.names.weight}: got shape {shape}, expected ({heads * depth}, H)",
        )
        p.weight = p.weight.reshape((shape[0] // LANES, LANES * shape[1]))
    as_weights(p, heads, depth, compact_scales)
    return heads, depth


def as_weights(p: Operands, heads: int, depth: int, compact_scales: bool) -> None:
    """Words [N D / 4, H], and what belongs to them."""
    p.weight = as_words(p.names.weight, p.weight)
    rows, columns = heads * depth // LANES, p.weight.shape[1]
    kernel_assert(
        len(p.weight.shape) == 2 and p.weight.shape[0] == rows,
        f"{p.names.weight}: got words of shape {tuple(p.weight.shape)}, expected ({rows}, H)",
    )
    if p.bias is not None:
        assert_shape(p.bias, (1, columns), p.names.bias)
    if compact_scales:
        check_compact(p, rows, columns, heads_in_tile(heads, depth) * depth)
    else:
        check_scales(p, rows, columns)


def check_compact(p: Operands, rows: int, columns: int, tile: int) -> None:
    """A scale for 128 x 128 weights."""
    input_name, weight_name = p.names.input_scale, p.names.weight_scale
    kernel_assert(p.weight_scale is not None, f"{weight_name}: got None, needed by {p.quantization}")
    refuse_without_effect(p.attention.dtype in WORDS, "packed attention", ((input_name, p.input_scale),))
    kernel_assert(
        tile % BLOCK == 0 and columns % (BLOCK * nl.num_programs(0)) == 0,
        f"compact_weight_scales: got N D = {LANES * rows}, H = {columns}; heads in tiles of 128 rows and "
        "128 columns for each core are needed",
    )
    assert_shape(p.weight_scale, (LANES * rows // BLOCK, columns // BLOCK), weight_name)
    p.compact = True


def check_scales(p: Operands, rows: int, columns: int) -> None:
    input_name, weight_name = p.names.input_scale, p.names.weight_scale
    kernel_assert(p.weight_scale is not None, f"{weight_name}: got None, needed by {p.quantization}")
    if p.quantization == QuantizationType.STATIC_MX:
        kernel_assert(p.input_scale is not None, f"{input_name}: got None, needed by {p.quantization}")
        assert_shape(p.weight_scale, (PMAX, 1), weight_name)
        assert_shape(p.input_scale, (PMAX, 1), input_name)
        return
    packed = p.attention.dtype in WORDS
    kernel_assert(
        packed or p.input_scale is None, f"{input_name}: got one, allowed with STATIC_MX or packed attention"
    )
    assert_shape(p.weight_scale, (rows // GROUP, columns), weight_name)
    kernel_assert(
        p.weight_scale.dtype in SCALE_DTYPES,
        f"{weight_name}: got {p.weight_scale.dtype}, allowed are uint8 and float8_e8m0fnu",
    )


def heads_in_tile(heads: int, depth: int) -> int:
    """How many heads share a tile of the contraction."""
    count = min(heads, PMAX * LANES // depth)
    while heads % count != 0:
        count = count - 1
    return count


class OutputMxProjection(nl.NKIObject):
    """The weights by tiles, and what undoes the quantisation of STATIC_MX."""

    def __init__(self, p: Operands, heads: int, depth: int):
        static = p.quantization == QuantizationType.STATIC_MX
        self.p = p
        self.together = heads_in_tile(heads, depth)
        self.tiles = heads // self.together
        self.rows = self.together * depth // LANES
        self.contracted = heads * depth
        words = p.weight.reshape_dim(0, (self.tiles, self.rows)).permute((1, 0, 2))
        scales = None
        if p.compact:
            scales = p.weight_scale.reshape_dim(0, (self.tiles, LANES * self.rows // BLOCK))
        elif not static:
            scales = p.weight_scale.reshape_dim(0, (self.tiles, self.rows // GROUP)).permute((1, 0, 2))
        self.weights = MxWeights(words, scales, True, p.compact)
        x_scale = load_scalar(p.input_scale, p.tiles) if static else None
        self.inverse = reciprocal_of(x_scale, p.tiles) if static else None
        self.sums = product_of(x_scale, load_scalar(p.weight_scale, p.tiles), p.tiles) if static else None
        self.ones = ones_tile(BANK_COLUMNS, p.tiles)

    def new_lanes(self, tokens: int) -> Any:
        """[rows, tiles, 4, tokens], an even number, with zeros where nothing will be put."""
        even = tokens + tokens % 2
        dtype = nl.bfloat16 if self.p.attention.dtype == nl.float32 else self.p.attention.dtype
        lanes = new_tile(self.p.tiles, (filled(self.rows), self.tiles, LANES, even), dtype)
        if even > tokens or filled(self.rows) > self.rows:
            nisa.memset(lanes, 0.0)
        return lanes

    def quantize(self, lanes: Tensor) -> MxTokens:
        by_token = lanes.permute((0, 1, 3, 2))
        if self.p.attention.dtype in FP8:
            return narrow_tokens(by_token, self.ones, self.p.tiles)
        if self.inverse is None:
            return quantize_tokens(by_token, self.ones, self.p.tiles)
        return round_tokens(by_token, self.inverse, self.ones, self.p.tiles)

    def project_into(self, rows: list, x: MxTokens, first: int, columns: int) -> None:
        """Columns first ... of the tokens of x, into rows [tokens <= 128, columns], which may lack one."""
        p, tokens = self.p, x.words.shape[2]
        terms = ColumnTerms(first, self.sums)
        if p.bias is not None:
            terms.bias = broadcast_row(p.bias, first, columns, min(tokens, PMAX), p.tiles)
        widest = BANK_COLUMNS * max(1, SUM_BANKS // len(rows))
        for span in TiledRange(columns, widest):
            open_scope(p.tiles)
            blocks = token_major_blocks(tokens, span.size, packed=False)
            project_rows_mx(x, self.weights, blocks, first + span.start_offset, span.size)
            for block in blocks:
                count = min(block.tokens, rows[block.token // PMAX].shape[0])
                block.tiles = p.tiles
                block.tokens = count
                block.sums = block.sums[0:count]
            finish_into(rows, span.start_offset, blocks, terms, first + span.start_offset)
            close_scope(p.tiles)


def prefill_tokens(mx: OutputMxProjection, part: Tensor) -> MxTokens:
    """Tokens of [N D, tokens] in HBM."""
    tokens = part.shape[1]
    lanes = mx.new_lanes(tokens)
    split = part.reshape_dim(0, (mx.tiles, mx.rows, LANES)).permute((1, 0, 2, 3))
    nisa.dma_copy(lanes[0 : mx.rows, :, :, 0:tokens], split)
    return mx.quantize(lanes)


# ---- attention that is quantised already ---------------------------------------------------------


def packed_heads(p: Operands, compact_scales: bool) -> tuple[int, int]:
    """Give p attention as words [B, 1, N D / 4, S]; (N, D) as tiles are made of them."""
    name = p.names.input_scale
    kernel_assert(
        p.quantization == QuantizationType.MX,
        f"attention: got {p.attention.dtype}, allowed with {p.quantization} are {FLOATS}",
    )
    kernel_assert(p.input_scale is not None, f"{name}: got None, needed by attention that is quantised")
    batches, ones, rows, length = p.attention.shape
    tokens = p.input_scale.shape[2]
    kernel_assert(
        ones == 1 and rows % GROUP == 0,
        f"attention: got shape {tuple(p.attention.shape)}, expected (B, 1, N D / 4, S) of packed FP8",
    )
    assert_shape(p.input_scale, (batches, rows // GROUP, tokens), name)
    if p.attention.dtype == nl.uint8:
        p.attention = p.attention.view(nl.float8_e4m3fn)
    p.attention = as_words("attention", p.attention)
    assert_shape(p.attention, (batches, 1, rows, tokens), "attention (as words)")
    return mx_heads(rows // GROUP, GROUP * LANES, True, compact_scales)


def packed_tokens(mx: OutputMxProjection, batch: int, first: int, count: int) -> MxTokens:
    """Tokens first ... of words [B, 1, N D / 4, S], an even number."""
    even, p = count + count % 2, mx.p
    words = new_tile(p.tiles, (filled(mx.rows), mx.tiles, even), p.attention.dtype)
    if even > count or filled(mx.rows) > mx.rows:
        nisa.memset(words.view(nl.uint32), 0)
    by_tile = p.attention[batch, 0].reshape_dim(0, (mx.tiles, mx.rows)).permute((1, 0, 2))
    nisa.dma_copy(words[0 : mx.rows, :, 0:count], by_tile[:, :, first : first + count])
    source = p.input_scale[batch] if p.input_scale.dtype == nl.uint8 else p.input_scale[batch].view(nl.uint8)
    dense = source.reshape_dim(0, (mx.tiles, mx.rows // GROUP)).permute((1, 0, 2))
    scales = new_tile(p.tiles, (PMAX, mx.tiles, even), nl.uint8)
    nisa.memset(scales, ONE)
    for quadrant in TiledRange(mx.rows // GROUP, SCALE_ROWS):
        start = QUADRANT * quadrant.index
        part = dense[quadrant.start_offset : quadrant.end_offset, :, first : first + count]
        nisa.dma_copy(scales[start : start + quadrant.size, :, 0:count], part)
    return MxTokens(words, scales, mx.ones, p.tiles)


def decode_tokens(mx: OutputMxProjection) -> MxTokens:
    """Tokens of attention [D, B, N, S], in HBM or SBUF."""
    attention = mx.p.attention
    depth, batches, heads, steps = attention.shape
    if not is_hbm_buffer(attention):  # partitions cannot be split into rows and lanes
        copy = nl.ndarray(attention.shape, attention.dtype, buffer=nl.private_hbm)
        nisa.dma_copy(copy, attention)
        attention = copy
    tokens, quarter = batches * steps, depth // LANES
    lanes = mx.new_lanes(tokens)
    by_step = lanes[:, :, :, 0:tokens].reshape_dim(3, (batches, steps))
    for head in range(heads):
        first = quarter * (head % mx.together)
        source = attention[:, :, head, :].reshape_dim(0, (quarter, LANES))
        nisa.dma_copy(by_step[first : first + quarter, head // mx.together], source)
    return mx.quantize(lanes)
