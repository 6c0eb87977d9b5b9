"""Element-wise nl functions, against numpy in float64."""

from __future__ import annotations

import inspect
import pickle
import pydoc

import ml_dtypes
import numpy as np
import pytest
from bodies import issued, kinds_on_tiles, on_tiles, refusal, refusal_on_tiles, refusal_when_strict, run
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special as sp

import nki
import nki.isa as nisa
import nki.language as nl
from nki.language.elementwise import BINARY, UNARY
from nki.machine import dtypes

FLOATS = [
    nl.float32,
    nl.bfloat16,
    nl.float16,
    nl.tfloat32,
    nl.float8_e4m3,
    nl.float8_e5m2,
    nl.float8_e4m3fn,
]
INTEGERS = [nl.int8, nl.uint8, nl.int16, nl.uint16, nl.int32, nl.uint32]

REFERENCE = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "abs_max": lambda a, b: np.where(np.abs(a) > np.abs(b), a, b),
    "abs_min": lambda a, b: np.where(np.abs(a) < np.abs(b), a, b),
    "power": lambda a, b: np.exp(b * np.log(a)),
    "mod": lambda a, b: a - np.floor(a / b) * b,
    "fmod": lambda a, b: a - np.trunc(a / b) * b,
    "equal": lambda a, b: np.where(a == b, 1.0, 0.0),
    "not_equal": lambda a, b: np.where(a == b, 0.0, 1.0),
    "less": lambda a, b: np.where(a < b, 1.0, 0.0),
    "less_equal": lambda a, b: np.where(a > b, 0.0, 1.0),
    "greater": lambda a, b: np.where(a > b, 1.0, 0.0),
    "greater_equal": lambda a, b: np.where(a < b, 0.0, 1.0),
    "logical_and": lambda a, b: np.where((a != 0) & (b != 0), 1.0, 0.0),
    "logical_or": lambda a, b: np.where((a != 0) | (b != 0), 1.0, 0.0),
    "logical_xor": lambda a, b: np.where((a != 0) != (b != 0), 1.0, 0.0),
}
NORMAL = sp.ndtr
UNARY_REFERENCE = {
    "abs": np.abs,
    "square": lambda x: x * x,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arctan": np.arctan,
    "tanh": np.tanh,
    "sigmoid": sp.expit,
    "relu": lambda x: np.where(x > 0, x, 0),
    "gelu": lambda x: x * NORMAL(x),
    "gelu_dx": lambda x: NORMAL(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
    "gelu_apprx_sigmoid": lambda x: x / (1 + np.exp(-1.702 * x)),
    "gelu_apprx_sigmoid_dx": lambda x: (
        sp.expit(1.702 * x) + 1.702 * x * sp.expit(1.702 * x) * sp.expit(-1.702 * x)
    ),
    "gelu_apprx_tanh": lambda x: x * sp.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)),
    "silu": lambda x: x * sp.expit(x),
    "silu_dx": lambda x: sp.expit(x) * (1 + x * sp.expit(-x)),
    "softplus": lambda x: np.logaddexp(0, x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "erf": sp.erf,
    "erf_dx": lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x),
    "sign": np.sign,
    "negative": lambda x: -x,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "copy": lambda x: x,
}
POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal")
ON_TRN3 = ("abs_max", "abs_min")


def platform(name):
    return "trn3" if name in ON_TRN3 else "trn2"


def data(shape, dtype=nl.float32, seed=0, low=-3.0, high=3.0):
    """Values a dtype holds exactly, zero apart, so that references see what the kernel sees."""
    values = np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)
    if dtype.is_integer:
        values = np.maximum(np.rint(values), -np.inf if dtype.is_signed else 0)
    if dtype == nl.tfloat32:
        values = dtypes.cast(values, dtype)
    return values.astype(dtype.storage)


def close(actual, wanted, dtype=None, rtol=2e-6):
    """Equal up to the rounding of the dtype and of float32 arithmetic."""
    actual = np.asarray(actual)
    if dtype is None:
        dtype = dtypes.resolve(actual.dtype)
    rounded = dtypes.f32(dtypes.cast(np.asarray(wanted, np.float32), dtype), dtype)
    step = {1: 0.26, 2: 0.01, 4: rtol}[dtype.itemsize] if dtype.is_float else 0
    np.testing.assert_allclose(dtypes.f32(actual, dtype), rounded, rtol=step, atol=1e-6 if step else 0)


