"""RMSNorm and quantisation to FP8 in one pass over the rows.

The inverse RMS of a row is one number, so it never meets the row by itself: with y = x * gamma, the largest
|n| of a row is inv * max|y|, and q = y * (inv / scale). Three passes remain: the Scalar engine squares and
sums, the Vector engine multiplies by gamma and finds the largest, the Scalar engine scales and casts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.quantization.fp8_quantize import MINIMUM_SCALE, fp8
from nkilib.core.rmsnorm.rmsnorm_quant_arguments import RmsNormQuantKernelArgs, check_arguments
from nkilib.core.utils.common_types import DtypeMode, QuantizationType
from nkilib.core.utils.kernel_helpers import (
    get_max_positive_value_for_dtype,
    program_share,
    resolve_fp8_dtype,
)
from nkilib.core.utils.tile_io import piece, store
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator

ROWS = nl.tile_size.pmax  # rows of a tile, one in each partition
COLUMNS = 4096  # that an instruction and a load take; the rest of the row may still be under way
FEW_TILES = 4  # so many tiles do not keep the engines busy by themselves ...
FEW_TILES_COLUMNS = 2048  # ... but parts of them do
KEEP_BYTES = 144 * 1024  # per partition, with a tile: larger gammas are loaded again for every tile
AHEAD_BYTES = 160 * 1024  # per partition, with gammas: of two tiles, for one to be prepared during the other
SCALE_BYTES = 4  # a float32 behind each row


@nki.jit
def rmsnorm_quant_kernel(
    hidden,
    ln_w,
    kargs,
    input_dequant_scale=None,
    pre_norm_gamma=None,
    residual=None,
    dtype_mode=DtypeMode.NON_OCP,
    auto_resolve_fp8_dtype=None,
):
    """RMSNorm of every row, quantised to FP8, the scale of the row in the last four bytes.

    x = hidden; with pre_norm_gamma x = RMSNorm(x) * pre_norm_gamma; with residual x = x + residual, and x is
    returned too. n = RMSNorm(x) * ln_w with RMSNorm(x) = x / sqrt(mean(x^2) + eps), or x for NO_NORM. F is
    the largest value of the FP8 dtype, c is kargs.lower_bound.

    ROW:    s = max(min(max|n|, c) / F, 1e-5), q = fp8(clip(n, -c, c) / s); without c where it is 0
    STATIC: q = fp8(clip(n / input_dequant_scale, -F, F))

    Args:
        hidden: [..., H], at least 2-D, bfloat16, float16 or float32. H <= 16384; 3-D: [<= 32, <= 32768, H].
        ln_w: [H] or [1, H]; may be None for NO_NORM.
        kargs: RmsNormQuantKernelArgs.
        input_dequant_scale: its first element is the scale of STATIC.
        pre_norm_gamma: [H] or [1, H].
        residual: the shape of hidden.
        dtype_mode: float8_e4m3 (NON_OCP), float8_e4m3fn (OCP), or by the hardware (AUTO).
        auto_resolve_fp8_dtype: the same of release 2.30: True is AUTO, False NON_OCP.

    Returns:
        FP8 [..., H + 4] for ROW: columns H to H+3 are the bytes of the float32 s. [..., H] for STATIC.
        With residual: (that, x in the dtype of hidden).

    On two cores each takes half of the rows.

    >>> x = np.array([[3.0, -4.0, 0.0, 0.0]], np.float32)
    >>> packed = rmsnorm_quant_kernel(x, np.ones(4, np.float32), RmsNormQuantKernelArgs(lower_bound=0.0))
    >>> packed[:, :4].astype(float).tolist()  # n is x / 2.5; its largest becomes 240
    [[176.0, -240.0, 0.0, 0.0]]
    >>> round(float(packed[:, 4:].view(np.float32)[0, 0] * 240), 4)
    1.6
    """
    if auto_resolve_fp8_dtype is not None:
        dtype_mode = DtypeMode.AUTO if auto_resolve_fp8_dtype else DtypeMode.NON_OCP
    check_arguments(hidden, ln_w, kargs, input_dequant_scale, pre_norm_gamma, residual)
    job = _Job(hidden, kargs, resolve_fp8_dtype(dtype_mode), residual)
    job.plan(ln_w, pre_norm_gamma, input_dequant_scale)
    start, end = program_share(job.hidden.shape[0])
    waiting = []
    for rows in TiledRange(TiledRangeIterator(end - start, 0, start, end), ROWS):
        waiting.append(prepare(job, rows))
        if len(waiting) > job.ahead:
            finish(job, waiting.pop(0))
    for prepared in waiting:
        finish(job, prepared)
    return job.results()


# ---- what is the same for every tile


class _Job(nl.NKIObject):
    """Tensors as rows, constants in SBUF and the choices made once."""

    def __init__(self, hidden: Any, kargs: Any, fp8_dtype: Any, residual: Any):
        self.kargs = kargs
        self.is_row = kargs.quantization_type == QuantizationType.ROW
        self.fp8 = fp8_dtype
        self.largest = get_max_positive_value_for_dtype(fp8_dtype)
        self.width = hidden.shape[-1]
        out_width = self.width + SCALE_BYTES if self.is_row else self.width
        self.out = nl.ndarray(_with_last(hidden.shape, out_width), fp8_dtype, buffer=nl.shared_hbm)
        self.hidden = _as_rows(hidden)
        self.out_rows = _as_rows(self.out)
        self.residual = None if residual is None else _as_rows(residual)
        self.residual_out = None
        if residual is not None:
            self.residual_out = nl.ndarray(hidden.shape, hidden.dtype, buffer=nl.shared_hbm)

    def plan(self, ln_w: Any, pre_norm_gamma: Any, input_dequant_scale: Any) -> None:
        """Choose what is kept in SBUF."""
        self._choose_sizes(pre_norm_gamma)
        self.gamma = ln_w if self.kargs.needs_rms_normalization() else None
        self.pre_gamma = pre_norm_gamma
        gammas, tile = self._gamma_bytes(), self._tile_bytes()
        keeps = gammas + tile <= KEEP_BYTES
        self.ahead = 1 if (gammas if keeps else 0) + 2 * tile <= AHEAD_BYTES else 0
        if self.gamma is not None:
            self.gamma = _Gamma(self.gamma, keeps)
        if self.pre_gamma is not None:
            self.pre_gamma = _Gamma(self.pre_gamma, keeps)
        self.quant_scale = None if self.is_row else _reciprocal_of_first(input_dequant_scale)

    def _choose_sizes(self, pre_norm_gamma: Any) -> None:
        """The dtype of the work, and how many columns instructions and transfers take."""
        is_plain = pre_norm_gamma is None and self.residual is None
        narrow = self.hidden.dtype == nl.bfloat16 and is_plain  # a scale stands one rounding, not two
        self.work = nl.bfloat16 if narrow else nl.float32
        few = self.hidden.shape[0] <= FEW_TILES * ROWS * nl.num_programs(0)
        self.columns = min(self.width, FEW_TILES_COLUMNS if few else COLUMNS)
        self.parts = TiledRange(self.width, self.columns)
        self.stores_parts = few
        self.squares = nl.ndarray((ROWS, self.columns), nl.bfloat16, buffer=nl.sbuf)
        self.magnitudes = nl.ndarray((ROWS, self.columns), nl.bfloat16, buffer=nl.sbuf)

    def results(self) -> Any:
        return self.out if self.residual_out is None else (self.out, self.residual_out)

    def _gamma_bytes(self) -> int:
        total = 0
        for gamma in (self.gamma, self.pre_gamma):
            if gamma is not None:
                total = total + self.width * _bytes(gamma.dtype)
        return total

    def _tile_bytes(self) -> int:
        """Per partition: the row as loaded, as worked on if that differs, and as quantised."""
        tiles = _bytes(self.hidden.dtype) + 1
        return self.width * (tiles if self.work == self.hidden.dtype else tiles + _bytes(self.work))


class _Gamma(nl.NKIObject):
    """A vector of HBM in every partition. Parts are loaded when first needed, so behind the first rows."""

    def __init__(self, vector: Any, keeps: bool):
        self.row = vector.reshape((1, vector.shape[-1]))
        self.keeps = keeps
        self.tiles: list[Any] = []

    def columns(self, part: Any, rows: int) -> Any:
        """A part on so many partitions; no tile of rows is higher than the first."""
        if part.index < len(self.tiles):
            return self.tiles[part.index][0:rows]
        tile = nl.ndarray((rows, part.size), self.row.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, self.row[:, part.start_offset : part.end_offset].broadcast(0, rows))
        if self.keeps:
            self.tiles.append(tile)
        return tile


def _bytes(dtype: Any) -> int:
    return 4 if dtype == nl.float32 else 2


def _with_last(shape: Any, size: int) -> tuple[int, ...]:
    return tuple(list(shape[:-1]) + [size])


def _as_rows(tensor: Any) -> Any:
    """[..., H] as [R, H]."""
    return tensor.reshape((_rows_of(tensor), tensor.shape[-1]))


def _rows_of(tensor: Any) -> int:
    rows = 1
    for size in tensor.shape[:-1]:
        rows = rows * size
    return rows


def _reciprocal_of_first(tensor: Any) -> Any:
    """1 / the first element of an HBM tensor, in all partitions."""
    scale = nl.ndarray((ROWS, 1), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(scale, _as_rows(tensor)[0:1, 0:1].broadcast(0, ROWS))
    inverse = nl.ndarray((ROWS, 1), nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(inverse, scale)
    return inverse


# ---- one tile of rows: a list of tiles, one for each part of the columns


class _Prepared(nl.NKIObject):
    """Rows ready to be cast: q = fp8(values * factor)."""

    def __init__(self, rows: Any, values: Any, factor: Any, quantized: Any):
        self.rows = rows
        self.values = values
        self.factor = factor
        self.quantized = quantized


def prepare(job: Any, rows: Any) -> Any:
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
    return _Prepared(rows, x, factor, quantized)


def loaded(job: Any, rows: Any) -> list[Any]:
    x = []
    for part in job.parts:
        tile = nl.ndarray((rows.size, part.size), job.hidden.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, piece(job.hidden, rows, part))
        x.append(tile)
    return x


def finish(job: Any, prepared: Any) -> None:
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


def inverse_rms(job: Any, x: list[Any], divisor: float) -> Any:
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
    total = folded(sums, nl.add)
    inverse = column(total)
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


def normalised(job: Any, x: list[Any]) -> list[Any]:
    """The first norm, in float32."""
    inverse = inverse_rms(job, x, 1.0)
    out = working_tiles(job, x)
    for part in job.parts:
        i = part.index
        gamma = job.pre_gamma.columns(part, x[i].shape[0])
        nisa.scalar_tensor_tensor(out[i], x[i], nl.multiply, inverse, nl.multiply, gamma)
    return out


def with_residual(job: Any, x: list[Any], rows: Any) -> list[Any]:
    """x + residual, which is also stored."""
    out = working_tiles(job, x)
    for part in job.parts:
        i = part.index
        addend = nl.ndarray(x[i].shape, job.residual.dtype, buffer=nl.sbuf)
        nisa.dma_copy(addend, piece(job.residual, rows, part))
        nisa.tensor_tensor(out[i], x[i], addend, nl.add)
        store(piece(_as_rows(job.residual_out), rows, part), out[i])
    return out


def times_gamma(job: Any, x: list[Any]) -> list[Any]:
    """x * gamma, without the inverse RMS."""
    out = working_tiles(job, x)
    for part in job.parts:
        i = part.index
        gamma = job.gamma.columns(part, x[i].shape[0])
        nisa.tensor_tensor(out[i], x[i], gamma, nl.multiply)
    return out


def working_tiles(job: Any, x: list[Any]) -> list[Any]:
    """Tiles in the dtype of the work: x itself if it has that."""
    if x[0].dtype == job.work:
        return x
    tiles = []
    for tile in x:
        tiles.append(nl.ndarray(tile.shape, job.work, buffer=nl.sbuf))
    return tiles


# ---- scales: columns [rows, 1]


def row_scale(job: Any, values: Any, inverse: Any, quantized: Any) -> Any:
    """s = max(min(max|n|, c) / F, 1e-5), also written behind the quantised row."""
    scale = largest_magnitude(job, values)
    in_units = 1.0 / job.largest if inverse is None else inverse
    nisa.tensor_scalar(scale, scale, nl.multiply, in_units, op1=nl.maximum, operand1=MINIMUM_SCALE)
    if job.kargs.has_lower_bound():
        bound = max(job.kargs.lower_bound / job.largest, MINIMUM_SCALE)
        nisa.tensor_scalar(scale, scale, nl.minimum, bound)
    nisa.tensor_copy(quantized[:, job.width : job.width + SCALE_BYTES], scale.view(job.fp8))
    return scale


def row_factor(job: Any, scale: Any, inverse: Any) -> Any:
    """What values are multiplied by: 1 / s, times the inverse RMS where they lack it."""
    if inverse is None:
        return reciprocals(scale, 1.0)
    factor = reciprocals(scale, job.largest)
    nisa.tensor_tensor(factor, factor, inverse, nl.multiply)
    return factor


def static_factor(job: Any, inverse: Any, rows: int) -> Any:
    if inverse is None:
        return job.quant_scale[0:rows]
    factor = column(inverse)
    nisa.tensor_tensor(factor, inverse, job.quant_scale[0:rows], nl.multiply)
    return factor


def bound_on_values(job: Any, values: Any, inverse: Any) -> Any:
    """Where |n| reaches the bound."""
    if inverse is not None:
        return reciprocals(inverse, job.kargs.lower_bound / job.largest)
    bound = column(values[0])
    nisa.memset(bound, job.kargs.lower_bound)
    return bound


def clip(values: list[Any], bound: Any) -> None:
    """values = max(min(values, bound), -bound), in place."""
    negative = column(bound)
    nisa.tensor_scalar(negative, bound, nl.multiply, -1.0)
    for tile in values:
        nisa.tensor_scalar(tile, tile, nl.minimum, bound, op1=nl.maximum, operand1=negative)


def largest_magnitude(job: Any, values: list[Any]) -> Any:
    """max|values| of each row."""
    found = nl.ndarray((values[0].shape[0], len(values)), nl.float32, buffer=nl.sbuf)
    for i in range(len(values)):
        tile = values[i]
        junk = job.magnitudes[0 : tile.shape[0], 0 : tile.shape[1]]
        nisa.tensor_scalar_reduce(junk, tile, nl.abs, None, nl.maximum, found[:, i : i + 1])
    return folded(found, nl.maximum)


def folded(columns: Any, op: Any) -> Any:
    """Several columns as one."""
    if columns.shape[1] == 1:
        return columns
    result = column(columns)
    nisa.tensor_reduce(result, op, columns, axis=1)
    return result


def reciprocals(columns: Any, numerator: float) -> Any:
    """numerator / columns."""
    result = column(columns)
    nisa.tensor_scalar(result, columns, nl.reciprocal, None, op1=nl.multiply, operand1=numerator)
    return result


def column(like: Any) -> Any:
    """A new float32 for each partition of a tile."""
    return nl.ndarray((like.shape[0], 1), nl.float32, buffer=nl.sbuf)


# ---- reference


def rmsnorm_quant_kernel_ref(
    hidden: Any,
    ln_w: Any,
    kargs: RmsNormQuantKernelArgs,
    input_dequant_scale: Any = None,
    pre_norm_gamma: Any = None,
    residual: Any = None,
    dtype: Any = nl.float8_e4m3,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """(q, s of each row or None, residual_out or None), in float64."""

    def rms_norm(x, gamma):
        root = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + kargs.eps)
        return x / root * np.asarray(gamma, np.float64).reshape(-1)

    x = np.asarray(hidden, np.float64)
    if pre_norm_gamma is not None:
        x = rms_norm(x, pre_norm_gamma)
    if residual is not None:
        x = x + np.asarray(residual, np.float64)
    n = rms_norm(x, ln_w) if kargs.needs_rms_normalization() else x
    total = None if residual is None else x
    if kargs.quantization_type == QuantizationType.STATIC:
        return fp8(n / float(np.asarray(input_dequant_scale).flat[0]), dtype), None, total
    bound = kargs.lower_bound if kargs.has_lower_bound() else np.inf
    n = np.clip(n, -bound, bound)
    largest = np.abs(n).max(axis=-1, keepdims=True)
    scale = np.maximum(largest / get_max_positive_value_for_dtype(dtype), MINIMUM_SCALE)
    return fp8(n / scale, dtype), scale, total
