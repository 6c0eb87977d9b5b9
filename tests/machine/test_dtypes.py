"""The dtype table and its casts, against formulations that share nothing with the code."""

import copy
import math
import pickle
import warnings
from bisect import bisect_right
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nki.errors import NkiError, NkiValidationError
from nki.machine import dtypes as dt

CASTABLE = [d for d in dt.ALL if d.castable]
INTEGERS = [d for d in dt.ALL if d.is_integer]
PACKED = [d for d in dt.ALL if d.is_packed]
NOT_CASTABLE = [d for d in dt.ALL if not d.castable]


def floats(*values):
    return np.array(values, np.float32)


def from_bits(codes):
    return np.array(codes, np.uint32).view(np.float32)


def cast(values, dtype):
    with np.errstate(all="ignore"):
        return dt.cast(np.asarray(values, np.float32), dtype)


# --- an independent model of the small floats: decode every code, then search for the nearest ---------------


class SmallFloat:
    """sign, exponent, mantissa; `specials` counts the codes at the top that are not finite numbers."""

    def __init__(self, exponent_bits, mantissa_bits, specials, overflow):
        self.width = 1 + exponent_bits + mantissa_bits
        self.bias = 2 ** (exponent_bits - 1) - 1
        self.mantissa_bits = mantissa_bits
        self.overflow = overflow
        finite = 2 ** (self.width - 1) - specials
        # one more than the finite values: what the first special code would be worth ends the rounding range
        self.magnitudes = [self.decode(code) for code in range(finite + 1)]

    def decode(self, code):
        exponent, mantissa = divmod(code, 2**self.mantissa_bits)
        steps = mantissa if exponent == 0 else mantissa + 2**self.mantissa_bits
        return math.ldexp(steps, max(exponent, 1) - self.bias - self.mantissa_bits)

    def nearest(self, x):
        """The value x becomes, as a Python float."""
        if math.isnan(x):
            return math.nan
        magnitude, last = abs(x), len(self.magnitudes) - 1
        index = bisect_right(self.magnitudes, magnitude) - 1
        if index < last:
            below, above = self.magnitudes[index : index + 2]
            down, up = Fraction(magnitude) - Fraction(below), Fraction(above) - Fraction(magnitude)
            index += up < down or (up == down and index % 2 == 1)
        return math.copysign(self.overflow if index == last else self.magnitudes[index], x)


SMALL_FLOATS = {
    dt.float16: SmallFloat(5, 10, specials=2**10, overflow=math.inf),
    dt.bfloat16: SmallFloat(8, 7, specials=2**7, overflow=math.inf),
    dt.float8_e4m3: SmallFloat(4, 3, specials=8, overflow=math.inf),
    dt.float8_e4m3fn: SmallFloat(4, 3, specials=1, overflow=math.nan),
    dt.float8_e5m2: SmallFloat(5, 2, specials=4, overflow=math.inf),
}
FP8 = [d for d in SMALL_FLOATS if d.itemsize == 1]


def assert_rounded_like_the_model(values, dtype):
    values = np.asarray(values, np.float32)
    got = cast(values, dtype)
    assert got.dtype == dtype.storage
    want = np.array([SMALL_FLOATS[dtype].nearest(float(x)) for x in values])
    np.testing.assert_array_equal(got.astype(np.float64), want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got.astype(np.float64))[numbers], np.signbit(want)[numbers])


def with_neighbours(values):
    """Each value, the float32 just below and the one just above, both signs."""
    values = np.asarray(values, np.float64).astype(np.float32)
    near = [values, np.nextafter(values, np.float32(-np.inf)), np.nextafter(values, np.float32(np.inf))]
    return np.concatenate(near + [-v for v in near])


any_float32 = st.one_of(
    st.integers(0, 2**32 - 1).map(lambda code: float(from_bits(code))),  # every exponent, NaNs, infinities
    st.floats(width=32),
    st.integers(-1024, 1024).map(lambda n: n / 4),  # ties of the integers and of fp8
    st.integers(-(2**33), 2**33).map(lambda n: float(np.float32(n))),
)
float32_lists = st.lists(any_float32, min_size=1, max_size=12)


