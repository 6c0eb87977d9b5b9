"""3-D convolution: one or several taps of all input channels at a time on TensorE."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.convolve import check_axis, check_numbers, check_operands, convolve
from nkilib.experimental.conv.geometry import output_size, taps_of
from nkilib.experimental.conv.inputs import Convolution
from nkilib.experimental.conv.reference import convolution_ref


@nki.jit
def conv3d(
    x_in: Tensor,
    filters: Tensor,
    bias: Tensor | None = None,
    stride: tuple[int, int, int] = (1, 1, 1),
    padding: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0),
    dilation: tuple[int, int, int] = (1, 1, 1),
    activation_fn: ActFnType | None = None,
    lnc_shard: bool = False,
) -> Tensor:
    """3-D convolution: act(sum over taps and input channels of x_in * filters + bias), as torch's conv3d.

    out[b, o, d, h, w] = act(sum over i, j, k, c of filters[i, j, k, c, o] * x[b, c, d', h', w'] + bias[o]),
    d' = d * stride[0] + i * dilation[0] - d_left, h' and w' in the same way, x being 0 outside.

    x_in [B, C_in, D, H, W], filters [K_d, K_h, K_w, C_in, C_out] and bias [C_out] have one dtype: bfloat16,
    float16 or float32; out [B, C_out, D_out, H_out, W_out] has the same. Sums are float32. padding is
    (d_left, d_right, h_top, h_bottom, w_left, w_right). activation_fn: SiLU, GELU, GELU_Tanh_Approx, Swish
    (here SiLU) or ReLU. lnc_shard: cores share the work; without it core 0 does all.

    >>> x, f = np.ones((1, 2, 3, 3, 3), np.float32), np.ones((3, 3, 3, 2, 4), np.float32)
    >>> conv3d(x, f, padding=(1, 1, 1, 1, 0, 0))[0, 0, :, :, 0]
    array([[24., 36., 24.],
           [36., 54., 36.],
           [24., 36., 24.]], dtype=float32)
    """
    get_verified_program_sharding_info("conv3d", (0, 1), 2)
    assert_tensors((("x_in", x_in), ("filters", filters)), (("bias", bias),))
    kernel_assert(len(x_in.shape) == 5, f"x_in: got shape {tuple(x_in.shape)}, expected (B, C_in, D, H, W)")
    kernel_assert(
        len(filters.shape) == 5,
        f"filters: got shape {tuple(filters.shape)}, expected (K_d, K_h, K_w, C_in, C_out)",
    )
    check_numbers("stride", stride, 3, "three numbers")
    check_numbers("padding", padding, 6, "six numbers")
    check_numbers("dilation", dilation, 3, "three numbers")
    check_operands(x_in, filters, bias, activation_fn)
    axes = []
    for i in range(3):
        before, after = padding[2 * i], padding[2 * i + 1]
        axes.append(check_axis(x_in.shape[i + 2], filters.shape[i], stride[i], dilation[i], before, after))
    channels, columns = filters.shape[3], filters.shape[4]
    shape = (x_in.shape[0], columns, output_size(axes[0]), output_size(axes[1]), output_size(axes[2]))
    out = nl.ndarray(shape, x_in.dtype, buffer=nl.shared_hbm)
    rows = filters.reshape((taps_of(axes), channels, columns))
    convolve(Convolution(x_in, rows, bias, out, axes, activation_fn), lnc_shard)
    return out


def conv3d_ref(
    x_in: np.ndarray,
    filters: np.ndarray,
    bias: np.ndarray | None = None,
    stride: tuple[int, int, int] = (1, 1, 1),
    padding: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0),
    dilation: tuple[int, int, int] = (1, 1, 1),
    activation_fn: ActFnType | None = None,
) -> np.ndarray:
    """Compute the same in float64."""
    return convolution_ref(x_in, filters, bias, stride, padding, dilation, activation_fn)
