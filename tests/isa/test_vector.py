"""Element-wise instructions of the vector engine: what they mean, take and refuse (spec/isa_vector.md)."""

from __future__ import annotations

import inspect
import json
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine.generations import MACHINES
from support import refused_tiles as refused
from support import run_tiles, target, to_tile

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2]
INTEGERS = [np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32]
EVERY = [*FLOATS, ml_dtypes.float8_e4m3fn, *INTEGERS, np.bool_]

REFERENCE = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": lambda a, b: np.where(a > b, a, b),
    "minimum": lambda a, b: np.where(a < b, a, b),
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "logical_xor": lambda a, b: (a != 0) ^ (b != 0),
}
BINARY = list(REFERENCE)


def op(name):
    return getattr(nl, name)


def cast(values, dtype):
    """float64 results as the engine writes them: rounded to float32, then to the dtype."""
    with np.errstate(all="ignore"):
        x = np.asarray(values, np.float64).astype(np.float32)
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return x != 0
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            whole = np.clip(np.rint(np.nan_to_num(x.astype(np.float64), nan=0.0)), info.min, info.max)
            return whole.astype(dtype)
        return x.astype(dtype)


def sample(shape, dtype, seed=0, low=-8, high=8):
    """Values every dtype of the table holds without surprises."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "u":
        return rng.integers(0, high, shape).astype(dtype)
    if dtype.kind == "i":
        return rng.integers(low, high, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(np.float32).astype(dtype)


def wide(array):
    return array.astype(np.float32).astype(np.float64)


def same(got, expected):
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    equal = got.astype(np.float64) == expected.astype(np.float64)
    if got.dtype.kind not in "iub":
        equal |= np.isnan(got.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    assert equal.all(), f"{got[~equal][:4]} is not {expected[~equal][:4]}"


def warned(body, inputs=(), outputs=(), **where):
    """The kinds of the diagnostics, and the outputs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = run_tiles(body, inputs, outputs, **where)
    return [w.category.kind for w in caught if hasattr(w.category, "kind")], results


X = np.arange(12, dtype=np.float32).reshape(4, 3)
OUT = ((4, 3), np.float32)


@pytest.mark.tiny
@pytest.mark.parametrize(
    "name",
    [
        "memset",
        "reciprocal",
        "scalar_tensor_tensor",
        "tensor_copy",
        "tensor_copy_predicated",
        "tensor_scalar",
        "tensor_tensor",
    ],
)
def test_signatures_are_the_documented_ones(name):
    path = Path(__file__).parents[1] / "data" / "documented_api.json"
    documented = json.loads(path.read_text())["nki.isa"]["functions"][name]
    parameters = inspect.signature(getattr(nisa, name)).parameters.values()
    assert [p.name for p in parameters] == [p for p, _ in documented]
    for parameter, (_, default) in zip(parameters, documented, strict=True):
        shown = None if parameter.default is inspect.Parameter.empty else repr(parameter.default)
        assert shown == (f"nisa.{default}" if default and default.startswith("engine.") else default)


# ---- tensor_copy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", EVERY, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("to", EVERY, ids=lambda d: np.dtype(d).name)
def test_tensor_copy_casts_through_float32(source, to):
    x = sample((5, 7), source)
    (got,) = run_tiles(lambda d, s: nisa.tensor_copy(d, s), [x], [(x.shape, to)], on="trn3")
    same(got, x if source is to else cast(wide(x), to))


@pytest.mark.tiny
def test_tensor_copy_between_equal_dtypes_keeps_every_bit():
    x = np.array([[2**24 + 1, -(2**31), 2**31 - 1]], np.int32)
    (got,) = run_tiles(lambda d, s: nisa.tensor_copy(d, s), [x], [(x.shape, np.int32)])
    assert (got == x).all()
    bits = np.array([[0x7F800001, 0xFFC12345, 0x80000000]], np.uint32).view(np.float32)
    (got,) = run_tiles(lambda d, s: nisa.tensor_copy(d, s), [bits], [(bits.shape, np.float32)])
    assert (got.view(np.uint32) == bits.view(np.uint32)).all()


def test_tensor_copy_of_int32_to_uint32_saturates():
    x = np.array([[-1, 5, 2**24 + 1]], np.int32)
    (got,) = run_tiles(lambda d, s: nisa.tensor_copy(d, s), [x], [(x.shape, np.uint32)])
    assert got.tolist() == [[0, 5, 2**24]]


def test_tensor_copy_rounds_half_to_even_and_saturates():
    x = np.array([[2.5, 3.5, -0.5, 300.0, -300.0, np.nan, np.inf]], np.float32)
    (got,) = run_tiles(lambda d, s: nisa.tensor_copy(d, s), [x], [(x.shape, np.int8)])
    assert got.tolist() == [[2, 4, 0, 127, -128, 0, 127]]
    (got,) = run_tiles(lambda d, s: nisa.tensor_copy(d, s), [x], [(x.shape, np.uint8)])
    assert got.tolist() == [[2, 4, 0, 255, 0, 0, 255]]


@pytest.mark.parametrize("engine", ["vector", "gpsimd", "scalar"])
def test_tensor_copy_is_exact_on_every_engine_of_trn2(engine):
    x = np.array([[2**24 + 1]], np.int32)
    where = getattr(nisa.engine, engine)
    (got,) = run_tiles(lambda d, s: nisa.tensor_copy(d, s, engine=where), [x], [(x.shape, np.int32)])
    assert got[0, 0] == 2**24 + 1


def test_tensor_copy_on_the_scalar_engine_of_trn1_goes_through_float32():
    x = np.array([[2**24 + 1]], np.int32)
    body = lambda d, s: nisa.tensor_copy(d, s, engine=nisa.engine.scalar)  # noqa: E731
    kinds, (got,) = warned(body, [x], [(x.shape, np.int32)], on="trn1")
    assert kinds == ["scalar-copy"] and got[0, 0] == 2**24


def test_tensor_copy_pairs_elements_in_stream_order():
    x = sample((3, 24), np.float32)
    body = lambda d, s: nisa.tensor_copy(d, s)  # noqa: E731
    (got,) = run_tiles(body, [x], [((3, 2, 3, 4), np.float32)])
    same(got, x.reshape(3, 2, 3, 4))


def test_tensor_copy_of_an_overlapping_view_reads_before_it_writes():
    x = np.arange(10, dtype=np.float32).reshape(1, 10)
    (got,) = run_tiles(lambda d: nisa.tensor_copy(d[:, 1:10], d[:, 0:9]), [], [x])
    assert got.tolist() == [[0, 0, 1, 2, 3, 4, 5, 6, 7, 8]]


def test_tensor_copy_takes_a_start_from_a_tile():
    x, start = sample((4, 10), np.float32), np.array([[3]], np.int32)

    def body(d, s, i):
        nisa.tensor_copy(d, s.ap([[10, 4], [1, 5]], scalar_offset=i, indirect_dim=1))

    (got,) = run_tiles(body, [x, start], [((4, 5), np.float32)])
    same(got, x[:, 3:8])