# --- the table ----------------------------------------------------------------------------------------------


@pytest.mark.tiny
def test_a_dtype_is_its_string():
    assert dt.float32 == "float32" and hash(dt.float32) == hash("float32")
    assert {"float32": 1}[dt.float32] == 1
    assert str(dt.bool_) == "bool" and f"{dt.bool_}" == "bool"
    assert repr(dt.bool_) == "nl.bool_" and repr(dt.bfloat16) == "nl.bfloat16"
    assert dt.NAMES["float8_e4m3fn_x4"] is dt.float8_e4m3fn_x4
    assert len(dt.ALL) == len(dt.NAMES) == 18


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_copies_and_pickles_are_the_same_object(dtype):
    assert copy.copy(dtype) is copy.deepcopy(dtype) is pickle.loads(pickle.dumps(dtype)) is dtype


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_storage_and_bits_have_the_size_of_the_dtype(dtype):
    assert dtype.itemsize == dtype.storage.itemsize == dtype.bits.itemsize
    assert dtype.bits.kind == "u"


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if not d.is_packed], ids=str)
def test_numpy_takes_every_dtype_but_the_packed_ones(dtype):
    assert np.dtype(dtype) == dtype.storage
    assert np.zeros(2, dtype).dtype == dtype.storage


def test_each_dtype_is_bool_integer_float_or_packed():
    assert all(d.is_bool + d.is_integer + d.is_float + d.is_packed == 1 for d in dt.ALL)
    assert {d for d in dt.ALL if not d.is_signed} == {
        *(dt.bool_, dt.uint8, dt.uint16, dt.uint32, dt.float8_e8m0fnu),
    }
    assert {*NOT_CASTABLE} == {*PACKED, dt.float8_e8m0fnu}


def test_the_packed_types_know_their_lanes():
    assert [d.lane for d in PACKED] == [dt.float8_e5m2, dt.float8_e4m3fn, ml_dtypes.float4_e2m1fn]
    assert [d.storage for d in PACKED] == [np.uint32, np.uint32, np.uint16]
    assert all(d.lane is None for d in dt.ALL if not d.is_packed)


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=str)
def test_largest_is_the_last_finite_value(dtype):
    assert dtype.largest == SMALL_FLOATS[dtype].magnitudes[-2] == float(ml_dtypes.finfo(dtype.storage).max)


def test_largest_of_the_other_types():
    assert all(d.largest == np.iinfo(d.storage).max for d in INTEGERS)
    assert dt.float32.largest == float(np.finfo(np.float32).max)
    assert dt.tfloat32.largest == float(from_bits(0x7F7FE000))
    assert dt.float8_e8m0fnu.largest == 2.0**127
    assert [d.largest for d in PACKED] == [57344, 448, 6]


# --- resolve ------------------------------------------------------------------------------------------------


def class_of(module, name):
    return type(name, (), {"__module__": module})


class TorchDtype:
    """torch is never imported here: what counts is that `str(torch.float32) == "torch.float32"`."""

    __module__ = "torch"

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


class JaxScalarMeta(type):
    dtype = property(lambda cls: np.dtype(cls.numpy_type))


def jax_scalar_type(numpy_type):
    return JaxScalarMeta("a_jax_name", (), {"numpy_type": numpy_type, "__module__": "jax.numpy"})


class float8_e5m2_x4(np.void):
    """A packed type as another package may define it: only its name is ours."""


@pytest.mark.tiny
@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_resolve_knows_names_and_its_own_objects(dtype):
    assert dt.resolve(dtype) is dt.resolve(str(dtype)) is dtype
    assert dt.resolve(TorchDtype(str(dtype))) is dtype


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if not d.is_packed and d is not dt.tfloat32], ids=str)
def test_resolve_knows_numpy_ml_dtypes_and_jax_objects(dtype):
    assert dt.resolve(dtype.storage) is dtype
    assert dt.resolve(dtype.storage.type) is dtype
    assert dt.resolve(jax_scalar_type(dtype.storage)) is dtype