# ---- two operands --------------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize("name", REFERENCE)
def test_binary_functions_compute_in_float32(name):
    a, b = data((128, 40), seed=1), data((128, 40), seed=2)
    a[:, :5] = b[:, :5]
    if name == "power":
        a = np.abs(a) + 0.1
    a[:, 5:7] = 0 if name.startswith("logical") else a[:, 5:7]
    result = on_tiles(getattr(nl, name), a, b, on=platform(name))
    wanted = REFERENCE[name](a.astype(np.float64), b.astype(np.float64))
    if name == "mod":  # a quotient that float32 and float64 see on different sides of an integer
        wanted = np.where(np.abs(np.abs(result - wanted) - np.abs(b)) < 1e-5, result, wanted)
    np.testing.assert_allclose(result, wanted, rtol=3e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "less"])
def test_binary_functions_round_once_into_every_float_dtype(name, dtype):
    a, b = data((33, 17), dtype, 3), data((33, 17), dtype, 4)
    function = getattr(nl, name)
    result = on_tiles(lambda x, y: function(x, y, dtype=dtype), a, b, on="trn3")
    wanted = REFERENCE[name](dtypes.f32(a, dtype), dtypes.f32(b, dtype))
    assert result.dtype == dtype.storage
    expected = dtypes.f32(dtypes.cast(np.float32(wanted), dtype), dtype)
    np.testing.assert_array_equal(dtypes.f32(result, dtype), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "minimum", "greater", "logical_xor"])
def test_binary_functions_on_integers(name, dtype):
    a, b = data((9, 30), dtype, 5, 0, 11), data((9, 30), dtype, 6, 0, 11)
    result = on_tiles(getattr(nl, name), a, b)
    wanted = REFERENCE[name](a.astype(np.int64), b.astype(np.int64))
    info = np.iinfo(result.dtype)
    if dtype in (nl.int32, nl.uint32):
        np.testing.assert_array_equal(result, np.asarray(wanted).astype(np.int64).astype(result.dtype))
    else:
        np.testing.assert_array_equal(result, np.clip(wanted, info.min, info.max))


@pytest.mark.parametrize("name", [n for n in REFERENCE if n != "power"])
@pytest.mark.parametrize("left", [True, False])
def test_a_number_may_stand_on_either_side(name, left):
    a = data((20, 12), seed=7)
    function = getattr(nl, name)
    number = np.float32(-1.25)
    result = on_tiles(
        (lambda x: function(number, x)) if left else (lambda x: function(x, float(number))),
        a,
        on=platform(name),
    )
    wide = a.astype(np.float64)
    wanted = REFERENCE[name](-1.25, wide) if left else REFERENCE[name](wide, -1.25)
    np.testing.assert_allclose(result, wanted, rtol=3e-6, atol=2e-6)


def test_power_with_a_number_on_either_side():
    a = np.abs(data((20, 12), seed=8)) + 0.1
    np.testing.assert_allclose(on_tiles(lambda x: nl.power(x, 0.5), a), np.sqrt(a), rtol=1e-5)
    np.testing.assert_allclose(on_tiles(lambda x: nl.power(2.0, x), a), np.exp2(a), rtol=1e-5)
    negative = on_tiles(lambda x: nl.power(x, 0.5), -a)
    assert np.isnan(negative).all()


@pytest.mark.parametrize("name", ["add", "subtract", "divide", "less", "power", "maximum"])
@pytest.mark.parametrize("psum", [(0,), (1,), (0, 1)])
def test_operands_may_be_in_psum(name, psum):
    a, b = np.abs(data((64, 16), seed=9)) + 0.1, data((64, 16), seed=10)
    result = on_tiles(getattr(nl, name), a, b, psum=psum)
    np.testing.assert_allclose(result, REFERENCE[name](a.astype(np.float64), b.astype(np.float64)), rtol=1e-5)


BROADCASTS = [
    ((8, 6), (8, 1)),
    ((8, 1), (8, 6)),
    ((40, 6), (1, 6)),
    ((1, 6), (128, 6)),
    ((40, 6), (1, 1)),
    ((8, 1), (1, 6)),
    ((8, 3, 4), (8, 1, 4)),
    ((8, 3, 1), (8, 1, 4)),
    ((8, 3, 4), (8, 1, 1)),
    ((33, 3, 4), (1, 3, 1)),
    ((4, 2, 3, 2), (4, 2, 1, 2)),
]


@pytest.mark.parametrize(("left", "right"), BROADCASTS)
@pytest.mark.parametrize("name", ["subtract", "divide", "less"])
@pytest.mark.parametrize("psum", [(), (0, 1)])
def test_size_one_dimensions_are_broadcast(left, right, name, psum):
    a, b = data(left, seed=11), data(right, seed=12)
    result = on_tiles(getattr(nl, name), a, b, psum=psum)
    wanted = REFERENCE[name](a.astype(np.float64), b.astype(np.float64))
    assert result.shape == wanted.shape
    np.testing.assert_allclose(result, wanted, rtol=3e-6)


