"""1-D convolution: one or several taps of all input channels at a time on TensorE."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.convolve import check_axis, check_numbers, check_operands, convolve
from nkilib.experimental.conv.geometry import ConvAxis, output_size
from nkilib.experimental.conv.inputs import Convolution
from nkilib.experimental.conv.reference import convolution_ref


@nki.jit
def conv1d(
    x_in: Tensor,
    filters: Tensor,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
    dilation: int = 1,
    activation_fn: ActFnType | None = None,
    lnc_shard: bool = False,
) -> Tensor:
    """1-D convolution: act(sum over taps and input channels of x_in * filters + bias), as torch's conv1d.

    out[b, o, i] = act(sum over k, c of filters[k, c, o] * x[b, c, i stride + k dilation - left] + bias[o]),
    x being 0 outside of x_in.

    x_in [B, C_in, L], filters [K, C_in, C_out], bias [C_out] of one dtype: bfloat16, float16 or float32; out
    [B, C_out, L_out] of the same, L_out = (L + left + right - dilation * (K - 1) - 1) // stride + 1. Sums are
    float32. padding is (left, right) zeros. activation_fn: SiLU, GELU, GELU_Tanh_Approx, Swish (here SiLU) or
    ReLU. lnc_shard: cores share the work; without it core 0 does all.

    >>> x, f = np.ones((1, 2, 5), np.float32), np.ones((3, 2, 4), np.float32)
    >>> conv1d(x, f, padding=(1, 1))[0, 0]
    array([4., 6., 6., 6., 4.], dtype=float32)
    """
    get_verified_program_sharding_info("conv1d", (0, 1), 2)
    assert_tensors((("x_in", x_in), ("filters", filters)), (("bias", bias),))
    kernel_assert(len(x_in.shape) == 3, f"x_in: got shape {tuple(x_in.shape)}, expected (B, C_in, L)")
    kernel_assert(
        len(filters.shape) == 3, f"filters: got shape {tuple(filters.shape)}, expected (K, C_in, C_out)"
    )
    check_numbers("padding", padding, 2, "(left, right)")
    check_operands(x_in, filters, bias, activation_fn)
    batches, channels, length = x_in.shape
    taps, columns = filters.shape[0], filters.shape[2]
    axis = check_axis(length, taps, stride, dilation, padding[0], padding[1])
    out = nl.ndarray((batches, columns, output_size(axis)), x_in.dtype, buffer=nl.shared_hbm)
    convolution = Convolution(
        x_in.reshape((batches, channels, 1, 1, length)),
        filters,
        bias,
        out.reshape((batches, columns, 1, 1, output_size(axis))),
        [ConvAxis(1, 1), ConvAxis(1, 1), axis],
        activation_fn,
    )
    convolve(convolution, lnc_shard)
    return out


def conv1d_ref(
    x_in: np.ndarray,
    filters: np.ndarray,
    bias: np.ndarray | None = None,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
    dilation: int = 1,
    activation_fn: ActFnType | None = None,
) -> np.ndarray:
    """Compute the same in float64."""
    x, f = np.asarray(x_in)[:, :, None, None], np.asarray(filters)[None, None]
    pads = (0, 0, 0, 0, *padding)
    return convolution_ref(x, f, bias, (1, 1, stride), pads, (1, 1, dilation), activation_fn)[:, :, 0, 0]
