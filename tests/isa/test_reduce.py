"""Reductions, scans, selections and statistics of the vector engine (spec/isa_vector.md, spec/isa.md 1.5)."""

from __future__ import annotations

import inspect
import json
import warnings
from functools import reduce
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki.isa as nisa
import nki.language as nl
from nki.isa import accumulators
from nki.machine import operators
from nki.machine.generations import MACHINES
from support import refused_tiles as refused
from support import run_tiles

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2]
INTEGERS = [np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32]
EVERY = [*FLOATS, ml_dtypes.float8_e4m3fn, *INTEGERS, np.bool_]
CMD = nisa.reduce_cmd
FP32_MIN = np.float32(-3.4028235e38)

STEP = {
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


def op(name):
    return getattr(nl, name)


def name_of(dtype):
    return np.dtype(dtype).name


def cast(values, dtype):
    """float64 results as the engine writes them: rounded to float32, then to the dtype."""
    with np.errstate(all="ignore"):
        x = np.asarray(values, np.float64).astype(np.float32)
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return x != 0
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            return np.clip(np.rint(np.nan_to_num(x.astype(np.float64))), info.min, info.max).astype(dtype)
        return x.astype(dtype)


def whole(shape, dtype=np.float32, seed=0, low=-3, high=4):
    """Small whole numbers: sums and products of them are exact in any order."""
    x = np.random.default_rng(seed).integers(low, high, shape)
    return (np.abs(x) if np.dtype(dtype).kind in "ub" else x).astype(dtype)


def real(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def wide(array):
    return array.astype(np.float32).astype(np.float64)


def same(got, expected):
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


def warned(body, inputs=(), outputs=(), **where):
    """The kinds of the diagnostics, and the outputs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = run_tiles(body, inputs, outputs, **where)
    return [w.category.kind for w in caught if hasattr(w.category, "kind")], results


X = np.arange(12, dtype=np.float32).reshape(4, 3)
OUT, COLUMN = ((4, 3), np.float32), ((4, 1), np.float32)


@pytest.mark.tiny
@pytest.mark.parametrize(
    "name",
    [
        "bn_aggr",
        "bn_stats",
        "exponential",
        "range_select",
        "select_reduce",
        "tensor_reduce",
        "tensor_scalar_cumulative",
        "tensor_scalar_reduce",
        "tensor_tensor_scan",
    ],
)
def test_signatures_are_the_documented_ones(name):
    path = Path(__file__).parents[1] / "data" / "documented_api.json"
    documented = json.loads(path.read_text())["nki.isa"]["functions"][name]
    parameters = list(inspect.signature(getattr(nisa, name)).parameters.values())
    assert [p.name for p in parameters] == [p for p, _ in documented]
    for parameter, (_, default) in zip(parameters, documented, strict=True):
        shown = None if parameter.default is inspect.Parameter.empty else repr(parameter.default)
        if default != "...":  # the stub does not show FP32_MIN
            assert (shown or "").removeprefix("nisa.").removeprefix("nl.") == (default or "")


# ---- tensor_reduce -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "minimum", *list(STEP)[-3:]])
def test_tensor_reduce_starts_at_the_first_element(name):
    x = whole((5, 7), seed=1)
    x[0] = 1
    (got,) = run_tiles(lambda d, s: nisa.tensor_reduce(d, op(name), s, 1), [x], [((5, 1), np.float32)])
    same(got[:, 0], cast(reduce(STEP[name], list(wide(x).T)), np.float32))


@pytest.mark.parametrize("dtype", EVERY, ids=name_of)
def test_tensor_reduce_takes_every_dtype(dtype):
    x = whole((4, 6), dtype, seed=2)
    for to in (np.float32, dtype):
        (got,) = run_tiles(lambda d, s: nisa.tensor_reduce(d, nl.add, s, 1), [x], [((4, 1), to)], on="trn3")
        same(got[:, 0], cast(wide(x).sum(axis=1), to))


@pytest.mark.parametrize("axis", [(1, 2), [2, 1], (-1, -2), (1, -1)])
def test_tensor_reduce_over_all_free_axes(axis):
    x = whole((5, 3, 4), seed=3)
    (got,) = run_tiles(lambda d, s: nisa.tensor_reduce(d, nl.add, s, axis), [x], [((5, 1), np.float32)])
    same(got[:, 0], x.sum(axis=(1, 2)))


def test_tensor_reduce_keeps_the_other_axes_in_any_shape_of_dst():
    x = whole((5, 3, 2, 4), seed=4)
    expected = x.max(axis=3)
    for shape, keepdims in (((5, 3, 2), False), ((5, 6), False), ((5, 3, 2, 1), True), ((5, 2, 3), True)):
        (got,) = run_tiles(
            lambda d, s, k=keepdims: nisa.tensor_reduce(d, nl.max, s, -1, keepdims=k),
            [x],
            [(shape, np.float32)],
        )
        same(got, expected.reshape(shape))


def test_tensor_reduce_of_a_permuted_view():
    x = real((6, 5, 7), 5)
    body = lambda d, s: nisa.tensor_reduce(d, nl.add, s.permute((0, 2, 1)), 2)  # noqa: E731
    (got,) = run_tiles(body, [x], [((6, 7), np.float32)])
    np.testing.assert_allclose(got, wide(x).sum(axis=1), rtol=1e-5, atol=1e-6)


def test_tensor_reduce_negates_before_the_cast():
    x = np.array([[1, 2, 3], [200, 100, 1]], np.float32)
    body = lambda d, s: nisa.tensor_reduce(d, nl.max, s, 1, negate=True)  # noqa: E731
    (got,) = run_tiles(body, [x], [((2, 1), np.int8)])
    assert got.tolist() == [[-3], [-128]]


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_tensor_reduce_of_bit_patterns(name, dtype):
    bits = np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")
    x = np.random.default_rng(6).integers(0, np.iinfo(bits).max, (3, 4, 5), dtype=bits, endpoint=True)
    step = {
        "bitwise_and": lambda a, b: a & b,
        "bitwise_or": lambda a, b: a | b,
        "bitwise_xor": lambda a, b: a ^ b,
    }
    expected = reduce(step[name], list(np.moveaxis(x, 2, 0)))
    body = lambda d, s: nisa.tensor_reduce(d, op(name), s, 2)  # noqa: E731
    (got,) = run_tiles(body, [x.view(dtype)], [((3, 4), dtype)])
    same(got.view(bits), expected)


def test_tensor_reduce_passes_nan_on_and_reads_psum():
    x = real((128, 6), 7)
    x[3, 2] = np.nan
    (got,) = run_tiles(
        lambda d, s: nisa.tensor_reduce(d, nl.max, s, 1),
        [x],
        [((128, 1), np.float32)],
        in_psum=[0],
        out_psum=[0],
    )
    same(got[:, 0], np.where(np.isnan(x).any(axis=1), np.nan, np.nanmax(x, axis=1)).astype(np.float32))


def test_tensor_reduce_may_write_over_its_input():
    x = real((4, 6), 8)
    (got,) = run_tiles(lambda d: nisa.tensor_reduce(d[:, 2:3], nl.add, d, 1), [], [x])
    expected = x.copy()
    expected[:, 2] = x.sum(axis=1)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("axis", "text"),
    [
        (0, "partition dimension"),
        ((0, 1, 2), "partition dimension"),
        (1, "axis=(1, 2)"),
        ((1, 1), "without a gap"),
        (3, "3 dimensions"),
        (-4, "3 dimensions"),
        ((), "must be an int"),
        ("x", "must be an int"),
        (None, "must be an int"),
        (1.0, "must be an int"),
    ],
)
def test_tensor_reduce_takes_the_trailing_axes_alone(axis, text):
    x = whole((4, 3, 2))
    refused("axis", text, lambda d, s: nisa.tensor_reduce(d, nl.add, s, axis), [x], [COLUMN])


def test_tensor_reduce_refuses():
    body = lambda d, s: nisa.tensor_reduce(d, nl.add, s, 1)  # noqa: E731
    refused("shape", "the result is 4 x 1", body, [X], [OUT])
    refused("shape", "dst is 3 x 1", body, [X], [((3, 1), np.float32)])
    for token in (nl.power, nl.equal, nl.exp, nl.left_shift, nl.average):
        refused("op", repr(token), lambda d, s, t=token: nisa.tensor_reduce(d, t, s, 1), [X], [COLUMN])
    body = lambda d, s: nisa.tensor_reduce(d, nl.bitwise_or, s, 1)  # noqa: E731
    refused("dtype", "needs integers", body, [X], [COLUMN])
    body = lambda d, s: nisa.tensor_reduce(d, nl.bitwise_or, s, 1, negate=True)  # noqa: E731
    refused("op", "negate is arithmetic", body, [X.astype(np.uint8)], [((4, 1), np.uint8)])


# ---- accumulator registers -----------------------------------------------------------------------


def test_identities_of_the_reductions():
    found = {name: float(accumulators.identity(operators.find(name))) for name in accumulators._IDENTITIES}
    inf = float("inf")
    assert found == {
        "add": 0,
        "subtract": 0,
        "multiply": 1,
        "maximum": -inf,
        "minimum": inf,
        "abs_max": 0,
        "abs_min": inf,
    }


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["abs_max", "abs_min"]), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_reductions_by_magnitude_keep_the_sign_of_the_last_of_equals(name, columns, seed):
    values = whole((4, columns), seed=seed)
    got = accumulators.reduced(operators.find(name), values)
    for row, result in zip(values, got, strict=True):
        best = max(abs(row)) if name == "abs_max" else min(abs(row))
        assert result == row[np.flatnonzero(abs(row) == best)[-1]]


# ---- tensor_scalar_reduce ------------------------------------------------------------------------


FOLD = {"add": np.sum, "multiply": np.prod, "maximum": np.max, "minimum": np.min}


@pytest.mark.parametrize("fold", list(FOLD))
@pytest.mark.parametrize("name", list(STEP))
def test_tensor_scalar_reduce_gives_the_values_and_their_reduction(name, fold):
    x, c = whole((5, 4), seed=1), whole((5, 1), seed=2)
    body = lambda d, r, s, t: nisa.tensor_scalar_reduce(d, s, op(name), t, op(fold), r)  # noqa: E731
    got, res = run_tiles(body, [x, c], [((5, 4), np.float32), ((5, 1), np.float32)])
    expected = cast(STEP[name](wide(x), wide(c)), np.float32)
    same(got, expected)
    same(res[:, 0], FOLD[fold](expected, axis=1))


@pytest.mark.parametrize("dtype", EVERY, ids=name_of)
def test_tensor_scalar_reduce_takes_every_dtype(dtype):
    x = whole((4, 5), dtype, 3)
    body = lambda d, r, s: nisa.tensor_scalar_reduce(d, s, nl.multiply, 1.25, nl.add, r)  # noqa: E731
    got, res = run_tiles(body, [x], [((4, 5), dtype), ((4, 1), dtype)], on="trn3")
    same(got, cast(wide(x) * 1.25, dtype))
    same(res[:, 0], cast((wide(x) * 1.25).sum(axis=1), dtype))


@pytest.mark.tiny
def test_the_registers_see_the_values_before_the_cast():
    x = np.array([[0.4, 0.4, 0.4]], np.float32)
    body = lambda d, r, s: nisa.tensor_scalar_reduce(d, s, nl.multiply, 1.0, nl.add, r)  # noqa: E731
    got, res = run_tiles(body, [x], [((1, 3), np.int32), ((1, 1), np.float32)])
    assert got.tolist() == [[0, 0, 0]]
    assert res[0, 0] == pytest.approx(1.2)


def test_a_chain_keeps_its_sum_in_the_registers():
    x = whole((6, 8), seed=4)

    def body(d, r, s):
        nisa.tensor_scalar_reduce(d, s, nl.add, 1.0, nl.add, reduce_cmd=CMD.reset_reduce)
        nisa.tensor_scalar_reduce(
            d, s, nl.add, 1.0, nl.add, r[:, 0:1], reduce_cmd=CMD.reduce, reduce_res_negate=True
        )
        nisa.tensor_scalar_reduce(d, s, nl.add, 1.0, nl.add, reduce_cmd=CMD.reduce)
        nisa.tensor_scalar_reduce(d, s, nl.add, 1.0, nl.add, r[:, 1:2], reduce_cmd=CMD.reduce)
        nisa.tensor_scalar_reduce(d, s, nl.add, 1.0, nl.add, r[:, 2:3])

    kinds, (_, res) = warned(body, [x], [((6, 8), np.float32), ((6, 3), np.float32)])
    once = (x + 1).sum(axis=1)
    assert kinds == []
    same(res, np.stack([-2 * once, 4 * once, once], axis=1))


def test_load_reduce_starts_from_a_number_or_a_column():
    x, init = whole((6, 8), seed=5), whole((6, 1), seed=6)

    def body(d, r, s, c):
        common = dict(reduce_cmd=CMD.load_reduce)
        nisa.tensor_scalar_reduce(d, s, nl.add, 0.0, nl.add, r[:, 0:1], reduce_init=10.0, **common)
        nisa.tensor_scalar_reduce(d, s, nl.add, 0.0, nl.add, r[:, 1:2], reduce_init=c, **common)

    _, res = run_tiles(body, [x, init], [((6, 8), np.float32), ((6, 2), np.float32)])
    same(res, np.stack([x.sum(axis=1) + 10, x.sum(axis=1) + init[:, 0]], axis=1))


def test_reduce_without_a_beginning_warns_and_gives_nan():
    body = lambda d, r, s: nisa.tensor_scalar_reduce(d, s, nl.add, 0.0, nl.add, r, reduce_cmd=CMD.reduce)  # noqa: E731
    kinds, (_, res) = warned(body, [X], [OUT, COLUMN])
    assert kinds == ["acc-undefined"] and np.isnan(res).all()


def test_lanes_beyond_the_chain_are_undefined():
    x = whole((8, 3))

    def body(d, r, s):
        nisa.tensor_scalar_reduce(d[0:4], s[0:4], nl.add, 0.0, nl.add)
        nisa.tensor_scalar_reduce(d, s, nl.add, 0.0, nl.add, r, reduce_cmd=CMD.reduce)

    kinds, (_, res) = warned(body, [x], [((8, 3), np.float32), ((8, 1), np.float32)])
    assert kinds == ["acc-undefined"]
    same(res[:4, 0], 2 * x[:4].sum(axis=1))
    assert np.isnan(res[4:]).all()


def test_a_lane_is_the_partition_inside_the_operand():
    x = whole((64, 3))

    def body(d, r, s):
        nisa.tensor_scalar_reduce(d[32:64], s[32:64], nl.add, 0.0, nl.add)
        nisa.tensor_scalar_reduce(d[0:32], s[0:32], nl.add, 0.0, nl.add, r, reduce_cmd=CMD.reduce)

    _, res = run_tiles(body, [x], [x, ((32, 1), np.float32)])
    same(res[:, 0], x[32:].sum(axis=1) + x[:32].sum(axis=1))


def test_registers_do_not_survive_a_kernel():
    body = lambda d, r, s: nisa.tensor_scalar_reduce(d, s, nl.add, 0.0, nl.add, r)  # noqa: E731
    run_tiles(body, [X], [OUT, COLUMN])
    body = lambda d, r, s: nisa.tensor_scalar_reduce(d, s, nl.add, 0.0, nl.add, r, reduce_cmd=CMD.reduce)  # noqa: E731
    assert warned(body, [X], [OUT, COLUMN])[0] == ["acc-undefined"]


def test_another_instruction_that_goes_on_with_a_chain_is_reported():
    def body(d, r, s):
        nisa.tensor_scalar_reduce(d, s, nl.add, 0.0, nl.maximum)
        mask = nl.ndarray((4, 3), nl.uint8, buffer=nl.sbuf)
        nisa.memset(mask, 1)
        nisa.select_reduce(d, mask, s, -1.0, r, reduce_cmd=CMD.reduce)

    kinds, (_, res) = warned(body, [X], [OUT, COLUMN])
    assert kinds == ["acc-shared"]
    same(res[:, 0], X.max(axis=1))


def test_an_interleaved_instruction_takes_the_registers_away():
    def body(d, r, s):
        nisa.tensor_scalar_reduce(d, s, nl.add, 0.0, nl.add)
        mask = nl.ndarray((4, 3), nl.uint8, buffer=nl.sbuf)
        nisa.memset(mask, 1)
        nisa.select_reduce(d, mask, s, -1.0)
        nisa.tensor_scalar_reduce(d, s, nl.add, 0.0, nl.add, r, reduce_cmd=CMD.reduce)

    kinds, (_, res) = warned(body, [X], [OUT, COLUMN])
    assert kinds == ["acc-undefined"] and np.isnan(res).all()


def test_reduce_res_may_lie_over_dst_and_is_written_last():
    x = real((5, 4), 9)
    body = lambda d, s: nisa.tensor_scalar_reduce(d, s, nl.multiply, 2.0, nl.max, d[:, 1:2])  # noqa: E731
    (got,) = run_tiles(body, [x], [((5, 4), np.float32)])
    expected = 2 * x
    expected[:, 1] = expected.max(axis=1)
    same(got, expected)


def test_operands_may_lie_under_dst():
    x = real((5, 4), 10)

    def body(d, r):
        nisa.tensor_scalar_reduce(
            d, d, nl.subtract, d[:, 0:1], nl.max, r, reduce_cmd=CMD.load_reduce, reduce_init=d[:, 1:2]
        )

    got, res = run_tiles(body, [], [x, ((5, 1), np.float32)])
    same(got, x - x[:, :1])
    same(res[:, 0], np.maximum((x - x[:, :1]).max(axis=1), x[:, 1]))


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("abs", np.abs),
        ("reciprocal", lambda x: 1 / x),
        ("square", np.square),
        ("relu", lambda x: np.maximum(x, 0)),
    ],
)
def test_tensor_scalar_reduce_takes_unary_operators(name, reference):
    x = real((3, 5), 11)
    body = lambda d, r, s: nisa.tensor_scalar_reduce(d, s, op(name), 0.0, nl.max, r)  # noqa: E731
    got, res = run_tiles(body, [x], [((3, 5), np.float32), ((3, 1), np.float32)], on="trn3")
    np.testing.assert_allclose(got, reference(wide(x)), rtol=1e-6)
    np.testing.assert_allclose(res[:, 0], reference(wide(x)).max(axis=1), rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (128, 3), (4, 2, 3), (3, 2, 2, 2)])
def test_tensor_scalar_reduce_reduces_all_free_dimensions(shape):
    x = whole(shape, seed=7)
    body = lambda d, r, s: nisa.tensor_scalar_reduce(d, s, nl.add, 1.0, nl.add, r)  # noqa: E731
    for psum in ([], [0]):
        got, res = run_tiles(
            body, [x], [(shape, np.float32), ((shape[0], 1), np.float32)], in_psum=psum, out_psum=psum
        )
        same(got, x + 1)
        same(res[:, 0], (x + 1).reshape(shape[0], -1).sum(axis=1))


@pytest.mark.parametrize(
    ("kind", "text", "args", "kwargs"),
    [
        ("op", "bitwise_and", (nl.bitwise_and, 1, nl.add), {}),
        ("op", "nl.power", (nl.power, 1.0, nl.add), {}),
        ("op", "reduce_op=nl.subtract", (nl.add, 1.0, nl.subtract), {}),
        ("op", "must be an nl operator", (nl.add, 1.0, None), {}),
        ("argument", "reverse0", (nl.add, 1.0, nl.add), {"reverse0": True}),
        ("argument", "operand0 is missing", (nl.add, None, nl.add), {}),
        ("argument", "takes no operand", (nl.abs, 2.0, nl.add), {}),
        ("generation", "needs trn3", (nl.square, None, nl.add), {}),
        ("generation", "needs trn3", (nl.abs_max, 1.0, nl.add), {}),
        ("reduce-cmd", "takes no nisa.reduce_cmd.idle", (nl.add, 1.0, nl.add), {"reduce_cmd": CMD.idle}),
        ("reduce-cmd", "takes no nisa.reduce_cmd.reset", (nl.add, 1.0, nl.add), {"reduce_cmd": CMD.reset}),
        ("enum", "reduce_cmd must be one of", (nl.add, 1.0, nl.add), {"reduce_cmd": 3}),
        (
            "reduce-cmd",
            "reduce_init, which is missing",
            (nl.add, 1.0, nl.add),
            {"reduce_cmd": CMD.load_reduce},
        ),
        ("argument", "reduce_res must be a tile", (nl.add, 1.0, nl.add), {"reduce_res": 1.0}),
    ],
)
def test_tensor_scalar_reduce_refuses(kind, text, args, kwargs):
    refused(kind, text, lambda d, s: nisa.tensor_scalar_reduce(d, s, *args, **kwargs), [X], [OUT])


def test_reduce_res_has_one_element_per_partition():
    body = lambda d, r, s: nisa.tensor_scalar_reduce(d, s, nl.add, 1.0, nl.add, r)  # noqa: E731
    refused("shape", "reduce_res must have one element", body, [X], [OUT, ((4, 2), np.float32)])
    refused("shape", "reduce_res has 3 partitions", body, [X], [OUT, ((3, 1), np.float32)])


# ---- tensor_scalar_cumulative --------------------------------------------------------------------


def running(fold, values, acc):
    """The documented loop, in float64 rounded to float32 at every step."""
    out = []
    for column in np.moveaxis(wide(values), 1, 0):
        acc = cast(STEP[fold](column, wide(acc)), np.float32)
        out.append(acc)
    return np.stack(out, axis=1)


IDENTITY = {"add": 0, "subtract": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}


@pytest.mark.parametrize("fold", list(IDENTITY))
@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "less", "logical_or"])
def test_tensor_scalar_cumulative_follows_the_documented_loop(name, fold):
    x, c = real((5, 9), 1), real((5, 1), 2)
    values = cast(STEP[name](wide(x), wide(c)), np.float32)
    start = np.full(5, IDENTITY[fold], np.float32)
    body = lambda d, s, t: nisa.tensor_scalar_cumulative(d, s, op(name), op(fold), t)  # noqa: E731
    (got,) = run_tiles(body, [x, c], [((5, 9), np.float32)])
    same(got, running(fold, values, start))


@pytest.mark.tiny
def test_cumulative_subtract_takes_the_register_from_the_value():
    x = np.array([[1, 2, 4, 8]], np.float32)
    body = lambda d, s: nisa.tensor_scalar_cumulative(d, s, nl.add, nl.subtract, 0.0)  # noqa: E731
    (got,) = run_tiles(body, [x], [((1, 4), np.float32)])
    assert got.tolist() == [[1, 1, 3, 5]]


def test_cumulative_chains_through_the_registers():
    x, init = real((5, 8), 3), real((5, 1), 4)

    def body(d, s, c):
        nisa.tensor_scalar_cumulative(
            d[:, 0:4], s[:, 0:4], nl.add, nl.add, 0.5, c, reduce_cmd=CMD.load_reduce
        )
        nisa.tensor_scalar_cumulative(d[:, 4:8], s[:, 4:8], nl.add, nl.add, 0.5, reduce_cmd=CMD.reduce)

    for dtype in (np.float32, ml_dtypes.bfloat16):  # the carry is float32 whatever dst is
        (got,) = run_tiles(body, [x, init], [((5, 8), dtype)])
        same(got, running("add", cast(wide(x) + 0.5, np.float32), init[:, 0]).astype(dtype))


@pytest.mark.parametrize("dtype", [d for d in EVERY if d not in (np.int32, np.uint32)], ids=name_of)
def test_cumulative_takes_all_but_32_bit_integers(dtype):
    x = whole((3, 6), dtype, 5, 0, 2)
    body = lambda d, s: nisa.tensor_scalar_cumulative(d, s, nl.multiply, nl.add, 2.0)  # noqa: E731
    (got,) = run_tiles(body, [x], [((3, 6), dtype)], on="trn3")
    same(got, cast(np.cumsum(2 * wide(x), axis=1), dtype))


def test_cumulative_runs_over_all_free_dimensions_and_over_its_input():
    x = whole((128, 2, 3), seed=6)
    body = lambda d: nisa.tensor_scalar_cumulative(d, d, nl.add, nl.add, 0)  # noqa: E731
    (got,) = run_tiles(body, [], [x], out_psum=[0])
    same(got, np.cumsum(x.reshape(128, 6), axis=1).reshape(x.shape))


@pytest.mark.parametrize(
    ("kind", "text", "args", "kwargs"),
    [
        ("op", "op1=nl.less", (nl.add, nl.less, 0.0), {}),
        ("op", "op0=nl.bitwise_or", (nl.bitwise_or, nl.add, 0), {}),
        ("op", "op0=nl.power", (nl.power, nl.add, 0.0), {}),
        ("argument", "imm0 is missing", (nl.add, nl.add, None), {}),
        ("reduce-cmd", "imm1, which is missing", (nl.add, nl.add, 0.0), {"reduce_cmd": CMD.load_reduce}),
        ("reduce-cmd", "takes no nisa.reduce_cmd.idle", (nl.add, nl.add, 0.0), {"reduce_cmd": CMD.idle}),
    ],
)
def test_cumulative_refuses(kind, text, args, kwargs):
    refused(kind, text, lambda d, s: nisa.tensor_scalar_cumulative(d, s, *args, **kwargs), [X], [OUT])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_cumulative_refuses_32_bit_integers(dtype):
    body = lambda d, s: nisa.tensor_scalar_cumulative(d, s, nl.add, nl.add, 0.0)  # noqa: E731
    refused("dtype", f"src has dtype {name_of(dtype)}", body, [X.astype(dtype)], [OUT])
    refused("dtype", f"dst has dtype {name_of(dtype)}", body, [X], [((4, 3), dtype)])


# ---- tensor_tensor_scan --------------------------------------------------------------------------


def scan(first, second, x0, x1, state, reverse0=False, reverse1=False):
    """The documented loop, rounded to float32 after every operator."""
    out = []
    columns = zip(np.moveaxis(wide(x0), 1, 0), np.moveaxis(wide(x1), 1, 0), strict=True)
    for a, b in columns:
        t = STEP[first](*((wide(state), a) if reverse0 else (a, wide(state))))
        t = wide(cast(t, np.float32))
        state = cast(STEP[second](*((b, t) if reverse1 else (t, b))), np.float32)
        out.append(state)
    return np.stack(out, axis=1)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(list(STEP)),
    st.sampled_from(list(STEP)),
    st.booleans(),
    st.booleans(),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(0, 2**32 - 1),
)
def test_tensor_tensor_scan_follows_the_documented_loop(first, second, reverse0, reverse1, p, f, seed):
    x0, x1, c = real((p, f), seed), real((p, f), seed + 1), real((p, 1), seed + 2)
    body = lambda d, a, b, t: nisa.tensor_tensor_scan(  # noqa: E731
        d, a, b, t, op(first), op(second), reverse0, reverse1
    )
    (got,) = run_tiles(body, [x0, x1, c], [((p, f), np.float32)])
    same(got, scan(first, second, x0, x1, c[:, 0], reverse0, reverse1))


def test_scan_carries_float32_into_a_narrow_dst():
    x0, x1 = np.full((4, 64), 1.001, np.float32), real((4, 64), 1)
    body = lambda d, a, b: nisa.tensor_tensor_scan(d, a, b, 0.5, nl.multiply, nl.add)  # noqa: E731
    (got,) = run_tiles(body, [x0, x1], [((4, 64), ml_dtypes.bfloat16)])
    same(got, scan("multiply", "add", x0, x1, np.full(4, 0.5, np.float32)).astype(ml_dtypes.bfloat16))


def test_scan_goes_on_from_the_last_column_of_another_tile():
    x0, x1 = real((6, 10), 2), real((6, 10), 3)

    def body(d, a, b):
        nisa.tensor_tensor_scan(d[:, 0:5], a[:, 0:5], b[:, 0:5], 0, np.multiply, np.add)
        nisa.tensor_tensor_scan(d[:, 5:10], a[:, 5:10], b[:, 5:10], d[:, 4:5], np.multiply, np.add)

    (got,) = run_tiles(body, [x0, x1], [((6, 10), np.float32)])
    same(got, scan("multiply", "add", x0, x1, np.zeros(6, np.float32)))


def test_a_scan_with_ones_is_a_running_sum():
    x = real((128, 300), 4)
    body = lambda d, a, b: nisa.tensor_tensor_scan(d, a, b, 0.25, nl.multiply, nl.add)  # noqa: E731
    (got,) = run_tiles(body, [np.ones_like(x), x], [(x.shape, np.float32)])
    np.testing.assert_allclose(got, 0.25 + np.cumsum(wide(x), axis=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", EVERY, ids=name_of)
def test_scan_takes_every_dtype(dtype):
    x = whole((3, 5), dtype, 5, 0, 3)
    body = lambda d, a, b, c: nisa.tensor_tensor_scan(d, a, b, c, nl.add, nl.maximum)  # noqa: E731
    (got,) = run_tiles(body, [x, x, x[:, :1].copy()], [((3, 5), dtype)], on="trn3")
    same(got, cast(wide(scan("add", "maximum", x, x, x[:, 0].astype(np.float32))), dtype))


def test_scan_is_one_sequence_over_all_free_dimensions_and_may_write_over_its_input():
    x, y = real((5, 2, 3), 6), real((5, 6), 7)
    body = lambda d, b: nisa.tensor_tensor_scan(d, d, b, 1.0, nl.multiply, nl.add)  # noqa: E731
    (got,) = run_tiles(body, [y], [x], in_psum=[0])
    expected = scan("multiply", "add", x.reshape(5, 6), y, np.ones(5, np.float32))
    same(got, expected.reshape(x.shape))


def test_scan_refuses():
    def with_ops(op0, op1, initial=0.0):
        return lambda d, a, b: nisa.tensor_tensor_scan(d, a, b, initial, op0, op1)

    refused("psum-both", "data0 and data1", with_ops(nl.add, nl.add), [X, X], [OUT], in_psum=[0, 1])
    refused("op", "nl.abs", with_ops(nl.abs, nl.add), [X, X], [OUT])
    refused("op", "nl.bitwise_and", with_ops(nl.add, nl.bitwise_and), [X, X], [OUT])
    refused("op", "nl.power", with_ops(nl.power, nl.add), [X, X], [OUT])
    refused("argument", "initial is missing", with_ops(nl.add, nl.add, None), [X, X], [OUT])
    refused("shape", "elements per partition", with_ops(nl.add, nl.add), [X, X[:, :2].copy()], [OUT])
    body = lambda d, a, b: nisa.tensor_tensor_scan(d, a, b, b, nl.add, nl.add)  # noqa: E731
    refused("shape", "initial must have one element", body, [X, X], [OUT])


# ---- exponential ---------------------------------------------------------------------------------


def test_exponential_subtracts_and_sums():
    x, m = real((6, 10), 1), real((6, 1), 2)

    def body(d, r, s, c):
        nisa.exponential(d, s, c, r, reduce_cmd=CMD.reset_reduce)

    got, res = run_tiles(body, [x, m], [((6, 10), np.float32), ((6, 1), np.float32)], on="trn3")
    expected = np.exp(wide(x) - wide(m))
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_allclose(res[:, 0], expected.sum(axis=1), rtol=1e-6)


def test_exponential_sums_float32_values_whatever_dst_is():
    x = real((4, 100), 3)
    body = lambda d, r, s: nisa.exponential(d, s, 1.5, r, CMD.reset_reduce)  # noqa: E731
    outputs = [((4, 100), ml_dtypes.bfloat16), ((4, 1), np.float32)]
    got, res = run_tiles(body, [x], outputs, on="trn3")
    same(got, np.exp(x - np.float32(1.5)).astype(ml_dtypes.bfloat16))
    np.testing.assert_allclose(res[:, 0], np.exp(wide(x) - 1.5).sum(axis=1), rtol=1e-6)


def test_exponential_chains_and_loads():
    x = real((4, 6), 4)

    def body(d, r, s):
        nisa.exponential(d, s, reduce_cmd=CMD.load_reduce, reduce_init=2.0)
        nisa.exponential(d, s, reduce_res=r, reduce_cmd=CMD.reduce)

    _, res = run_tiles(body, [x], [((4, 6), np.float32), ((4, 1), np.float32)], on="trn3")
    np.testing.assert_allclose(res[:, 0], 2 + 2 * np.exp(wide(x)).sum(axis=1), rtol=1e-6)


def test_exponential_with_idle_leaves_the_registers_undefined():
    def body(d, r, s):
        nisa.exponential(d, s, reduce_cmd=CMD.reset_reduce)
        nisa.exponential(d, s)
        nisa.exponential(d, s, 0.0, r, CMD.reduce)

    kinds, (_, res) = warned(body, [X], [OUT, COLUMN], on="trn3")
    assert kinds == ["acc-undefined"] and np.isnan(res).all()


@pytest.mark.parametrize(
    "dtype", [d for d in EVERY if d not in (ml_dtypes.float8_e4m3fn, np.bool_)], ids=name_of
)
def test_exponential_takes_its_dtypes(dtype):
    x = whole((3, 4), dtype, 5, -2, 3)
    body = lambda d, s: nisa.exponential(d, s)  # noqa: E731
    (got,) = run_tiles(body, [x], [((3, 4), np.float32)], on="trn3")
    np.testing.assert_allclose(got, np.exp(wide(x)), rtol=1e-6)
    if dtype is not np.uint32:
        (got,) = run_tiles(body, [x], [((3, 4), dtype)], on="trn3")
        expected = cast(np.exp(wide(x)), dtype)
        np.testing.assert_allclose(wide(got), wide(expected), rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "text", "kwargs"),
    [
        ("reduce-cmd", "takes no nisa.reduce_cmd.reset", {"reduce_cmd": CMD.reset}),
        ("argument", "max_value is missing", {"max_value": None}),
        ("argument", "number or a [P, 1] tile", {"max_value": "x"}),
    ],
)
def test_exponential_refuses(kind, text, kwargs):
    refused(kind, text, lambda d, s: nisa.exponential(d, s, **kwargs), [X], [OUT], on="trn3")


def test_exponential_refuses_other_tiles():
    body = lambda d, s: nisa.exponential(d, s)  # noqa: E731
    refused("generation", "needs trn3, this kernel targets trn2", body, [X], [OUT])
    refused("dtype", "dst has dtype uint32", body, [X], [((4, 3), np.uint32)], on="trn3")
    refused("rank", "5 dimensions", body, [X.reshape(4, 1, 1, 1, 3)], [OUT], on="trn3")
    body = lambda d, r, s: nisa.exponential(d, s, 0.0, r)  # noqa: E731
    refused("reduce-cmd", "idle reduces nothing", body, [X], [OUT, COLUMN], on="trn3")
    body = lambda d, r, s: nisa.exponential(d, s, 0.0, r, CMD.reset_reduce)  # noqa: E731
    refused("dtype", "reduce_res has dtype int32", body, [X], [OUT, ((4, 1), np.int32)], on="trn3")


# ---- range_select --------------------------------------------------------------------------------


COMPARE = {
    "equal": lambda i, b: i == b,
    "less": lambda i, b: i < b,
    "less_equal": lambda i, b: i <= b,
    "greater": lambda i, b: i > b,
    "greater_equal": lambda i, b: i >= b,
}


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(list(COMPARE)),
    st.sampled_from(list(COMPARE)),
    st.integers(-5, 50),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_range_select_keeps_what_lies_between_the_bounds(first, second, start, free, seed):
    rng = np.random.default_rng(seed)
    x = real((4, *free), seed)
    count = x[0].size
    b0, b1 = (rng.integers(start - 1, start + count + 1, (4, 1)).astype(np.float32) for _ in range(2))

    def body(d, r, s, lo, hi):
        nisa.range_select(d, s, op(first), op(second), lo, hi, reduce_res=r, range_start=start)

    got, res = run_tiles(body, [x, b0, b1], [(x.shape, np.float32), ((4, 1), np.float32)])
    index = np.array([[start + i for i in range(count)]])
    keep = COMPARE[first](index, b0) & COMPARE[second](index, b1)
    expected = np.where(keep, x.reshape(4, count), FP32_MIN)
    same(got, expected.reshape(x.shape))
    same(res[:, 0], expected.max(axis=1))


BOUNDS = [np.zeros((4, 1), np.float32), np.full((4, 1), 2, np.float32)]


def test_range_select_fills_a_narrow_dst_with_minus_infinity_but_reduces_float32():
    none = [np.full((4, 1), 9, np.float32), BOUNDS[1]]

    def body(d, r, s, lo, hi):
        nisa.range_select(d, s, nl.greater_equal, nl.less, lo, hi, reduce_res=r)

    got, res = run_tiles(body, [X, *none], [((4, 3), ml_dtypes.bfloat16), COLUMN])
    assert np.isneginf(got.astype(np.float32)).all()
    assert (res == FP32_MIN).all()


def test_range_select_chains():
    x = real((4, 6), 1)

    def body(d, r, s, lo, hi):
        common = dict(comp_op0=nl.greater_equal, comp_op1=nl.less, bound0=lo, bound1=hi)
        nisa.range_select(d[:, 0:3], s[:, 0:3], **common)
        nisa.range_select(
            d[:, 3:6],
            s[:, 3:6],
            **common,
            reduce_cmd=CMD.reduce,
            reduce_res=r,
            range_start=3,
            reduce_op=np.max,
        )

    bounds = [np.full((4, 1), 1, np.float32), np.full((4, 1), 5, np.float32)]
    kinds, (got, res) = warned(body, [x, *bounds], [((4, 6), np.float32), COLUMN])
    assert kinds == []
    same(res[:, 0], x[:, 1:5].max(axis=1))
    same(got[:, 1:5], x[:, 1:5])


@pytest.mark.parametrize("dtype", [*FLOATS, ml_dtypes.float8_e4m3fn], ids=name_of)
def test_range_select_takes_float_dtypes_and_one_psum_tile(dtype):
    x = whole((4, 3), dtype)

    def body(d, s, lo, hi):
        nisa.range_select(d, s, nl.greater_equal, nl.less_equal, lo, hi)

    (got,) = run_tiles(body, [x, *BOUNDS], [((4, 3), dtype)], on="trn3", in_psum=[0])
    same(got, x)


@pytest.mark.parametrize("value", [float(FP32_MIN), FP32_MIN, np.float64(FP32_MIN), -3.4028235e38])
def test_range_select_takes_the_smallest_float32_in_any_spelling(value):
    def body(d, s, lo, hi):
        nisa.range_select(d, s, nl.greater, nl.less, lo, hi, on_false_value=value)

    (got,) = run_tiles(body, [X, *BOUNDS], [OUT])
    assert (got[:, 0] == FP32_MIN).all() and (got[:, 1] == X[:, 1]).all()


@pytest.mark.parametrize(
    ("kind", "text", "args", "kwargs"),
    [
        ("op", "not_equal", (nl.not_equal, nl.less), {}),
        ("op", "comp_op1=nl.add", (nl.less, nl.add), {}),
        ("op", "reduce_op=nl.add", (nl.less, nl.less), {"reduce_op": nl.add}),
        ("fp32-min", "0.0", (nl.less, nl.less), {"on_false_value": 0.0}),
        ("fp32-min", "-inf", (nl.less, nl.less), {"on_false_value": -np.inf}),
        ("fp32-min", "None", (nl.less, nl.less), {"on_false_value": None}),
        ("argument", "compile-time int", (nl.less, nl.less), {"range_start": 1.5}),
        ("reduce-cmd", "load_reduce", (nl.less, nl.less), {"reduce_cmd": CMD.load_reduce}),
        ("reduce-cmd", "takes no nisa.reduce_cmd.reset", (nl.less, nl.less), {"reduce_cmd": CMD.reset}),
    ],
)
def test_range_select_refuses(kind, text, args, kwargs):
    body = lambda d, s, lo, hi: nisa.range_select(d, s, *args, lo, hi, **kwargs)  # noqa: E731
    refused(kind, text, body, [X, *BOUNDS], [OUT])


def test_range_select_refuses_other_tiles():
    body = lambda d, s, lo, hi: nisa.range_select(d, s, nl.less, nl.less, lo, hi)  # noqa: E731
    refused("generation", "needs trn2", body, [X, *BOUNDS], [OUT], on="trn1")
    refused("dtype", "on_true_tile must have a float dtype", body, [X.astype(np.int32), *BOUNDS], [OUT])
    refused("dtype", "dst must have a float dtype", body, [X, *BOUNDS], [((4, 3), np.int32)])
    refused("dtype", "bound0 has dtype int32", body, [X, BOUNDS[0].astype(np.int32), BOUNDS[1]], [OUT])
    refused("shape", "bound1 must have one element", body, [X, BOUNDS[0], X], [OUT])
    body = lambda d, s, lo, hi: nisa.range_select(d, s, nl.less, nl.less, 0.0, hi)  # noqa: E731
    refused("argument", "bound0 must be a tile", body, [X, *BOUNDS], [OUT])

    def idle(d, r, s, lo, hi):
        nisa.range_select(d, s, nl.less, nl.less, lo, hi, CMD.idle, r)

    refused("reduce-cmd", "idle reduces nothing", idle, [X, *BOUNDS], [OUT, COLUMN])


def test_range_select_warns_where_indices_are_not_exact():
    body = lambda d, s, lo, hi: nisa.range_select(d, s, nl.less, nl.less, lo, hi, range_start=2**24)  # noqa: E731
    assert warned(body, [X, *BOUNDS], [OUT])[0] == ["range-index"]


# ---- select_reduce -------------------------------------------------------------------------------


@pytest.mark.parametrize("predicate", [np.int8, np.uint8, np.int16, np.uint16, np.bool_])
@pytest.mark.parametrize("reverse", [False, True])
def test_select_reduce_chooses_and_takes_the_maximum(predicate, reverse):
    x, c = real((5, 6), 1), real((5, 1), 2)
    mask = np.random.default_rng(3).integers(0, 3, (5, 6)).astype(predicate)

    def body(d, r, p, s, t):
        nisa.select_reduce(d, p, s, t, r, CMD.reset_reduce, reverse_pred=reverse)

    got, res = run_tiles(body, [mask, x, c], [((5, 6), np.float32), ((5, 1), np.float32)])
    keep = (mask == 0) if reverse else (mask != 0)
    expected = np.where(keep, x, c)
    same(got, expected)
    same(res[:, 0], expected.max(axis=1))


@pytest.mark.parametrize("dtype", [d for d in EVERY if d not in (np.int32, np.uint32)], ids=name_of)
def test_select_reduce_takes_its_dtypes(dtype):
    x, mask = whole((4, 3), dtype, 4), whole((4, 3), np.uint8, 5, 0, 2)
    body = lambda d, p, s: nisa.select_reduce(d, p, s, 1)  # noqa: E731
    (got,) = run_tiles(body, [mask, x], [((4, 3), dtype)], on="trn3")
    same(got, np.where(mask != 0, x, np.ones((), dtype)))


def test_select_reduce_chains_and_pairs_by_stream_order():
    x, mask = real((4, 2, 3), 6), whole((4, 6), np.uint8, 7, 0, 2)

    def body(d, r, p, s):
        nisa.select_reduce(d, p, s, -9.0, reduce_cmd=CMD.reset_reduce)
        nisa.select_reduce(d, p, s, -9.0, r, CMD.reduce, nl.max, True)

    got, res = run_tiles(body, [mask, x], [((4, 3, 2), np.float32), ((4, 1), np.float32)])
    flat = x.reshape(4, 6)
    same(got, np.where(mask == 0, flat, np.float32(-9)).reshape(4, 3, 2))
    same(res[:, 0], flat.max(axis=1))


def test_select_reduce_refuses():
    mask = np.ones((4, 3), np.uint8)
    plain = lambda d, p, s: nisa.select_reduce(d, p, s, 0.0)  # noqa: E731
    refused("psum-both", "predicate and on_true", plain, [mask, X], [OUT], in_psum=[0, 1])
    refused("dtype", "predicate has dtype uint32", plain, [mask.astype(np.uint32), X], [OUT])
    refused("dtype", "predicate has dtype float32", plain, [X, X], [OUT])
    refused("dtype", "on_true has dtype int32", plain, [mask, X.astype(np.int32)], [OUT])
    refused("shape", "elements per partition", plain, [mask[:, :2].copy(), X], [OUT])
    body = lambda d, p, s: nisa.select_reduce(d, p, s, None)  # noqa: E731
    refused("argument", "on_false is missing", body, [mask, X], [OUT])
    body = lambda d, p, s: nisa.select_reduce(d, p, s, s)  # noqa: E731
    refused("shape", "on_false must have one element", body, [mask, X], [OUT])
    body = lambda d, p, s: nisa.select_reduce(d, p, s, 0.0, reduce_op=nl.add)  # noqa: E731
    refused("op", "reduce_op=nl.add", body, [mask, X], [OUT])
    body = lambda d, p, s: nisa.select_reduce(d, p, s, 0.0, reduce_cmd=CMD.load_reduce)  # noqa: E731
    refused("reduce-cmd", "load_reduce", body, [mask, X], [OUT])
    body = lambda d, r, p, s: nisa.select_reduce(d, p, s, 0.0, r)  # noqa: E731
    refused("reduce-cmd", "idle reduces nothing", body, [mask, X], [OUT, COLUMN])
    body = lambda d, r, p, s: nisa.select_reduce(d, p, s, 0.0, r, CMD.reset_reduce)  # noqa: E731
    refused("dtype", "reduce_res has dtype uint8", body, [mask, X], [OUT, ((4, 1), np.uint8)])


# ---- bn_stats, bn_aggr ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7, 512])
def test_bn_stats_of_even_and_odd_elements(count):
    x = real((5, count), count)
    (got,) = run_tiles(lambda d, s: nisa.bn_stats(d, s), [x], [((5, 6), np.float32)])
    for start, columns in ((0, got[:, :3]), (1, got[:, 3:])):
        half = wide(x)[:, start::2]
        n = half.shape[1]
        mean = half.mean(axis=1) if n else np.zeros(5)
        np.testing.assert_array_equal(columns[:, 0], n)
        np.testing.assert_allclose(columns[:, 1], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            columns[:, 2], half.var(axis=1) * n if n else 0 * mean, rtol=1e-4, atol=1e-5
        )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_pieces_of_any_size_aggregate_to_the_mean_and_variance(sizes, seed):
    x = real((3, sum(sizes)), seed) * 3 + 1

    def body(d, s):
        stats = nl.ndarray((3, len(sizes), 6), nl.float32, buffer=nl.sbuf)
        start = 0
        for i, size in enumerate(sizes):
            nisa.bn_stats(stats[:, i, :], s[:, start : start + size])
            start += size
        nisa.bn_aggr(d, stats)

    (got,) = run_tiles(body, [x], [((3, 2), np.float32)])
    np.testing.assert_allclose(got[:, 0], wide(x).mean(axis=1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[:, 1], wide(x).var(axis=1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", EVERY, ids=name_of)
def test_bn_stats_takes_every_dtype(dtype):
    x = whole((4, 8), dtype, 1)
    (got,) = run_tiles(lambda d, s: nisa.bn_stats(d, s), [x], [((4, 2, 3), np.float32)], on="trn3")
    np.testing.assert_allclose(got[:, 1, 1], wide(x)[:, 1::2].mean(axis=1), rtol=1e-6, atol=1e-7)
    (got,) = run_tiles(lambda d, s: nisa.bn_stats(d, s), [x], [((4, 6), dtype)], on="trn3")
    same(got[:, 0], np.full(4, 4).astype(dtype))


def test_bn_aggr_of_nothing_is_nan_and_of_many_triples_exact():
    zeros = np.zeros((2, 6), np.float32)
    (got,) = run_tiles(lambda d, s: nisa.bn_aggr(d, s), [zeros], [((2, 2), np.float32)])
    assert np.isnan(got).all()
    triples = np.array([[2, 1.0, 0.0, 2, 3.0, 0.0, 0, 7.0, 0.0]], np.float32)
    (got,) = run_tiles(lambda d, s: nisa.bn_aggr(d, s), [triples], [((1, 2), np.float32)], in_psum=[0])
    assert got.tolist() == [[2.0, 1.0]]


def test_statistics_refuse_other_sizes():
    stats, aggr = lambda d, s: nisa.bn_stats(d, s), lambda d, s: nisa.bn_aggr(d, s)  # noqa: E731
    refused(
        "free-limit",
        "513 elements per partition, the limit is 512",
        stats,
        [real((2, 513))],
        [((2, 6), np.float32)],
    )
    refused("shape", "must have 6 elements", stats, [real((2, 5))], [((2, 5), np.float32)])
    refused("shape", "dst has 3 partitions, data has 2", stats, [real((2, 5))], [((3, 6), np.float32)])
    refused("shape", "not a multiple of 3", aggr, [real((2, 8))], [((2, 2), np.float32)])
    refused("shape", "must have 2 elements", aggr, [real((2, 6))], [((2, 3), np.float32)])


# ---- indirect views, costs, properties -----------------------------------------------------------


def test_reductions_gather_on_trn3_but_their_results_are_plain():
    index = np.random.default_rng(9).permutation(32).astype(np.uint16).reshape(2, 16).T.copy()
    x = whole((16, 32), seed=9)
    body = lambda d, s, i: nisa.tensor_reduce(d, nl.add, s.indirect(i, 16), 1)  # noqa: E731
    (got,) = run_tiles(body, [x, index], [((16, 1), np.float32)], on="trn3")
    same(got[:, 0], x[:, index[:, 0]].sum(axis=1))

    def scattered(d, r, s, i):
        nisa.tensor_scalar_reduce(d, s, nl.add, 0.0, nl.add, r.indirect(i, 1))

    outputs = [((16, 32), np.float32), ((16, 4), np.float32)]
    refused("indirect-view", "reduce_res cannot be addressed", scattered, [x, index], outputs, on="trn3")


def costs(body, shape, dtype=np.float32, on="trn2", out=None, **where):
    found = []
    x = np.ones(shape, dtype)
    run_tiles(lambda d, a, b: found.append(body(d, a, b)), [x, x], [(out or shape, dtype)], on=on, **where)
    return found[-1].cost(MACHINES[on])


def busy(cost):
    """Cycles of the work, without what the engine is held beyond it."""
    return max(cost.cycles, cost.shortest)


def test_costs_follow_the_table():
    bf16 = ml_dtypes.bfloat16
    add = lambda d, a, b: nisa.tensor_reduce(d, nl.add, a, 1)  # noqa: E731
    assert busy(costs(add, (4, 512), out=(4, 1))) == 512
    access = MACHINES["trn1"].vector_access_cycles
    assert costs(add, (4, 512), bf16, on="trn1", out=(4, 1)).interval == 256 + access
    fold = lambda d, a, b: nisa.tensor_scalar_reduce(d, a, nl.add, 1.0, nl.add)  # noqa: E731
    assert busy(costs(fold, (4, 512))) == 512 + 64
    assert busy(costs(fold, (4, 8))) == 64 + 64
    scanned = costs(lambda d, a, b: nisa.tensor_tensor_scan(d, a, b, 0.0, nl.multiply, nl.add), (4, 512))
    assert busy(scanned) == 1024
    body = lambda d, a, b: nisa.tensor_tensor_scan(d, a, b, a[:, 0:1], nl.multiply, nl.add)  # noqa: E731
    assert costs(body, (4, 512)).fix_ns == scanned.fix_ns + MACHINES["trn2"].vector_scan_initial_ns
    body = lambda d, a, b: nisa.tensor_scalar_cumulative(d, a, nl.add, nl.add, 0.0)  # noqa: E731
    assert busy(costs(body, (4, 512))) == 1024
    assert busy(costs(lambda d, a, b: nisa.exponential(d, a), (4, 512), on="trn3")) == 128
    assert busy(costs(lambda d, a, b: nisa.bn_stats(d, a), (4, 512), out=(4, 6))) == 512
    assert busy(costs(lambda d, a, b: nisa.bn_aggr(d, a), (4, 60), out=(4, 2))) == pytest.approx(260)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(list(FOLD)),
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from([CMD.reduce, CMD.reset_reduce])), min_size=1, max_size=4
    ),
    st.integers(0, 2**32 - 1),
)
def test_any_chain_is_the_reduction_since_its_last_reset(fold, pieces, seed):
    pieces[0] = (pieces[0][0], CMD.reset_reduce)
    widths = [w for w, _ in pieces]
    x = whole((3, sum(widths)), seed=seed)
    starts = np.cumsum([0, *widths])

    def body(d, r, s):
        for i, (_, command) in enumerate(pieces):
            part = slice(int(starts[i]), int(starts[i + 1]))
            nisa.tensor_scalar_reduce(
                d[:, part], s[:, part], nl.add, 0.0, op(fold), r[:, i : i + 1], reduce_cmd=command
            )

    _, res = run_tiles(body, [x], [(x.shape, np.float32), ((3, len(pieces)), np.float32)])
    for i in range(len(pieces)):
        begin = max(j for j in range(i + 1) if pieces[j][1] is CMD.reset_reduce)
        same(res[:, i], FOLD[fold](x[:, starts[begin] : starts[i + 1]], axis=1).astype(np.float32))
