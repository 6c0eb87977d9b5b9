"""One tile of rows of rmsnorm_quant: a list of tiles, one for each part of the columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.quantization.fp8_quantize import MINIMUM_SCALE
from nkilib.core.rmsnorm.rmsnorm_quant_job import SCALE_BYTES, QuantizeJob, as_rows
from nkilib.core.utils.tile_io import piece, store
from nkilib.core.utils.tiled_range import TiledRangeIterator
from nkilib.core.utils.tiles import new_column
from nkilib.core.utils.types import Tensor

# ---- one tile of rows: a list of tiles, one for each part of the columns


@dataclass
class PreparedRows(nl.NKIObject):
    """Rows ready to be cast: q = fp8(values * factor)."""

    rows: TiledRangeIterator
    values: list[Tensor]
    factor: Tensor
    quantized: Tensor


def prepare(job: QuantizeJob, rows: TiledRangeIterator) -> Any:
    """All that needs the Vector engine: the norms, the residual, and what the rows are scaled by."""
    x = loaded(job, rows)
    if job.pre_gamma is not None:
        x = normalised(job, x)
    if job.residual is not None:
        x = with_residual(job, x, rows)
    quantized = nl.ndarray((rows.size, job.out.shape[-1]), job.fp8, buffer=nl.sbuf)
    inverse = None
    if job.gamma is not None:
        # of a ROW it comes divided by F, which saves the scales a multiplication
        inverse = inverse_rms(job, x, job.largest if job.is_row else 1.0)
        x = times_gamma(job, x)
    if job.is_row:
        scale = row_scale(job, x, inverse, quantized)
        factor = row_factor(job, scale, inverse)
        if job.kargs.has_lower_bound():
            clip(x, bound_on_values(job, x, inverse))
    else:
        factor = static_factor(job, inverse, rows.size)
        clip(x, reciprocals(factor, job.largest))
    return PreparedRows(rows, x, factor, quantized)


def loaded(job: QuantizeJob, rows: TiledRangeIterator) -> list[Any]:
    x = []
    for part in job.parts:
        tile = nl.ndarray((rows.size, part.size), job.hidden.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, piece(job.hidden, rows, part))
        x.append(tile)
    return x


def finish(job: QuantizeJob, prepared: PreparedRows) -> None:
    """Scale, cast and store; the scale of a row travels with its last columns."""
    quantized, rows = prepared.quantized, prepared.rows
    stored = 0
    for part in job.parts:
        columns = quantized[:, part.start_offset : part.end_offset]
        nisa.activation(columns, nl.copy, prepared.values[part.index], scale=prepared.factor)
        if job.stores_parts and part.end_offset < job.width:
            nisa.dma_copy(piece(job.out_rows, rows, part), columns)
            stored = part.end_offset
    nisa.dma_copy(job.out_rows[rows.start_offset : rows.end_offset, stored:], quantized[:, stored:])


# ---- norms


def inverse_rms(job: QuantizeJob, x: list[Tensor], divisor: float) -> Any:
    """1 / (divisor * sqrt(mean(x^2) + eps)) of each row."""
    sums = nl.ndarray((x[0].shape[0], len(x)), nl.float32, buffer=nl.sbuf)
    for i in range(len(x)):
        nisa.activation_reduce(
            job.squares[0 : x[i].shape[0], 0 : x[i].shape[1]],
            nl.square,
            x[i],
            reduce_op=nl.add,
            reduce_res=sums[:, i : i + 1],
            scale=divisor / math.sqrt(job.width),
        )
    total = reduced_columns(sums, nl.add)
    inverse = new_column(total.shape[0])
    nisa.tensor_scalar(
        inverse,
        total,
        nl.add,
        divisor * divisor * job.kargs.eps,
        op1=nl.power,
        operand1=-0.5,
        engine=nisa.vector_engine,
    )
    return inverse


def normalised(job: QuantizeJob, x: list[Tensor]) -> list[Any]:
    """The first norm, in float32."""
    inverse = inverse_rms(job, x, 1.0)
    out = working_tiles(job, x)
    for part in job.parts:
        i = part.index
        gamma = job.pre_gamma.columns(part, x[i].shape[0])
        nisa.scalar_tensor_tensor(out[i], x[i], nl.multiply, inverse, nl.multiply, gamma)
    return out


def with_residual(job: QuantizeJob, x: list[Tensor], rows: TiledRangeIterator) -> list[Any]:
    """x + residual, which is also stored."""
    out = working_tiles(job, x)
    for part in job.parts:
        i = part.index
        addend = nl.ndarray(x[i].shape, job.residual.dtype, buffer=nl.sbuf)
        nisa.dma_copy(addend, piece(job.residual, rows, part))
        nisa.tensor_tensor(out[i], x[i], addend, nl.add)
        store(piece(as_rows(job.residual_out), rows, part), out[i])
    return out


def times_gamma(job: QuantizeJob, x: list[Tensor]) -> list[Any]:
    """x * gamma, without the inverse RMS."""
    out = working_tiles(job, x)
    for part in job.parts:
        i = part.index
        gamma = job.gamma.columns(part, x[i].shape[0])
        nisa.tensor_tensor(out[i], x[i], gamma, nl.multiply)
    return out


def working_tiles(job: QuantizeJob, x: list[Tensor]) -> list[Any]:
    """Tiles in the dtype of the work: x itself if it has that."""
    if x[0].dtype == job.work:
        return x
    tiles = []
    for tile in x:
        tiles.append(nl.ndarray(tile.shape, job.work, buffer=nl.sbuf))
    return tiles


# ---- scales: columns [rows, 1]


def row_scale(job: QuantizeJob, values: list[Tensor], inverse: Tensor, quantized: Tensor) -> Any:
    """s = max(min(max|n|, c) / F, 1e-5), also written behind the quantised row."""
    scale = largest_magnitude(job, values)
    in_units = 1.0 / job.largest if inverse is None else inverse
    nisa.tensor_scalar(scale, scale, nl.multiply, in_units, op1=nl.maximum, operand1=MINIMUM_SCALE)
    if job.kargs.has_lower_bound():
        bound = max(job.kargs.lower_bound / job.largest, MINIMUM_SCALE)
        nisa.tensor_scalar(scale, scale, nl.minimum, bound)
    nisa.tensor_copy(quantized[:, job.width : job.width + SCALE_BYTES], scale.view(job.fp8))
    return scale


def row_factor(job: QuantizeJob, scale: Tensor, inverse: Tensor) -> Any:
    """What values are multiplied by: 1 / s, times the inverse RMS where they lack it."""
    if inverse is None:
        return reciprocals(scale, 1.0)
    factor = reciprocals(scale, job.largest)
    nisa.tensor_tensor(factor, factor, inverse, nl.multiply)
    return factor


def static_factor(job: QuantizeJob, inverse: Tensor, rows: int) -> Any:
    if inverse is None:
        return job.quant_scale[0:rows]
    factor = new_column(inverse.shape[0])
    nisa.tensor_tensor(factor, inverse, job.quant_scale[0:rows], nl.multiply)
    return factor


def bound_on_values(job: QuantizeJob, values: list[Tensor], inverse: Tensor) -> Any:
    """Where |n| reaches the bound."""
    if inverse is not None:
        return reciprocals(inverse, job.kargs.lower_bound / job.largest)
    bound = new_column(values[0].shape[0])
    nisa.memset(bound, job.kargs.lower_bound)
    return bound


def clip(values: list[Tensor], bound: Tensor) -> None:
    """values = max(min(values, bound), -bound), in place."""
    negative = new_column(bound.shape[0])
    nisa.tensor_scalar(negative, bound, nl.multiply, -1.0)
    for tile in values:
        nisa.tensor_scalar(tile, tile, nl.minimum, bound, op1=nl.maximum, operand1=negative)


def largest_magnitude(job: QuantizeJob, values: list[Tensor]) -> Any:
    """max|values| of each row."""
    found = nl.ndarray((values[0].shape[0], len(values)), nl.float32, buffer=nl.sbuf)
    for i in range(len(values)):
        tile = values[i]
        junk = job.magnitudes[0 : tile.shape[0], 0 : tile.shape[1]]
        nisa.tensor_scalar_reduce(junk, tile, nl.abs, None, nl.maximum, found[:, i : i + 1])
    return reduced_columns(found, nl.maximum)


def reduced_columns(columns: Tensor, op: Any) -> Any:
    """Several columns as one."""
    if columns.shape[1] == 1:
        return columns
    result = new_column(columns.shape[0])
    nisa.tensor_reduce(result, op, columns, axis=1)
    return result


def reciprocals(columns: Tensor, numerator: float) -> Any:
    """numerator / columns."""
    result = new_column(columns.shape[0])
    nisa.tensor_scalar(result, columns, nl.reciprocal, None, op1=nl.multiply, operand1=numerator)
    return result