def test_only_a_column_is_broadcast_without_a_warning():
    a = data((8, 6))
    assert kinds_on_tiles(nl.add, a, a[:, :1].copy()) == []
    assert kinds_on_tiles(nl.add, a, a) == []
    assert kinds_on_tiles(nl.add, a, a[:1].copy()) == ["broadcast"]
    assert kinds_on_tiles(nl.add, data((8, 2, 3)), data((8, 1, 3))) == ["broadcast"]


def test_a_narrow_column_is_converted_without_a_warning():
    a = data((8, 6), nl.bfloat16)
    assert kinds_on_tiles(nl.add, a, a[:, :1].copy()) == []


@pytest.mark.parametrize(("left", "right"), [((4, 3), (4, 2)), ((4, 3), (4, 1, 3)), ((4, 3), (2, 3))])
def test_shapes_that_do_not_fit_are_refused(left, right):
    problem = refusal_on_tiles(nl.add, data(left), data(right))
    assert problem.kind == "shape" and str(left) in str(problem) and str(right) in str(problem)


def test_views_are_operands():
    a = data((16, 24), seed=13)

    def body(x):
        return nl.add(x[:, ::2].reshape((16, 3, 4)), x.reshape((16, 2, 3, 4)).select(1, 1))

    wanted = a[:, ::2].reshape(16, 3, 4) + a.reshape(16, 2, 3, 4)[:, 1]
    np.testing.assert_array_equal(on_tiles(body, a), wanted)


def test_the_result_is_a_new_sbuf_tile():
    def body(x):
        y = nl.add(x, 0.0)
        assert y.buffer is nl.sbuf and y.storage is not x.storage
        assert nl.copy(x).storage is not x.storage

    on_tiles(body, data((4, 4)), psum=(0,))


# ---- result dtypes -------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [d for d in dtypes.ALL if d.castable])
@pytest.mark.parametrize("second", [d for d in dtypes.ALL if d.castable])
def test_two_tiles_are_promoted(first, second):
    def body():
        x, y = nl.zeros((2, 2), first), nl.zeros((2, 2), second)
        assert nl.add(x, y).dtype == dtypes.promote(first, second)
        assert nl.less(x, y).dtype == first and nl.logical_or(x, y).dtype == first
        assert nl.add(x, y, nl.float16).dtype == nl.float16
        assert nl.equal(x, y, dtype=nl.uint8).dtype == nl.uint8
        assert nl.add(x, 2).dtype == first and nl.greater(1, y).dtype == second

    run(body, on="trn3")


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        (nl.float16, nl.bfloat16, nl.float32),
        (nl.float8_e4m3, nl.float8_e5m2, nl.bfloat16),
        (nl.int32, nl.float8_e5m2, nl.float8_e5m2),
        (nl.int8, nl.uint8, nl.int16),
        (nl.int32, nl.uint32, nl.int32),
        (nl.bfloat16, nl.float32, nl.float32),
    ],
)
def test_documented_promotions(first, second, result):
    def body():
        for a, b in ((first, second), (second, first)):
            assert nl.multiply(nl.zeros((2, 2), a), nl.zeros((2, 2), b)).dtype == result

    run(body)


def test_a_fraction_against_integers_is_rounded_with_a_warning():
    a = np.array([[1, 2, 3, 5]], np.int32)
    assert on_tiles(lambda x: nl.multiply(x, 0.5), a).tolist() == [[0, 1, 2, 2]]
    assert kinds_on_tiles(lambda x: nl.multiply(x, 0.5), a) == ["weak-scalar"]
    assert "weak-scalar" in kinds_on_tiles(lambda x: nl.multiply(x, float("inf")), a)
    assert kinds_on_tiles(lambda x: nl.multiply(x, 2.0), a) == []
    assert kinds_on_tiles(lambda x: nl.multiply(x, 0.5, nl.float32), a) == []
    assert kinds_on_tiles(lambda x: nl.less(x, 0.5), a) == []
    assert kinds_on_tiles(lambda x: nl.multiply(x, 0.5), a.astype(np.float32)) == []


