"""The gradient of average pooling."""

from __future__ import annotations

import math

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.geometry import OutputSpan, output_size
from nkilib.experimental.pooling.max_pooling_3d import padded_shape, without_padding
from nkilib.experimental.pooling.volumes import (
    Volume,
    check_gradient,
    checked,
    input_jobs,
    load_block,
    store_block,
)
from nkilib.experimental.pooling.windows import outputs_for, spread, tiles_inputs


@nki.jit
def avg_pooling_3d_backward(
    grad_output: Tensor,
    input_tensor: Tensor,
    kernel_size: int | tuple,
    stride: int | tuple | None = None,
    padding: int | tuple = 0,
    data_format: str = "NCDHW",
    output_format: str | None = None,
) -> Tensor:
    """Gradient of avg_pooling_3d for its input: each gradient spread over its window, divided by its size.

    grad_output is in output_format, input_tensor in data_format; of it only shape and dtype are read.
    The other arguments are those of the forward call. Sums are float32. Two cores share channels and blocks.

    >>> x = np.zeros((1, 1, 2, 2, 2), np.float32)
    >>> avg_pooling_3d_backward(np.full((1, 1, 1, 1, 1), 8, np.float32), x, 2).ravel().tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    p = checked("input_tensor", input_tensor, kernel_size, stride, padding, data_format, output_format)
    check_gradient("grad_output", grad_output, p, input_tensor.dtype)
    axes = p.axes
    result = nl.ndarray(input_tensor.shape, input_tensor.dtype, buffer=nl.shared_hbm)
    gradients, inputs = Volume(grad_output, p.output_first), Volume(result, p.input_first)
    scale = 1.0 / (axes[0].taps * axes[1].taps * axes[2].taps)
    wide = OutputSpan(0, axes[2].size)
    for job in input_jobs(p):
        depth, height = outputs_for(axes[0], job.depth), outputs_for(axes[1], job.height)
        copied = tiles_inputs(axes[0], depth, job.depth) and tiles_inputs(axes[1], height, job.height)
        copied = copied and tiles_inputs(axes[2], OutputSpan(0, output_size(axes[2])), wide)
        tile = load_block(gradients, job, depth, height, result.dtype if copied else nl.float32)
        nisa.tensor_scalar(tile, tile, nl.multiply, scale)
        tile = spread(tile, axes[2], 3, wide, 0)
        tile = spread(tile, axes[1], 2, job.height, height.start)
        tile = spread(tile, axes[0], 1, job.depth, depth.start)
        store_block(inputs, job, tile)
    return result


def avg_pooling_3d_backward_ref(
    dy: np.ndarray, shape: tuple, kernel_size: tuple, stride: tuple, padding: tuple
) -> np.ndarray:
    """dy [B, C, Do, Ho, Wo] in float64, window by window."""
    wide = np.zeros(padded_shape(shape, padding))
    share = np.asarray(dy, np.float64) / math.prod(kernel_size)
    for at in np.ndindex(*dy.shape[2:]):
        d, h, w = (slice(a * s, a * s + k) for a, s, k in zip(at, stride, kernel_size, strict=True))
        wide[:, :, d, h, w] += share[:, :, at[0], at[1], at[2]][:, :, None, None, None]
    return without_padding(wide, shape, padding)
