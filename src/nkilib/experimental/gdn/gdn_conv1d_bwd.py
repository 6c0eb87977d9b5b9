"""The gradients of the causal convolution of Gated DeltaNet."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.depthwise_conv1d_bwd import depthwise_conv1d_bwd
from nkilib.experimental.gdn.gdn_conv1d import FLOATS, check_weight, convolve, tap_matrices

COLUMNS = 2048  # of a row at a time


@nki.jit
def gdn_conv1d_prefill_bwd(dy: Tensor, mixed: Tensor, conv_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of mixed [B, C, T] and conv_weight [C, K] of gdn_conv1d_prefill.

    dy is the gradient of its first result; all are in one dtype, like the results. The sums before SiLU are
    computed again. Two cores share the channels. The documented library has no such kernel.

    >>> dy, mixed, weight = np.ones((1, 1, 2), np.float32), np.zeros((1, 1, 2), np.float32), np.ones((1, 2))
    >>> [d.ravel().tolist() for d in gdn_conv1d_prefill_bwd(dy, mixed, weight.astype(np.float32))]
    [[1.0, 0.5], [0.0, 0.0]]
    """
    get_verified_program_sharding_info("gdn_conv1d_prefill_bwd", (0, 1), 2)
    assert_tensors((("dy", dy), ("mixed", mixed), ("conv_weight", conv_weight)))
    kernel_assert(
        len(mixed.shape) == 3 and mixed.dtype in FLOATS,
        f"mixed: got {mixed.dtype} {tuple(mixed.shape)}, expected [B, C, T], float32, bfloat16 or float16",
    )
    batches, channels, tokens = mixed.shape
    assert_shape(dy, mixed.shape, "dy")
    kernel_assert(dy.dtype == mixed.dtype, f"dy: got {dy.dtype}, expected {mixed.dtype} like mixed")
    taps = check_weight(conv_weight, channels, mixed)
    gradient = before_silu(dy, mixed, conv_weight)
    image = mixed.reshape((batches, channels, 1, tokens))
    filters = conv_weight.reshape((channels, 1, 1, taps))
    padding = ((0, 0), (taps - 1, 0))
    dimage, dfilters = depthwise_conv1d_bwd(gradient.reshape(image.shape), image, filters, padding)
    return dimage.reshape(mixed.shape), dfilters.reshape(conv_weight.shape)


def before_silu(dy: Tensor, mixed: Tensor, conv_weight: Tensor) -> Tensor:
    """dy silu'(convolution) in HBM; cores share the channels, as for the gradients."""
    out = nl.ndarray(dy.shape, dy.dtype, buffer=nl.shared_hbm)
    first, end = program_share(dy.shape[1])
    for part in TiledRange(end - first, PMAX):
        own = slice(first + part.start_offset, first + part.end_offset)
        matrices = tap_matrices(load(conv_weight[own]))
        for batch in range(dy.shape[0]):
            slopes = nl.ndarray((part.size, dy.shape[2]), dy.dtype, buffer=nl.private_hbm)
            convolve(slopes, mixed[batch, own], matrices, nl.silu_dx)
            for columns in TiledRange(dy.shape[2], COLUMNS):
                place = slice(columns.start_offset, columns.end_offset)
                slope, own_dy = load(slopes[:, place]), load(dy[batch, own, place])
                product = like(slope)
                nisa.tensor_tensor(product, slope, own_dy, nl.multiply)
                nisa.dma_copy(out[batch, own, place], product)
    return out


def gdn_conv1d_prefill_bwd_ref(
    dy: np.ndarray, mixed: np.ndarray, conv_weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return both gradients in float64."""
    taps, tokens = conv_weight.shape[1], mixed.shape[2]
    x = np.pad(np.asarray(mixed, np.float64), ((0, 0), (0, 0), (taps - 1, 0)))
    weight = np.asarray(conv_weight, np.float64)
    z = sum(weight[:, j : j + 1] * x[:, :, j : j + tokens] for j in range(taps))
    sigmoid = 1 / (1 + np.exp(-z))
    dz = np.asarray(dy, np.float64) * sigmoid * (1 + z * (1 - sigmoid))
    dx, dw = np.zeros(x.shape), np.zeros(weight.shape)
    for j in range(taps):
        dx[:, :, j : j + tokens] += weight[:, j : j + 1] * dz
        dw[:, j] = (dz * x[:, :, j : j + tokens]).sum((0, 2))
    return dx[:, :, taps - 1 :], dw