def test_packed_dtypes_are_copied_but_not_converted():
    @nki.jit
    def kernel(x):
        a = nl.ndarray((4, 8), nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        b = nl.ndarray((4, 8), nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        bits = to_tile(x, nl.sbuf)
        nisa.tensor_copy(a.view(nl.uint32), bits)
        nisa.tensor_copy(b, a)
        out = nl.ndarray((4, 8), nl.uint32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, b.view(nl.uint32))
        return out

    x = np.arange(32, dtype=np.uint32).reshape(4, 8) * np.uint32(0x01010101)
    assert (kernel(x) == x).all()

    def body(d, s):
        packed = nl.ndarray((4, 3), nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        nisa.memset(packed, 0)
        nisa.tensor_copy(d, packed)

    refused("dtype", "no engine can convert", body, [X], [OUT])


def test_old_dtype_argument_is_ignored_with_a_warning():
    kinds, (got,) = warned(lambda d, s: nisa.tensor_copy(d, s, dtype=nl.bfloat16), [X], [OUT])
    assert kinds == ["legacy", "dtype-ignored"]
    same(got, X)

    def body(d, s):
        nisa.scalar_tensor_tensor(d, s, nl.add, 1.0, nl.add, s, dtype=nl.float32)

    kinds, (got,) = warned(body, [X], [OUT])
    assert kinds == ["legacy"]
    same(got, 2 * X + 1)


def test_tensor_copy_refuses_what_does_not_fit():
    copy = lambda d, s: nisa.tensor_copy(d, s)  # noqa: E731
    refused("shape", "dst has 4 partitions, src has 3", copy, [X[:3]], [OUT])
    refused("shape", "3 elements per partition", copy, [X[:, :2].copy()], [OUT])
    refused(
        "engine",
        "cannot run on the tensor",
        lambda d, s: nisa.tensor_copy(d, s, nisa.engine.tensor),
        [X],
        [OUT],
    )
    refused("enum", "engine must be one of", lambda d, s: nisa.tensor_copy(d, s, "vector"), [X], [OUT])
    refused(
        "buffer", "PSUM", lambda d, s: nisa.tensor_copy(d, s, nisa.engine.gpsimd), [X], [OUT], in_psum=[0]
    )
    refused("argument", "must be a tile", lambda d, s: nisa.tensor_copy(d, 1.0), [X], [OUT])

    @nki.jit
    def from_hbm(x):
        tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(tile, x)

    with pytest.raises(nki.NkiError, match="is in HBM") as e:
        from_hbm(X)
    assert e.value.kind == "buffer"


def test_more_than_128_partitions_are_refused():
    x = np.zeros((129, 2), np.float32)

    def body(d, s):
        tile = nl.ndarray((128, 2), np.float32, buffer=nl.sbuf)
        nisa.tensor_copy(tile, s)

    with pytest.raises(nki.NkiError) as e:
        run_tiles(body, [x], [OUT])
    assert e.value.kind in ("partition-limit", "capacity")


# ---- memset --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EVERY, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("value", [0, 1])
def test_memset_fills_every_dtype(dtype, value):
    (got,) = run_tiles(lambda d: nisa.memset(d, value), [], [((3, 5), dtype)], on="trn3")
    same(got, np.full((3, 5), value).astype(dtype))


def test_memset_of_integers_is_exact():
    (got,) = run_tiles(lambda d: nisa.memset(d, 0xFFFFFFFF), [], [((2, 2), np.uint32)])
    assert (got == 0xFFFFFFFF).all()
    (got,) = run_tiles(lambda d: nisa.memset(d, np.int64(-(2**24) - 1)), [], [((2, 2), np.int32)])
    assert (got == -(2**24) - 1).all()


@pytest.mark.parametrize(
    "value", [float("inf"), -float("inf"), 1e30, 0.1, np.float64(0.1), ml_dtypes.bfloat16(0.1), 3, True]
)
def test_memset_of_a_float_tile_takes_any_number(value):
    for dtype in (np.float32, ml_dtypes.bfloat16):
        (got,) = run_tiles(lambda d: nisa.memset(d, value), [], [((2, 3), dtype)])  # noqa: B023
        same(got, cast(np.full((2, 3), float(value)), dtype))


def test_memset_writes_only_its_view_and_psum_too():
    (got,) = run_tiles(lambda d: nisa.memset(d[0:2, 1:2], 7.0), [], [X])
    expected = X.copy()
    expected[0:2, 1:2] = 7
    same(got, expected)
    (got,) = run_tiles(lambda d: nisa.memset(d, 7.0), [], [OUT], out_psum=[0])
    assert (got == 7).all()


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (np.int32, 2.0, "2.0 is a float"),
        (np.uint8, 256, "does not fit uint8"),
        (np.uint8, -1, "does not fit uint8"),
        (np.int8, 128, "does not fit int8"),
        (np.bool_, 2, "does not fit bool"),
        (np.bool_, 1.0, "is a float"),
        (np.int16, float("nan"), "is a float"),
        (np.float32, "1", "must be a number"),
        (np.float32, None, "must be a number"),
        (np.float32, np.str_("1"), "must be a number"),
        (np.float32, np.complex64(1j), "must be a number"),
        (np.float32, 10**60, "too large"),
        (nl.float8_e4m3fn_x4, 1, "takes only 0"),
        (nl.float4_e2m1fn_x4, 1, "takes only 0"),
        (nl.float8_e8m0fnu, 127, "takes only 0"),
    ],
)
def test_memset_refuses_a_value_of_another_kind(dtype, value, text):
    def body(d):
        tile = nl.ndarray((2, 4), dtype, buffer=nl.sbuf)
        nisa.memset(tile, value)

    refused("memset-type", text, body, [], [X])


@pytest.mark.parametrize("dtype", [np.uint32, np.int8, np.bool_])
def test_memset_of_a_float_zero_is_zero_and_a_warning(dtype):
    kinds, (got,) = warned(lambda d: nisa.memset(d, 0.0), [], [np.ones((2, 3), dtype)])
    assert kinds == ["memset-type"] and not got.any()


def test_memset_of_packed_dtypes_takes_zero_and_gpsimd_cannot_reach_psum():
    def body(d):
        for dtype in (nl.float8_e4m3fn_x4, nl.float8_e5m2_x4, nl.float4_e2m1fn_x4, nl.float8_e8m0fnu):
            nisa.memset(nl.ndarray((2, 4), dtype, buffer=nl.sbuf), 0)

    run_tiles(body, [], [X])
    refused("buffer", "PSUM", lambda d: nisa.memset(d, 0, engine=nisa.engine.gpsimd), [], [OUT], out_psum=[0])
    refused("engine", "scalar", lambda d: nisa.memset(d, 0, engine=nisa.engine.scalar), [], [OUT])


# ---- tensor_copy_predicated ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EVERY, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("reverse", [False, True])
def test_predicated_copy_replaces_only_where_the_predicate_holds(dtype, reverse):
    old, new = sample((5, 6), dtype, 1), sample((5, 6), dtype, 2)
    mask = np.random.default_rng(3).integers(0, 3, (5, 6)).astype(np.uint8)
    body = lambda d, s, p: nisa.tensor_copy_predicated(d, s, p, reverse_pred=reverse)  # noqa: E731
    (got,) = run_tiles(body, [new, mask], [old], on="trn3")
    same(got, np.where((mask == 0) if reverse else (mask != 0), new, old))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.bool_])
def test_predicated_copy_takes_unsigned_predicates_and_numbers(dtype):
    mask = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]]).astype(dtype)
    (got,) = run_tiles(lambda d, p: nisa.tensor_copy_predicated(d, -2.5, p), [mask], [X])
    same(got, np.where(mask != 0, np.float32(-2.5), X))


def test_predicated_copy_of_a_number_is_cast():
    mask, old = np.array([[1, 1, 0]], np.uint8), np.zeros((1, 3), np.int8)
    (got,) = run_tiles(lambda d, p: nisa.tensor_copy_predicated(d, 2.5, p), [mask], [old])
    assert got.tolist() == [[2, 2, 0]]
    (got,) = run_tiles(lambda d, p: nisa.tensor_copy_predicated(d, 1000, p), [mask], [old])
    assert got.tolist() == [[127, 127, 0]]