def test_packed_dtypes_do_not_take_part():
    def body():
        nl.add(nl.zeros((2, 2), nl.float8_e5m2_x4), 1.0)

    assert refusal(body, on="trn3").kind == "dtype"
    mixed = refusal(lambda: nl.add(nl.zeros((2, 2), nl.float8_e8m0fnu), nl.zeros((2, 2), nl.int8)))
    assert mixed.kind == "dtype"
    assert refusal(lambda: nl.exp(nl.zeros((2, 2), nl.float8_e8m0fnu))).kind == "dtype"


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add", "divide", "less", "bitwise_and"])
def test_hbm_operands_are_refused_with_advice_when_strict(name):
    function = getattr(nl, name)
    for body in (lambda t: function(t, 1), lambda t: function(nl.zeros((4, 4), nl.int32), t)):
        problem = refusal_when_strict(body, np.zeros((4, 4), np.int32))
        assert problem.kind == "buffer" and "nl.load" in problem.help and name in str(problem)


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_want_a_tile(name):
    function = getattr(nl, name)
    assert refusal_when_strict(lambda t: function(t), np.zeros((4, 4), np.int32)).kind == "buffer"
    problem = refusal(lambda: function(3.0))
    assert problem.kind == "argument" and isinstance(problem, TypeError)


def test_numbers_alone_and_other_types_are_refused():
    assert refusal(lambda: nl.add(1, 2)).kind == "argument"
    assert refusal(lambda: nl.add(nl.zeros((2, 2), nl.float32), "x")).kind == "argument"
    assert refusal(lambda: nl.add(None, nl.zeros((2, 2), nl.float32))).kind == "argument"
    assert refusal(lambda: nl.add(nl.zeros((2, 2), nl.float32), 1 + 2j)).kind == "argument"
    assert refusal(lambda: nl.add(nl.zeros((2, 2), nl.float32), np.ones((2, 2)))).kind == "argument"
    assert refusal(lambda: nl.add(nl.zeros((2, 2), nl.int32), 2**32)).kind == "argument"


def test_unknown_keywords_are_type_errors_that_name_the_accepted_ones():
    problem = refusal(lambda: nl.add(nl.zeros((2, 2), nl.int32), 1, mask=None))
    assert isinstance(problem, TypeError) and "accepted: x, y, dtype" in str(problem)
    assert "min()" in problem.help and problem.site.filename == __file__
    assert "missing" in str(refusal(lambda: nl.add(nl.zeros((2, 2), nl.int32))))
    problem = refusal(lambda: nl.reciprocal(nl.zeros((2, 2), nl.float32), dtpye=nl.int8))
    assert "accepted: x, dtype" in str(problem) and "dtype" in problem.help


@pytest.mark.parametrize("name", ["abs_max", "abs_min"])
def test_magnitude_functions_exist_on_trn3_only(name):
    function = getattr(nl, name)
    problem = refusal_on_tiles(function, data((4, 4)), data((4, 4)), on="trn2")
    assert problem.kind == "generation" and isinstance(problem, NotImplementedError)
    tie = on_tiles(function, np.full((2, 2), 1.0, np.float32), np.full((2, 1), -1.0, np.float32), on="trn3")
    assert (tie == -1).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: nl.add(1, 2),
        lambda: nl.add(np.ones(3), 2),
        lambda: nl.exp(np.ones(3)),
        lambda: nl.sum(np.ones(3), 0),
        lambda: nl.load(np.ones(3)),
        lambda: nl.store(np.ones(3), 1),
        lambda: nl.where(1, 2, 3),
        lambda: nl.random_seed(1),
        lambda: nl.zeros_like(np.ones(3)),
        lambda: nl.shared_constant(np.ones(3)),
        lambda: nl.shared_identity_matrix(3),
        lambda: nl.rand((2, 2), nl.float32),
    ],
)
def test_outside_a_kernel_nothing_can_be_computed(call):
    with pytest.raises(nki.NkiError) as caught:
        call()
    assert caught.value.kind == "no-kernel" and isinstance(caught.value, RuntimeError)


# ---- what hardware has not -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "warns"),
    [
        (lambda x: nl.divide(x, x), True),
        (lambda x: nl.divide(1.0, x), True),
        (lambda x: nl.mod(x, 2.0), True),
        (lambda x: nl.fmod(x, x), True),
        (lambda x: nl.power(x, 2.0), True),
        (lambda x: nl.power(x, x), False),
        (lambda x: nl.power(2.0, x), False),
        (lambda x: nl.floor(x), False),
        (lambda x: nl.cos(x), False),
        (lambda x: nl.add(x, x), False),
    ],
)
def test_a_function_that_no_engine_has_warns(function, warns):
    assert ("not-on-hardware" in kinds_on_tiles(function, np.abs(data((4, 4))) + 0.1)) == warns


