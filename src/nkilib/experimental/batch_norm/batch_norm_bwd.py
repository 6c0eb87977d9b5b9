"""The gradients of batch normalisation: one pass for the sums of each channel, one for the input."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.decode import swap
from nkilib.core.utils.allocator import bytes_per_partition
from nkilib.core.utils.kernel_assert import (
    assert_shape,
    assert_tensors,
    kernel_assert,
    refuse_without_effect,
)
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.norms import inverse_root
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor

CHUNK = 4096  # positions of a channel at a time
HELD_BYTES = 112 * 1024  # of dy and x, in each partition
FLOATS = (nl.float32, nl.bfloat16, nl.float16)


@nki.jit
def batch_norm_bwd(
    dy: Tensor,
    x_in: Tensor,
    means: Tensor,
    variances: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float = 1e-05,
    fuse_relu: bool | None = False,
    relu_mask: Tensor | None = None,
) -> tuple:
    """Return (dx, dgamma, dbeta) of y = gamma (x - mean) / sqrt(variance + eps) + beta over each channel.

    dy and x_in are [B, C, D, H, W] in float32, bfloat16 or float16, dx has the dtype of x_in; means and
    variances are [C] float32, those of this batch, of which the gradient depends; gamma and beta are [C].
    dgamma and dbeta are float32 [C]. With fuse_relu the forward result was max(y, 0): dy counts where
    relu_mask, of the shape of dy, is not 0, or without one where y > 0. Two cores share the channels, or the
    positions of up to 128 channels. Read of the page: signature, shapes and meaning; the order of the results
    and the rule of relu_mask are ours.

    >>> x, one = np.array([1, 3], np.float32).reshape(2, 1, 1, 1, 1), np.ones(1, np.float32)
    >>> dx, dgamma, dbeta = batch_norm_bwd(np.ones_like(x), x, 2 * one, one, one, 0 * one, 0.0)
    >>> dx.ravel().tolist(), dgamma.tolist(), dbeta.tolist()
    ([0.0, 0.0], [0.0], [2.0])
    """
    get_verified_program_sharding_info("batch_norm_bwd", (0, 1), 2)
    check(dy, x_in, means, variances, gamma, beta, relu_mask)
    refuse_without_effect(bool(fuse_relu), "fuse_relu", (("relu_mask", relu_mask),))
    batches, channels = x_in.shape[0], x_in.shape[1]
    positions = x_in.size // batches // channels
    dx = nl.ndarray(x_in.shape, x_in.dtype, buffer=nl.shared_hbm)
    dgamma = nl.ndarray((channels,), nl.float32, buffer=nl.shared_hbm)
    dbeta = nl.ndarray((channels,), nl.float32, buffer=nl.shared_hbm)
    flat = (batches, channels, positions)
    mask = relu_mask.reshape(flat) if relu_mask is not None else None
    together = channels <= PMAX  # each core has some of the positions of all channels
    first, end = (0, channels) if together else program_share(channels)
    for tile in TiledRange(end - first, PMAX):
        rows = (first + tile.start_offset, first + tile.end_offset)
        norm = ChannelNorm(means, variances, gamma, beta, eps, rows, bool(fuse_relu))
        pieces = Pieces(dy.reshape(flat), x_in.reshape(flat), mask, rows, together)
        norm.add_up(pieces)
        if not together or nl.program_id(0) == 0:
            store(dgamma[rows[0] : rows[1]].expand_dim(1), norm.dgamma)
            store(dbeta[rows[0] : rows[1]].expand_dim(1), norm.dbeta)
        norm.gradients(pieces, dx.reshape(flat))
    return dx, dgamma, dbeta


class Pieces(nl.NKIObject):
    """dy, x and mask [B, C, N] in pieces of a batch and up to CHUNK positions, of these channels.

    Cores have some of the pieces each, where they are `shared`.
    """

    def __init__(self, dy: Tensor, x: Tensor, mask: Tensor | None, rows: tuple, shared: bool):
        self.dy = dy
        self.x = x
        self.mask = mask
        self.rows = rows
        self.shared = shared and nl.num_programs(0) == 2
        self.held: list = []  # the first pieces, which stay in SBUF for the second pass
        self.room = HELD_BYTES
        self.parts = []
        for batch in range(x.shape[0]):
            first, end = program_share(x.shape[2]) if self.shared else (0, x.shape[2])
            for part in TiledRange(end - first, CHUNK):
                self.parts.append((batch, first + part.start_offset, first + part.end_offset))

    def of(self, tensor: Tensor, number: int) -> Any:
        part = self.parts[number]
        return tensor[part[0], self.rows[0] : self.rows[1], part[1] : part[2]]

    def hold(self, dy: Tensor, x: Tensor) -> None:
        """Keep a piece if there is room for it, and for those before it."""
        self.room -= bytes_per_partition(dy.shape, dy.dtype) + bytes_per_partition(x.shape, x.dtype)
        if self.room >= 0:
            self.held.append((dy, x))


class ChannelNorm(nl.NKIObject):
    """Up to 128 channels: columns of their parameters, and the sums over all positions."""

    def __init__(
        self,
        means: Tensor,
        variances: Tensor,
        gamma: Tensor,
        beta: Tensor,
        eps: float,
        rows: tuple,
        relu: bool,
    ):
        self.mean = column(means, rows)
        self.gamma = column(gamma, rows)
        self.beta = column(beta, rows)
        self.relu = relu
        self.root = inverse_root(column(variances, rows), 1.0, eps)
        count = rows[1] - rows[0]
        self.dgamma = new_column(count)
        self.dbeta = new_column(count)

    def piece(self, pieces: Pieces, number: int) -> tuple:
        """(dy behind the ReLU, x) of a piece."""
        if number < len(pieces.held):
            return pieces.held[number]
        x, dy = load(pieces.of(pieces.x, number)), load(pieces.of(pieces.dy, number))
        if self.relu and pieces.mask is not None:
            mask = load(pieces.of(pieces.mask, number))
            nisa.scalar_tensor_tensor(dy, mask, nl.not_equal, 0.0, nl.multiply, dy)
        elif self.relu:
            y = like(x, nl.float32)
            nisa.tensor_scalar(y, x, nl.subtract, self.mean, op1=nl.multiply, operand1=self.root)
            nisa.tensor_scalar(y, y, nl.multiply, self.gamma, op1=nl.add, operand1=self.beta)
            nisa.scalar_tensor_tensor(dy, y, nl.greater, 0.0, nl.multiply, dy)
        return dy, x

    def add_up(self, pieces: Pieces) -> None:
        """dbeta = sum of dy, dgamma = root * sum of dy (x - mean)."""
        count = len(pieces.parts)
        shape = (self.mean.shape[0], max(1, count))
        betas = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
        gammas = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
        for i in range(count):
            dy, x = self.piece(pieces, i)
            pieces.hold(dy, x)
            product = like(x, nl.float32)
            nisa.scalar_tensor_tensor(product, x, nl.subtract, self.mean, nl.multiply, dy)
            nisa.activation_reduce(like(dy), nl.copy, dy, nl.add, betas[:, i : i + 1])
            nisa.activation_reduce(product, nl.copy, product, nl.add, gammas[:, i : i + 1])
        sums = nl.ndarray((self.mean.shape[0], 2), nl.float32, buffer=nl.sbuf)
        nisa.memset(sums, 0.0)
        if count > 0:
            nisa.tensor_reduce(sums[:, 0:1], nl.add, betas, 1)
            nisa.tensor_reduce(sums[:, 1:2], nl.add, gammas, 1)
        if pieces.shared:
            nisa.tensor_tensor(sums, sums, swap(sums, nl.program_id(0), 0), op=nl.add)
        nisa.tensor_copy(self.dbeta, sums[:, 0:1])
        nisa.tensor_copy(self.dgamma, sums[:, 1:2])
        nisa.tensor_tensor(self.dgamma, self.dgamma, self.root, op=nl.multiply)

    def gradients(self, pieces: Pieces, dx: Tensor) -> None:
        """dx = gamma root (dy + slope x - slope mean - dbeta / N) with slope = -root dgamma / N"""
        share = -1.0 / (pieces.x.shape[0] * pieces.x.shape[2])
        slope, factor, shift = like(self.dgamma), like(self.gamma), like(self.dbeta)
        nisa.tensor_scalar(slope, self.dgamma, nl.multiply, self.root, op1=nl.multiply, operand1=share)
        nisa.tensor_tensor(factor, self.gamma, self.root, op=nl.multiply)
        nisa.tensor_tensor(shift, slope, self.mean, op=nl.multiply)
        nisa.scalar_tensor_tensor(shift, self.dbeta, nl.multiply, share, nl.subtract, shift)
        nisa.tensor_tensor(shift, shift, factor, op=nl.multiply)
        for i in range(len(pieces.parts)):
            dy, x = self.piece(pieces, i)
            found, out = like(x, nl.float32), like(x, dx.dtype)
            nisa.scalar_tensor_tensor(found, x, nl.multiply, slope, nl.add, dy)
            nisa.activation(out, nl.copy, found, scale=factor, bias=shift)
            nisa.dma_copy(pieces.of(dx, i), out)


def column(vector: Tensor, rows: tuple) -> Tensor:
    """A part of a vector, a number in each partition, float32."""
    return load(vector[rows[0] : rows[1]].expand_dim(1), nl.float32)


def check(
    dy: Tensor, x: Tensor, means: Tensor, variances: Tensor, gamma: Tensor, beta: Tensor, mask: Tensor | None
) -> None:
    vectors = (("means", means), ("variances", variances), ("gamma", gamma), ("beta", beta))
    assert_tensors((("dy", dy), ("x_in", x)) + vectors, (("relu_mask", mask),))
    kernel_assert(len(x.shape) == 5, f"x_in: got shape {tuple(x.shape)}, expected (B, C, D, H, W)")
    assert_shape(dy, x.shape, "dy")
    if mask is not None:
        assert_shape(mask, x.shape, "relu_mask")
    for pair in (("dy", dy), ("x_in", x)):
        dtype = pair[1].dtype
        kernel_assert(dtype in FLOATS, f"{pair[0]}: got {dtype}, allowed are float32, bfloat16 and float16")
    for pair in vectors:
        assert_shape(pair[1], (x.shape[1],), pair[0])
    for pair in vectors[:2]:
        kernel_assert(pair[1].dtype == nl.float32, f"{pair[0]}: got {pair[1].dtype}, allowed is float32")


def batch_norm_bwd_ref(
    dy: np.ndarray,
    x_in: np.ndarray,
    means: np.ndarray,
    variances: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    eps: float = 1e-05,
    fuse_relu: bool = False,
    relu_mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(dx, dgamma, dbeta) in float64."""
    g, x = np.asarray(dy, np.float64), np.asarray(x_in, np.float64)
    mean, variance, gamma, beta = (
        np.asarray(v, np.float64).reshape(1, -1, 1, 1, 1) for v in (means, variances, gamma, beta)
    )
    normal = (x - mean) / np.sqrt(variance + eps)
    if fuse_relu:
        passes = gamma * normal + beta > 0 if relu_mask is None else np.asarray(relu_mask) != 0
        g = g * passes
    axes, count = (0, 2, 3, 4), x.size / x.shape[1]
    dbeta, dgamma = g.sum(axes), (g * normal).sum(axes)
    rest = dbeta.reshape(mean.shape) + normal * dgamma.reshape(mean.shape)
    return gamma / np.sqrt(variance + eps) * (g - rest / count), dgamma, dbeta