def test_predicated_copy_keeps_int32_bits_and_pairs_by_stream_order():
    old = np.full((2, 2, 3, 2), 2**24 + 1, np.int32)
    new = np.arange(24, dtype=np.int32).reshape(2, 12) + 2**25 + 1
    mask = np.zeros((2, 3, 4), np.uint8)
    mask[:, 1] = 9
    (got,) = run_tiles(lambda d, s, p: nisa.tensor_copy_predicated(d, s, p), [new, mask], [old])
    expected = np.where(mask.reshape(2, 12) != 0, new, old.reshape(2, 12)).reshape(old.shape)
    assert (got == expected).all()


def test_predicated_copy_casts_other_dtypes_with_a_warning():
    mask = np.ones((4, 3), np.uint8)
    kinds, (got,) = warned(
        lambda d, s, p: nisa.tensor_copy_predicated(d, s, p), [X.astype(ml_dtypes.bfloat16), mask], [X]
    )
    assert kinds == ["dtype-differs"]
    same(got, X)


def test_predicated_copy_refuses():
    mask = np.ones((4, 3), np.uint8)
    copy = lambda d, s, p: nisa.tensor_copy_predicated(d, s, p)  # noqa: E731
    refused("psum-both", "src and predicate are both in PSUM", copy, [X, mask], [X], in_psum=[0, 1])
    refused("dtype", "predicate has dtype int8", copy, [X, mask.astype(np.int8)], [X])
    refused("dtype", "predicate has dtype float32", copy, [X, X], [X])
    refused("shape", "partitions", copy, [X[:2], mask], [X])
    refused("shape", "elements per partition", copy, [X, mask[:, :2].copy()], [X])
    refused("argument", "src", lambda d, s, p: nisa.tensor_copy_predicated(d, None, p), [X, mask], [X])
    for where in ([0], [1]):
        run_tiles(copy, [X, mask], [X], in_psum=where)


# ---- tensor_tensor -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BINARY)
def test_tensor_tensor_computes_in_float32(name):
    a, b = sample((6, 9), np.float32, 1), sample((6, 9), np.float32, 2)
    b[:, 3] = a[:, 3]
    a[:, 4] = 0
    (got,) = run_tiles(lambda d, x, y: nisa.tensor_tensor(d, x, y, op(name)), [a, b], [(a.shape, np.float32)])
    same(got, cast(REFERENCE[name](wide(a), wide(b)), np.float32))


@pytest.mark.parametrize("dtype", EVERY, ids=lambda d: np.dtype(d).name)
def test_tensor_tensor_casts_once_to_every_dtype(dtype):
    a, b = sample((4, 5), np.float32, 1, -100, 100), sample((4, 5), ml_dtypes.bfloat16, 2)
    body = lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.multiply)  # noqa: E731
    (got,) = run_tiles(body, [a, b], [(a.shape, dtype)], on="trn3")
    same(got, cast(wide(a) * wide(b), dtype))


@pytest.mark.parametrize("first", EVERY, ids=lambda d: np.dtype(d).name)
def test_tensor_tensor_reads_every_dtype(first):
    a, b = sample((4, 5), first, 1), sample((4, 5), np.float32, 2)
    (got,) = run_tiles(
        lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.add), [a, b], [(a.shape, np.float32)], on="trn3"
    )
    same(got, cast(wide(a) + wide(b), np.float32))


def test_maximum_and_minimum_pass_nan_on():
    a = np.array([[np.nan, 1, np.nan, 2]], np.float32)
    b = np.array([[1, np.nan, np.nan, 3]], np.float32)
    for operator, last in ((nl.maximum, 3), (nl.minimum, 2)):
        (got,) = run_tiles(
            lambda d, x, y, o=operator: nisa.tensor_tensor(d, x, y, o), [a, b], [((1, 4), np.float32)]
        )
        assert np.isnan(got[0, :3]).all() and got[0, 3] == last


@pytest.mark.parametrize("same_dtype", [True, False])
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "minimum", "less", "equal"])
def test_32_bit_integers_are_exact_on_gpsimd(name, same_dtype):
    rng = np.random.default_rng(1)
    a = rng.integers(-(2**31), 2**31, (4, 6)).astype(np.int32)
    b = rng.integers(0, 2**32, (4, 6)).astype(np.uint32)
    b = b.view(np.int32) if same_dtype else b
    b[0, 0], a[0, 0] = 7, 7
    whole = REFERENCE[name](a.astype(object), b.astype(object))
    expected = (np.vectorize(int)(whole) % 2**32).astype(np.uint32)
    for dtype in (np.uint32, np.int32):
        (got,) = run_tiles(lambda d, x, y: nisa.tensor_tensor(d, x, y, op(name)), [a, b], [(a.shape, dtype)])  # noqa: B023
        assert (got.view(np.uint32) == expected).all()


def test_32_bit_integers_round_on_the_vector_engine_and_with_psum():
    a = np.full((1, 2), 2**24 + 1, np.int32)
    body = lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.add)  # noqa: E731
    zero = np.zeros((1, 2), np.int32)
    assert run_tiles(body, [a, zero], [((1, 2), np.int32)])[0][0, 0] == 2**24 + 1
    assert run_tiles(body, [a, zero], [((1, 2), np.int32)], in_psum=[0])[0][0, 0] == 2**24
    body = lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.add, engine=nisa.engine.vector)  # noqa: E731
    assert run_tiles(body, [a, zero], [((1, 2), np.int32)])[0][0, 0] == 2**24


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"])
def test_bitwise_operators_work_on_bit_patterns(name, dtype):
    width = 8 * np.dtype(dtype).itemsize
    rng = np.random.default_rng(2)
    a = rng.integers(0, 2**width, (4, 8), dtype=np.uint64).astype(f"uint{width}").view(dtype)
    b = rng.integers(0, 40 if "shift" in name else 2 ** (width - 1), (4, 8)).astype(dtype)
    pattern = [[int(x) % 2**width for x in row] for row in a]
    other = [[int(x) % 2**width for x in row] for row in b]
    bits = {
        "bitwise_and": lambda x, y: x & y,
        "bitwise_or": lambda x, y: x | y,
        "bitwise_xor": lambda x, y: x ^ y,
        "left_shift": lambda x, y: (x << y) % 2**width,
        "right_shift": lambda x, y: x >> y,
    }[name]
    expected = np.array(
        [[bits(x, y) for x, y in zip(*rows, strict=True)] for rows in zip(pattern, other, strict=True)]
    )
    (got,) = run_tiles(lambda d, x, y: nisa.tensor_tensor(d, x, y, op(name)), [a, b], [(a.shape, dtype)])
    assert (got.view(f"uint{width}") == expected.astype(f"uint{width}")).all()


def test_right_shift_is_logical_for_signed_integers():
    a = np.array([[-8]], np.int32)
    (got,) = run_tiles(
        lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.right_shift),
        [a, np.array([[1]], np.int32)],
        [((1, 1), np.int32)],
    )
    assert got[0, 0] == 0x7FFFFFFC


def test_bitwise_results_are_extended_by_sign_or_truncated():
    a, ones = np.array([[-2, 5]], np.int8), np.array([[-1, -1]], np.int8)
    body = lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.bitwise_and)  # noqa: E731
    assert run_tiles(body, [a, ones], [((1, 2), np.int32)])[0].tolist() == [[-2, 5]]
    a = np.array([[0x1234]], np.int32)
    assert run_tiles(body, [a, a], [((1, 1), np.uint8)])[0].tolist() == [[0x34]]
    a = np.array([[0xFE]], np.uint8)
    assert run_tiles(body, [a, a], [((1, 1), np.int32)])[0].tolist() == [[0xFE]]


