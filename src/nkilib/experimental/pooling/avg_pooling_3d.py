"""Average pooling of volumes."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.utils.types import Tensor
from nkilib.experimental.pooling.max_pooling_3d import windows_ref
from nkilib.experimental.pooling.volumes import checked
from nkilib.experimental.pooling.windows import pool


@nki.jit
def avg_pooling_3d(
    src_tensor: Tensor,
    kernel_size: int | tuple,
    stride: int | tuple | None = None,
    padding: int | tuple = 0,
    data_format: str = "NCDHW",
    output_format: str | None = None,
) -> Tensor:
    """Average of each window of (D, H, W), of every batch and channel, as torch's avg_pool3d.

    src_tensor is [B, C, D, H, W] (data_format NCDHW) or [B, D, H, W, C] (NDHWC) in float32, bfloat16 or
    float16; the result has its dtype and output_format, by default data_format. kernel_size, stride (by
    default kernel_size) and padding are a number or three; padding is zeros, up to half a window, and counts:
    sums are divided by the size of the window. Sums are float32. Two cores share channels and blocks. Read of
    the page: signature, layouts, padding; the division is that of its backward.

    >>> avg_pooling_3d(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 2, 2), 2).tolist()
    [[[[[3.5]]]]]
    """
    p = checked("src_tensor", src_tensor, kernel_size, stride, padding, data_format, output_format)
    out = nl.ndarray(p.output_shape(), src_tensor.dtype, buffer=nl.shared_hbm)
    count = p.axes[0].taps * p.axes[1].taps * p.axes[2].taps
    pool(out, src_tensor, p, nl.add, 0.0, nl.float32, 1.0 / count)
    return out


def avg_pooling_3d_ref(x: np.ndarray, kernel_size: tuple, stride: tuple, padding: tuple) -> np.ndarray:
    """x [B, C, D, H, W] in float64."""
    return windows_ref(x, kernel_size, stride, padding, 0.0).mean((-3, -2, -1))
