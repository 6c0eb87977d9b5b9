"""Tokens on their way to the projection: residuals, norm, quantisation.

Prefill loads rows, normalises them and transposes them on TensorE. Where the hidden dimension is already in
the partitions, which is how decode loads its few tokens, TensorE adds the squares of a token up instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import castable
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
    is_hbm_buffer,
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
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_io import hardware_queue
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import rows_from_spread, transpose_rows
from nkilib.core.utils.types import Tensor

RESIDENT_COLUMNS = 8192  # of gamma and beta, in every partition
GROUP_ELEMENTS = 4096  # of tokens that stand along the partitions, in each partition at a time


class RowVector(nl.NKIObject):
    """Gamma or beta in every partition; of a long one parts are loaded when they are wanted."""

    def __init__(self, vector: Tensor, size: int):
        self.vector = vector.reshape((1, size))
        self.tile = None
        if size <= RESIDENT_COLUMNS:
            self.tile = broadcast_row(self.vector, 0, size, PMAX)

    def part(self, count: int, column: int, columns: int) -> Any:
        """Columns column ... in `count` partitions."""
        if self.tile is None:
            return broadcast_row(self.vector, column, columns, count)
        return self.tile[0:count, column : column + columns]


class QKVRowSource(nl.NKIObject):
    """What tokens in rows need: gamma, beta, the inverse scale of STATIC. Each may be None."""

    def __init__(self, p: QKVParameters):
        size = hidden_size(p)
        gamma, beta = norm_vectors(p)
        self.gamma = None if gamma is None else RowVector(gamma, size)
        self.beta = None if beta is None else RowVector(beta, size)
        self.inverse = reciprocal_of(in_scale_of(p)) if quantizes(p) else None


class ColumnSource(nl.NKIObject):
    """The same for tokens along the partitions, and what adds these up.

    `parts`: into how many the hidden dimension is cut, each spread over all partitions; 0 if element
    128 k + p is at partition p.
    """

    def __init__(self, p: QKVParameters, parts: int):
        size = hidden_size(p)
        gamma, beta = norm_vectors(p)
        self.parts = parts
        self.gamma = None if gamma is None else by_partition(gamma, size, parts)
        self.beta = None if beta is None else by_partition(beta, size, parts)
        self.inverse = reciprocal_of(in_scale_of(p)) if quantizes(p) else None
        self.ones = None if p.norm == NormType.NO_NORM else ones_matrix()


def norm_vectors(p: QKVParameters) -> tuple:
    """(gamma, beta) of the norm; None where it has none."""
    gamma = p.gamma if normalization_uses_weights(p.norm) else None
    return gamma, (p.beta if p.norm == NormType.LAYER_NORM else None)


def in_scale_of(p: QKVParameters) -> Any:
    """qkv_in_scale, [128, 1] in SBUF."""
    if p.in_scale.shape[0] == PMAX:
        return load_scalar(p.in_scale)
    return broadcast_row(p.in_scale, 0, 1, PMAX)


def by_partition(vector: Tensor, size: int, parts: int) -> Tensor:
    """[1, H] as [128, H / 128], like the tokens."""
    tiles = size // PMAX
    tile = nl.ndarray((PMAX, tiles), vector.dtype, buffer=nl.sbuf)
    flat = vector.reshape((size,))
    if parts == 0:
        nisa.dma_copy(tile, flat.reshape((tiles, PMAX)).permute((1, 0)))
        return tile
    width = tiles // parts
    by_part = flat.reshape((parts, PMAX, width)).permute((1, 0, 2))
    nisa.dma_copy(tile.reshape_dim(1, (parts, width)), by_part, dge_mode=hardware_queue())
    return tile


def new_tokens(p: QKVParameters, count: int) -> Tensor:
    """A tile for tokens as they are multiplied: [128, H / 128, tokens]."""
    return nl.ndarray((PMAX, hidden_size(p) // PMAX, count), matmul_dtype(p), buffer=nl.sbuf)


# ---- tokens in rows ------------------------------------------------------------------------------


@dataclass
class TokenRows(nl.NKIObject):
    """Rows [tokens, H] with what their norm needs; `scale` [tokens, 1] if they come quantised."""

    tile: Tensor
    scale: Tensor
    mean: Tensor | None = None
    factor: Tensor | None = None


def load_rows(p: QKVParameters, first: int, count: int) -> TokenRows:
    """Rows of tokens first ... with residuals, and the statistics of their norm."""
    size = hidden_size(p)
    rows = load_tensor_rows(p, p.input, first, count)
    if arrives_quantized(p):
        if rows.shape[1] == size:
            return TokenRows(rows, None)
        return TokenRows(rows[:, 0:size], rows[:, size:].view(nl.float32))
    for residual in p.residuals:
        total = nl.ndarray(rows.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(total, rows, load_tensor_rows(p, residual, first, count), op=nl.add)
        rows = total
    if p.norm == NormType.NO_NORM:
        return TokenRows(rows, None)
    if p.norm == NormType.LAYER_NORM:
        mean, factor = row_moments(rows, normalized_size(p), p.eps)
        return TokenRows(rows, None, mean, factor)
    return TokenRows(rows, None, None, row_scale(rows, normalized_size(p), p.eps))


def load_tensor_rows(p: QKVParameters, tensor: Tensor, first: int, count: int) -> Any:
    """Rows of the input or a residual. Only MX wants those that lie along the partitions as rows."""
    if not is_hbm_buffer(tensor):
        return rows_of_spread(tensor, first, count)
    if p.transposed_in:
        return rows_of_columns(p, tensor, first, count)
    width = tensor.shape[2]
    tile = nl.ndarray((count, width), tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, tensor.reshape((token_count(p), width))[first : first + count])
    return tile


def rows_of_spread(tensor: Tensor, first: int, count: int) -> Tensor:
    """Of [128, T, H / 128] in SBUF, which has a part of H for each core."""
    parts, size = nl.num_programs(0), PMAX * tensor.shape[2]
    rows = nl.ndarray((count, size), tensor.dtype, buffer=nl.sbuf)
    for part in range(parts):
        place = rows[:, part * size // parts : (part + 1) * size // parts]
        tokens = by_parts(tensor, parts)[:, first : first + count, part, :]
        rows_from_spread(place, tokens.permute((0, 2, 1)))
    return rows


def rows_of_columns(p: QKVParameters, tensor: Tensor, first: int, count: int) -> Tensor:
    """Of [B, H, S] in HBM."""
    tiles = hidden_size(p) // PMAX
    columns = nl.ndarray((PMAX, tiles, count), tensor.dtype, buffer=nl.sbuf)
    for run in runs(first, count, batch_shape(p)[1]):
        part = tensor[run.batch].reshape_dim(0, (tiles, PMAX)).permute((1, 0, 2))
        place = columns[:, :, run.row : run.row + run.count]
        nisa.dma_copy(place, part[:, :, run.position : run.position + run.count])
    rows = nl.ndarray((count, hidden_size(p)), tensor.dtype, buffer=nl.sbuf)
    for k in range(tiles):
        bank = nl.ndarray((count, PMAX), tensor.dtype, buffer=nl.psum)
        nisa.nc_transpose(bank, columns[:, k, :])
        interleave_copy(rows[:, k * PMAX : (k + 1) * PMAX], bank, k)
    return rows


def transpose_tokens(p: QKVParameters, source: QKVRowSource, x: Tensor, token: int, rows: TokenRows) -> None:
    """x[p, k, token + t] = norm(rows)[t, 128 k + p], quantised if need be."""
    for chunk in TiledRange(rows.tile.shape[1], CHUNK_COLUMNS):
        values = normalized(p, source, rows, chunk.start_offset, chunk.size)
        if source.inverse is not None:
            quantized = nl.ndarray(values.shape, x.dtype, buffer=nl.sbuf)
            largest = get_max_positive_value_for_dtype(x.dtype)
            quantize_static(quantized, values, source.inverse, largest)
            values = quantized
        transpose_rows(x, chunk.start_offset // PMAX, token, castable(values, sixteen_bits(p)))


def sixteen_bits(p: QKVParameters) -> Any:
    """What tokens are transposed in: float16 stays, all others are or fit into bfloat16."""
    return nl.float16 if p.input.dtype == nl.float16 and not quantizes(p) else nl.bfloat16


def normalized(p: QKVParameters, source: QKVRowSource, rows: TokenRows, column: int, columns: int) -> Any:
    """Some columns of the rows after the norm; float32 if they are quantised next, else rounded."""
    part = rows.tile[:, column : column + columns]
    if rows.factor is None:
        return part
    out = nl.ndarray(part.shape, nl.float32 if quantizes(p) else sixteen_bits(p), buffer=nl.sbuf)
    gamma = None if source.gamma is None else source.gamma.part(part.shape[0], column, columns)
    if rows.mean is not None:
        beta = None if source.beta is None else source.beta.part(part.shape[0], column, columns)
        centred_rows(out, part, rows, gamma, beta)
    elif gamma is None:
        nisa.tensor_scalar(out, part, nl.multiply, rows.factor)
    else:
        nisa.scalar_tensor_tensor(out, part, nl.multiply, rows.factor, nl.multiply, gamma)
    return out


def centred_rows(out: Tensor, part: Tensor, rows: TokenRows, gamma: Tensor, beta: Tensor) -> None:
    """out = (part - mean) * factor * gamma + beta"""
    centred = nl.ndarray(part.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(centred, part, nl.subtract, rows.mean, op1=nl.multiply, operand1=rows.factor)
    if beta is None:
        nisa.tensor_tensor(out, centred, gamma, op=nl.multiply)
    else:
        nisa.tensor_tensor(centred, centred, gamma, op=nl.multiply)
        nisa.tensor_tensor(out, centred, beta, op=nl.add)


# ---- tokens that DMA transposes ------------------------------------------------------------------


def transposes_by_dma(p: QKVParameters) -> bool:
    """DMA transposes 16-bit elements, and what is added or subtracted comes before.

    The factor of an RMSNorm may come after; but x * gamma alone could be too large for float16.
    """
    plain = p.mx_map is None and not p.transposed_in and len(p.residuals) == 0 and not quantizes(p)
    if not (p.dma_transpose and plain):
        return False
    if p.norm == NormType.NO_NORM:
        return p.input.dtype in (nl.bfloat16, nl.float16)
    return p.norm != NormType.LAYER_NORM and p.input.dtype == nl.bfloat16


def transpose_by_dma(p: QKVParameters, place: Tensor, first: int, tile: int, gamma: Tensor) -> None:
    """place = input * gamma of tokens first ... and tiles tile ..., [128, tiles, tokens]."""
    size = hidden_size(p)
    tiles, count = place.shape[1], place.shape[2]
    rows = p.input.reshape((token_count(p), size // PMAX, PMAX))
    nisa.dma_transpose(place, rows[first : first + count, tile : tile + tiles, :])
    if gamma is not None:
        for k in range(tiles):
            part = place[:, k, :]
            nisa.tensor_scalar(part, part, nl.multiply, gamma[:, tile + k : tile + k + 1])


def gamma_columns(p: QKVParameters) -> Tensor:
    """Gamma as [128, H / 128] in float32, 128 k + p at [p, k]: loaded in rows, transposed by TensorE."""
    tiles = hidden_size(p) // PMAX
    out = nl.ndarray((PMAX, tiles), nl.float32, buffer=nl.sbuf)
    rows = p.gamma.reshape((tiles, PMAX))
    for part in TiledRange(tiles, PMAX):
        tile = nl.ndarray((part.size, PMAX), p.gamma.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, rows[part.start_offset : part.end_offset])
        bank = nl.ndarray((PMAX, part.size), p.gamma.dtype, buffer=nl.psum)
        nisa.nc_transpose(bank, tile)
        nisa.tensor_copy(out[:, part.start_offset : part.end_offset], bank)
    return out


# ---- tokens along the partitions -----------------------------------------------------------------


def token_columns(p: QKVParameters, source: ColumnSource, x: Tensor, first: int, add_out: Tensor) -> None:
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
        finish_columns(source, place, values.permute((0, 2, 1)), group.index)


def finish_columns(source: ColumnSource, place: Tensor, x: Tensor, number: int) -> None:
    """place = quantised(x * gamma + beta), both [128, tiles, tokens]."""
    value, tokens = x, x.shape[2]
    if source.gamma is not None:
        plain = source.beta is None and source.inverse is None
        out = place if plain else nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(out, value, over_tokens(source.gamma, tokens), op=nl.multiply)
        value = out
    if source.beta is not None:
        out = place if source.inverse is None else nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(out, value, over_tokens(source.beta, tokens), op=nl.add)
        value = out
    if source.inverse is not None:
        quantize_static(place, value, source.inverse, get_max_positive_value_for_dtype(place.dtype))
    elif source.gamma is None and source.beta is None:
        interleave_copy(place, value, number)


def over_tokens(vector: Tensor, tokens: int) -> Any:
    """[128, tiles] as if it were [128, tiles, tokens]."""
    return vector.expand_dim(2).broadcast(2, tokens)


def load_columns(p: QKVParameters, source: ColumnSource, tensor: Tensor, first: int, count: int) -> Any:
    """[128, tokens, H / 128] of any input."""
    if input_in_sbuf(p) and tensor.buffer == nl.sbuf:
        return tensor[:, first : first + count, :]
    size = hidden_size(p)
    tiles = size // PMAX
    tile = nl.ndarray((PMAX, count, tiles), tensor.dtype, buffer=nl.sbuf)
    if p.transposed_in:
        for run in runs(first, count, batch_shape(p)[1]):
            part = tensor[run.batch].reshape_dim(0, (tiles, PMAX)).permute((1, 2, 0))
            place = tile[:, run.row : run.row + run.count, :].permute((0, 2, 1))
            part = part[:, run.position : run.position + run.count, :].permute((0, 2, 1))
            nisa.dma_copy(place, part)
        return tile
    rows = tensor.reshape((token_count(p), size))[first : first + count]
    nisa.dma_copy(by_parts(tile, source.parts), spread(rows, source.parts), dge_mode=hardware_queue())
    return tile


def by_parts(tile: Tensor, parts: int) -> Any:
    """[128, tokens, tiles] as [128, tokens, parts, tiles of one part]"""
    return tile.reshape_dim(2, (parts, tile.shape[2] // parts))


def spread(rows: Tensor, parts: int) -> Any:
    """[T, H] in HBM as [128, tokens, parts, tiles]: neighbours in a part share a partition."""
    tokens, size = rows.shape
    return rows.reshape_dim(1, (parts, PMAX, size // parts // PMAX)).permute((2, 0, 1, 3))


def store_sums(source: ColumnSource, add_out: Tensor, values: Tensor, first: int) -> None:
    """The sums of residuals, in the dtype of add_out."""
    stored = nl.ndarray(values.shape, add_out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(stored, values)
    rows = add_out[first : first + values.shape[1]]
    nisa.dma_copy(spread(rows, source.parts), by_parts(stored, source.parts))


def normalized_columns(p: QKVParameters, source: ColumnSource, values: Tensor) -> Any:
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