def test_division_is_the_exact_quotient():
    a, b = data((64, 64), seed=20), data((64, 64), seed=21)
    np.testing.assert_array_equal(on_tiles(nl.divide, a, b), a / b)


def test_remainders_take_their_sign_from_divisor_or_dividend():
    a = np.array([[7.5, -7.5, 7.5, -7.5]], np.float32)
    b = np.array([[2.0, 2.0, -2.0, -2.0]], np.float32)
    assert on_tiles(nl.mod, a, b).tolist() == [[1.5, 0.5, -0.5, -1.5]]
    assert on_tiles(nl.fmod, a, b).tolist() == [[1.5, -1.5, 1.5, -1.5]]


# ---- integers ------------------------------------------------------------------------------------


def test_32_bit_integers_are_exact_and_wrap_in_sbuf():
    a = np.array([[2**31 - 1, 2**24 + 1, -5, 7]], np.int32)
    b = np.array([[1, 2, 3, 2**30 + 1]], np.int32)
    wide = a.astype(np.int64), b.astype(np.int64)
    for name in ("add", "subtract", "multiply"):
        wanted = REFERENCE[name](*wide).astype(np.int32)
        np.testing.assert_array_equal(on_tiles(getattr(nl, name), a, b), wanted)
    np.testing.assert_array_equal(on_tiles(lambda x: nl.add(x, 1), a), (wide[0] + 1).astype(np.int32))
    column = on_tiles(nl.add, a, a[:, :1].copy())
    np.testing.assert_array_equal(column, (wide[0] + wide[0][:, :1]).astype(np.int32))
    less = on_tiles(nl.less, a, a + np.int32(0))
    assert (less == 0).all()


def test_unsigned_words_multiply_modulo_two_to_the_32():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2**32, (16, 16), np.uint32) for _ in range(2))
    np.testing.assert_array_equal(on_tiles(nl.multiply, a, b), a * b)


def test_large_integers_in_psum_lose_bits():
    a = np.array([[2**24 + 1]], np.int32)
    assert on_tiles(lambda x: nl.add(x, x), a, psum=(0,)).item() == 2**25


@pytest.mark.parametrize(
    ("value", "warns"), [(2**24, False), (2**24 + 1, True), (-(2**24) - 1, True), (5, False)]
)
def test_integers_beyond_float32_are_reported_once_per_line(value, warns):
    a = np.full((4, 4), value, np.int32)
    expected = ["int-precision"] if warns else []
    assert kinds_on_tiles(lambda x: nl.copy(x), a) == expected
    assert kinds_on_tiles(lambda x: nl.bitwise_or(x, 0), a) == expected
    assert kinds_on_tiles(lambda x: nl.subtract(x, x), a) == expected
    assert kinds_on_tiles(lambda x: nl.sum(x, 1), a) == (expected or ["int-precision"] * (4 * value > 2**24))
    assert kinds_on_tiles(lambda x: nl.copy(x), a.astype(np.float32)) == []


def test_a_large_result_of_small_integers_is_reported():
    assert kinds_on_tiles(lambda x: nl.multiply(x, x), np.full((2, 2), 5000, np.int32)) == ["int-precision"]
    assert kinds_on_tiles(lambda x: nl.less(x, 2**25), np.ones((2, 2), np.int32)) == ["int-precision"]
    assert kinds_on_tiles(lambda x: nl.less(x, 2**25), np.ones((2, 2), np.float32)) == []


# ---- bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitwise_functions_keep_every_bit(name, dtype):
    rng = np.random.default_rng(1)
    info = np.iinfo(dtype.storage)
    a, b = (rng.integers(info.min, info.max, (8, 9), dtype.storage, endpoint=True) for _ in range(2))
    numpy = getattr(np, name)
    np.testing.assert_array_equal(on_tiles(getattr(nl, name), a, b), numpy(a, b))
    np.testing.assert_array_equal(on_tiles(getattr(nl, name), a, b, psum=(0, 1)), numpy(a, b))
    column = b[:, :1].copy()
    np.testing.assert_array_equal(on_tiles(getattr(nl, name), a, column), numpy(a, column))
    np.testing.assert_array_equal(
        on_tiles(lambda x: getattr(nl, name)(x, 0x55), a), numpy(a, dtype.storage.type(0x55))
    )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_are_logical_and_run_out_of_bits(dtype):
    width = 8 * dtype.itemsize
    unsigned = np.dtype(f"uint{width}")
    a = np.arange(-7, 9).reshape(2, 8).astype(dtype.storage)
    for count in (0, 1, width - 1, width, width + 3):
        left = on_tiles(lambda x, n=count: nl.left_shift(x, n), a)
        right = on_tiles(lambda x, n=count: nl.right_shift(x, n), a)
        bits = a.view(unsigned).astype(object)
        np.testing.assert_array_equal(left.view(unsigned), (bits << count) % 2**width)
        np.testing.assert_array_equal(right.view(unsigned), bits >> count)


