"""The activation functions against scipy in float64, over the whole range of float32."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from nki.machine import activations as special

PI = np.float32(np.pi)
EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, np.pi, -np.pi, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38],
    np.float32,
)
INFINITIES = np.array([np.inf, -np.inf, np.nan], np.float32)


def every_magnitude(step: int = 65537) -> np.ndarray:
    """Bit patterns spread evenly over all of float32, denormals and NaNs included, and a dense middle."""
    spread = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = np.linspace(-20, 20, 20001, dtype=np.float32)
    wide = np.linspace(-150, 150, 5001, dtype=np.float32)
    near_zero_of_gelu_dx = np.float32(-0.75179154) + np.arange(-200, 200, dtype=np.float32) * np.float32(6e-8)
    return np.concatenate([spread, dense, wide, near_zero_of_gelu_dx, EDGES])


def gelu_dx(x):
    return reference.ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def silu_dx(x):
    return reference.expit(x) * (1 + x * reference.expit(-x))


def engine_sine(x):
    from_pi = np.abs(x) - np.pi
    return np.where(np.abs(x) <= float(PI), np.sin(x), np.sign(x) * (from_pi**3 / 6 - from_pi))


REFERENCES = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "relu": lambda x: np.maximum(x, 0),
    "prelu": lambda x: np.where(x < 0, 0, x),
    "sigmoid": reference.expit,
    "tanh": np.tanh,
    "silu": lambda x: x * reference.expit(x),
    "silu_dx": silu_dx,
    "gelu": lambda x: x * reference.ndtr(x),
    "gelu_dx": gelu_dx,
    "gelu_apprx_tanh": lambda x: x * reference.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)),
    "gelu_apprx_sigmoid": lambda x: x * reference.expit(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: silu_dx(1.702 * x),
    "softplus": lambda x: np.logaddexp(0, x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "erf": reference.erf,
    "erf_dx": lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x),
    "exp": np.exp,
    "log": np.log,
    "sin": engine_sine,
    "arctan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sign": np.sign,
    "abs": np.abs,
}

# the values at inf, -inf: limits of the formulas, which arithmetic would turn into NaN
LIMITS = {
    "copy": (np.inf, -np.inf),
    "square": (np.inf, np.inf),
    "relu": (np.inf, 0.0),
    "sigmoid": (1.0, 0.0),
    "tanh": (1.0, -1.0),
    "silu": (np.inf, 0.0),
    "silu_dx": (1.0, 0.0),
    "gelu": (np.inf, 0.0),
    "gelu_dx": (1.0, 0.0),
    "gelu_apprx_tanh": (np.inf, 0.0),
    "gelu_apprx_sigmoid": (np.inf, 0.0),
    "gelu_apprx_sigmoid_dx": (1.0, 0.0),
    "softplus": (np.inf, 0.0),
    "mish": (np.inf, 0.0),
    "erf": (1.0, -1.0),
    "erf_dx": (0.0, 0.0),
    "exp": (np.inf, 0.0),
    "log": (np.inf, np.nan),
    "sin": (np.inf, -np.inf),
    "arctan": (np.pi / 2, -np.pi / 2),
    "sqrt": (np.inf, np.nan),
    "rsqrt": (0.0, np.nan),
    "reciprocal": (0.0, 0.0),
    "sign": (1.0, -1.0),
    "abs": (np.inf, np.inf),
}


def assert_close(got: np.ndarray, exact: np.ndarray, x: np.ndarray) -> None:
    """Within 2e-7 of the exact value, or one unit in the last place of the float32 nearest to it."""
    nearest = exact.astype(np.float32)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(got), np.isnan(nearest))
    finite = np.isfinite(nearest) & np.isfinite(got)
    np.testing.assert_array_equal(got[~finite], nearest[~finite])
    error = np.abs(got[finite].astype(np.float64) - exact[finite])
    allowed = np.maximum(2e-7 * np.abs(exact[finite]), np.spacing(np.abs(nearest[finite])))
    bad = error > allowed
    assert not bad.any(), (x[finite][bad][:3], got[finite][bad][:3], exact[finite][bad][:3])


def test_every_activation_has_a_reference():
    assert REFERENCES.keys() == special.ACTIVATIONS.keys()
    assert len(special.ACTIVATIONS) == 26


@pytest.mark.parametrize("name", special.ACTIVATIONS)
def test_activation_is_accurate_over_all_of_float32(name):
    x = every_magnitude()
    with np.errstate(all="ignore"):
        assert_close(
            special.ACTIVATIONS[name](x), REFERENCES[name](np.where(np.isinf(x), np.nan, x).astype(float)), x
        )


@pytest.mark.tiny
@pytest.mark.parametrize("name", LIMITS)
def test_activation_of_infinities_is_the_limit_and_nan_stays(name):
    with np.errstate(all="ignore"):
        got = special.ACTIVATIONS[name](INFINITIES)
    np.testing.assert_array_equal(got[:2], np.array(LIMITS[name], np.float32))
    assert np.isnan(got[2])


@pytest.mark.parametrize(
    "name", ["copy", "tanh", "silu", "gelu", "gelu_apprx_tanh", "mish", "erf", "sin", "arctan", "sqrt"]
)
def test_odd_at_zero_functions_keep_the_sign_of_zero(name):
    got = special.ACTIVATIONS[name](np.array([-0.0, 0.0], np.float32))
    assert list(np.signbit(got)) == [True, False] and (got == 0).all()


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_apprx_tanh", "gelu_apprx_sigmoid", "mish"])
def test_gates_fall_to_minus_zero_far_to_the_left(name):
    with np.errstate(over="ignore"):
        got = special.ACTIVATIONS[name](np.array([-200.0, -1e30, -np.inf], np.float32))
    assert (got == 0).all() and np.signbit(got).all()


def test_exp_is_exact_at_zero_and_minus_infinity():
    assert list(special.ACTIVATIONS["exp"](np.array([0.0, -np.inf], np.float32))) == [1.0, 0.0]


@pytest.mark.tiny
def test_sine_of_the_engine_goes_on_as_a_cubic():
    got = special.ACTIVATIONS["sin"](np.array([9.0, -9.0, 0.5], np.float32))
    np.testing.assert_allclose(got, [27.6526, -27.6526, np.sin(0.5)], rtol=1e-5)


def test_range_reduced_sine_and_cosine_stay_exact():
    x = every_magnitude()
    x = x[np.abs(x) < 1e6]
    for name, exact in (("sin", np.sin), ("cos", np.cos), ("tan", np.tan)):
        assert_close(getattr(special, name)(x), exact(x.astype(np.float64)), x)


def test_prelu_scales_negative_values_by_the_slope_of_their_row():
    x = np.array([[-2.0, 3.0], [-4.0, 0.0]], np.float32)
    slope = np.array([[0.5], [-1.0]], np.float32)
    np.testing.assert_array_equal(special.prelu(x, slope), [[-1.0, 3.0], [4.0, 0.0]])


@pytest.mark.parametrize("name", special.ACTIVATIONS)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 4), (130, 70)])
def test_activation_keeps_shape_and_dtype(name, shape):
    x = np.full(shape, 0.5, np.float32)
    got = special.ACTIVATIONS[name](x)
    assert got.shape == shape and got.dtype == np.float32


def test_activation_of_strided_input_equals_that_of_a_copy():
    x = np.random.default_rng(0).standard_normal((256, 96)).astype(np.float32)
    for name, function in special.ACTIVATIONS.items():
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(function(x[::2, ::3]), function(x[::2, ::3].copy()), err_msg=name)


@given(st.lists(st.floats(width=32), min_size=1, max_size=20), st.sampled_from(sorted(REFERENCES)))
@settings(max_examples=400, deadline=None)
def test_any_float32_is_accurate(values, name):
    x = np.array(values, np.float32)
    x = x[~np.isinf(x)]
    if x.size:
        with np.errstate(all="ignore"):
            assert_close(special.ACTIVATIONS[name](x), REFERENCES[name](x.astype(np.float64)), x)


RANGES = {
    "log": (2.0**-64, 2.0**64),
    "sin": (-PI, PI),
    "arctan": (-np.pi / 2, np.pi / 2),
    "sqrt": (2.0**-116, 2.0**118),
    "rsqrt": (2.0**-87, 2.0**97),
}


@pytest.mark.parametrize("name", RANGES)
def test_inputs_outside_the_valid_range_are_found(name):
    low, high = (np.float32(end) for end in RANGES[name])
    inside = np.array([low, high, (low + high) / 2], np.float32)
    below, above = np.nextafter(low, np.float32(-np.inf)), np.nextafter(high, np.float32(np.inf))
    if name == "arctan":  # float32 has no pi/2; the nearest number below it is inside
        inside[:2] = np.nextafter(inside[:2], np.float32(0))
    assert special.outside_valid_range(name, inside) is None
    np.testing.assert_array_equal(special.outside_valid_range(name, np.append(inside, below)), [below])
    np.testing.assert_array_equal(special.outside_valid_range(name, np.append(inside, above)), [above])


def test_the_range_of_reciprocal_is_one_of_magnitudes():
    inside = np.array([2.0**-42, -(2.0**-42), 2.0**42, -(2.0**42), 1.0, -1.0], np.float32)
    assert special.outside_valid_range("reciprocal", inside) is None
    outside = np.array([0.0, 2.0**43, -(2.0**-43)], np.float32)
    np.testing.assert_array_equal(
        special.outside_valid_range("reciprocal", np.append(inside, outside)), outside
    )


def test_nan_is_not_out_of_range_and_hides_nothing():
    assert special.outside_valid_range("log", np.array([np.nan, 1.0], np.float32)) is None
    assert list(special.outside_valid_range("log", np.array([np.nan, -1.0], np.float32))) == [-1.0]


def test_functions_good_everywhere_have_no_range():
    x = np.array([-np.inf, 0, np.inf], np.float32)
    for name in set(special.ACTIVATIONS) - {*RANGES, "reciprocal"}:
        assert special.outside_valid_range(name, x) is None