def test_resolve_knows_aliases():
    assert dt.resolve("float8e4") is dt.float8_e4m3
    assert dt.resolve("float8e5") is dt.float8_e5m2
    assert dt.resolve("bool_") is dt.bool_


@pytest.mark.parametrize(
    "theirs",
    [
        float8_e5m2_x4,
        np.dtype((float8_e5m2_x4, 4)),
        np.dtype((float8_e5m2_x4, [("lanes", "u1", 4)])),
        np.dtype([("float8_e5m2_x4", "<u2"), ("high", "<u2")]),
        np.dtype([("float8_e5m2_x4", "<u4")]),
    ],
)
def test_resolve_takes_packed_types_of_others_by_name(theirs):
    assert dt.resolve(theirs) is dt.float8_e5m2_x4


@pytest.mark.parametrize(
    "dtype, reason, help",
    [
        (np.float64, "float64 is not an NKI dtype", "cast first: x.astype(np.float32)"),
        (np.dtype("int64"), "int64 is not an NKI dtype", "cast first: x.astype(np.int32)"),
        (np.dtype("uint64"), "uint64 is not an NKI dtype", "cast first: x.astype(np.uint32)"),
        (np.longlong, "longlong is not an NKI dtype", "cast first: x.astype(np.int32)"),
        (jax_scalar_type("int64"), "int64 is not an NKI dtype", "cast first: x.astype(np.int32)"),
        (TorchDtype("float64"), "float64 is not an NKI dtype", "cast first: x.to(torch.float32)"),
        (TorchDtype("int64"), "int64 is not an NKI dtype", "cast first: x.to(torch.int32)"),
        ("float64", "float64 is not an NKI dtype", "write nl.float32"),
        (float, "Python's float is not an NKI dtype", "write nl.float32"),
        (int, "Python's int is not an NKI dtype", "write nl.int32"),
        (bool, "Python's bool is not an NKI dtype", "write nl.bool_"),
        (np.complex64, "complex64 is not", "pass x.real and x.imag, cast to float32, as two tensors"),
        (np.dtype(object), "object is not an NKI dtype", "elements are plain numbers: cast first"),
        (np.dtype([("a", "f4")]), "[('a', '<f4')] is not an NKI dtype", "elements are plain numbers"),
        (
            np.dtype([("float8_e5m2_x4", "<u2")]),
            "[('float8_e5m2_x4', '<u2')] is not",
            "elements are plain numbers",
        ),
        (np.dtype([("float32", "<f4")]), "[('float32', '<f4')] is not", "elements are plain numbers"),
        (np.dtype("U3"), "<U3 is not an NKI dtype", "elements are plain numbers"),
        (np.dtype(">f4"), "float32 is big-endian here", 'use x.astype(x.dtype.newbyteorder("="))'),
        ("bflaot16", "bflaot16 is not an NKI dtype", "did you mean nl.bfloat16?"),
        (class_of("elsewhere", "float8_e4m3b11"), "float8_e4m3b11 is not", "did you mean nl.float8_e4m3?"),
        ("quaternion", "quaternion is not an NKI dtype", "use one of bool, int8, int16, int32,"),
        (None, "None is not an NKI dtype", "use one of bool,"),
        ([dt.float32], "[nl.float32] is not an NKI dtype", None),
        (np.ones(3), "ndarray object is not an NKI dtype", "pass its dtype, x.dtype"),
        (np.float32(1), "float32 object is not an NKI dtype", "pass its dtype, x.dtype"),
    ],
)
def test_resolve_refuses_and_names_what_to_write(dtype, reason, help):
    with pytest.raises(NkiError) as caught:
        dt.resolve(dtype, "argument 'x'")
    assert caught.value.kind == "dtype"
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, NkiValidationError)
    assert caught.value.kind == "dtype"
    assert f"argument 'x': {reason}" in str(caught.value)
    assert help is None or f"help: {help}" in str(caught.value)