def test_right_shift_of_a_negative_number_brings_in_zeros():
    assert on_tiles(lambda x: nl.right_shift(x, 1), np.array([[-2]], np.int32)).item() == 2147483647


def test_shift_counts_may_differ_by_element():
    a = np.full((2, 4), 0x0F0F, np.uint16)
    counts = np.array([[0, 1, 4, 20]] * 2, np.uint16)
    wanted = [[0x0F0F, 0x1E1E, 0xF0F0, 0]] * 2
    assert on_tiles(nl.left_shift, a, counts).tolist() == wanted


def test_bitwise_functions_want_integers_of_one_width():
    words, floats = np.ones((2, 2), np.int32), np.ones((2, 2), np.float32)
    assert refusal_on_tiles(nl.bitwise_and, words, floats).kind == "dtype"
    assert refusal_on_tiles(lambda x: nl.bitwise_and(x, 1.5), words).kind == "dtype"
    problem = refusal_on_tiles(nl.bitwise_or, words, words.astype(np.int16))
    assert problem.kind == "dtype" and "same width" in str(problem)
    assert refusal_on_tiles(nl.invert, floats).kind == "dtype"
    assert refusal_on_tiles(lambda x: nl.left_shift(x, 1), floats).kind == "dtype"


def test_bits_may_be_cast_afterwards():
    a = np.array([[6, 5]], np.int32)
    result = on_tiles(lambda x: nl.bitwise_and(x, 3, dtype=nl.float32), a)
    assert result.dtype == np.float32 and result.tolist() == [[2.0, 1.0]]
    assert on_tiles(lambda x: nl.invert(x, nl.float32), a).tolist() == [[-7.0, -6.0]]
    assert on_tiles(lambda x: nl.logical_not(x, nl.bfloat16), a).astype(np.float32).tolist() == [[7.0, 4.0]]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_invert_flips_every_bit(dtype):
    a = np.arange(6).reshape(2, 3).astype(dtype.storage)
    np.testing.assert_array_equal(on_tiles(nl.invert, a), ~a)


def test_logical_not_flips_the_last_bit_of_integers_and_tests_floats():
    assert on_tiles(nl.logical_not, np.array([[0, 1, 2]], np.int32)).tolist() == [[1, 0, 3]]
    assert on_tiles(nl.logical_not, np.array([[False, True]])).tolist() == [[True, False]]
    assert on_tiles(nl.logical_not, np.array([[0.0, -0.0, 2.5, np.nan]], np.float32)).tolist() == [
        [1, 1, 0, 0]
    ]


# ---- one operand ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNARY_REFERENCE)
@pytest.mark.parametrize("on", ["trn1", "trn2", "trn3"])
def test_unary_functions_are_accurate(name, on):
    a = data((128, 50), seed=30)
    if name in POSITIVE:
        a = np.abs(a) + 0.05
    result = on_tiles(getattr(nl, name), a, on=on)
    np.testing.assert_allclose(result, UNARY_REFERENCE[name](a.astype(np.float64)), rtol=4e-6, atol=2e-7)


@pytest.mark.parametrize("name", UNARY_REFERENCE)
@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.float8_e5m2])
def test_unary_functions_keep_the_dtype_of_their_input(name, dtype):
    a = data((7, 3, 5), dtype, 31, 0.5, 3.0)
    result = on_tiles(getattr(nl, name), a)
    assert result.dtype == dtype.storage and result.shape == a.shape
    close(result, UNARY_REFERENCE[name](dtypes.f32(a, dtype).astype(np.float64)), dtype)


@pytest.mark.parametrize("name", UNARY_REFERENCE)
def test_unary_functions_take_a_dtype(name):
    a = data((5, 8), seed=32, low=0.5)
    result = on_tiles(lambda x: getattr(nl, name)(x, nl.bfloat16), a)
    assert result.dtype == ml_dtypes.bfloat16
    close(result, UNARY_REFERENCE[name](a.astype(np.float64)))


@pytest.mark.parametrize("name", [n for n in UNARY_REFERENCE if n != "rsqrt"])
def test_unary_inputs_may_be_in_psum(name):
    a = data((16, 8), seed=33, low=0.5)
    result = on_tiles(getattr(nl, name), a, psum=(0,))
    np.testing.assert_allclose(result, UNARY_REFERENCE[name](a.astype(np.float64)), rtol=4e-6)