def test_power_runs_on_gpsimd():
    a, b = np.abs(sample((3, 4), np.float32, 1)) + 1, sample((3, 4), np.float32, 2, -2, 2)
    (got,) = run_tiles(lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.power), [a, b], [((3, 4), np.float32)])
    np.testing.assert_allclose(got, wide(a) ** wide(b), rtol=1e-6)


def test_abs_max_keeps_the_sign_and_prefers_the_right_one():
    a = np.array([[-3, 2, 2, -2, 0]], np.float32)
    b = np.array([[2, -3, -2, 2, -0.5]], np.float32)
    outs = [((1, 5), np.float32)]
    (got,) = run_tiles(lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.abs_max), [a, b], outs, on="trn3")
    assert got.tolist() == [[-3, -3, -2, 2, -0.5]]
    (got,) = run_tiles(lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.abs_min), [a, b], outs, on="trn3")
    assert got.tolist() == [[2, 2, -2, 2, 0]]
    refused("generation", "needs trn3", lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.abs_max), [a, b], outs)


@pytest.mark.parametrize("shape", [(1, 1), (1, 513), (128, 3), (7, 2, 5), (128, 2, 3, 4)])
def test_tensor_tensor_takes_any_shape_and_may_write_over_its_input(shape):
    a, b = sample(shape, np.float32, 1), sample(shape, np.float32, 2)
    (got,) = run_tiles(lambda d, y: nisa.tensor_tensor(d, d, y, nl.subtract), [b], [a])
    same(got, cast(wide(a) - wide(b), np.float32))


def test_tensor_tensor_pairs_ranks_by_stream_order_and_reads_broadcast_views():
    a, b = sample((3, 12), np.float32, 1), sample((3, 2, 6), np.float32, 2)
    (got,) = run_tiles(lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.add), [a, b], [((3, 3, 4), np.float32)])
    same(got, cast(wide(a).reshape(3, 3, 4) + wide(b).reshape(3, 3, 4), np.float32))
    column = sample((3, 1), np.float32, 3)
    (got,) = run_tiles(
        lambda d, x, y: nisa.tensor_tensor(d, x, y.broadcast(1, 12), nl.add),
        [a, column],
        [((3, 12), np.float32)],
    )
    same(got, cast(wide(a) + wide(column), np.float32))


def test_tensor_tensor_takes_one_operand_from_psum():
    a, b = sample((4, 6), np.float32, 1), sample((4, 6), np.float32, 2)
    body = lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.add)  # noqa: E731
    for where in ([0], [1]):
        (got,) = run_tiles(body, [a, b], [((4, 6), np.float32)], in_psum=where, out_psum=[0])
        same(got, cast(wide(a) + wide(b), np.float32))
    refused("psum-both", "both in PSUM", body, [a, b], [((4, 6), np.float32)], in_psum=[0, 1])


@pytest.mark.parametrize(
    ("kind", "text", "body"),
    [
        ("op", "nl.divide is not possible", lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.divide)),
        ("op", "nl.mod", lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.mod)),
        ("op", "nl.exp", lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.exp)),
        ("op", "nl.abs", lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.abs)),
        ("op", "pass nl.add", lambda d, x, y: nisa.tensor_tensor(d, x, y, "add")),
        ("op", "must be an nl operator", lambda d, x, y: nisa.tensor_tensor(d, x, y, None)),
        ("dtype", "needs integers", lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.bitwise_and)),
        (
            "engine",
            "gpsimd engine only",
            lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.power, nisa.engine.vector),
        ),
        ("engine", "scalar", lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.add, nisa.engine.scalar)),
    ],
)
def test_tensor_tensor_refuses(kind, text, body):
    refused(kind, text, body, [X, X], [OUT])


def test_tensor_tensor_refuses_engines_that_cannot():
    ints = X.astype(np.int32)
    body = lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.bitwise_or, nisa.engine.gpsimd)  # noqa: E731
    refused("engine", "vector engine only", body, [ints, ints], [((4, 3), np.int32)])
    body = lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.power)  # noqa: E731
    refused("buffer", "must be in SBUF", body, [X, X], [OUT], in_psum=[0])
    body = lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.left_shift)  # noqa: E731
    refused("op", "at least 0", body, [ints, ints - 5], [((4, 3), np.int32)])


@pytest.mark.parametrize("token", [np.add, nl.add])
def test_numpy_functions_are_operators_too(token):
    (got,) = run_tiles(lambda d, x, y: nisa.tensor_tensor(d, x, y, token), [X, X], [OUT])
    same(got, 2 * X)


# ---- tensor_scalar -------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", BINARY)
def test_tensor_scalar_takes_a_number_or_a_column(name, reverse):
    x, column = sample((5, 8), np.float32, 1), sample((5, 1), np.float32, 2)
    x[:, 2:3] = column
    for operand in (column, np.full((5, 1), 1.25, np.float32)):
        a, b = (wide(operand), wide(x)) if reverse else (wide(x), wide(operand))
        expected = cast(REFERENCE[name](a, b), np.float32)

        def body(d, s, c):
            number = operand is not column  # noqa: B023
            nisa.tensor_scalar(d, s, op(name), 1.25 if number else c, reverse0=reverse)

        (got,) = run_tiles(body, [x, column], [(x.shape, np.float32)])
        same(got, expected)


@pytest.mark.tiny
def test_tensor_scalar_applies_two_operators_without_a_cast_between():
    x = np.array([[1.5, 2.5, 3.5]], np.float32)
    body = lambda d, s: nisa.tensor_scalar(d, s, nl.add, 0.25, op1=nl.subtract, operand1=0.25)  # noqa: E731
    (got,) = run_tiles(body, [x], [((1, 3), np.int32)])
    assert got.tolist() == [[2, 2, 4]]


@pytest.mark.parametrize("reverse", [(False, False), (True, False), (False, True), (True, True)])
def test_both_stages_can_be_reversed(reverse):
    x, c = sample((6, 4), np.float32, 1), sample((6, 1), np.float32, 2)

    def body(d, s, t):
        nisa.tensor_scalar(d, s, nl.subtract, 3.0, reverse[0], nl.subtract, t, reverse[1])

    (got,) = run_tiles(body, [x, c], [(x.shape, np.float32)])
    between = np.float32(3) - x if reverse[0] else x - np.float32(3)
    same(got, c - between if reverse[1] else between - c)


def test_an_operator_of_none_is_skipped():
    x = sample((4, 5), np.float32, 1)
    outs = [((4, 5), np.float32)]
    (got,) = run_tiles(
        lambda d, s: nisa.tensor_scalar(d, s, None, None, op1=nl.maximum, operand1=0.5), [x], outs
    )
    same(got, np.maximum(x, np.float32(0.5)))
    (got,) = run_tiles(lambda d, s: nisa.tensor_scalar(d, s, None, 3.0), [x], outs)
    same(got, x)
    (got,) = run_tiles(
        lambda d, s: nisa.tensor_scalar(d, s, nl.bypass, 3.0, op1=nl.bypass), [x], [((4, 5), np.int8)]
    )
    same(got, cast(wide(x), np.int8))


def test_a_clamp_between_two_numbers():
    x = sample((4, 50), np.float32, 1)
    body = lambda d, s: nisa.tensor_scalar(d, s, nl.minimum, 2.5, op1=nl.maximum, operand1=-1)  # noqa: E731
    (got,) = run_tiles(body, [x], [((4, 50), ml_dtypes.bfloat16)])
    same(got, cast(np.clip(wide(x), -1, 2.5), ml_dtypes.bfloat16))