# --- widening -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=str)
def test_every_code_of_a_small_float_widens_to_its_value(dtype):
    model = SMALL_FLOATS[dtype]
    half = 2 ** (model.width - 1)
    wide = dt.f32(np.arange(2 * half).astype(dtype.bits).view(dtype.storage), dtype)
    assert wide.dtype == np.float32
    finite = model.magnitudes[:-1]
    np.testing.assert_array_equal(wide[: len(finite)], finite)
    np.testing.assert_array_equal(wide[half:][: len(finite)], np.negative(finite))
    specials = wide[len(finite) : half]
    infinities = 1 if model.overflow == math.inf else 0
    assert np.isinf(specials[:infinities]).all() and np.isnan(specials[infinities:]).all()


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=str)
def test_every_code_survives_widening_and_narrowing(dtype):
    codes = np.arange(2 ** (8 * dtype.itemsize)).astype(dtype.bits)
    wide = dt.f32(codes.view(dtype.storage), dtype)
    numbers = ~np.isnan(wide)
    back = cast(wide, dtype)
    np.testing.assert_array_equal(dt.bits(back)[numbers], codes[numbers])
    assert np.isnan(dt.f32(back, dtype)[~numbers]).all()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**32 - 1), min_size=1, max_size=20))
@example([2**24 + 1, 2**24 + 3, 2**31 - 1, 2**32 - 1, -(2**31), -(2**24) - 1, 2**31 - 64, 2**32 - 128])
def test_32_bit_integers_widen_to_the_nearest_even_float(values):
    def nearest(n):
        step = 2 ** max(0, abs(n).bit_length() - 24)
        return round(Fraction(n, step)) * step

    for dtype in (dt.int32, dt.uint32):
        fitting = [n for n in values if np.iinfo(dtype.storage).min <= n <= dtype.largest]
        got = dt.f32(np.array(fitting, dtype.storage), dtype)
        assert [int(x) for x in got] == [nearest(n) for n in fitting]


def test_float32_and_tfloat32_widen_without_a_copy():
    array = floats(1, 2)
    assert dt.f32(array, dt.float32) is array
    assert dt.f32(array, dt.tfloat32) is array


def test_bool_widens_to_zero_and_one():
    assert dt.f32(np.array([False, True]), dt.bool_).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("dtype", [d for d in CASTABLE if d.storage != np.float32], ids=str)
def test_strided_views_widen_like_their_copies(dtype):
    base = cast(np.arange(-32, 32).reshape(4, 16), dtype)
    for view in (base[:, 1:9], base[:, ::3], base.T, base[::-1]):
        wide = dt.f32(view, dtype)
        assert wide.shape == view.shape
        np.testing.assert_array_equal(wide, dt.f32(view.copy(), dtype))


# --- narrowing ----------------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(float32_lists)
def test_small_floats_round_to_the_nearest_even_code(values):
    for dtype in SMALL_FLOATS:
        assert_rounded_like_the_model(values, dtype)


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_fp8_rounds_right_at_every_value_and_every_midpoint(dtype):
    values = np.array(SMALL_FLOATS[dtype].magnitudes)
    midpoints = (values[1:] + values[:-1]) / 2
    assert_rounded_like_the_model(with_neighbours(np.concatenate([values, midpoints])), dtype)


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16], ids=str)
def test_16_bit_floats_round_right_at_midpoints_of_every_binade(dtype):
    values = np.array(SMALL_FLOATS[dtype].magnitudes)
    low, high = values[:-1], values[1:]
    chosen = np.unique(np.r_[np.arange(0, len(low), 61), np.arange(20), np.arange(len(low) - 20, len(low))])
    midpoints = np.minimum((low + high) / 2, float(np.finfo(np.float32).max))[chosen]
    with np.errstate(over="ignore"):
        assert_rounded_like_the_model(with_neighbours(midpoints), dtype)


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_fp8_casts_agree_with_ml_dtypes_on_random_bits(dtype):
    x = from_bits(np.random.default_rng(0).integers(0, 2**32, 20_000))
    with np.errstate(all="ignore"):
        want = x.astype(dtype.storage)
    np.testing.assert_array_equal(dt.f32(cast(x, dtype), dtype), dt.f32(want, dtype))


