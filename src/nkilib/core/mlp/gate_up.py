"""The middle of the MLP, act(gate) * up, in either operand order; and its way to the down projection."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.mlp_parameters import (
    Linear,
    MLPParameters,
    matmul_dtype,
    quantizes_activations,
    quantizes_by_token,
)
from nkilib.core.mlp.rows import castable
from nkilib.core.utils.clamping import clamp, has_limits
from nkilib.core.utils.common_types import ActFnType, QuantizationType
from nkilib.core.utils.fp8 import (
    largest_of,
    load_scalar,
    product_of,
    put_row_maximum,
    quantize_rows,
    quantize_static,
    reciprocal_of,
)
from nkilib.core.utils.kernel_helpers import (
    div_ceil,
    get_max_positive_value_for_dtype,
    get_nl_act_fn_from_type,
)
from nkilib.core.utils.projection import Activations, ProductBlock, project, span_columns
from nkilib.core.utils.projection_results import ColumnTerms, beside, finish, load_terms, new_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import Tiles, close_scope, new_tile, open_scope
from nkilib.core.utils.transposes import rows_in, transpose_rows
from nkilib.core.utils.types import Tensor


class MLPStaticScales(nl.NKIObject):
    """STATIC: what undoes each projection, [128, 1] in SBUF, and what x and m are multiplied by. Or None."""

    def __init__(self, p: MLPParameters):
        static = p.quantization == QuantizationType.STATIC
        quantized = static and quantizes_activations(p)
        x_scale = load_scalar(p.gate_up_in_scale, p.tiles) if quantized else None
        m_scale = load_scalar(p.down_in_scale, p.tiles) if quantized else None
        self.inverse_x = reciprocal_of(x_scale, p.tiles) if quantized else None
        self.inverse_m = reciprocal_of(m_scale, p.tiles) if quantized else None
        gated = static and not p.skip_gate
        self.gate = product_of(x_scale, load_scalar(p.gate.scale, p.tiles), p.tiles) if gated else None
        self.up = product_of(x_scale, load_scalar(p.up.scale, p.tiles), p.tiles) if static else None
        self.down = product_of(m_scale, load_scalar(p.down.scale, p.tiles), p.tiles) if static else None


def column_scale(p: MLPParameters, linear: Linear) -> Any:
    """The scale of each column that ROW weights have, in HBM."""
    return linear.scale if p.quantization == QuantizationType.ROW else None


def down_terms(
    p: MLPParameters, scales: MLPStaticScales, m: Activations, column: int, columns: int
) -> ColumnTerms:
    """What follows the sums of the down projection."""
    by_column = column_scale(p, p.down)
    return load_terms(scales.down, by_column, p.down.bias, column, columns, m, p.down.weight)


# ---- feature-major: m[columns, tokens], as it will be contracted ---------------------------------


def gate_up_features(
    p: MLPParameters, x: Activations, scales: MLPStaticScales, first: int, count: int
) -> Activations:
    """m of columns first ... first + count. Not for ROW, whose scale is that of a token."""
    tokens = x.tile.shape[2]
    m = new_tile(p.tiles, (PMAX, div_ceil(count, PMAX), tokens), matmul_dtype(p))
    for span in TiledRange(count, span_columns(x, p.up.weight)):
        open_scope(p.tiles)
        column = first + span.start_offset
        gates = None
        if not p.skip_gate:
            gates = project_features(p, p.gate, scales.gate, x, column, span.size)
            activate_blocks(p, gates)
        ups = project_features(p, p.up, scales.up, x, column, span.size)
        for i in range(len(ups)):
            dst = m[0 : ups[i].columns, (span.start_offset + ups[i].column) // PMAX, :]
            combine(p, scales, dst, gates, ups, i)
        close_scope(p.tiles)
    return Activations(m, count, first, tiles=p.tiles)


def project_features(
    p: MLPParameters, linear: Linear, scale: Tensor | None, x: Activations, column: int, columns: int
) -> list[ProductBlock]:
    """The finished values of one projection, [columns <= 128, tokens] a block."""
    blocks = project(x, linear.weight, column, columns, feature_major=True)
    bias = None if linear.bias is None else load_bias_columns(linear.bias, column, columns, p.tiles)
    for block in blocks:
        if scale is not None or bias is not None:
            value = beside(block)
            factor = 1.0 if scale is None else scale[0 : block.columns]
            tile = block.column // PMAX
            shift = 0.0 if bias is None else bias[0 : block.columns, tile : tile + 1]
            nisa.tensor_scalar(value, block.sums, nl.multiply, factor, op1=nl.add, operand1=shift)
            block.sums = value
        clamp_block(linear, block)
    return blocks


def load_bias_columns(bias: Tensor, column: int, columns: int, tiles: Tiles | None = None) -> Any:
    """bias[0, column + 128 k + p] at [p, k], float32."""
    full = columns // PMAX
    tile = new_tile(tiles, (PMAX, div_ceil(columns, PMAX)), nl.float32)
    if full > 0:
        part = bias[0:1, column : column + full * PMAX].reshape((full, PMAX))
        nisa.dma_copy(tile[:, 0:full], part.permute((1, 0)))
    rest = columns - full * PMAX
    if rest > 0:
        part = bias[0:1, column + full * PMAX : column + columns].reshape((rest, 1))
        nisa.dma_copy(tile[0:rest, full : full + 1], part)
    return tile


# ---- token-major: m[tokens, columns] -------------------------------------------------------------


def gate_up_rows(p: MLPParameters, x: Activations, scales: MLPStaticScales, first: int, count: int) -> tuple:
    """m of columns first ... first + count, [tokens <= 128, count] a tile; in float32 if FP8 comes next.

    Also, where tokens are quantised each by its own scale, max|m|, [tokens, 1] a tile; else None.
    """
    tokens = x.tile.shape[2]
    rows = new_rows(tokens, count, nl.float32 if quantizes_activations(p) else matmul_dtype(p), p.tiles)
    spans = TiledRange(count, span_columns(x, p.up.weight))
    maxima = new_rows(tokens, len(spans), nl.float32, p.tiles) if quantizes_by_token(p) else None
    for span in spans:
        open_scope(p.tiles)
        column = first + span.start_offset
        gates = None
        if not p.skip_gate:
            gates = project_rows(p, p.gate, scales.gate, x, column, span.size)
            activate_blocks(p, gates)
        ups = project_rows(p, p.up, scales.up, x, column, span.size)
        for i in range(len(ups)):
            start = span.start_offset + ups[i].column
            dst = rows[ups[i].token // PMAX][:, start : start + ups[i].columns]
            combine(p, None, dst, gates, ups, i)
        if maxima is not None:
            note_maxima(p, maxima, rows, span)
        close_scope(p.tiles)
    return rows, (None if maxima is None else all_maxima(p, maxima))


def note_maxima(p: MLPParameters, maxima: list, rows: list, span: TiledRangeIterator) -> None:
    """While the next columns are computed, the maxima of these."""
    for i in range(len(rows)):
        place = maxima[i][:, span.index : span.index + 1]
        put_row_maximum(place, rows[i][:, span.start_offset : span.end_offset], p.tiles)


def all_maxima(p: MLPParameters, maxima: list) -> list:
    found = []
    for tile in maxima:
        found.append(largest_of(tile, p.tiles))
    return found


def project_rows(
    p: MLPParameters, linear: Linear, scale: Tensor | None, x: Activations, column: int, columns: int
) -> list[ProductBlock]:
    """The finished values of one projection, [tokens <= 128, columns <= 512] a block."""
    blocks = project(x, linear.weight, column, columns, feature_major=False)
    by_column = column_scale(p, linear)
    terms = load_terms(scale, by_column, linear.bias, column, columns, x, linear.weight)
    for block in blocks:
        if p.quantization != QuantizationType.NONE or linear.bias is not None:
            value = beside(block)
            finish(value, block, terms, column, x.scales)
            block.sums = value
        clamp_block(linear, block)
    return blocks


def contract_rows(
    p: MLPParameters, scales: MLPStaticScales, rows: list, first: int, maxima: list
) -> Activations:
    """Rows of m, quantised if need be, as the down projection contracts them. `maxima`: max|m|, for ROW."""
    count, tokens = rows[0].shape[1], rows_in(rows)
    tile = new_tile(p.tiles, (PMAX, div_ceil(count, PMAX), tokens), matmul_dtype(p))
    row_scales: list | None = [] if quantizes_by_token(p) else None
    for i in range(len(rows)):
        source = rows[i]
        if quantizes_activations(p):
            source = new_tile(p.tiles, rows[i].shape, matmul_dtype(p))
            largest = get_max_positive_value_for_dtype(source.dtype)
            if row_scales is None:
                quantize_static(source, rows[i], scales.inverse_m, largest, p.tiles)
            else:
                scale = quantize_rows(source, rows[i], maxima[i], largest, p.clipping_bound, p.tiles)
                row_scales.append(scale)
        transpose_rows(tile, 0, i * PMAX, castable(source, tile.dtype, p.tiles))
    return Activations(tile, count, first, row_scales, tiles=p.tiles)


# ---- element by element, the same in both orders -------------------------------------------------


def clamp_block(linear: Linear, block: ProductBlock) -> None:
    """Clamp the sums of a block to the limits of its projection."""
    if has_limits(linear.upper, linear.lower):
        value = beside(block)
        clamp(value, block.sums, linear.upper, linear.lower)
        block.sums = value


def activate_blocks(p: MLPParameters, blocks: list) -> None:
    for block in blocks:
        value = beside(block)
        activate(value, block.sums, p.act_fn, p.tiles)
        block.sums = value


def activate(dst: Tensor, x: Tensor, act_fn: ActFnType, tiles: Tiles | None = None) -> None:
    """dst = act_fn(x)"""
    if act_fn == ActFnType.ReLU:
        nisa.activation(dst, nl.relu, x)
    elif act_fn == ActFnType.SquaredReLU:
        positive = new_tile(tiles, x.shape, nl.float32)
        nisa.activation(positive, nl.relu, x)
        nisa.activation(dst, nl.square, positive)
    else:
        nisa.activation(dst, get_nl_act_fn_from_type(act_fn), x)


def combine(
    p: MLPParameters, scales: MLPStaticScales | None, dst: Tensor, gates: list | None, ups: list, i: int
) -> None:
    """dst = gate * up of block i, or act(up) without a gate; quantised if `scales` are STATIC ones."""
    quantized = scales is not None and scales.inverse_m is not None
    out = beside(ups[i]) if quantized else dst
    if gates is None:
        activate(out, ups[i].sums, p.act_fn, p.tiles)
    else:
        nisa.tensor_tensor(out, gates[i].sums, ups[i].sums, op=nl.multiply)
    if scales is not None and scales.inverse_m is not None:
        quantize_static(dst, out, scales.inverse_m, get_max_positive_value_for_dtype(dst.dtype), p.tiles)
