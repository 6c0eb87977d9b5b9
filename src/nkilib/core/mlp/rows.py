"""Tokens on their way to the first projection: residual, norm, quantisation, transpose.

All of it on rows, [tokens <= 128, H]: what belongs to a token is then one number for each partition.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.mlp_parameters import (
    MLPParameters,
    arrives_quantized,
    hidden_size,
    input_in_sbuf,
    matmul_dtype,
    quantizes_activations,
    quantizes_by_token,
    token_count,
)
from nkilib.core.utils.common_types import NormType, QuantizationType
from nkilib.core.utils.fp8 import quantize_rows, quantize_static, row_maximum
from nkilib.core.utils.kernel_helpers import div_ceil, get_max_positive_value_for_dtype
from nkilib.core.utils.norms import inverse_root
from nkilib.core.utils.projection import FP8, Activations, adjacent_tiles
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import Tiles, close_scope, new_tile, open_scope
from nkilib.core.utils.transposes import rows_from_spread, transpose_rows
from nkilib.core.utils.types import DTypeLike, Tensor

STATISTICS_COLUMNS = 512  # of one bn_stats


class MLPRowSource(nl.NKIObject):
    """hidden and what is added to it, with the rows that every token is multiplied by or shifted by."""

    def __init__(self, p: MLPParameters, n_prgs: int, add_out: Tensor | None, inverse_scale: Tensor | None):
        size = hidden_size(p)
        uses_gamma = p.norm in (NormType.RMS_NORM, NormType.LAYER_NORM)
        self.parts = n_prgs  # of the hidden dimension, where a layout distinguishes them
        self.add_out = add_out  # [T, H] in HBM, or None
        self.inverse_scale = inverse_scale  # STATIC: [128, 1]
        used = min(PMAX, token_count(p))
        self.gamma = broadcast_row(p.gamma, 0, size, used, p.tiles) if uses_gamma else None
        self.beta = None if p.beta is None else broadcast_row(p.beta, 0, size, used, p.tiles)


def token_activations(
    p: MLPParameters, source: MLPRowSource, first: int, count: int, columns: int
) -> Activations:
    """Tokens first ... first + count as the gate and up projections, of so many columns, contract them."""
    size = hidden_size(p)
    tile = new_tile(p.tiles, (PMAX, size // PMAX, count), matmul_dtype(p))
    scales: Any = [] if quantizes_by_token(p) else None
    adjacent = adjacent_tiles(count, matmul_dtype(p), p.up.weight, columns)
    for token in TiledRange(count, PMAX):
        if scales is None:  # else they are reused
            open_scope(p.tiles)
        rows = load_rows(p, source, p.hidden, first + token.start_offset, token.size)
        if arrives_quantized(p):
            scales.append(rows[:, size:].view(nl.float32))
            rows = rows[:, 0:size]
        else:
            rows = add_residual(p, source, rows, first + token.start_offset)
            rows = normalize(p, source, rows)
            rows = quantize(p, source, rows, scales)
        transpose_rows(tile, 0, token.start_offset, castable(rows, matmul_dtype(p), p.tiles), adjacent)
        if scales is None:
            close_scope(p.tiles)
    return Activations(tile, size, 0, scales, adjacent=adjacent, tiles=p.tiles)


def castable(rows: Tensor, dtype: DTypeLike, tiles: Tiles | None = None) -> Any:
    """The rows in a dtype that TensorE transposes: FP8 values go there as bfloat16, which holds them all."""
    wanted = nl.bfloat16 if dtype in FP8 else dtype
    if rows.dtype == wanted:
        return rows
    cast = new_tile(tiles, rows.shape, wanted)
    nisa.activation(cast, nl.copy, rows)  # on ScalarE, which has least to do
    return cast


def load_rows(p: MLPParameters, source: MLPRowSource, tensor: Tensor, first: int, count: int) -> Any:
    """Rows of hidden, or of what is added to it, from any of the layouts."""
    if not (p.transposed_in or input_in_sbuf(p)):
        width = tensor.shape[2]
        rows = new_tile(p.tiles, (count, width), tensor.dtype)
        nisa.dma_copy(rows, tensor.reshape((token_count(p), width))[first : first + count])
        return rows
    rows = new_tile(p.tiles, (count, hidden_size(p)), tensor.dtype)
    columns = load_columns(p, tensor, first, count)
    tiles, width = columns.shape[1] // source.parts, rows.shape[1] // source.parts
    for part in range(source.parts):
        rows_from_spread(
            rows[:, part * width : (part + 1) * width], columns[:, part * tiles : (part + 1) * tiles, :]
        )
    return rows


def load_columns(p: MLPParameters, tensor: Tensor, first: int, count: int) -> Any:
    """[128, H / 128, tokens] of a tensor that is laid out by partition."""
    if not p.transposed_in:
        return tensor.permute((0, 2, 1))[:, :, first : first + count]
    tiles = tensor.shape[1] * tensor.shape[2]
    columns = new_tile(p.tiles, (PMAX, tiles, count), tensor.dtype)
    nisa.dma_copy(columns, tensor.reshape((PMAX, tiles, tensor.shape[3]))[:, :, first : first + count])
    return columns


def add_residual(p: MLPParameters, source: MLPRowSource, rows: Tensor, first: int) -> Any:
    """rows + fused_add in float32; stored if asked for, in the dtype of hidden."""
    if p.fused_add is None:
        return rows
    count = rows.shape[0]
    total = new_tile(p.tiles, rows.shape, nl.float32)
    nisa.tensor_tensor(total, rows, load_rows(p, source, p.fused_add, first, count), op=nl.add)
    if source.add_out is not None:
        stored = new_tile(p.tiles, rows.shape, source.add_out.dtype)
        nisa.tensor_copy(stored, total)
        nisa.dma_copy(source.add_out[first : first + count], stored)
    return total


# ---- norms ---------------------------------------------------------------------------------------


def normalize(p: MLPParameters, source: MLPRowSource, rows: Tensor) -> Any:
    """The norm of each row, in the dtype of the matmul, or in float32 where it is quantised next."""
    if p.norm == NormType.NO_NORM:
        return rows
    dtype = nl.float32 if quantizes_activations(p) else matmul_dtype(p)
    out = new_tile(p.tiles, rows.shape, dtype)
    if p.norm == NormType.LAYER_NORM:
        layer_norm(out, rows, source.gamma, source.beta, p.eps, p.tiles)
    else:
        rms_norm(out, rows, source.gamma, p.eps, tiles=p.tiles)
    return out


def rms_norm(
    out: Tensor,
    rows: Tensor,
    gamma: Tensor | None,
    eps: float,
    actual: int | None = None,
    tiles: Tiles | None = None,
) -> None:
    """out = rows / sqrt(mean of squares + eps) * gamma; `actual`: how many are not padding."""
    count, size = rows.shape
    size = size if actual is None else actual
    squares = new_tile(tiles, rows.shape, nl.bfloat16)
    total = new_tile(tiles, (count, 1), nl.float32)
    nisa.activation_reduce(squares, nl.square, rows, nl.add, total)
    scale = inverse_root(total, 1.0 / size, eps, tiles)
    if gamma is None:
        nisa.tensor_scalar(out, rows, nl.multiply, scale)
    else:
        nisa.scalar_tensor_tensor(out, rows, nl.multiply, scale, nl.multiply, gamma[0:count])


def layer_norm(
    out: Tensor, rows: Tensor, gamma: Tensor, beta: Tensor | None, eps: float, tiles: Tiles | None = None
) -> None:
    """out = (rows - mean) / sqrt(variance + eps) * gamma + beta"""
    count, size = rows.shape
    parts = TiledRange(size, STATISTICS_COLUMNS)
    statistics = new_tile(tiles, (count, len(parts), 6), nl.float32)
    moments = new_tile(tiles, (count, 2), nl.float32)
    for part in parts:
        nisa.bn_stats(statistics[:, part.index, :], rows[:, part.start_offset : part.end_offset])
    nisa.bn_aggr(moments, statistics)
    scale = inverse_root(moments[:, 1:2], 1.0, eps, tiles)
    centred = new_tile(tiles, rows.shape, nl.float32)
    nisa.tensor_scalar(centred, rows, nl.subtract, moments[:, 0:1], op1=nl.multiply, operand1=scale)
    if beta is None:
        nisa.tensor_tensor(out, centred, gamma[0:count], op=nl.multiply)
    else:
        nisa.tensor_tensor(centred, centred, gamma[0:count], op=nl.multiply)
        nisa.tensor_tensor(out, centred, beta[0:count], op=nl.add)


# ---- quantisation --------------------------------------------------------------------------------


def quantize(p: MLPParameters, source: MLPRowSource, rows: Tensor, scales: list) -> Any:
    """The rows in FP8, if the matmul wants them so; the scales of ROW are appended to `scales`."""
    if not quantizes_activations(p):
        return rows
    quantized = new_tile(p.tiles, rows.shape, matmul_dtype(p))
    largest = get_max_positive_value_for_dtype(quantized.dtype)
    if p.quantization == QuantizationType.STATIC:
        quantize_static(quantized, rows, source.inverse_scale, largest, p.tiles)
    else:
        maximum = row_maximum(rows, p.tiles)
        scales.append(quantize_rows(quantized, rows, maximum, largest, p.clipping_bound, p.tiles))
    return quantized


def tokens_per_block(p: MLPParameters, most: int) -> int:
    """How many tokens a pass over the weights serves: what SBUF holds of x and m."""
    size, inner = hidden_size(p), p.up.weight.shape[1]
    width = 1 if quantizes_activations(p) else (4 if matmul_dtype(p) == nl.float32 else 2)
    each = width * (size + inner) // PMAX
    if p.quantization == QuantizationType.ROW:
        each += 4 * div_ceil(inner, PMAX)  # rows of the middle in float32 until their scale is known
    plain = p.norm == NormType.NO_NORM and not quantizes_activations(p)
    rows = (2 if plain else 4) * max(2, width) * size  # tiles of tokens on their way through this file
    room = nl.tile_size.sbuf_fmax_bytes - rows - WEIGHT_ROOM_BYTES
    if p.tiles is not None:  # whose manager has given weights their room already
        room = p.tiles.sbm.get_free_space() - rows - DRAIN_ROOM_BYTES
    return max(PMAX, min(most, room // each // PMAX * PMAX))


WEIGHT_ROOM_BYTES = 48 * 1024  # chunks of weights on their way, sums being drained, results being stored
DRAIN_ROOM_BYTES = 40 * 1024  # of the latter two