@pytest.mark.parametrize("source", EVERY, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("to", EVERY, ids=lambda d: np.dtype(d).name)
def test_tensor_scalar_takes_every_dtype(source, to):
    x = sample((3, 5), source)
    body = lambda d, s: nisa.tensor_scalar(d, s, nl.multiply, 1.5)  # noqa: E731
    (got,) = run_tiles(body, [x], [(x.shape, to)], on="trn3")
    same(got, cast(wide(x) * 1.5, to))


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("abs", np.abs),
        ("reciprocal", lambda x: 1 / x),
        ("rsqrt", lambda x: 1 / np.sqrt(np.sqrt(x * x))),
        ("square", lambda x: x * x),
        ("relu", lambda x: np.maximum(x, 0)),
    ],
)
@pytest.mark.parametrize("operand", [None, 0, 0.0])
def test_unary_operators_take_no_operand(name, reference, operand):
    x = sample((3, 5), np.float32, 1)
    x = np.abs(x) if name == "rsqrt" else x
    body = lambda d, s: nisa.tensor_scalar(d, s, op(name), operand)  # noqa: E731
    (got,) = run_tiles(body, [x], [(x.shape, np.float32)], on="trn3")
    np.testing.assert_allclose(got, reference(wide(x)), rtol=3e-7)
    refused(
        "argument",
        "takes no operand",
        lambda d, s: nisa.tensor_scalar(d, s, op(name), 1.0),
        [x],
        [(x.shape, np.float32)],
        on="trn3",
    )


def test_add_then_power_is_the_usual_rsqrt():
    x = np.abs(sample((3, 5), np.float32, 1))
    body = lambda d, s: nisa.tensor_scalar(d, s, nl.add, 1e-3, op1=nl.power, operand1=-0.5)  # noqa: E731
    (got,) = run_tiles(body, [x], [(x.shape, np.float32)])
    np.testing.assert_allclose(got, (wide(x) + 1e-3) ** -0.5, rtol=1e-6)
    (got,) = run_tiles(body, [x], [(x.shape, np.float32)], in_psum=[0])
    np.testing.assert_allclose(got, (wide(x) + 1e-3) ** -0.5, rtol=1e-6)


def test_32_bit_integers_with_integer_operands_are_exact():
    x = np.array([[2**24 + 1, 2**31 - 1, -5, -(2**31)]], np.int32)
    outs = [((1, 4), np.int32)]
    (got,) = run_tiles(lambda d, s: nisa.tensor_scalar(d, s, nl.add, 1), [x], outs)
    assert got.tolist() == [[2**24 + 2, -(2**31), -4, -(2**31) + 1]]
    (got,) = run_tiles(
        lambda d, s: nisa.tensor_scalar(
            d, s, nl.multiply, np.int64(3), op1=nl.subtract, operand1=1, reverse1=True
        ),
        [x],
        outs,
    )
    expected = [(1 - 3 * int(v) + 2**31) % 2**32 - 2**31 for v in x[0]]
    assert got.tolist() == [expected]
    (got,) = run_tiles(lambda d, s: nisa.tensor_scalar(d, s, nl.less, 2**24 + 2), [x], outs)
    assert got.tolist() == [[1, 0, 1, 1]]


def test_integer_comparisons_follow_the_dtype_of_data():
    x = np.array([[1, 0xFFFFFFFF]], np.uint32)
    (got,) = run_tiles(lambda d, s: nisa.tensor_scalar(d, s, nl.less, -1), [x], [((1, 2), np.uint32)])
    assert got.tolist() == [[1, 0]]
    (got,) = run_tiles(lambda d, s: nisa.tensor_scalar(d, s, nl.maximum, -1), [x], [((1, 2), np.int32)])
    assert got.tolist() == [[-1, -1]]


def test_integer_columns_are_exact_and_others_are_converted_with_a_warning():
    x, c = np.array([[2**24 + 1]], np.int32), np.array([[2]], np.int32)
    body = lambda d, s, t: nisa.tensor_scalar(d, s, nl.add, t)  # noqa: E731
    kinds, (got,) = warned(body, [x, c], [((1, 1), np.int32)])
    assert kinds == [] and got[0, 0] == 2**24 + 3
    kinds, (got,) = warned(body, [x, c], [((1, 1), np.float32)])
    assert kinds == ["operand-dtype"] and got[0, 0] == 2**24 + 2
    kinds, (got,) = warned(body, [X, np.ones((4, 1), ml_dtypes.bfloat16)], [OUT])
    assert kinds == ["operand-dtype"]
    same(got, X + 1)


def test_integer_data_with_a_float_operand_is_float32():
    x = np.array([[2**24 + 1]], np.int32)
    (got,) = run_tiles(lambda d, s: nisa.tensor_scalar(d, s, nl.add, 0.0), [x], [((1, 1), np.int32)])
    assert got[0, 0] == 2**24


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: np.dtype(d).name)
def test_tensor_scalar_bitwise_operators(dtype):
    width = 8 * np.dtype(dtype).itemsize
    bits = np.dtype(f"uint{width}")
    x = np.random.default_rng(5).integers(0, 2**width, (3, 7), dtype=np.uint64).astype(bits)
    columns = np.array([[1], [3], [width]], np.int16)

    def run(*args, **kwargs):
        def body(d, s, c):
            nisa.tensor_scalar(d, s, *(c if a == "column" else a for a in args), **kwargs)

        return run_tiles(body, [x.view(dtype), columns], [(x.shape, dtype)])[0].view(bits)

    big = x.astype(object)
    expect = lambda v: (v % 2**width).astype(np.uint64).astype(bits)  # noqa: E731
    same(run(nl.bitwise_and, 0x5A), expect(big & 0x5A))
    same(run(nl.bitwise_or, -1), expect(big | (2**width - 1)))
    same(run(nl.invert, None), expect(big ^ (2**width - 1)))
    same(run(nl.left_shift, 3, op1=nl.bitwise_xor, operand1=7), expect((big << 3) ^ 7))
    same(run(nl.right_shift, width), expect(big * 0))
    same(run(nl.right_shift, 2**width), expect(big * 0))
    same(run(nl.right_shift, "column"), expect(big >> columns.astype(object)))
    small = x % bits.type(9)
    x = small
    same(run(nl.left_shift, 1, reverse0=True), expect(2 ** small.astype(object)))