@pytest.mark.tiny
def test_float_casts_overflow_to_inf_and_e4m3fn_to_nan():
    assert cast([1e6, -1e6], dt.float16).tolist() == [math.inf, -math.inf]
    assert cast(-np.finfo(np.float32).max, dt.bfloat16) == -math.inf
    assert [float(x) for x in cast([240, 247.9, 248, -250], dt.float8_e4m3)] == [
        240,
        240,
        math.inf,
        -math.inf,
    ]
    assert [float(x) for x in cast([57344, 61439, 61440], dt.float8_e5m2)] == [57344, 57344, math.inf]
    assert [float(x) for x in cast([448, 464], dt.float8_e4m3fn)] == [448, 448]
    assert np.isnan(cast([464.1, 500, math.inf, -math.inf], dt.float8_e4m3fn).astype(np.float32)).all()


@pytest.mark.parametrize("dtype", [d for d in CASTABLE if d.is_float], ids=str)
def test_every_nan_stays_a_nan(dtype):
    nans = from_bits([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0xFF800001, 0xFFFFFFFF, 0x7F801000])
    assert np.isnan(cast(nans, dtype).astype(np.float32)).all()


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16, dt.float32, dt.tfloat32, dt.float8_e5m2], ids=str)
def test_infinities_and_signed_zeros_are_kept(dtype):
    got = cast([math.inf, -math.inf, 0.0, -0.0], dtype).astype(np.float32)
    assert got[:2].tolist() == [math.inf, -math.inf]
    assert np.signbit(got).tolist() == [False, True, False, True]


def integer_model(x, dtype):
    if math.isnan(x):
        return 0
    smallest, largest = np.iinfo(dtype.storage).min, np.iinfo(dtype.storage).max
    if math.isinf(x):
        return largest if x > 0 else smallest
    return max(smallest, min(largest, round(x)))


@settings(max_examples=400, deadline=None)
@given(float32_lists)
@example([2.0**31, 2.0**31 - 128, -(2.0**31), -(2.0**31) - 256, 2.0**32, 2.0**32 - 256, 3e38])
@example([2.5, 3.5, -0.5, -1.5, 0.5, 127.5, -128.5, 126.5, 254.5, 255.5, 300, -1, 32767.5, 65535.5])
@example([math.nan, math.inf, -math.inf, 5])
@example([math.nan, 2.0**33, 7])
def test_integers_round_half_to_even_saturate_and_take_nan_as_zero(values):
    for dtype in INTEGERS:
        got = cast(values, dtype)
        assert got.dtype == dtype.storage
        assert got.tolist() == [integer_model(float(x), dtype) for x in floats(*values)], dtype


@pytest.mark.tiny
def test_fp32_to_int_rounds_half_to_even_and_saturates():
    assert cast([2.5, 3.5, -0.5, 300, -300], dt.int8).tolist() == [2, 4, 0, 127, -128]
    assert cast([300, -1, math.nan], dt.uint8).tolist() == [255, 0, 0]
    assert cast([2.0**31, 2.0**31 - 128], dt.int32).tolist() == [2**31 - 1, 2**31 - 128]
    assert cast([-1, 2.0**32, 2.0**32 - 256], dt.uint32).tolist() == [0, 2**32 - 1, 2**32 - 256]


def test_bool_is_true_for_everything_but_zero():
    values = [0.0, -0.0, 1e-45, 0.4, -1, math.nan, math.inf]
    assert cast(values, dt.bool_).tolist() == [False, False, True, True, True, True, True]


def tfloat32_model(x):
    if math.isnan(x) or math.isinf(x):
        return x
    step = Fraction(2) ** (max(math.frexp(x)[1], -125) - 11)
    rounded = round(Fraction(x) / step) * step
    return math.copysign(math.inf if abs(rounded) >= 2**128 else float(rounded), x)


