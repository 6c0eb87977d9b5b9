"""The activation functions of ScalarE on float32 arrays (spec/isa.md 3), good to 2e-7 or the last place.

What numpy has in float32 is taken as it is. The rest is computed in float64, in forms that neither overflow
nor cancel, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
Function = Callable[[Array], Array]

_FAR = 800.0  # exp of it overflows float64, so functions of exp have long reached their limits
_PI = np.float32(np.pi)
_BLOCK = 8192  # elements whose float64 temporaries stay in the cache: twice as fast as whole tiles


def _in_float64(function: Function) -> Function:
    def evaluate(x: Array) -> Array:
        if not isinstance(x, (np.ndarray, np.generic, float, int)):  # arrays of another kind, elsewhere
            return function(x.astype(np.float64)).astype(np.float32)
        x = np.asarray(x)
        stream, result = x.reshape(-1), np.empty(x.size, np.float32)
        for start in range(0, x.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            result[block] = function(stream[block].astype(np.float64))
        return result.reshape(x.shape)

    return evaluate


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Horner's rule, constant term first, in place: half the time of np.polyval."""
    result = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        result += coefficient
        result *= x
    result += coefficients[0]
    return result


def _some(mask: Array) -> bool:
    """Whether there is anything to do where the mask holds; who cannot tell without waiting does it."""
    return bool(mask.any()) if isinstance(mask, (np.ndarray, np.generic)) else True


# ---- exp and its family --------------------------------------------------------------------------


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _x_sigmoid(x: Array, slope: Array) -> Array:
    """x * sigmoid(slope); the infinities end in 0 and infinity."""
    return np.maximum(x, -_FAR) / (1 + np.exp(-slope))


def _x_sigmoid_dx(x: Array) -> Array:
    """The derivative of x * sigmoid(x)."""
    x = np.clip(x, -_FAR, _FAR)
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


def _gelu_apprx_tanh(x: Array) -> Array:
    # (1 + tanh u) / 2 is sigmoid(2u), which keeps its digits where tanh nears -1
    return _x_sigmoid(x, np.sqrt(8 / np.pi) * (x + 0.044715 * (x * x * x)))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _mish(x: Array) -> Array:
    # tanh(log(1 + e)) is n / (n + 2) with n = e (e + 2)
    x = np.maximum(x, -_FAR)
    e = np.exp(np.minimum(x, _FAR / 4))
    n = e * (e + 2)
    return x * (n / (n + 2))


# ---- erf and its family --------------------------------------------------------------------------

# exp(a*a/2) times the normal distribution above a, P/Q for 0 <= a <= 16: relative error 1.1e-10
_TAIL_P = (
    0.4999999999484299,
    0.5104382463338446,
    0.2531640636166865,
    0.07241057847824892,
    0.011892821403792407,
    0.0009156941378148976,
)
_TAIL_Q = (
    1.0,
    1.8187610436771948,
    1.4574896327281524,
    0.6643097462924732,
    0.1838065613969448,
    0.029810726657527657,
    0.0022953070272358216,
)
_TAIL_END = 16.0  # what lies above is less than float32 can hold

# erf(x) / x, P/Q in x*x for abs(x) <= 4, from where on float32 rounds to 1: relative error 2.6e-9
_ERF_P = (
    1.1283791699597059,
    0.19287934543751525,
    0.05574940824425774,
    0.00422648533955097,
    0.00041126847613597636,
    6.790981156383427e-06,
)
_ERF_Q = (
    1.0,
    0.5042683029714222,
    0.11749541307616344,
    0.01629510029663526,
    0.00142119392607322,
    7.256111025399866e-05,
    2.6046501220507225e-07,
)

# the zero of gelu_dx and the Taylor series about it, where the formula has no digits left
_GELU_DX_ZERO = -0.75179152469356446
_GELU_DX_TAYLOR = (0.0, 0.43149399231404692, 0.388284982990552, -0.018199676398671087, -0.11400823329722171)


def _erf(x: Array) -> Array:
    x = np.clip(x, -4, 4)
    square = x * x
    return x * (_polynomial(square, _ERF_P) / _polynomial(square, _ERF_Q))


def _tail(a: Array) -> tuple[Array, Array]:
    """The normal distribution above a as two factors, exp(-a*a/2) and the rest; 0 <= a <= _TAIL_END."""
    return np.exp(-0.5 * (a * a)), _polynomial(a, _TAIL_P) / _polynomial(a, _TAIL_Q)