def test_tensor_scalar_runs_on_the_engines_that_can():
    x = X + 1
    engine = nisa.engine

    def runs(where, on, *args, **kwargs):
        run_tiles(lambda d, s: nisa.tensor_scalar(d, s, *args, engine=where, **kwargs), [x], [OUT], on=on)

    def fails(where, on, text, *args, **kwargs):
        body = lambda d, s: nisa.tensor_scalar(d, s, *args, engine=where, **kwargs)  # noqa: E731
        refused("engine", text, body, [x], [OUT], on=on)

    runs(engine.scalar, "trn2", nl.multiply, 2.0, op1=nl.add, operand1=1.0)
    runs(engine.scalar, "trn2", nl.multiply, 2.0)
    runs(engine.scalar, "trn2", nl.add, 2.0)
    runs(engine.scalar, "trn3", nl.subtract, 2.0, True, nl.less, 3.0)
    runs(engine.gpsimd, "trn2", nl.rsqrt, None)
    runs(engine.gpsimd, "trn2", nl.power, 2.0)
    runs(engine.vector, "trn1", nl.power, 2.0)
    fails(engine.scalar, "trn1", "has no tensor_scalar", nl.multiply, 2.0)
    fails(engine.scalar, "trn2", "multiply then add", nl.subtract, 2.0)
    fails(engine.scalar, "trn2", "multiply then add", nl.add, 2.0, op1=nl.multiply, operand1=1.0)
    fails(engine.scalar, "trn2", "multiply then add", nl.multiply, 2.0, True)
    fails(engine.scalar, "trn2", "multiply then add", None, None, op1=nl.add, operand1=1.0)
    fails(engine.scalar, "trn3", "two operands only", nl.abs, None)
    fails(engine.gpsimd, "trn2", "rsqrt, power and 32-bit integers", nl.add, 2.0)
    fails(engine.tensor, "trn2", "cannot run on the tensor engine", nl.add, 2.0)

    ints = x.astype(np.int32)
    body = lambda d, s: nisa.tensor_scalar(d, s, nl.add, 1, engine=engine.gpsimd)  # noqa: E731
    run_tiles(body, [ints], [((4, 3), np.int32)])
    body = lambda d, s: nisa.tensor_scalar(d, s, nl.bitwise_and, 1, engine=engine.gpsimd)  # noqa: E731
    refused("engine", "vector engine only", body, [ints], [((4, 3), np.int32)])
    body = lambda d, s: nisa.tensor_scalar(d, s, nl.rsqrt, None, engine=engine.gpsimd)  # noqa: E731
    refused("buffer", "PSUM", body, [x], [OUT], in_psum=[0])


@pytest.mark.parametrize(
    ("kind", "text", "args", "kwargs"),
    [
        ("op", "nl.divide", (nl.divide, 2.0), {}),
        ("op", "nl.exp", (nl.exp, 2.0), {}),
        ("op", "nl.average", (nl.average, 2.0), {}),
        ("argument", "operand0 is missing", (nl.add, None), {}),
        ("argument", "operand1 is missing", (nl.add, 1.0), {"op1": nl.add}),
        ("argument", "op1 is None", (nl.add, 1.0), {"operand1": 2.0}),
        ("argument", "number or a [P, 1] tile", (nl.add, "x"), {}),
        ("argument", "number or a [P, 1] tile", (nl.add, [1.0]), {}),
        ("argument", "too large", (nl.add, 10**60), {}),
        ("generation", "needs trn3", (nl.square, None), {}),
        ("generation", "needs trn3", (nl.relu, None), {}),
        ("generation", "needs trn3", (nl.add, 1.0), {"op1": nl.abs_max, "operand1": 1.0}),
        ("op", "one is bitwise", (nl.add, 1), {"op1": nl.bitwise_and, "operand1": 1}),
        ("dtype", "needs integers", (nl.bitwise_and, 1), {}),
    ],
)
def test_tensor_scalar_refuses(kind, text, args, kwargs):
    refused(kind, text, lambda d, s: nisa.tensor_scalar(d, s, *args, **kwargs), [X], [OUT])


def test_tensor_scalar_refuses_operands_of_another_shape_or_kind():
    body = lambda d, s, c: nisa.tensor_scalar(d, s, nl.add, c)  # noqa: E731
    refused("shape", "operand0 must have one element", body, [X, X], [OUT])
    refused("shape", "operand0 has 3 partitions", body, [X, X[:3, :1].copy()], [OUT])
    ints = X.astype(np.int32)
    body = lambda d, s: nisa.tensor_scalar(d, s, nl.bitwise_and, 1.0)  # noqa: E731
    refused("dtype", "needs an integer", body, [ints], [((4, 3), np.int32)])
    body = lambda d, s: nisa.tensor_scalar(d, s, nl.left_shift, -1)  # noqa: E731
    refused("op", "at least 0", body, [ints], [((4, 3), np.int32)])
    body = lambda d, s, c: nisa.tensor_scalar(d, s, nl.bitwise_and, c)  # noqa: E731
    refused("dtype", "needs integers", body, [ints, X[:, :1].copy()], [((4, 3), np.int32)])


def test_tensor_scalar_may_write_over_its_operands():
    x = sample((5, 6), np.float32, 1)
    body = lambda d: nisa.tensor_scalar(d, d, nl.subtract, d[:, 0:1], op1=nl.multiply, operand1=d[:, 1:2])  # noqa: E731
    (got,) = run_tiles(body, [], [x])
    same(got, (x - x[:, :1]) * x[:, 1:2])


@pytest.mark.parametrize("shape", [(1, 1), (128, 5), (3, 2, 5), (4, 2, 3, 2)])
def test_tensor_scalar_takes_columns_for_any_rank(shape):
    x, c = sample(shape, np.float32, 1), sample((shape[0], 1), np.float32, 2)
    body = lambda d, s, t: nisa.tensor_scalar(d, s, nl.multiply, t, op1=nl.add, operand1=t)  # noqa: E731
    wide_c = c.reshape(-1, *(1,) * (len(shape) - 1))
    for where in ([], [0], [1]):
        (got,) = run_tiles(body, [x, c], [(shape, np.float32)], in_psum=where)
        same(got, x * wide_c + wide_c)


# ---- scalar_tensor_tensor ------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    "names", [("subtract", "multiply"), ("multiply", "subtract"), ("less", "add"), ("maximum", "greater")]
)
def test_scalar_tensor_tensor_applies_both_operators(names, reverse):
    x, y, c = (sample((5, 4), np.float32, i) for i in range(3))
    c = c[:, :1].copy()

    def body(d, s, t, column):
        nisa.scalar_tensor_tensor(d, s, op(names[0]), column, op(names[1]), t, reverse[0], reverse[1])

    (got,) = run_tiles(body, [x, y, c], [(x.shape, np.float32)])
    first = REFERENCE[names[0]](*((c, x) if reverse[0] else (x, c)))
    first = cast(first, np.float32)
    second = REFERENCE[names[1]](*((wide(y), wide(first)) if reverse[1] else (wide(first), wide(y))))
    same(got, cast(second, np.float32))


@pytest.mark.parametrize("dtype", EVERY, ids=lambda d: np.dtype(d).name)
def test_scalar_tensor_tensor_takes_every_dtype(dtype):
    x, y = sample((3, 5), dtype, 1), sample((3, 5), dtype, 2)
    body = lambda d, s, t: nisa.scalar_tensor_tensor(d, s, nl.add, 2, nl.subtract, t)  # noqa: E731
    (got,) = run_tiles(body, [x, y], [(x.shape, dtype)], on="trn3")
    same(got, cast(wide(cast(wide(x) + 2, np.float32)) - wide(y), dtype))


def test_scalar_tensor_tensor_takes_abs_first_and_writes_over_its_inputs():
    x, y = sample((3, 5), np.float32, 1), sample((3, 5), np.float32, 2)
    body = lambda d, s: nisa.scalar_tensor_tensor(d, d, nl.abs, None, nl.subtract, s)  # noqa: E731
    (got,) = run_tiles(body, [y], [x])
    same(got, np.abs(x) - y)
    body = lambda d, s: nisa.scalar_tensor_tensor(d, s, nl.subtract, d[:, 0:1], nl.multiply, d)  # noqa: E731
    (got,) = run_tiles(body, [y], [x])
    same(got, (y - x[:, :1]) * x)


