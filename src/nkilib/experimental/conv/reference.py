"""The convolutions in numpy, in float64."""

from __future__ import annotations

import math

import numpy as np

from nkilib.core.utils.common_types import ActFnType


def convolution_ref(
    x: np.ndarray,
    filters: np.ndarray,
    bias: np.ndarray | None,
    stride: tuple,
    padding: tuple,
    dilation: tuple,
    act: ActFnType | None,
) -> np.ndarray:
    """Convolve x [B, Ci, D, H, W] with filters [Kd, Kh, Kw, Ci, Co] in float64, tap by tap."""
    pads = [(0, 0), (0, 0)] + [(padding[2 * i], padding[2 * i + 1]) for i in range(3)]
    wide = np.pad(np.asarray(x, np.float64), pads)
    kernel = np.asarray(filters, np.float64)
    outputs = [
        (wide.shape[i + 2] - dilation[i] * (kernel.shape[i] - 1) - 1) // stride[i] + 1 for i in range(3)
    ]
    total = np.zeros(())
    for tap in np.ndindex(kernel.shape[:3]):
        at = [tap[i] * dilation[i] for i in range(3)]
        cut = [slice(at[i], at[i] + (outputs[i] - 1) * stride[i] + 1, stride[i]) for i in range(3)]
        total = total + np.einsum("bcdhw,co->bodhw", wide[:, :, cut[0], cut[1], cut[2]], kernel[tap])
    if bias is not None:
        total = total + np.asarray(bias, np.float64)[None, :, None, None, None]
    return activation_ref(total, act)


def activation_ref(x: np.ndarray, activation: ActFnType | None) -> np.ndarray:
    """Apply an activation of the convolutions in float64."""
    if activation is None:
        return x
    if activation == ActFnType.ReLU:
        return np.maximum(x, 0.0)
    if activation in (ActFnType.SiLU, ActFnType.Swish):
        return x / (1.0 + np.exp(-x))
    if activation == ActFnType.GELU_Tanh_Approx:
        return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    if activation == ActFnType.GELU:
        return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / np.sqrt(2.0)))
    raise ValueError(
        f"activation_fn: got {activation}, allowed are None, SiLU, GELU, GELU_Tanh_Approx, Swish and ReLU"
    )