def _gelu(x: Array) -> Array:
    a = np.minimum(np.abs(x), _TAIL_END)
    fall, rest = _tail(a)
    return np.copysign(np.maximum(x, 0) - a * fall * rest, x)


def _gelu_dx(x: Array) -> Array:
    a = np.minimum(np.abs(x), _TAIL_END)
    fall, rest = _tail(a)
    below = fall * (rest - a / np.sqrt(2 * np.pi))  # for x < 0; for x > 0 it is 1 - below
    result = ~np.signbit(x) - np.copysign(1, x) * below
    distance = x - _GELU_DX_ZERO
    near = np.abs(distance) < 0.01
    return np.where(near, _polynomial(distance, _GELU_DX_TAYLOR), result) if _some(near) else result


# ---- sine ----------------------------------------------------------------------------------------


def _sin_of_engine(x: Array) -> Array:
    """sin inside [-pi, pi]; outside, the last polynomial piece goes on as a cubic (spec/isa.md 3)."""
    result = np.sin(x)
    outside = np.abs(x) > _PI
    if not _some(outside):
        return result
    d = x.astype(np.float64)
    d = d - np.copysign(np.pi, d)
    return np.where(outside, d * (d * d / 6 - 1), result).astype(np.float32)


# ---- tables --------------------------------------------------------------------------------------


_ZERO = np.float32(0)


def prelu(x: Array, slope: Any = _ZERO) -> Array:
    """x, times `slope` where it is negative."""
    return np.where(x < 0, slope * x, x)


ACTIVATIONS: dict[str, Function] = {
    "copy": lambda x: x,
    "square": np.square,
    "relu": lambda x: np.maximum(x, _ZERO),
    "prelu": prelu,
    "sigmoid": _in_float64(_sigmoid),
    "tanh": np.tanh,
    "silu": _in_float64(lambda x: _x_sigmoid(x, x)),
    "silu_dx": _in_float64(_x_sigmoid_dx),
    "gelu": _in_float64(_gelu),
    "gelu_dx": _in_float64(_gelu_dx),
    "gelu_apprx_tanh": _in_float64(_gelu_apprx_tanh),
    "gelu_apprx_sigmoid": _in_float64(lambda x: _x_sigmoid(x, 1.702 * x)),
    "gelu_apprx_sigmoid_dx": _in_float64(lambda x: _x_sigmoid_dx(1.702 * x)),
    "softplus": _in_float64(_softplus),
    "mish": _in_float64(_mish),
    "erf": _in_float64(_erf),
    "erf_dx": _in_float64(lambda x: 2 / np.sqrt(np.pi) * np.exp(-(x * x))),
    "exp": np.exp,
    "log": _in_float64(np.log),  # numpy's float32 log is off by up to 3 units
    "sin": _sin_of_engine,
    "arctan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.float32(1) / np.sqrt(x),
    "reciprocal": np.reciprocal,
    "sign": np.sign,
    "abs": np.abs,
}

_ALSO_ALU = ("square", "relu", "rsqrt", "reciprocal", "abs", "prelu")
ACTIVATIONS_ONLY = {name: f for name, f in ACTIVATIONS.items() if name not in _ALSO_ALU}

# Where hardware's approximation is good; outside we return the exact function (but for sin).
VALID_RANGES: dict[str, tuple[float, float]] = {
    "log": (2.0**-64, 2.0**64),
    "sin": (-float(_PI), float(_PI)),
    "arctan": (-np.pi / 2, np.pi / 2),
    "sqrt": (2.0**-116, 2.0**118),
    "rsqrt": (2.0**-87, 2.0**97),
    "reciprocal": (2.0**-42, 2.0**42),  # of the magnitude
}


def outside_valid_range(name: str, x: Array) -> Array | None:
    """Return the inputs for which `name` is inaccurate on hardware, or None."""
    if name not in VALID_RANGES or not x.size:
        return None
    low, high = VALID_RANGES[name]
    tested = np.abs(x) if name == "reciprocal" else x
    if not isinstance(x, np.ndarray):  # an array of another backend, which reports at the end
        x.doubt((tested < np.float32(low)) | (tested > np.float32(high)))
        return None
    if low <= tested.min() and tested.max() <= high:
        return None
    outside = x[(tested < low) | (tested > high)]  # a NaN is not out of range, but hides the extremes
    return outside if outside.size else None


sin = _in_float64(np.sin)
cos = _in_float64(np.cos)
tan = _in_float64(np.tan)