def test_scalar_tensor_tensor_refuses():
    def with_ops(op0, operand0, op1):
        return lambda d, x, y: nisa.scalar_tensor_tensor(d, x, op0, operand0, op1, y)

    refused("psum-both", "data and operand1", with_ops(nl.add, 1.0, nl.add), [X, X], [OUT], in_psum=[0, 1])
    refused("op", "bitwise_and", with_ops(nl.bitwise_and, 1, nl.add), [X, X], [OUT])
    refused("op", "nl.abs", with_ops(nl.add, 1.0, nl.abs), [X, X], [OUT])
    refused("op", "nl.power", with_ops(nl.power, 1.0, nl.add), [X, X], [OUT])
    refused("op", "must be an nl operator", with_ops(nl.add, 1.0, None), [X, X], [OUT])
    refused("argument", "operand0 is missing", with_ops(nl.add, None, nl.add), [X, X], [OUT])
    refused("shape", "operand1 has 2", with_ops(nl.add, 1.0, nl.add), [X, X[:, :2].copy()], [OUT])
    body = lambda d, x, y: nisa.scalar_tensor_tensor(d, x, nl.add, 1.0, nl.add, 2.0)  # noqa: E731
    refused("argument", "operand1 must be a tile", body, [X, X], [OUT])
    for where in ([0], [1]):
        (got,) = run_tiles(with_ops(nl.add, 1.0, nl.add), [X, X], [OUT], in_psum=where)
        same(got, 2 * X + 1)


# ---- reciprocal ----------------------------------------------------------------------------------


