"""The activation functions of ScalarE on float32 arrays (isa.md 3), computed in float64 where it matters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray
_f32 = np.float32


def _in_float64(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def evaluate(x: Array) -> Array:
        return function(np.asarray(x, np.float64)).astype(np.float32)

    evaluate.__name__ = function.__name__
    return evaluate


def _erf64(x: Array) -> Array:
    """erf by W. J. Cody's rational approximations, relative error below 1e-15."""
    ax = np.abs(x)
    small = _ratio(x * x, _ERF_A, _ERF_B) * x
    y = np.clip(ax, 0.46875, 6.0)
    middle = 1.0 - np.exp(-y * y) * _ratio(y, _ERF_C, _ERF_D)
    inverse = 1.0 / (y * y)
    tail = (1 / np.sqrt(np.pi) - inverse * _ratio(inverse, _ERF_P, _ERF_Q)) / y
    large = 1.0 - np.exp(-y * y) * tail
    positive = np.where(ax <= 4.0, middle, large)
    result = np.where(ax <= 0.46875, small, np.copysign(positive, x))
    return np.where(np.isnan(x), x, result)


def _ratio(x: Array, numerator: tuple[float, ...], denominator: tuple[float, ...]) -> Array:
    return np.polyval(numerator, x) / np.polyval(denominator, x)


_ERF_A = (
    1.85777706184603153e-1,
    3.16112374387056560e00,
    1.13864154151050156e02,
    3.77485237685302021e02,
    3.20937758913846947e03,
)
_ERF_B = (1.0, 2.36012909523441209e01, 2.44024637934444173e02, 1.28261652607737228e03, 2.84423683343917062e03)
_ERF_C = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594e00,
    6.61191906371416295e01,
    2.98635138197400131e02,
    8.81952221241769090e02,
    1.71204761263407058e03,
    2.05107837782607147e03,
    1.23033935479799725e03,
)
_ERF_D = (
    1.0,
    1.57449261107098347e01,
    1.17693950891312499e02,
    5.37181101862009858e02,
    1.62138957456669019e03,
    3.29079923573345963e03,
    4.36261909014324716e03,
    3.43936767414372164e03,
    1.23033935480374942e03,
)
_ERF_P = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
_ERF_Q = (
    1.0,
    2.56852019228982242e00,
    1.87295284992346725e00,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)


def _sigmoid64(x: Array) -> Array:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _softplus64(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _phi(x: Array) -> Array:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def _normal_cdf(x: Array) -> Array:
    return 0.5 * (1 + _erf64(x / np.sqrt(2)))


def _times(x: Array, y: Array) -> Array:
    """x * y where y tends to 0 faster than x grows: -inf gives -0, not NaN."""
    return np.where(np.isneginf(x), -0.0, x * y)


def _gelu_apprx_tanh(x: Array) -> Array:
    return _times(x, 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def _silu_dx(x: Array) -> Array:
    s = _sigmoid64(x)
    return s * (1 + np.where(np.isinf(x), 0, x * (1 - s)))


def _gelu_apprx_sigmoid_dx(x: Array) -> Array:
    s = _sigmoid64(1.702 * x)
    return s + 1.702 * np.where(np.isinf(x), 0, x * s * (1 - s))


def _sin_of_engine(x: Array) -> Array:
    """sin inside [-pi, pi]; outside, the last polynomial piece goes on as a cubic (isa.md 3)."""
    d = x - np.copysign(np.pi, x)
    return np.where(np.abs(x) <= np.pi, np.sin(x), -d + d**3 / 6)


def _gelu_dx(x: Array) -> Array:
    return _normal_cdf(x) + np.where(np.isinf(x), 0, x * _phi(x))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "copy": lambda x: x,
    "square": np.square,
    "relu": lambda x: np.maximum(x, _f32(0)),
    "prelu": lambda x: np.where(x < 0, _f32(0) * x, x),
    "sigmoid": _in_float64(_sigmoid64),
    "tanh": np.tanh,
    "silu": _in_float64(lambda x: _times(x, _sigmoid64(x))),
    "silu_dx": _in_float64(_silu_dx),
    "gelu": _in_float64(lambda x: _times(x, _normal_cdf(x))),
    "gelu_dx": _in_float64(_gelu_dx),
    "gelu_apprx_tanh": _in_float64(_gelu_apprx_tanh),
    "gelu_apprx_sigmoid": _in_float64(lambda x: _times(x, _sigmoid64(1.702 * x))),
    "gelu_apprx_sigmoid_dx": _in_float64(_gelu_apprx_sigmoid_dx),
    "softplus": _in_float64(_softplus64),
    "mish": _in_float64(lambda x: _times(x, np.tanh(_softplus64(x)))),
    "erf": _in_float64(_erf64),
    "erf_dx": _in_float64(lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "exp": np.exp,
    "log": np.log,
    "sin": _in_float64(_sin_of_engine),
    "arctan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: _f32(1) / np.sqrt(x),
    "reciprocal": np.reciprocal,
    "sign": np.sign,
    "abs": np.abs,
}

_ALSO_ALU = ("square", "relu", "rsqrt", "reciprocal", "abs", "prelu")
ACTIVATIONS_ONLY = {name: f for name, f in ACTIVATIONS.items() if name not in _ALSO_ALU}

# where hardware's approximation is good; outside we return the exact function (but for sin)
VALID_RANGES: dict[str, tuple[float, float]] = {
    "log": (2.0**-64, 2.0**64),
    "sin": (-np.pi, np.pi),
    "arctan": (-np.pi / 2, np.pi / 2),
    "sqrt": (2.0**-116, 2.0**118),
    "rsqrt": (2.0**-87, 2.0**97),
}

sin = _in_float64(np.sin)
cos = _in_float64(np.cos)
tan = _in_float64(np.tan)
