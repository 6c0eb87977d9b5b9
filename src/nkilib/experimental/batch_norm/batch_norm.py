"""Batch normalisation in training: one pass for the moments of each channel, one for the result."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.norms import STATISTICS_COLUMNS, inverse_root
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor
from nkilib.experimental.batch_norm.batch_norm_bwd import CHUNK, FLOATS, column


@nki.jit
def batch_norm(
    x_in: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-05, fuse_relu: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gamma (x - mean) / sqrt(variance + eps) + beta over each channel, the means and the variances.

    x_in is [B, C, D, H, W] in float32, bfloat16 or float16; the result has its shape and dtype. gamma and
    beta are [C]; the moments are those of this batch, float32 [C]. With fuse_relu the result is max(y, 0).
    Computed in float32. Two cores share the channels. The gradients are `batch_norm_bwd`. The documented
    library has no such kernel.

    >>> x, one = np.array([1, 3], np.float32).reshape(2, 1, 1, 1, 1), np.ones(1, np.float32)
    >>> [found.ravel().tolist() for found in batch_norm(x, one, 0 * one, 0.0)]
    [[-1.0, 1.0], [2.0], [1.0]]
    """
    get_verified_program_sharding_info("batch_norm", (0, 1), 2)
    check(x_in, gamma, beta)
    batches, channels = x_in.shape[0], x_in.shape[1]
    flat = (batches, channels, x_in.shape[2] * x_in.shape[3] * x_in.shape[4])
    out = nl.ndarray(x_in.shape, x_in.dtype, buffer=nl.shared_hbm)
    means = nl.ndarray((channels,), nl.float32, buffer=nl.shared_hbm)
    variances = nl.ndarray((channels,), nl.float32, buffer=nl.shared_hbm)
    x, y = x_in.reshape(flat), out.reshape(flat)
    first, end = program_share(channels)
    for tile in TiledRange(end - first, PMAX):
        rows = (first + tile.start_offset, first + tile.end_offset)
        mean, variance = moments(x, rows)
        store(means[rows[0] : rows[1]].expand_dim(1), mean)
        store(variances[rows[0] : rows[1]].expand_dim(1), variance)
        scale, shift = like(mean), like(mean)
        nisa.tensor_tensor(scale, column(gamma, rows), inverse_root(variance, 1.0, eps), nl.multiply)
        nisa.tensor_tensor(shift, mean, scale, nl.multiply)
        nisa.tensor_tensor(shift, column(beta, rows), shift, nl.subtract)
        apply(x, y, rows, scale, shift, nl.relu if fuse_relu else nl.copy)
    return out, means, variances


def moments(x: Tensor, rows: tuple) -> tuple[Tensor, Tensor]:
    """Means and variances of these channels of x [B, C, N], columns of float32."""
    chunks = TiledRange(x.shape[2], CHUNK)
    parts = -(-CHUNK // STATISTICS_COLUMNS)
    count, groups = rows[1] - rows[0], x.shape[0] * len(chunks)
    statistics = nl.ndarray((count, groups * parts, 6), nl.float32, buffer=nl.sbuf)
    used = 0
    for batch in range(x.shape[0]):
        for chunk in chunks:
            tile = load(x[batch, rows[0] : rows[1], chunk.start_offset : chunk.end_offset])
            for part in TiledRange(chunk.size, STATISTICS_COLUMNS):
                nisa.bn_stats(statistics[:, used, :], tile[:, part.start_offset : part.end_offset])
                used += 1
    found = nl.ndarray((count, 2), nl.float32, buffer=nl.sbuf)
    nisa.bn_aggr(found, statistics[:, 0:used, :])
    return found[:, 0:1], found[:, 1:2]


def apply(x: Tensor, y: Tensor, rows: tuple, scale: Tensor, shift: Tensor, act: Any) -> None:
    """y = act(x scale + shift) for these channels of x and y [B, C, N]."""
    for batch in range(x.shape[0]):
        for chunk in TiledRange(x.shape[2], CHUNK):
            columns = slice(chunk.start_offset, chunk.end_offset)
            tile = load(x[batch, rows[0] : rows[1], columns])
            result = like(tile)
            nisa.activation(result, act, tile, bias=shift, scale=scale)
            store(y[batch, rows[0] : rows[1], columns], result)


def check(x: Tensor, gamma: Tensor, beta: Tensor) -> None:
    assert_tensors((("x_in", x), ("gamma", gamma), ("beta", beta)))
    kernel_assert(len(x.shape) == 5, f"x_in: got shape {tuple(x.shape)}, expected (B, C, D, H, W)")
    kernel_assert(x.dtype in FLOATS, f"x_in: got {x.dtype}, allowed are float32, bfloat16 and float16")
    for pair in (("gamma", gamma), ("beta", beta)):
        assert_shape(pair[1], (x.shape[1],), pair[0])


def batch_norm_ref(
    x_in: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float = 1e-05, fuse_relu: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute in float64."""
    x, axes = np.asarray(x_in, np.float64), (0, 2, 3, 4)
    gamma, beta = (np.asarray(v, np.float64).reshape(1, -1, 1, 1, 1) for v in (gamma, beta))
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    y = gamma * (x - mean) / np.sqrt(variance + eps) + beta
    return np.maximum(y, 0.0) if fuse_relu else y, mean.ravel(), variance.ravel()
