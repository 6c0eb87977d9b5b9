"""Tokens on their way to the projection: residuals, norm, quantisation.

Prefill loads rows, normalises them and turns them over on TensorE. Where the hidden dimension is already in
the partitions, which is how decode loads its few tokens, TensorE adds the squares of a token up instead.
Gamma and beta come last, when each is one number for a partition.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.qkv.qkv_outputs import runs
from nkilib.core.qkv.qkv_parameters import (
    QKVParameters,
    arrives_quantized,
    batch_shape,
    hidden_size,
    input_in_sbuf,
    matmul_dtype,
    normalized_size,
    quantizes,
    token_count,
)
from nkilib.core.utils.common_types import NormType
from nkilib.core.utils.fp8 import load_scalar, quantize_static, reciprocal_of
from nkilib.core.utils.kernel_helpers import (
    get_max_positive_value_for_dtype,
    interleave_copy,
    normalization_uses_weights,
)
from nkilib.core.utils.norms import (
    CHUNK_COLUMNS,
    centred_columns,
    centred_scale,
    column_scale,
    ones_matrix,
    over_tiles,
    row_moments,
    row_scale,
)
from nkilib.core.utils.projection import PARTITIONS
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import bank_room

GROUP_ELEMENTS = 4096  # of tokens that stand along the partitions, in each partition at a time


class TokenSource(nl.NKIObject):
    """What every token needs: gamma and beta by partition, the scale of STATIC, what adds up partitions.

    `parts`: into how many the hidden dimension is cut, each spread over all partitions; 0 if element
    128 k + p is at partition p.
    """

    def __init__(self, p: QKVParameters, parts: int, along_partitions: bool):
        self.parts = parts
        gamma = p.gamma if normalization_uses_weights(p.norm) else None
        self.gamma = None if gamma is None else by_partition(gamma, hidden_size(p), parts)
        beta = p.beta if p.norm == NormType.LAYER_NORM else None
        self.beta = None if beta is None else by_partition(beta, hidden_size(p), parts)
        self.inverse = None
        if quantizes(p):
            self.inverse = reciprocal_of(in_scale_of(p))
        needs_ones = along_partitions and p.norm != NormType.NO_NORM
        self.ones = ones_matrix() if needs_ones else None


def in_scale_of(p: QKVParameters) -> Any:
    """qkv_in_scale, [128, 1] in SBUF."""
    if p.in_scale.shape[0] == PARTITIONS:
        return load_scalar(p.in_scale)
    return broadcast_row(p.in_scale, 0, 1, PARTITIONS)


def by_partition(vector: Any, size: int, parts: int) -> Any:
    """[1, H] as [128, H / 128], like the tokens."""
    tiles = size // PARTITIONS
    tile = nl.ndarray((PARTITIONS, tiles), vector.dtype, buffer=nl.sbuf)
    flat = vector.reshape((size,))
    if parts == 0:
        nisa.dma_copy(tile, flat.reshape((tiles, PARTITIONS)).permute((1, 0)))
        return tile
    for part in range(parts):
        width = tiles // parts
        piece = flat[part * size // parts : (part + 1) * size // parts]
        nisa.dma_copy(tile[:, part * width : (part + 1) * width], piece.reshape((PARTITIONS, width)))
    return tile


def new_tokens(p: QKVParameters, count: int) -> Any:
    """A tile for tokens as they are multiplied: [128, H / 128, tokens]."""
    return nl.ndarray((PARTITIONS, hidden_size(p) // PARTITIONS, count), matmul_dtype(p), buffer=nl.sbuf)


def settle(p: QKVParameters, source: TokenSource, place: Any, x: Any, tile: int, turn: int) -> None:
    """place = quantised(x * gamma + beta) of tiles tile ..., both [128, tiles, tokens]."""
    value = x
    tiles, tokens = x.shape[1], x.shape[2]
    if source.gamma is not None:
        plain = source.beta is None and source.inverse is None
        out = place if plain else nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)
        gamma = source.gamma[:, tile : tile + tiles].expand_dim(2).broadcast(2, tokens)
        nisa.tensor_tensor(out, value, gamma, op=nl.multiply)
        value = out
    if source.beta is not None:
        out = place if source.inverse is None else nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)
        beta = source.beta[:, tile : tile + tiles].expand_dim(2).broadcast(2, tokens)
        nisa.tensor_tensor(out, value, beta, op=nl.add)
        value = out
    if source.inverse is not None:
        quantize_static(place, value, source.inverse, get_max_positive_value_for_dtype(place.dtype))
    elif source.gamma is None and source.beta is None:
        interleave_copy(place, value, turn)


# ---- tokens in rows ------------------------------------------------------------------------------


class Rows(nl.NKIObject):
    """Rows [tokens, H] with what their norm needs; `scale` [tokens, 1] if they come quantised."""

    def __init__(self, tile: Any, scale: Any, mean: Any = None, factor: Any = None):
        self.tile = tile
        self.scale = scale
        self.mean = mean
        self.factor = factor


def load_rows(p: QKVParameters, first: int, count: int) -> Rows:
    """Rows of tokens first ... with residuals, and the statistics of their norm."""
    size = hidden_size(p)
    rows = load_tensor_rows(p, p.input, first, count)
    if arrives_quantized(p):
        if rows.shape[1] == size:
            return Rows(rows, None)
        return Rows(rows[:, 0:size], rows[:, size:].view(nl.float32))
    for residual in p.residuals:
        total = nl.ndarray(rows.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(total, rows, load_tensor_rows(p, residual, first, count), op=nl.add)
        rows = total
    if p.norm == NormType.NO_NORM:
        return Rows(rows, None)
    if p.norm == NormType.LAYER_NORM:
        mean, factor = row_moments(rows, normalized_size(p), p.eps)
        return Rows(rows, None, mean, factor)
    return Rows(rows, None, None, row_scale(rows, normalized_size(p), p.eps))


def load_tensor_rows(p: QKVParameters, tensor: Any, first: int, count: int) -> Any:
    width = tensor.shape[2]
    tile = nl.ndarray((count, width), tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, tensor.reshape((token_count(p), width))[first : first + count])
    return tile


def turn_rows(p: QKVParameters, source: TokenSource, x: Any, token: int, rows: Rows) -> None:
    """x[p, k, token + t] = norm(rows)[t, 128 k + p]"""
    count = rows.tile.shape[0]
    for chunk in TiledRange(rows.tile.shape[1], CHUNK_COLUMNS):
        values = normalized(p, rows, chunk.start_offset, chunk.size)
        first = chunk.start_offset // PARTITIONS
        for group in TiledRange(chunk.size // PARTITIONS, bank_room(values, count)):
            bank = nl.ndarray((PARTITIONS, group.size, count), values.dtype, buffer=nl.psum)
            for k in range(group.size):
                column = (group.start_offset + k) * PARTITIONS
                nisa.nc_transpose(bank[:, k, :], values[:, column : column + PARTITIONS])
            tile = first + group.start_offset
            place = x[:, tile : tile + group.size, token : token + count]
            settle(p, source, place, bank, tile, group.index)


def normalized(p: QKVParameters, rows: Rows, column: int, columns: int) -> Any:
    """Some columns of the rows, normalised but for gamma, in 16 bits; in 32 if FP8 comes next."""
    part = rows.tile[:, column : column + columns]
    dtype = nl.float16 if p.input.dtype == nl.float16 else nl.bfloat16
    if quantizes(p) and (rows.factor is not None or part.dtype == nl.float32):
        dtype = nl.float32
    if rows.factor is None and part.dtype == dtype:
        return part
    out = nl.ndarray(part.shape, dtype, buffer=nl.sbuf)
    if rows.factor is None:
        nisa.activation(out, nl.copy, part)
    elif rows.mean is None:
        nisa.tensor_scalar(out, part, nl.multiply, rows.factor)
    else:
        nisa.tensor_scalar(out, part, nl.subtract, rows.mean, op1=nl.multiply, operand1=rows.factor)
    return out


# ---- tokens along the partitions -----------------------------------------------------------------


def token_columns(p: QKVParameters, source: TokenSource, x: Any, first: int, add_out: Any) -> None:
    """Fill x, [128, H / 128, tokens], with tokens first ...; add_out [T, H] receives their sums."""
    tiles, count = x.shape[1], x.shape[2]
    for group in TiledRange(count, max(1, GROUP_ELEMENTS // tiles)):
        at = first + group.start_offset
        values = load_columns(p, source, p.input, at, group.size)
        for residual in p.residuals:
            total = nl.ndarray(values.shape, nl.float32, buffer=nl.sbuf)
            other = load_columns(p, source, residual, at, group.size)
            nisa.tensor_tensor(total, values, other, op=nl.add)
            values = total
        if add_out is not None:
            store_sums(source, add_out, values, at)
        values = normalized_columns(p, source, values)
        place = x[:, :, group.start_offset : group.end_offset]
        settle(p, source, place, values.permute((0, 2, 1)), 0, group.index)


def load_columns(p: QKVParameters, source: TokenSource, tensor: Any, first: int, count: int) -> Any:
    """[128, tokens, H / 128] of any input."""
    if input_in_sbuf(p) and tensor.buffer == nl.sbuf:
        return tensor[:, first : first + count, :]
    size = hidden_size(p)
    tiles = size // PARTITIONS
    tile = nl.ndarray((PARTITIONS, count, tiles), tensor.dtype, buffer=nl.sbuf)
    if p.transposed_in:
        for run in runs(first, count, batch_shape(p)[1]):
            part = tensor[run.batch].reshape_dim(0, (tiles, PARTITIONS)).permute((1, 2, 0))
            place = tile[:, run.row : run.row + run.count, :].permute((0, 2, 1))
            part = part[:, run.position : run.position + run.count, :].permute((0, 2, 1))
            nisa.dma_copy(place, part)
        return tile
    rows = tensor.reshape((token_count(p), size))[first : first + count]
    for part in range(source.parts):
        nisa.dma_copy(part_of(tile, part, source.parts), spread_part(rows, part, source.parts))
    return tile


def part_of(tile: Any, part: int, parts: int) -> Any:
    """[128, tokens, tiles of one part]"""
    width = tile.shape[2] // parts
    return tile[:, :, part * width : (part + 1) * width]


def spread_part(rows: Any, part: int, parts: int) -> Any:
    """[T, H] in HBM as [128, tokens, tiles of one part]: adjacent elements of a token share a partition."""
    tokens, size = rows.shape
    width = size // parts
    piece = rows[:, part * width : (part + 1) * width]
    return piece.reshape_dim(1, (PARTITIONS, width // PARTITIONS)).permute((1, 0, 2))


def store_sums(source: TokenSource, add_out: Any, values: Any, first: int) -> None:
    """The sums of residuals, in the dtype of add_out."""
    stored = nl.ndarray(values.shape, add_out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(stored, values)
    rows = add_out[first : first + values.shape[1]]
    for part in range(source.parts):
        nisa.dma_copy(spread_part(rows, part, source.parts), part_of(stored, part, source.parts))


def normalized_columns(p: QKVParameters, source: TokenSource, values: Any) -> Any:
    """[128, tokens, H / 128] normalised but for gamma, float32 if it is."""
    if p.norm == NormType.NO_NORM:
        return values
    size = normalized_size(p)
    if p.norm == NormType.LAYER_NORM:
        values, mean = centred_columns(values, size, source.ones)
        scale = centred_scale(values, mean, size, p.eps, source.ones)
    else:
        scale = column_scale(values, size, p.eps, source.ones)
    out = nl.ndarray(values.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(out, values, over_tiles(scale, values), op=nl.multiply)
    return out
