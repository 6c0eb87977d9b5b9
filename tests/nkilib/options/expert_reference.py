"""One expert of a mixture in float64: f(x) = down(act(gate(x)) * up(x)), written apart from the kernels."""

from __future__ import annotations

import math

import numpy as np

from nkilib.core.utils.common_types import ActFnType

ACTIVATIONS = {
    ActFnType.SiLU: lambda x: x / (1 + np.exp(-x)),
    ActFnType.Swish: lambda x: x / (1 + np.exp(-1.702 * x)),
    ActFnType.GELU: lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    ActFnType.GELU_Tanh_Approx: lambda x: (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    ActFnType.ReLU: lambda x: np.maximum(x, 0),
    ActFnType.SquaredReLU: lambda x: np.maximum(x, 0) ** 2,
}


def clamp(x, upper, lower):
    x = x if upper is None else np.minimum(x, upper)
    return x if lower is None else np.maximum(x, lower)


def scaled(product, scale, expert):
    """The product times one number, or one for each column, of an expert or of all."""
    if scale is None:
        return product
    scale = np.asarray(scale, np.float64)
    return product * scale[expert if len(scale) > 1 else 0].reshape(-1)


def run_expert(x, e, gate_up, down, act, limits, biases=(None, None), scales=(None, None), skip_gate=False):
    """(gate, up, result) of expert e for rows x; limits are (gate upper, lower, up upper, lower)."""
    gate_up, down = np.asarray(gate_up, np.float64), np.asarray(down, np.float64)
    inner = gate_up.shape[3]
    both = x @ gate_up[e].reshape(gate_up.shape[1], -1)
    scale = scales[0]
    if scale is not None and np.ndim(scale) == 3 and np.shape(scale)[1:] == (2, 1):
        scale = np.repeat(np.asarray(scale, np.float64).reshape(-1, 2), inner, axis=1)
    both = scaled(both, scale, e).reshape(-1, 2, inner)
    if biases[0] is not None:
        both = both + np.asarray(biases[0], np.float64)[e]
    gate, up = clamp(both[:, 0], *limits[:2]), clamp(both[:, 1], *limits[2:])
    middle = ACTIVATIONS[act](up) if skip_gate else ACTIVATIONS[act](gate) * up
    y = scaled(middle @ down[e], scales[1], e)
    return gate, up, y if biases[1] is None else y + np.asarray(biases[1], np.float64)[e]
