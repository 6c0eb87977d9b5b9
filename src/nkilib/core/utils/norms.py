"""RMSNorm and LayerNorm of tokens, whether these stand in the partitions or along them.

Both divide by `size` elements, which are fewer than there are where the hidden dimension is padded with 0.
Gamma and beta are left to the caller.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import Tiles, like, new_column, new_tile
from nkilib.core.utils.types import Tensor

STATISTICS_COLUMNS = 512  # of one bn_stats
CHUNK_COLUMNS = 4096  # of a row at a time, so that what lies between does not fill SBUF


def inverse_root(total: Tensor, factor: float, eps: float, tiles: Tiles | None = None) -> Any:
    """1 / sqrt(total * factor + eps), on GpSimdE: ScalarE would load a table for it, and another after it."""
    root = new_tile(tiles, total.shape, nl.float32)
    nisa.tensor_scalar(root, total, nl.multiply, factor, op1=nl.add, operand1=eps)
    nisa.tensor_scalar(root, root, nl.rsqrt, 0.0, engine=nisa.gpsimd_engine)
    return root


# ---- tokens in the partitions: rows [tokens, columns] --------------------------------------------


def row_scale(rows: Tensor, size: int, eps: float) -> Any:
    """1 / sqrt(sum of squares / size + eps) of each row, [tokens, 1]."""
    chunks = TiledRange(rows.shape[1], CHUNK_COLUMNS)
    sums = nl.ndarray((rows.shape[0], len(chunks)), nl.float32, buffer=nl.sbuf)
    for chunk in chunks:
        squares = nl.ndarray((rows.shape[0], chunk.size), nl.bfloat16, buffer=nl.sbuf)
        part = rows[:, chunk.start_offset : chunk.end_offset]
        place = sums[:, chunk.index : chunk.index + 1]
        nisa.activation_reduce(squares, nl.square, part, nl.add, place)
    total = sums
    if len(chunks) > 1:
        total = new_column(rows.shape[0])
        nisa.tensor_reduce(total, nl.add, sums, 1)
    return inverse_root(total, 1.0 / size, eps)


def row_moments(rows: Tensor, size: int, eps: float) -> tuple:
    """The mean of each row and 1 / sqrt(variance + eps), [tokens, 1] both."""
    count, columns = rows.shape
    parts = TiledRange(columns, STATISTICS_COLUMNS)
    statistics = nl.ndarray((count, len(parts), 6), nl.float32, buffer=nl.sbuf)
    moments = nl.ndarray((count, 2), nl.float32, buffer=nl.sbuf)
    for part in parts:
        nisa.bn_stats(statistics[:, part.index, :], rows[:, part.start_offset : part.end_offset])
    nisa.bn_aggr(moments, statistics)
    mean, variance = moments[:, 0:1], moments[:, 1:2]
    if size != columns:
        mean, variance = without_padding(mean, variance, columns, size)
    return mean, inverse_root(variance, 1.0, eps)


def without_padding(mean: Tensor, variance: Tensor, columns: int, size: int) -> tuple:
    """The moments of `size` elements, of those of all columns, where the others are 0."""
    ratio = columns / size
    real_mean, power, squared = like(mean, nl.float32), like(mean, nl.float32), like(mean, nl.float32)
    nisa.tensor_scalar(real_mean, mean, nl.multiply, ratio)
    nisa.tensor_tensor(power, mean, mean, op=nl.multiply)
    nisa.tensor_tensor(power, power, variance, op=nl.add)
    nisa.tensor_tensor(squared, real_mean, real_mean, op=nl.multiply)
    nisa.scalar_tensor_tensor(power, power, nl.multiply, ratio, nl.subtract, squared)
    return real_mean, power


# ---- tokens along the partitions: columns [128, tokens, tiles] -----------------------------------


def column_scale(x: Tensor, size: int, eps: float, ones: Tensor) -> Any:
    """1 / sqrt(sum of squares / size + eps) of each token, the same in all partitions: [128, tokens]."""
    squares = like(x, nl.float32)
    nisa.activation(squares, nl.square, x)
    return inverse_root(token_sums(squares, ones), 1.0 / size, eps)


def centred_columns(x: Tensor, size: int, ones: Tensor) -> tuple:
    """x less the mean of its token, and that mean [128, tokens]; padding becomes the negative mean."""
    mean = nl.ndarray(x.shape[0:2], nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(mean, token_sums(x, ones), nl.multiply, 1.0 / size)
    centred = like(x, nl.float32)
    nisa.tensor_tensor(centred, x, over_tiles(mean, x), op=nl.subtract)
    return centred, mean


def centred_scale(centred: Tensor, mean: Tensor, size: int, eps: float, ones: Tensor) -> Any:
    """1 / sqrt(variance + eps) of each token, [128, tokens]."""
    squares = like(centred, nl.float32)
    nisa.activation(squares, nl.square, centred)
    total = token_sums(squares, ones)
    padding = centred.shape[0] * centred.shape[2] - size
    if padding > 0:
        power, real = like(mean, nl.float32), like(mean, nl.float32)
        nisa.tensor_tensor(power, mean, mean, op=nl.multiply)
        nisa.scalar_tensor_tensor(real, power, nl.multiply, -1.0 * padding, nl.add, total)
        total = real
    return inverse_root(total, 1.0 / size, eps)


def token_sums(x: Tensor, ones: Tensor) -> Tensor:
    """The sum of all elements of a token in every partition, [128, tokens] in PSUM: TensorE adds across."""
    partial = nl.ndarray(x.shape[0:2], nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(partial, nl.add, x, 2)
    total = nl.ndarray(x.shape[0:2], nl.float32, buffer=nl.psum)
    nisa.nc_matmul(total, ones, partial, is_stationary_onezero=True)
    return total


def ones_matrix() -> Tensor:
    """[128, 128] of 1.0, by which TensorE adds up partitions."""
    ones = nl.ndarray((PMAX, PMAX), nl.float32, buffer=nl.sbuf)
    nisa.memset(ones, 1.0)
    return ones


def over_tiles(values: Tensor, x: Tensor) -> Any:
    """[128, tokens] as if it were [128, tokens, tiles], like x."""
    return values.expand_dim(2).broadcast(2, x.shape[2])
