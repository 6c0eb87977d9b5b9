"""What the references of the expert kernels share: activation functions and limits in numpy."""

from __future__ import annotations

import math

import numpy as np

from nkilib.core.utils.common_types import ActFnType


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def activation_ref(act_fn: ActFnType, x: np.ndarray) -> np.ndarray:
    """The activation functions of MLPs; Swish is x * sigmoid(1.702 x)."""
    if act_fn == ActFnType.SiLU:
        return x * sigmoid(x)
    if act_fn == ActFnType.Swish:
        return x * sigmoid(1.702 * x)
    if act_fn == ActFnType.GELU:
        return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))
    if act_fn == ActFnType.GELU_Tanh_Approx:
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return np.maximum(x, 0.0) ** (2 if act_fn == ActFnType.SquaredReLU else 1)


def clamp_ref(x: np.ndarray, upper: float | None, lower: np.ndarray | None) -> np.ndarray:
    x = x if upper is None else np.minimum(x, upper)
    return x if lower is None else np.maximum(x, lower)