def test_rsqrt_cannot_read_psum():
    problem = refusal_on_tiles(nl.rsqrt, data((4, 4), low=1), psum=(0,))
    assert problem.kind == "buffer" and "nl.copy" in problem.help


def test_sines_are_accurate_far_outside_one_period():
    a = np.array([[9.0, -100.5, 1000.25, 3.5]], np.float32)
    for name in ("sin", "cos", "tan"):
        wanted = UNARY_REFERENCE[name](a.astype(np.float64))
        np.testing.assert_allclose(on_tiles(getattr(nl, name), a), wanted, rtol=1e-6)

    def engine(x):
        out = nl.ndarray(x.shape, x.dtype)
        nisa.activation(out, nl.sin, x)
        return out

    assert abs(on_tiles(engine, a)[0, 0] - 27.65) < 0.01


def test_arctan_is_accurate_everywhere_and_warns_where_hardware_is_not():
    assert kinds_on_tiles(nl.arctan, np.array([[1.5, -1.5]], np.float32)) == []
    assert kinds_on_tiles(nl.arctan, np.array([[1.6]], np.float32)) == ["activation-range"]


def test_rounding_functions():
    a = np.array([[-2.5, -0.5, 0.5, 2.5, 1e9]], np.float32)
    assert on_tiles(nl.floor, a).tolist() == [[-3, -1, 0, 2, 1e9]]
    assert on_tiles(nl.ceil, a).tolist() == [[-2, 0, 1, 3, 1e9]]
    assert on_tiles(nl.trunc, a).tolist() == [[-2, 0, 0, 2, 1e9]]


def test_special_values():
    a = np.array([[np.nan, np.inf, -np.inf, 0.0]], np.float32)
    np.testing.assert_array_equal(on_tiles(nl.sign, a), [[np.nan, 1, -1, 0]])
    np.testing.assert_array_equal(on_tiles(nl.exp, a), [[np.nan, np.inf, 0, 1]])
    np.testing.assert_array_equal(on_tiles(nl.reciprocal, a), [[np.nan, 0, -0.0, np.inf]])
    np.testing.assert_array_equal(on_tiles(lambda x: nl.maximum(x, 1.0), a), [[np.nan, np.inf, 1, 1]])
    np.testing.assert_array_equal(on_tiles(lambda x: nl.minimum(1.0, x), a), [[np.nan, 1, -np.inf, 0]])


def test_transcendental_functions_of_integers_are_rounded_with_a_warning():
    a = np.array([[0, 1, 2]], np.int32)
    assert on_tiles(nl.exp, a).tolist() == [[1, 3, 7]]
    assert kinds_on_tiles(nl.exp, a) == ["weak-scalar"]
    assert kinds_on_tiles(lambda x: nl.exp(x, nl.float32), a) == []
    for name in ("abs", "square", "relu", "sign", "negative", "copy", "floor"):
        assert kinds_on_tiles(getattr(nl, name), a) == []


def test_negative_of_integers():
    assert on_tiles(nl.negative, np.array([[5, -7]], np.int16)).tolist() == [[-5, 7]]
    assert on_tiles(nl.negative, np.array([[2**24 + 1]], np.int32)).tolist() == [[-(2**24) - 1]]


@pytest.mark.parametrize("dtype", dtypes.ALL)
def test_copies_of_equal_dtype_keep_every_bit(dtype):
    bits = np.random.default_rng(2).integers(0, 2**8, (4, 8 * dtype.itemsize), np.uint8)
    a = (bits & 1).astype(np.bool_) if dtype.is_bool else bits.view(dtype.bits)

    def body(t):
        view = t if dtype.is_bool else nl.load(t).view(dtype)
        out = nl.copy(nl.load(t) if dtype.is_bool else view)
        return out if dtype.is_bool else out.view(f"uint{8 * dtype.itemsize}")

    np.testing.assert_array_equal(run(body, a, on="trn3"), a)


# ---- two lives -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*BINARY, *UNARY])
def test_every_function_is_also_its_token(name):
    op = getattr(nl, name)
    assert repr(op) == f"nl.{name}" and op.__name__ == name and {op: 1}[op] == 1
    assert pickle.loads(pickle.dumps(op)) is op and op == op
    parameters = ["x", "y", "dtype"] if name in BINARY else ["x", "dtype"]
    assert [*inspect.signature(op).parameters] == parameters
    assert f"{name}(x: " in pydoc.plain(pydoc.render_doc(op)) and op.__doc__