def test_reciprocal_is_the_accurate_quotient():
    x = np.array([[0.0, -0.0, np.inf, -np.inf, 3.0, 1e-40, np.nan, -7.5]], np.float32)
    (got,) = run_tiles(lambda d, s: nisa.reciprocal(d, s), [x], [(x.shape, np.float32)])
    with np.errstate(divide="ignore", over="ignore"):
        expected = (1 / x.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(got, expected)
    assert np.signbit(got[0, 1]) and np.signbit(got[0, 3])


@pytest.mark.parametrize("dtype", EVERY, ids=lambda d: np.dtype(d).name)
def test_reciprocal_takes_every_dtype(dtype):
    x = np.array([[1, 2, 4, 1]]).astype(dtype)
    for to in (np.float32, dtype):
        (got,) = run_tiles(lambda d, s: nisa.reciprocal(d, s), [x], [(x.shape, to)], on="trn3")
        same(got, cast(1 / wide(x), to))


def test_reciprocal_may_write_over_its_input_in_psum_and_refuses_other_shapes():
    x = sample((128, 3, 2), np.float32, 1)
    (got,) = run_tiles(lambda d: nisa.reciprocal(d, d), [], [x], out_psum=[0])
    same(got, cast(1 / wide(x), np.float32))
    refused("shape", "elements per partition", lambda d, s: nisa.reciprocal(d, s), [X[:, :2].copy()], [OUT])


# ---- indirect views (trn3) -----------------------------------------------------------------------


def gathered(x, index, count):
    """The columns an index tile shared by groups of 16 partitions names."""
    rows = np.arange(len(x))[:, None] // 16 * 16 + np.arange(count) % 16
    return np.take_along_axis(x, index[rows, np.arange(count) // 16].astype(np.int64), axis=1)


INDEX = np.random.default_rng(9).permutation(32).astype(np.uint16).reshape(2, 16).T.copy()


def test_indirect_views_gather_and_scatter_on_trn3():
    x = sample((16, 32), np.float32, 1)
    y = sample((16, 32), np.float32, 2)
    picked = gathered(x, INDEX, 32)
    outs = [((16, 32), np.float32)]
    (got,) = run_tiles(lambda d, s, i: nisa.tensor_copy(d, s.indirect(i, 32)), [x, INDEX], outs, on="trn3")
    same(got, picked)
    body = lambda d, s, t, i: nisa.tensor_tensor(d, s.indirect(i, 32), t, nl.add)  # noqa: E731
    (got,) = run_tiles(body, [x, y, INDEX], outs, on="trn3")
    same(got, picked + y)
    body = lambda d, s, i: nisa.tensor_scalar(d.indirect(i, 32), s, nl.add, 1.0)  # noqa: E731
    (got,) = run_tiles(body, [x, INDEX], [y], on="trn3")
    same(gathered(got, INDEX, 32), x + np.float32(1))
    mask = (x > 0).astype(np.uint8)
    body = lambda d, s, p, i: nisa.tensor_copy_predicated(d, s, p.indirect(i, 32))  # noqa: E731
    (got,) = run_tiles(body, [x, mask, INDEX], [y], on="trn3")
    same(got, np.where(gathered(mask, INDEX, 32) != 0, x, y))


def test_indirect_views_are_refused_elsewhere():
    x = sample((16, 32), np.float32, 1)
    outs = [((16, 32), np.float32)]
    body = lambda d, s, i: nisa.tensor_tensor(d, s, s.indirect(i, 32), nl.add)  # noqa: E731
    refused("indirect-view", "data2 cannot be addressed", body, [x, INDEX], outs, on="trn3")
    body = lambda d, s, i: nisa.reciprocal(d, s.indirect(i, 32))  # noqa: E731
    refused("indirect-view", "data cannot be addressed", body, [x, INDEX], outs, on="trn3")
    body = lambda d, s, i: nisa.tensor_copy(d, s.indirect(i, 32), engine=nisa.engine.gpsimd)  # noqa: E731
    refused("engine", "gpsimd", body, [x, INDEX], outs, on="trn3")
    body = lambda d, s, i: nisa.tensor_copy(d.indirect(i, 32), s, engine=nisa.engine.scalar)  # noqa: E731
    refused("buffer", "scatter dst into PSUM", body, [x, INDEX], outs, on="trn3", out_psum=[0])
    ints = x.astype(np.int32)
    body = lambda d, s, i: nisa.tensor_scalar(d, s.indirect(i, 32), nl.add, 1)  # noqa: E731
    refused("indirect-view", "32-bit integer", body, [ints, INDEX], [((16, 32), np.int32)], on="trn3")
    body = lambda d, s, i: nisa.tensor_copy(d, s.indirect(i, 32))  # noqa: E731
    refused("generation", "trn3", body, [x, INDEX], outs)


def test_an_index_that_starts_elsewhere_is_reported():
    x = sample((64, 32), np.float32, 1)
    index = np.tile(INDEX, (4, 1))
    body = lambda d, s, i: nisa.tensor_copy(d, s[0:16].indirect(i[32:48], 32))  # noqa: E731
    kinds, (got,) = warned(body, [x, index], [((16, 32), np.float32)], on="trn3")
    assert kinds == ["indirect-align"]
    same(got, gathered(x[:16], INDEX, 32))


def test_an_index_at_an_address_of_its_own_choice_must_be_aligned():
    @nki.jit
    def kernel():
        data = nl.ndarray((16, 32), nl.float32, buffer=nl.sbuf, address=(0, 0))
        index = nl.ndarray((16, 2), nl.uint16, buffer=nl.sbuf, address=(32, 0))
        out = nl.ndarray((16, 32), nl.float32, buffer=nl.sbuf, address=(0, 1024))
        nisa.memset(data, 1.0)
        nisa.memset(index, 0)
        nisa.tensor_copy(out, data.indirect(index, 32))

    with target("trn3"), pytest.raises(nki.NkiError, match="must start where its data does") as e:
        kernel()
    assert e.value.kind == "alignment"


# ---- what they cost ------------------------------------------------------------------------------


def costs(body, shape, dtype=np.float32, on="trn2", **where):
    """The Cost of the last instruction of a body on two input tiles and one output tile."""
    found = []

    def recorded(d, a, b):
        found.append(body(d, a, b))

    x = np.ones(shape, dtype)
    run_tiles(recorded, [x, x], [(shape, dtype)], on=on, **where)
    return found[-1].cost(MACHINES[on])


def busy(cost):
    """Cycles of the work, without what the engine is held beyond it."""
    return max(cost.cycles, cost.shortest)


@pytest.mark.parametrize(
    ("on", "dtype", "cycles"),
    [("trn1", np.float32, 1024 + 4 * 39.5), ("trn2", np.float32, 512), ("trn2", ml_dtypes.bfloat16, 256)],
)
def test_cost_of_tensor_tensor_follows_the_mode(on, dtype, cycles):
    cost = costs(lambda d, a, b: nisa.tensor_tensor(d, a, b, nl.add), (4, 512), dtype, on)
    assert (cost.interval if on == "trn1" else busy(cost)) == cycles
    assert cost.fix_ns == MACHINES[on].fix_vector_ns
    assert on == "trn1" or cost.interval - cycles == pytest.approx(
        (156 - 95) * 0.96
    )  # 64 ns in device traces


def test_costs_of_the_other_instructions():
    access = MACHINES["trn1"].vector_access_cycles  # of a tile in SBUF; two of them share its port
    assert busy(costs(lambda d, a, b: nisa.tensor_copy(d, a), (4, 512))) == 256
    assert busy(costs(lambda d, a, b: nisa.tensor_copy(d, a), (4, 512), ml_dtypes.bfloat16)) == 128
    assert busy(costs(lambda d, a, b: nisa.tensor_copy(d, a), (4, 512), in_psum=[0])) == 512
    assert busy(costs(lambda d, a, b: nisa.tensor_copy(d, a), (4, 8))) == 64
    assert busy(costs(lambda d, a, b: nisa.tensor_copy(d, a, nisa.engine.gpsimd), (4, 512))) == 150 + 512
    assert busy(costs(lambda d, a, b: nisa.tensor_copy(d, a, nisa.engine.scalar), (4, 512))) == 512
    assert busy(costs(lambda d, a, b: nisa.tensor_scalar(d, a, nl.add, 1.0), (4, 512))) == 256
    assert busy(costs(lambda d, a, b: nisa.tensor_scalar(d, a, nl.rsqrt, None), (4, 512))) == 150 + 2048
    assert costs(lambda d, a, b: nisa.reciprocal(d, a), (4, 512), on="trn1").interval == 8 * 512 + access
    assert busy(costs(lambda d, a, b: nisa.reciprocal(d, a), (4, 512))) == 6 * 512
    stt = lambda d, a, b: nisa.scalar_tensor_tensor(d, a, nl.subtract, 1.0, nl.multiply, b)  # noqa: E731
    assert costs(stt, (4, 512), on="trn1").interval == 1024 + 4 * access
    assert costs(stt, (4, 512), ml_dtypes.bfloat16, on="trn1").interval == 512 + 4 * access
    memset = costs(lambda d, a, b: nisa.memset(d, 0), (4, 512), ml_dtypes.bfloat16, on="trn1")
    assert busy(memset) == 256 and "fix_memset_ns" in memset.rests_on


# ---- properties ----------------------------------------------------------------------------------


shapes = st.lists(st.integers(1, 6), min_size=2, max_size=4).map(tuple)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6)


@settings(max_examples=200, deadline=None)
@given(
    shapes, st.sampled_from(BINARY), st.sampled_from(EVERY), st.sampled_from(EVERY), st.integers(0, 2**32 - 1)
)
def test_tensor_tensor_is_its_float64_formula_rounded(shape, name, source, to, seed):
    a, b = sample(shape, source, seed), sample(shape, source, seed + 1)
    body = lambda d, x, y: nisa.tensor_tensor(d, x, y, op(name), engine=nisa.engine.vector)  # noqa: E731
    (got,) = run_tiles(body, [a, b], [(shape, to)], on="trn3")
    same(got, cast(REFERENCE[name](wide(a), wide(b)), to))


@settings(max_examples=200, deadline=None)
@given(
    shapes,
    st.sampled_from(BINARY),
    st.sampled_from([None, *BINARY]),
    floats,
    st.booleans(),
    st.booleans(),
    st.sampled_from(FLOATS),
    st.integers(0, 2**32 - 1),
)
def test_tensor_scalar_is_two_rounded_steps(shape, first, second, number, reverse0, reverse1, to, seed):
    x, c = sample(shape, np.float32, seed), sample((shape[0], 1), np.float32, seed + 1)

    def body(d, s, t):
        later = {} if second is None else {"op1": op(second), "operand1": t, "reverse1": reverse1}
        nisa.tensor_scalar(d, s, op(first), number, reverse0, **later)

    (got,) = run_tiles(body, [x, c], [(shape, to)])
    a, b = (np.float64(number), wide(x)) if reverse0 else (wide(x), np.float64(number))
    result = np.broadcast_to(cast(REFERENCE[first](a, b), np.float32), shape)
    if second is not None:
        column = wide(c).reshape(-1, *(1,) * (len(shape) - 1))
        a, b = (column, wide(result)) if reverse1 else (wide(result), column)
        result = cast(REFERENCE[second](a, b), np.float32)
    same(got, cast(wide(result), to))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum", "equal", "less"]),
    st.sampled_from([np.int32, np.uint32]),
    st.integers(-(2**33), 2**33),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_integer_tensor_scalar_wraps_modulo_two_to_the_32(name, dtype, number, reverse, seed):
    x = np.random.default_rng(seed).integers(0, 2**32, (3, 4), dtype=np.uint64).astype(np.uint32).view(dtype)
    body = lambda d, s: nisa.tensor_scalar(d, s, op(name), number, reverse0=reverse)  # noqa: E731
    (got,) = run_tiles(body, [x], [(x.shape, dtype)])
    low = int(np.iinfo(dtype).min)
    as_dtype = (number - low) % 2**32 + low
    for value, result in zip(x.ravel(), got.ravel(), strict=True):
        a, b = (as_dtype, int(value)) if reverse else (int(value), as_dtype)
        assert int(result) % 2**32 == int(REFERENCE[name](a, b)) % 2**32


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.float8_e4m3, nl.float8_e5m2])
def test_wide_storage_of_narrow_floats_keeps_float32_values(monkeypatch, dtype):
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    x = np.array([[1.0009765625, 3.3]], np.float32)

    def body(d, s):
        narrow, other = (nl.ndarray((1, 2), dtype, buffer=nl.sbuf) for _ in range(2))
        nisa.tensor_scalar(narrow, s, nl.add, 0.0)
        nisa.tensor_copy(other, narrow)
        nisa.tensor_copy(narrow, s)
        nisa.tensor_tensor(d[:, 0:2], narrow, other, nl.minimum)
        mask = nl.ndarray((1, 2), nl.uint8, buffer=nl.sbuf)
        nisa.memset(mask, 1)
        nisa.tensor_copy_predicated(narrow, s, mask)
        nisa.tensor_copy_predicated(narrow[:, 0:1], 0.1, mask[:, 0:1])
        nisa.memset(other, 0.1)
        nisa.tensor_copy(d[:, 2:4], narrow)
        nisa.tensor_copy(d[:, 4:6], other)

    kinds, (got,) = warned(body, [x], [((1, 6), np.float32)])
    assert kinds == ["dtype-differs"]
    same(got, np.array([[*x[0], 0.1, x[0, 1], 0.1, 0.1]], np.float32))


def test_every_generation_runs_the_plain_instructions():
    for platform in ("trn1", "trn2", "trn3"):
        (got,) = run_tiles(lambda d, x: nisa.tensor_scalar(d, x, nl.add, 1.0), [X], [OUT], on=platform)
        same(got, X + 1)