@settings(max_examples=300, deadline=None)
@given(float32_lists)
@example(
    [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-23, 1 + 2**-10, 2 - 2**-23, 3.4028234e38, -3.4028234e38]
)
@example([2.0**-126 - 2.0**-149, 2.0**-137, 3 * 2.0**-137, 2.0**-149, 2.0**-136])
def test_tfloat32_rounds_to_ten_mantissa_bits(values):
    got = cast(values, dt.tfloat32)
    assert got.dtype == np.float32
    assert not (dt.bits(got) & 0x1FFF).any()
    np.testing.assert_array_equal(got, [tfloat32_model(float(x)) for x in floats(*values)])


def test_float32_is_cast_without_a_copy():
    x = floats(1, 2)
    assert dt.cast(x, dt.float32) is x


@pytest.mark.parametrize("dtype", CASTABLE, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (2, 3, 4)])
def test_casts_keep_any_shape(dtype, shape):
    for fill in (1.0, math.nan, 1e38):
        got = cast(np.full(shape, fill), dtype)
        assert got.shape == shape and got.dtype == dtype.storage


@pytest.mark.parametrize("dtype", CASTABLE, ids=str)
def test_casts_do_not_warn_and_leave_their_input_alone(dtype):
    x = floats(0, -0.0, 1.5, -3e38, 3.4e38, math.inf, -math.inf, math.nan, 1e-45, 2.0**31)
    before = x.tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dt.f32(dt.cast(x, dtype), dtype)
        dt.scalar(1e300, dtype)
    assert x.tobytes() == before


# --- store and convert --------------------------------------------------------------------------------------

EDGES = floats(
    0, 1, -1, 2.5, 3.5, 250, 465, 70000, 3e9, 5e9, -5e9, 3.4e38, math.inf, -math.inf, math.nan, 1e-40
)


@pytest.mark.parametrize("dtype", CASTABLE, ids=str)
def test_store_writes_what_cast_returns_and_nothing_else(dtype):
    x = np.stack([EDGES, EDGES[::-1], EDGES / 3])
    for source in (x, np.repeat(x, 2, axis=1)[:, ::2], np.asfortranarray(x)):
        base = np.zeros((3, 40), dtype.storage)
        dt.store(base[:, 3:35:2], source, dtype)
        expected = np.zeros((3, 40), dtype.storage)
        expected[:, 3:35:2] = cast(x, dtype)
        assert base.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [d for d in CASTABLE if d.itemsize == 4], ids=str)
def test_store_may_overwrite_its_own_input(dtype):
    x = EDGES.copy()
    dt.store(x.view(dtype.storage), x, dtype)
    assert x.tobytes() == cast(EDGES, dtype).tobytes()


@pytest.mark.parametrize("dtype", CASTABLE, ids=str)
def test_store_broadcasts(dtype):
    dst = np.zeros((4, 16), dtype.storage)
    dt.store(dst, EDGES, dtype)
    assert dst.tobytes() == cast(np.broadcast_to(EDGES, (4, 16)).copy(), dtype).tobytes()


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_equal_dtypes_convert_without_touching_a_bit(dtype):
    array = np.zeros(3, dtype.storage)
    assert dt.convert(array, dtype, dtype) is array


def test_unequal_dtypes_convert_through_float32():
    array = np.array([2**24 + 1, -1], np.int32)
    assert dt.convert(array, dt.int32, dt.uint32).tolist() == [2**24, 0]
    assert dt.convert(floats(1.5, 2.5), dt.float32, dt.bfloat16).dtype == ml_dtypes.bfloat16
    assert dt.convert(np.array([True]), dt.bool_, dt.float8_e4m3).astype(np.float32).tolist() == [1]


@pytest.mark.parametrize("dtype", NOT_CASTABLE, ids=str)
def test_packed_types_and_e8m0_have_no_casts(dtype):
    array = np.zeros(2, dtype.storage)
    attempts = [
        lambda: dt.f32(array, dtype),
        lambda: dt.cast(floats(1), dtype),
        lambda: dt.store(array, floats(1, 1), dtype),
        lambda: dt.convert(array, dtype, dt.float32),
        lambda: dt.convert(floats(1), dt.float32, dtype),
        lambda: dt.promote(dtype, dt.float32),
        lambda: dt.promote(dt.int8, dtype),
    ]
    for attempt in attempts:
        with pytest.raises(NkiError, match=rf"{dtype} has no casts") as caught:
            attempt()
        assert "copy between equal dtypes" in caught.value.help


