"""The gradients of a depthwise 1-D convolution: channels in the partitions, tap by tap on VectorE."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.convolve import DTYPES, check_axis
from nkilib.experimental.conv.depthwise_conv1d import check_options
from nkilib.experimental.conv.geometry import ConvAxis, output_size

CHUNK = 2048  # positions of a channel at a time


@nki.jit
def depthwise_conv1d_bwd(
    dy: Tensor,
    img_ref: Tensor,
    filter_ref: Tensor,
    padding: tuple = ((0, 0), (0, 0)),
    stride: tuple = (1, 1),
) -> tuple[Tensor, Tensor]:
    """Return the gradients of img_ref [N, C, 1, W] and filter_ref [C, 1, 1, S].

    They are those of depthwise_conv1d_implicit_gemm. dy is [N, C, 1, Q]; all are in one dtype, bfloat16,
    float16 or float32, like the results; padding and stride are those of the forward call. Computed in
    float32. Two cores share the channels. The documented library has no such kernel.

    >>> import numpy as np
    >>> dy, x, f = (np.ones(shape, np.float32) for shape in ((1, 1, 1, 2), (1, 1, 1, 3), (1, 1, 1, 2)))
    >>> [gradient.ravel().tolist() for gradient in depthwise_conv1d_bwd(dy, x, f)]
    [[1.0, 2.0, 1.0], [2.0, 2.0]]
    """
    get_verified_program_sharding_info("depthwise_conv1d_bwd", (0, 1), 2)
    axis = check(dy, img_ref, filter_ref, padding, stride)
    channels, taps = filter_ref.shape[0], axis.taps
    dx = nl.ndarray(img_ref.shape, img_ref.dtype, buffer=nl.shared_hbm)
    dw = nl.ndarray(filter_ref.shape, filter_ref.dtype, buffer=nl.shared_hbm)
    gradient, x, out = dy.squeeze_dim(2), img_ref.squeeze_dim(2), dx.squeeze_dim(2)
    filters, found = filter_ref.reshape((channels, taps)), dw.reshape((channels, taps))
    first, end = program_share(channels)
    for tile in TiledRange(TiledRangeIterator(end - first, 0, first, end), PMAX):
        some = slice(tile.start_offset, tile.end_offset)
        weights = load(filters[some], nl.float32)
        sums = like(weights)
        nisa.memset(sums, 0.0)
        for batch in range(x.shape[0]):
            for part in TiledRange(x.shape[2], CHUNK):
                span = (part.start_offset, part.end_offset)
                differentiate(
                    out[batch, some], x[batch, some], gradient[batch, some], weights, sums, axis, span
                )
        store(found[some], sums)
    return dx, dw


def differentiate(
    out: Tensor, x: Tensor, dy: Tensor, weights: Tensor, sums: Tensor, axis: ConvAxis, span: tuple
) -> None:
    """Write dx of inputs span, and add what they give to dw: input i meets output (i + left - s) / stride."""
    inputs = load(x[:, span[0] : span[1]], nl.float32)
    total = like(inputs)
    nisa.memset(total, 0.0)
    reached = met(axis, axis.taps - 1, span)[0], met(axis, 0, span)[1]
    if reached[0] < reached[1]:
        gradients = load(dy[:, reached[0] : reached[1]], nl.float32)
        for tap in range(axis.taps):
            start, end = met(axis, tap, span)
            if start < end:
                place = start * axis.stride + tap - axis.before - span[0]
                last = place + (end - start - 1) * axis.stride + 1
                part = gradients[:, start - reached[0] : end - reached[0]]
                view = total.slice(1, place, last, axis.stride)
                nisa.scalar_tensor_tensor(view, part, nl.multiply, weights[:, tap : tap + 1], nl.add, view)
                products, here = like(part), new_column(part.shape[0])
                nisa.tensor_tensor(products, part, inputs.slice(1, place, last, axis.stride), nl.multiply)
                nisa.activation_reduce(products, nl.copy, products, nl.add, here)  # VectorE has more to do
                column = sums[:, tap : tap + 1]
                nisa.tensor_tensor(column, column, here, nl.add)
    store(out[:, span[0] : span[1]], total)


def met(axis: ConvAxis, tap: int, span: tuple) -> tuple[int, int]:
    """The first output that meets an input of a span with a tap, and the one behind the last."""
    start = -(-(span[0] + axis.before - tap) // axis.stride)
    end = (span[1] - 1 + axis.before - tap) // axis.stride + 1
    return max(0, start), min(output_size(axis), end)


def check(dy: Tensor, img: Tensor, filters: Tensor, padding: tuple, stride: tuple) -> ConvAxis:
    given = (("dy", dy), ("img_ref", img), ("filter_ref", filters))
    assert_tensors(given)
    for pair in given:
        kernel_assert(
            len(pair[1].shape) == 4, f"{pair[0]}: got shape {tuple(pair[1].shape)}, expected 4 axes"
        )
        kernel_assert(
            pair[1].dtype == img.dtype and img.dtype in DTYPES,
            f"{pair[0]}: got {pair[1].dtype}, expected that of img_ref: bfloat16, float16 or float32",
        )
    batches, channels, _, width = img.shape
    assert_shape(img, (batches, channels, 1, width), "img_ref")
    assert_shape(filters, (channels, 1, 1, filters.shape[3]), "filter_ref")
    check_options(padding, stride, (1, 1), (1, 1), 1)
    axis = check_axis(width, filters.shape[3], stride[1], 1, padding[1][0], padding[1][1])
    assert_shape(dy, (batches, channels, 1, output_size(axis)), "dy")
    return axis
