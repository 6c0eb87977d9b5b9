"""Quantising SBUF tiles to FP8, inside other kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import get_max_positive_value_for_dtype
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor

if TYPE_CHECKING:
    from nkilib.core.utils.allocator import BufferManager

MINIMUM_SCALE = 1e-5  # of a row: one of zeros stays zeros
PIECE = 1024  # elements of a partition at a time, so that engines work on different pieces


def static_quantization(
    hidden_state: Tensor,
    input_dequant_scale: Tensor,
    quant_scale: Tensor | None = None,
    dtype: DTypeLike = nl.float8_e4m3fn,
    sbm: BufferManager | None = None,
    quantized: Tensor | None = None,
) -> Any:
    """q = dtype(clip(x * quant_scale, -F, F)), one scale for the whole tile; F is the largest dtype.

    hidden_state: SBUF [P, ...], any float. quant_scale: SBUF [128, 1] float32, the same in every partition;
    1 / input_dequant_scale when None. quantized: where the result goes, a new tile when None. sbm: an
    SbufManager that places new tiles. The product is rounded to the dtype of a 16-bit hidden_state.

    >>> import numpy as np, nki, nki.isa as nisa, nki.language as nl
    >>> @nki.jit
    ... def quantized(x, scale):
    ...     tile, column = nl.ndarray(x.shape, x.dtype), nl.ndarray(scale.shape, scale.dtype)
    ...     nisa.dma_copy(tile, x)
    ...     nisa.dma_copy(column, scale)
    ...     out = nl.ndarray(x.shape, nl.float8_e4m3, buffer=nl.shared_hbm)
    ...     nisa.dma_copy(out, static_quantization(tile, column, dtype=nl.float8_e4m3))
    ...     return out
    >>> x = np.linspace(-3, 1000, 128, dtype=np.float32).reshape(128, 1)
    >>> quantized(x, np.full((128, 1), 0.5, np.float32))[[0, 127], 0].astype(float).tolist()
    [-6.0, 240.0]
    """
    largest = get_max_positive_value_for_dtype(dtype)
    _check_tile("hidden_state", hidden_state)
    kernel_assert(
        input_dequant_scale is not None or quant_scale is not None,
        "input_dequant_scale: got None, a tile is needed when quant_scale is None too",
    )
    rows = hidden_state.shape[0]
    if quant_scale is None:
        _check_column("input_dequant_scale", input_dequant_scale, rows)
        quant_scale = _new((rows, 1), nl.float32, sbm)
        nisa.reciprocal(quant_scale, input_dequant_scale[0:rows])
    _check_column("quant_scale", quant_scale, rows)
    scaled = _new(hidden_state.shape, _rounded_dtype(hidden_state), sbm)
    quantized = _destination("quantized", quantized, hidden_state.shape, dtype, sbm)
    _scale_and_clip(quantized, scaled, hidden_state, quant_scale[0:rows], largest)
    return quantized


def row_quantization(
    hidden_state: Tensor,
    dtype: DTypeLike = nl.float8_e4m3fn,
    sbm: BufferManager | None = None,
    output_dtype: DTypeLike | None = None,
    quantized: Tensor | None = None,
    dequant_scale: Tensor | None = None,
) -> tuple[Any, Any]:
    """q = dtype(clip(bfloat16(x / s), -F, F)) and s = max(max|x| / F, 1e-5), one scale for each token.

    hidden_state: SBUF, any float; [128, T, J] holds token t in all partitions of [:, t, :], [R, H] one token
    in each partition. Returns (quantized, dequant_scale): the scales are float32, [128, T, 1] the same in
    every partition, or [R, 1]. quantized, dequant_scale: where the results go, new tiles when None.
    output_dtype: the dtype as which the bytes of `quantized` are returned, e.g. four values in one element.

    >>> import numpy as np, nki, nki.isa as nisa, nki.language as nl
    >>> @nki.jit
    ... def quantized(x):
    ...     tile = nl.ndarray(x.shape, x.dtype)
    ...     nisa.dma_copy(tile, x)
    ...     q, s = row_quantization(tile, nl.float8_e4m3)
    ...     out = nl.ndarray(x.shape, q.dtype, buffer=nl.shared_hbm)
    ...     scales = nl.ndarray(s.shape, s.dtype, buffer=nl.shared_hbm)
    ...     nisa.dma_copy(out, q)
    ...     nisa.dma_copy(scales, s)
    ...     return out, scales
    >>> q, s = quantized(np.array([[1, -120, 60], [0, 0, 0]], np.float32))
    >>> q.astype(float).tolist(), s[:, 0].tolist()
    ([[2.0, -240.0, 120.0], [0.0, 0.0, 0.0]], [0.5, 9.999999747378752e-06])
    """
    largest = get_max_positive_value_for_dtype(dtype)
    _check_tile("hidden_state", hidden_state)
    rank = len(hidden_state.shape)
    kernel_assert(rank in (2, 3), f"hidden_state: got {rank} dimensions, allowed are 2 and 3")
    rows = hidden_state.shape[0]
    shape = (rows, hidden_state.shape[1], 1) if rank == 3 else (rows, 1)
    dequant_scale = _destination("dequant_scale", dequant_scale, shape, nl.float32, sbm)
    quantized = _destination("quantized", quantized, hidden_state.shape, dtype, sbm)
    scaled = _new(hidden_state.shape, nl.bfloat16, sbm)
    if rank == 3:
        for tokens in _pieces(hidden_state):
            part = slice(tokens.start_offset, tokens.end_offset)
            _quantize_tokens(
                quantized[:, part],
                scaled[:, part],
                dequant_scale[:, part],
                hidden_state[:, part],
                largest,
                sbm,
            )
    else:
        nisa.tensor_scalar_reduce(scaled, hidden_state, nl.abs, None, nl.maximum, dequant_scale)
        quant_scale = _scales(dequant_scale, dequant_scale, largest, sbm)
        _scale_and_clip(quantized, scaled, hidden_state, quant_scale, largest)
    return (quantized if output_dtype is None else quantized.view(output_dtype)), dequant_scale


def pre_combine_dequant_scales(
    input_dequant_scale: Tensor, weight_dequant_scale: Tensor, sbm: BufferManager | None = None
) -> Any:
    """combined = input_dequant_scale * weight_dequant_scale, element by element, float32.

    Both are SBUF tiles of one shape, or one of them is a column [P, 1] that meets every element of the other.

    >>> import numpy as np, nki, nki.isa as nisa, nki.language as nl
    >>> @nki.jit
    ... def combined(a, b):
    ...     x, y = nl.ndarray(a.shape, a.dtype), nl.ndarray(b.shape, b.dtype)
    ...     nisa.dma_copy(x, a)
    ...     nisa.dma_copy(y, b)
    ...     out = nl.ndarray(b.shape, nl.float32, buffer=nl.shared_hbm)
    ...     nisa.dma_copy(out, pre_combine_dequant_scales(x, y))
    ...     return out
    >>> combined(np.full((128, 1), 0.5, np.float32), np.full((128, 3), 4.0, np.float32))[7].tolist()
    [2.0, 2.0, 2.0]
    """
    _check_tile("input_dequant_scale", input_dequant_scale)
    _check_tile("weight_dequant_scale", weight_dequant_scale)
    column, other = input_dequant_scale, weight_dequant_scale
    if tuple(weight_dequant_scale.shape) == (weight_dequant_scale.shape[0], 1):
        column, other = weight_dequant_scale, input_dequant_scale
    combined = _new(other.shape, nl.float32, sbm)
    if tuple(column.shape) == tuple(other.shape):
        nisa.tensor_tensor(combined, column, other, nl.multiply)
        return combined
    kernel_assert(
        tuple(column.shape) == (other.shape[0], 1),
        f"weight_dequant_scale: got shape {tuple(weight_dequant_scale.shape)}, expected "
        f"{tuple(input_dequant_scale.shape)} like input_dequant_scale, or one of them a column",
    )
    nisa.activation(combined, nl.copy, other, scale=column)
    return combined


# ---- building blocks


def _quantize_tokens(
    quantized: Tensor,
    scaled: Tensor,
    dequant_scale: Tensor,
    hidden: Tensor,
    largest: float,
    sbm: BufferManager | None,
) -> None:
    """Tokens that lie across the partitions: [rows, T, J]."""
    rows, tokens, columns = hidden.shape
    magnitude = _new(hidden.shape, _rounded_dtype(hidden), sbm)
    nisa.activation(magnitude, nl.abs, hidden)
    in_partition = _new((rows, tokens), nl.float32, sbm)
    nisa.tensor_reduce(in_partition, nl.maximum, magnitude, axis=2)
    spread = nl.ndarray((rows, tokens, 1), nl.float32, buffer=nl.psum)
    _spread_maximum(spread, in_partition, sbm)
    quant_scale = _scales(dequant_scale, spread, largest, sbm)
    nisa.tensor_tensor(scaled, hidden, quant_scale.broadcast(2, columns), nl.multiply)
    nisa.activation(quantized, nl.copy, scaled)  # nothing to clip: F * (1 + 2^-22) rounds to F in bfloat16


def _scales(dequant_scale: Tensor, magnitude: Tensor, largest: float, sbm: BufferManager | None) -> Any:
    """dequant_scale = max(magnitude / F, 1e-5); its reciprocal is returned."""
    nisa.tensor_scalar(
        dequant_scale, magnitude, nl.multiply, 1.0 / largest, op1=nl.maximum, operand1=MINIMUM_SCALE
    )
    quant_scale = _new(dequant_scale.shape, nl.float32, sbm)
    nisa.reciprocal(quant_scale, dequant_scale)
    return quant_scale


def _scale_and_clip(quantized: Tensor, scaled: Tensor, hidden: Tensor, scale: Tensor, largest: float) -> None:
    """scaled = hidden * scale on the Scalar engine, quantized = clip(scaled) on the Vector engine."""
    for piece in _pieces(hidden):
        part = slice(piece.start_offset, piece.end_offset)
        nisa.activation(scaled[:, part], nl.copy, hidden[:, part], scale=scale)
        nisa.tensor_scalar(
            quantized[:, part], scaled[:, part], nl.minimum, largest, op1=nl.maximum, operand1=-largest
        )


def _pieces(tile: Tensor) -> Any:
    """Ranges of dimension 1 with about PIECE elements per partition; of tokens, as many as partitions."""
    columns = 1
    for size in tile.shape[2:]:
        columns = columns * size
    limit = tile.shape[1] if len(tile.shape) == 2 else PMAX
    return TiledRange(tile.shape[1], min(limit, max(1, PIECE // columns)))


def _spread_maximum(dst: Tensor, data: Tensor, sbm: BufferManager | None) -> None:
    """dst[p, t] = max over partitions of data[:, t]: transpose, reduce, and multiply ones by the diagonal.

    dst is in PSUM.
    """
    rows, tokens = data.shape
    transposed = nl.ndarray((tokens, rows), nl.float32, buffer=nl.psum)
    nisa.nc_transpose(transposed, data)
    largest = _new((tokens, 1), nl.float32, sbm)
    nisa.tensor_reduce(largest, nl.maximum, transposed, axis=1)
    diagonal, ones = _new((tokens, tokens), nl.float32, sbm), _new((tokens, rows), nl.float32, sbm)
    nisa.memset(ones, 1.0)
    nisa.affine_select(
        diagonal,
        pattern=[[-1, tokens]],
        channel_multiplier=1,
        on_true_tile=largest.broadcast(1, tokens),
        on_false_value=0.0,
        cmp_op=nl.equal,
    )
    nisa.nc_matmul(dst, ones, diagonal)


def _new(shape: tuple, dtype: DTypeLike, sbm: BufferManager | None) -> Any:
    return nl.ndarray(shape, dtype, buffer=nl.sbuf) if sbm is None else sbm.alloc_stack(shape, dtype)


def _destination(name: str, given: Tensor, shape: tuple, dtype: DTypeLike, sbm: BufferManager | None) -> Any:
    """The tile given for a result, seen as `dtype`, or a new one."""
    if given is None:
        return _new(shape, dtype, sbm)
    _check_tile(name, given)
    tile = given if given.dtype == dtype else given.view(dtype)
    kernel_assert(
        tuple(tile.shape) == tuple(shape), f"{name}: got shape {tuple(tile.shape)}, expected {tuple(shape)}"
    )
    return tile


def _rounded_dtype(tile: Tensor) -> Any:
    return tile.dtype if tile.dtype in (nl.bfloat16, nl.float16) else nl.float32


def _check_tile(name: str, tile: Tensor) -> None:
    kernel_assert(tile is not None, f"{name}: got None, expected a tile in SBUF")
    kernel_assert(tile.buffer == nl.sbuf, f"{name}: got a tensor in {tile.buffer}, expected a tile in SBUF")


def _check_column(name: str, tile: Tensor, rows: int) -> None:
    _check_tile(name, tile)
    kernel_assert(
        len(tile.shape) == 2 and tile.shape[0] >= rows and tile.shape[1] == 1,
        f"{name}: got shape {tuple(tile.shape)}, expected ({PMAX}, 1)",
    )


# ---- references


def fp8(values: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Numbers clipped to the range of an FP8 dtype and rounded to it."""
    largest = get_max_positive_value_for_dtype(dtype)
    return np.clip(values, -largest, largest).astype(np.dtype(dtype))


def static_quantization_ref(
    hidden_state: np.ndarray, input_dequant_scale: np.ndarray, dtype: DTypeLike
) -> np.ndarray:
    """static_quantization in float64."""
    scaled = hidden_state.astype(np.float64) / np.asarray(input_dequant_scale, np.float64).flat[0]
    return fp8(scaled.astype(hidden_state.dtype).astype(np.float64), dtype)


def row_quantization_ref(hidden_state: np.ndarray, dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """row_quantization in float64; scales without the copies in other partitions."""
    x = hidden_state.astype(np.float64)
    magnitude = np.abs(x).max(axis=(0, 2) if x.ndim == 3 else 1)
    scale = np.maximum(magnitude / get_max_positive_value_for_dtype(dtype), MINIMUM_SCALE)
    spread = scale[None, :, None] if x.ndim == 3 else scale[:, None]
    return fp8((x / spread).astype(ml_dtypes.bfloat16).astype(np.float64), dtype), scale