# --- promotion ----------------------------------------------------------------------------------------------

# row and column in the order of the table; spec/language.md 6.2
PROMOTIONS = """
         bool  i8    i16   i32   u8    u16   u32   f16   bf16  f32   tf32  e4    e4fn  e5
bool     bool  i8    i16   i32   u8    u16   u32   f16   bf16  f32   tf32  e4    e4fn  e5
i8       .     i8    i16   i32   i16   i32   i32   f16   bf16  f32   tf32  e4    e4fn  e5
i16      .     .     i16   i32   i16   i32   i32   f16   bf16  f32   tf32  e4    e4fn  e5
i32      .     .     .     i32   i32   i32   i32   f16   bf16  f32   tf32  e4    e4fn  e5
u8       .     .     .     .     u8    u16   u32   f16   bf16  f32   tf32  e4    e4fn  e5
u16      .     .     .     .     .     u16   u32   f16   bf16  f32   tf32  e4    e4fn  e5
u32      .     .     .     .     .     .     u32   f16   bf16  f32   tf32  e4    e4fn  e5
f16      .     .     .     .     .     .     .     f16   f32   f32   tf32  f16   f16   f16
bf16     .     .     .     .     .     .     .     .     bf16  f32   tf32  bf16  bf16  bf16
f32      .     .     .     .     .     .     .     .     .     f32   f32   f32   f32   f32
tf32     .     .     .     .     .     .     .     .     .     .     tf32  tf32  tf32  tf32
e4       .     .     .     .     .     .     .     .     .     .     .     e4    bf16  bf16
e4fn     .     .     .     .     .     .     .     .     .     .     .     .     e4fn  bf16
e5       .     .     .     .     .     .     .     .     .     .     .     .     .     e5
"""


def test_promotion_matrix():
    header, *rows = [line.split() for line in PROMOTIONS.strip().splitlines()]
    short = dict(zip(header, CASTABLE, strict=True))
    for left, *results in rows:
        for right, result in zip(header, results, strict=True):
            if result != ".":
                assert dt.promote(short[left], short[right]) is short[result], (left, right)
                assert dt.promote(short[right], short[left]) is short[result], (right, left)


@pytest.mark.parametrize("dtype", NOT_CASTABLE, ids=str)
def test_equal_packed_types_promote_to_themselves(dtype):
    assert dt.promote(dtype, dtype) is dtype


# --- bits, poison, scalars, lanes ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_bits_shares_memory_shape_and_strides(dtype):
    array = np.zeros((4, 6), dtype.storage)[:, 1::2]
    view = dt.bits(array)
    assert view.dtype == dtype.bits and view.shape == array.shape and view.strides == array.strides
    assert np.shares_memory(view, array)


def test_bits_copies_keep_signalling_nans():
    source, target = from_bits([0x7F800001, 0xFFFFFFFF]), floats(0, 0)
    dt.bits(target)[...] = dt.bits(source)
    assert target.tobytes() == source.tobytes()


def test_fresh_memory_is_poison():
    for dtype in dt.ALL:
        value = dt.poison(dtype)
        assert np.asarray(value).dtype == dtype.storage
        if dtype.is_integer:
            assert value == 4
        elif dtype.is_bool:
            assert value  # a byte of 4
        elif dtype.is_float:
            assert np.isnan(np.float32(value))
        else:
            assert value == 2 ** (8 * dtype.itemsize) - 1
    assert dt.bits(np.asarray(dt.poison(dt.float8_e8m0fnu))) == 0xFF


def test_scalars_of_integer_types_are_exact():
    assert dt.scalar(0xFFFFFFFF, dt.uint32) == 0xFFFFFFFF
    assert dt.scalar(2**24 + 1, dt.int32) == 2**24 + 1
    assert dt.scalar(np.int64(-128), dt.int8) == -128
    assert dt.scalar(True, dt.uint8) == 1
    assert dt.scalar(2.5, dt.int16) == 2


