"""Max pooling of volumes."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.utils.types import Tensor
from nkilib.experimental.pooling.volumes import checked
from nkilib.experimental.pooling.windows import pool

LOWEST = -float("inf")


@nki.jit
def max_pooling_3d(
    src_tensor: Tensor,
    kernel_size: int | tuple,
    stride: int | tuple | None = None,
    padding: int | tuple = 0,
    data_format: str = "NCDHW",
    output_format: str | None = None,
) -> Tensor:
    """Largest element of each window of (D, H, W), of every batch and channel, as torch's max_pool3d.

    src_tensor is [B, C, D, H, W] (data_format NCDHW) or [B, D, H, W, C] (NDHWC) in float32, bfloat16 or
    float16; the result has its dtype and output_format, by default data_format. kernel_size, stride (by
    default kernel_size) and padding are a number or three; padding is -inf, up to half a window. Two cores
    share channels and blocks. Read of the page: signature, layouts, padding.

    >>> max_pooling_3d(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 2, 2), 2).tolist()
    [[[[[7.0]]]]]
    """
    p = checked("src_tensor", src_tensor, kernel_size, stride, padding, data_format, output_format)
    out = nl.ndarray(p.output_shape(), src_tensor.dtype, buffer=nl.shared_hbm)
    pool(out, src_tensor, p, nl.maximum, LOWEST, src_tensor.dtype, 1.0)
    return out


def windows_ref(
    x: np.ndarray, kernel_size: tuple, stride: tuple, padding: tuple, outside: float
) -> np.ndarray:
    """The windows of x [B, C, D, H, W], [B, C, Do, Ho, Wo, kD, kH, kW] in float64."""
    pads = [(0, 0), (0, 0), *((n, n) for n in padding)]
    wide = np.pad(np.asarray(x, np.float64), pads, constant_values=outside)
    views = np.lib.stride_tricks.sliding_window_view(wide, kernel_size, (2, 3, 4))
    return views[:, :, :: stride[0], :: stride[1], :: stride[2]]


def max_pooling_3d_ref(x: np.ndarray, kernel_size: tuple, stride: tuple, padding: tuple) -> np.ndarray:
    """x [B, C, D, H, W] in float64."""
    return windows_ref(x, kernel_size, stride, padding, -np.inf).max((-3, -2, -1))


def padded_shape(shape: tuple, padding: tuple) -> tuple:
    """[B, C, D, H, W] with padding on both sides of the last three."""
    return (*shape[:2], *(n + 2 * p for n, p in zip(shape[2:], padding, strict=True)))


def without_padding(wide: np.ndarray, shape: tuple, padding: tuple) -> np.ndarray:
    """The part of padded [B, C, D, H, W] that has this shape."""
    d, h, w = (slice(p, p + n) for p, n in zip(padding, shape[2:], strict=True))
    return wide[:, :, d, h, w]