@pytest.mark.parametrize("name", ["average", "prelu", "bypass"])
def test_some_are_tokens_only(name):
    with pytest.raises(TypeError, match="token"):
        getattr(nl, name)(1)


def test_numpy_ufuncs_are_tokens_too():
    a = data((4, 4))

    def body(x):
        out = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_tensor(out, x, x, np.add)
        return out

    np.testing.assert_array_equal(on_tiles(body, a), a + a)


@pytest.mark.parametrize(
    ("function", "instructions"),
    [
        (lambda x: nl.add(x, x), {"tensor_tensor": 1}),
        (lambda x: nl.add(x, 1.0), {"tensor_scalar": 1}),
        (lambda x: nl.subtract(1.0, x), {"tensor_scalar": 1}),
        (lambda x: nl.add(x, x[:, 0:1]), {"tensor_scalar": 1}),
        (lambda x: nl.add(x, x[0:1]), {"memset": 1, "nc_matmul": 1, "tensor_copy": 1, "tensor_tensor": 1}),
        (lambda x: nl.exp(x), {"activation": 1}),
        (lambda x: nl.reciprocal(x), {"reciprocal": 1}),
        (lambda x: nl.rsqrt(x), {"tensor_scalar": 1}),
        (lambda x: nl.copy(x), {"tensor_copy": 1}),
        (lambda x: nl.divide(x, x), {"divide": 1}),
        (lambda x: nl.cos(x), {"cos": 1}),
        (lambda x: nl.negative(x), {"tensor_scalar": 1}),
    ],
)
def test_functions_are_carried_out_by_few_instructions(function, instructions):
    assert issued(function, data((128, 8), low=0.1)) == instructions


# ---- truth ---------------------------------------------------------------------------------------


def test_a_comparison_is_true_when_all_its_elements_are():
    def body(x):
        assert nl.equal(x, x)
        assert not nl.equal(x, 2.0)
        assert not nl.less(x, nl.add(x, x))
        assert nl.all(nl.equal(x, x), 1)
        assert nl.logical_or(nl.equal(x, x), nl.equal(x, 0.0))

    on_tiles(body, np.array([[1.0, -1.0]], np.float32))


@pytest.mark.parametrize("make", [lambda x: nl.add(x, 0.0), lambda x: nl.zeros((2, 2), nl.int8)])
def test_any_other_tile_has_no_truth_value(make):
    def body(x):
        assert make(x)

    with pytest.raises(nki.NkiError, match="values are not known"):
        on_tiles(body, np.zeros((2, 2), np.float32))


# ---- properties ----------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(1, 6), min_size=2, max_size=4)


@given(
    shape=SHAPES,
    mask=st.lists(st.booleans(), min_size=8, max_size=8),
    name=st.sampled_from([n for n in REFERENCE if n not in ("power", "mod", "fmod")]),
    psum=st.sampled_from([(), (0,), (1,), (0, 1)]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None)
def test_any_two_shapes_that_numpy_broadcasts(shape, mask, name, psum, seed):
    left = [1 if m else n for n, m in zip(shape, mask[:4], strict=False)]
    right = [1 if m else n for n, m in zip(shape, mask[4:], strict=False)]
    a, b = data(left, seed=seed), data(right, seed=seed + 1)
    result = on_tiles(getattr(nl, name), a, b, on="trn3", psum=psum)
    wanted = REFERENCE[name](a.astype(np.float64), b.astype(np.float64))
    assert result.shape == wanted.shape
    np.testing.assert_allclose(result, wanted, rtol=3e-6, atol=1e-6)


@given(
    name=st.sampled_from(sorted(UNARY_REFERENCE)),
    dtype=st.sampled_from(FLOATS[:3]),
    rows=st.integers(1, 128),
    columns=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None)
def test_unary_functions_on_any_size(name, dtype, rows, columns, seed):
    a = data((rows, columns), dtype, seed, 0.3, 2.0)
    result = on_tiles(getattr(nl, name), a)
    close(result, UNARY_REFERENCE[name](dtypes.f32(a, dtype).astype(np.float64)), dtype, rtol=5e-6)


@given(
    name=st.sampled_from(["add", "subtract", "multiply", "bitwise_xor", "less", "maximum"]),
    values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4),
    unsigned=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_32_bit_integers_match_modular_arithmetic(name, values, unsigned):
    a = np.array(values, np.int64).astype(np.uint32 if unsigned else np.int32).reshape(2, 2)
    b = a[::-1].copy()
    exact = getattr(np, name)(a.astype(np.int64), b.astype(np.int64)).astype(np.int64)
    np.testing.assert_array_equal(on_tiles(getattr(nl, name), a, b), exact.astype(a.dtype))