@pytest.mark.parametrize(
    "value, dtype", [(256, dt.uint8), (-1, dt.uint32), (2**31, dt.int32), (-129, dt.int8)]
)
def test_scalars_outside_an_integer_type_are_refused(value, dtype):
    with pytest.raises(NkiError, match=rf"{value} does not fit {dtype} \(-?\d+ to {dtype.largest}\)"):
        dt.scalar(value, dtype)


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_scalars_have_the_storage_type(dtype):
    value = dt.scalar(0, dtype)
    assert isinstance(value, dtype.storage.type)
    assert dt.bits(np.asarray(value)) == 0


def test_scalars_of_float_types_are_float32_constants():
    assert dt.scalar(0.1, dt.float32) == np.float32(0.1)
    assert dt.scalar(1 + 2**-9 + 2**-30, dt.bfloat16) == 1
    assert np.isnan(dt.scalar(math.nan, dt.bfloat16))
    assert dt.scalar(-math.inf, dt.float16) == -math.inf
    assert dt.scalar(3, dt.float8_e4m3) == 3


@pytest.mark.parametrize("dtype", NOT_CASTABLE, ids=str)
def test_packed_memory_is_only_filled_with_zero(dtype):
    with pytest.raises(NkiError, match=rf"{dtype} memory can only be filled with 0, not 1"):
        dt.scalar(1, dtype)


@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_lanes_are_packed_lowest_bits_first(dtype):
    one = {dt.float8_e5m2_x4: 0x3C, dt.float8_e4m3fn_x4: 0x38, dt.float4_e2m1fn_x4: 0x2}[dtype]
    for lane in range(4):
        packed = dt.pack_x4(np.eye(4, dtype=np.float32)[lane], dtype)
        assert packed == one << (lane * dtype.itemsize * 2)


@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_packed_lanes_survive_a_round_trip_through_strided_views(dtype):
    base = np.random.default_rng(1).integers(0, 2 ** (8 * dtype.itemsize), (6, 20)).astype(dtype.storage)
    for array in (base, base[:, 1::3], base.T, base[0, 0]):
        lanes = dt.unpack_x4(array, dtype)
        assert lanes.dtype == np.float32 and lanes.shape == (*array.shape, 4)
        again = dt.pack_x4(lanes, dtype)
        assert again.dtype == dtype.storage and again.shape == array.shape
        np.testing.assert_array_equal(dt.unpack_x4(again, dtype), lanes)


@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_pack_takes_codes_of_the_lane_type_as_they_are(dtype):
    values = floats(1, -2, 0.5, 3)
    lane = ml_dtypes.float4_e2m1fn if dtype is dt.float4_e2m1fn_x4 else dtype.lane.storage
    codes = values.astype(lane)
    assert dt.pack_x4(codes, dtype) == dt.pack_x4(codes.view(np.uint8), dtype) == dt.pack_x4(values, dtype)


def test_fp4_lanes_have_the_sixteen_values_of_e2m1():
    codes = np.arange(16, dtype=np.uint16)
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    got = dt.unpack_x4(codes << 8, dt.float4_e2m1fn_x4)[:, 2]
    assert got.tolist() == positive + [-v for v in positive]


def test_scattered_bfloat16_is_read_and_written_as_dense_is():
    codes = np.arange(2**16, dtype=np.uint16)
    dense = codes.view(dt.bfloat16.storage)
    scattered = np.repeat(dense, 3)[::3]
    assert scattered.strides == (6,)
    wide = dt.f32(scattered, dt.bfloat16)
    np.testing.assert_array_equal(wide.view(np.uint32), dt.f32(dense, dt.bfloat16).view(np.uint32))
    numbers = np.random.default_rng(0).standard_normal(2**16).astype(np.float32)
    numbers[:4] = [np.nan, np.inf, -np.inf, 3.4e38]
    kept = np.empty_like(dense)
    dt.store(kept, numbers, dt.bfloat16)
    dt.store(scattered, numbers, dt.bfloat16)
    np.testing.assert_array_equal(scattered.view(np.uint16), kept.view(np.uint16))
