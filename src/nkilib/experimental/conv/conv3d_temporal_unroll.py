"""3-D convolution for few output channels and wide frames."""

from __future__ import annotations

import numpy as np

import nki
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.conv3d import conv3d, conv3d_ref
from nkilib.experimental.conv.geometry import BANK_POSITIONS

MIN_CHANNELS = 32  # input channels that pay for filters that stay in SBUF


def should_use_temporal_unroll(C_out: int, D_out: int, C_in: int, K_d: int, W_out: int) -> bool:
    """Return whether conv3d_temporal_unroll is made for this shape.

    All D_out frames of C_out channels must fit side by side into the 128 columns of the PE array, C_in K_d
    must fill it, and W_out must exceed the 512 columns of a PSUM bank. The page names these three conditions
    without their numbers: 128, 32 and 512 are ours.

    >>> should_use_temporal_unroll(16, 4, 64, 3, 1024), should_use_temporal_unroll(256, 4, 64, 3, 1024)
    (True, False)
    """
    return C_out * D_out <= PMAX and C_in * K_d >= MIN_CHANNELS and W_out > BANK_POSITIONS


@nki.jit
def conv3d_temporal_unroll(
    x_in: Tensor,
    filters: Tensor,
    bias: Tensor | None = None,
    stride: tuple[int, int, int] = (1, 1, 1),
    padding: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0),
    dilation: tuple[int, int, int] = (1, 1, 1),
    activation_fn: ActFnType | None = None,
    lnc_shard: bool = False,
) -> Tensor:
    """3-D convolution for few output channels: the result and the arguments of conv3d.

    The page describes another order of the same products, frames side by side in the PE array. Here conv3d's
    order serves all shapes; should_use_temporal_unroll says for which the original is made.

    >>> x, f = np.ones((1, 2, 3, 3, 3), np.float32), np.ones((3, 3, 3, 2, 4), np.float32)
    >>> conv3d_temporal_unroll(x, f).ravel().tolist()
    [54.0, 54.0, 54.0, 54.0]
    """
    return conv3d(x_in, filters, bias, stride, padding, dilation, activation_fn, lnc_shard)


def conv3d_temporal_unroll_ref(*arguments: np.ndarray | None, **options: object) -> np.ndarray:
    """In float64."""
    return conv3d_ref(*arguments, **options)  # type: ignore[arg-type]
