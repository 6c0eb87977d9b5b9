"""Reductions and normalisations, against numpy in float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from bodies import issued, kinds_on_tiles, on_tiles, refusal, refusal_on_tiles, refusal_when_strict, run
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine import dtypes

REDUCTIONS = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "mean": np.mean,
    "var": np.var,
    "all": lambda x, axis: np.all(x != 0, axis).astype(float),
}
PLATFORMS = ("trn1", "trn2", "trn3")


def data(shape, seed=0, low=-1.5, high=1.5, dtype=np.float32):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def reduce(name, x, axis):
    """The reference, with the shape a tile has."""
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    result = REDUCTIONS[name](x.astype(np.float64), axis=axes)
    if name == "var":
        axes = {a % x.ndim for a in axes}
        return result.reshape([1 if d in axes else n for d, n in enumerate(x.shape)])
    return result if result.ndim > 1 else result.reshape(-1, 1)


@pytest.mark.tiny
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("shape", [(1, 1), (128, 1), (128, 37), (5, 512)])
def test_a_tile_is_reduced_to_a_column(name, shape):
    x = data(shape, 1)
    result = on_tiles(lambda t: getattr(nl, name)(t, axis=1), x)
    assert result.shape == (shape[0], 1)
    np.testing.assert_allclose(result, reduce(name, x, 1), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [3, -1, (3,), [2, 3], (3, 2), (-2, -1), [1, 2, 3], (2, 1, 3)])
def test_trailing_axes_in_any_form(name, axis):
    x = data((6, 3, 4, 5), 2)
    result = on_tiles(lambda t: getattr(nl, name)(t, axis), x)
    wanted = reduce(name, x, axis)
    assert result.shape == wanted.shape
    np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1, 2, (1, 2), (0, 3), (1, 3), (0, 1, 2, 3), 4, -5, 1.0, None, (), "x"])
def test_other_axes_are_refused(name, axis, monkeypatch):
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")  # else sums and maxima over partitions run, with a warning
    problem = refusal_on_tiles(lambda t: getattr(nl, name)(t, axis), data((2, 3, 4, 5)))
    assert problem.kind == "axis" and isinstance(problem, ValueError) and name in str(problem)
    assert problem.help


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var"])
def test_keepdims_leaves_ones(name):
    x = data((6, 3, 4), 3)
    keep = on_tiles(lambda t: getattr(nl, name)(t, (1, 2), keepdims=True), x)
    assert keep.shape == (6, 1, 1)
    assert on_tiles(lambda t: getattr(nl, name)(t, 2, None, True), x).shape == (6, 3, 1)
    drop = on_tiles(lambda t: getattr(nl, name)(t, (1, 2)), x)
    np.testing.assert_array_equal(keep.reshape(-1), drop.reshape(-1))


def test_variance_keeps_its_dimensions_whatever_keepdims_is():
    x = data((6, 3, 4), 4)
    for keepdims in (False, True):
        assert on_tiles(lambda t, k=keepdims: nl.var(t, 2, keepdims=k), x).shape == (6, 3, 1)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.int8, np.uint16, np.int32, np.uint8])
def test_the_result_has_the_dtype_of_the_input_and_is_rounded_once(name, dtype):
    low, high = (0, 4) if np.dtype(dtype).kind in "iu" else (-1.5, 1.5)
    x = data((9, 13), 5, low, high).astype(dtype)
    result = on_tiles(lambda t: getattr(nl, name)(t, 1), x)
    assert result.dtype == dtype
    kind = dtypes.resolve(dtype)
    wanted = dtypes.f32(dtypes.cast(reduce(name, x, 1).astype(np.float32), kind), kind)
    np.testing.assert_allclose(
        result.astype(np.float32), wanted, rtol=0.01 if kind.is_float else 0, atol=1e-2
    )


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_dtype_may_be_asked_for(name):
    x = data((9, 13), 6, 0, 200).astype(np.uint8)
    result = on_tiles(lambda t: getattr(nl, name)(t, 1, nl.float32), x)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, reduce(name, x, 1), rtol=1e-5)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("on", PLATFORMS)
def test_psum_operands_on_every_platform(name, on):
    x = data((64, 16), 7)
    result = on_tiles(lambda t: getattr(nl, name)(t, 1), x, on=on, psum=(0,))
    np.testing.assert_allclose(result, reduce(name, x, 1), rtol=2e-5, atol=2e-5)


def test_the_result_is_in_sbuf():
    def body(t):
        for name in REDUCTIONS:
            assert getattr(nl, name)(t, 1).buffer is nl.sbuf

    on_tiles(body, data((4, 4)), psum=(0,))


def test_sums_of_narrow_floats_are_accumulated_in_float32():
    x = np.full((2, 2000), 1.0, ml_dtypes.bfloat16)
    assert on_tiles(lambda t: nl.sum(t, 1, nl.float32), x).tolist() == [[2000.0], [2000.0]]
    assert on_tiles(lambda t: nl.mean(t, 1), x).astype(np.float32).tolist() == [[1.0], [1.0]]


def test_max_and_min_return_nan_if_an_element_is_nan():
    x = np.array([[1.0, np.nan, 3.0]], np.float32)
    assert np.isnan(on_tiles(lambda t: nl.max(t, 1), x)).all()
    assert np.isnan(on_tiles(lambda t: nl.min(t, 1), x)).all()


def test_all_asks_whether_every_element_is_non_zero():
    x = np.array([[1.0, -2.0, np.nan], [1.0, 0.0, 3.0], [5.0, 5.0, -0.0]], np.float32)
    assert on_tiles(lambda t: nl.all(t, 1), x).tolist() == [[1.0], [0.0], [0.0]]
    assert on_tiles(lambda t: nl.all(t, 1), np.array([[5.0], [0.0]], np.float32)).tolist() == [[1.0], [0.0]]
    assert on_tiles(lambda t: nl.all(t, 1, nl.uint8), x).dtype == np.uint8


def test_a_mean_is_one_division():
    x = np.array([[1.0, 2.0, 2.0]], np.float32)
    assert on_tiles(lambda t: nl.mean(t, 1), x).item() == np.float32(5) / np.float32(3)
    assert kinds_on_tiles(lambda t: nl.mean(t, 1), x) == []


def test_pooling_reduces_a_five_dimensional_access_pattern():
    x = data((4, 6 * 8), 8)

    def body(t):
        windows = t.ap([[48, 4], [16, 3], [2, 4], [8, 2], [1, 2]])
        return nl.max(windows, axis=[3, 4])

    wanted = x.reshape(4, 3, 2, 4, 2).max(axis=(2, 4))
    np.testing.assert_array_equal(on_tiles(body, x), wanted)


def test_strided_views_are_reduced():
    x = data((16, 24), 9)
    result = on_tiles(lambda t: nl.sum(t[:, ::3], 1), x)
    np.testing.assert_allclose(result, x[:, ::3].sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*REDUCTIONS, "softmax"])
def test_hbm_and_numbers_are_refused(name):
    function = getattr(nl, name)
    assert refusal_when_strict(lambda t: function(t, 1), data((4, 4))).kind == "buffer"
    assert refusal(lambda: function(3.0, 1)).kind == "argument"


@pytest.mark.parametrize(
    ("name", "operator"), [("max", "maximum"), ("min", "minimum"), ("sum", "add"), ("prod", "multiply")]
)
def test_reductions_serve_as_operator_tokens(name, operator):
    x = data((4, 6), 10)

    def body(t):
        out = nl.ndarray((4, 1), nl.float32)
        nisa.tensor_reduce(out, getattr(nl, name), t, 1)
        same = nl.ndarray((4, 6), nl.float32)
        nisa.tensor_tensor(same, t, t, getattr(nl, name))
        return out, same

    assert getattr(nl, name).operator is getattr(nl, operator)
    column, pair = on_tiles(body, x)
    np.testing.assert_allclose(column, REDUCTIONS[name](x, axis=1).reshape(4, 1), rtol=1e-6)
    np.testing.assert_array_equal(pair, getattr(np, operator)(x, x))


# ---- softmax -------------------------------------------------------------------------------------


def softmax(x, axes):
    x = x.astype(np.float64)
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    return e / e.sum(axis=axes, keepdims=True)


@pytest.mark.parametrize("on", PLATFORMS)
@pytest.mark.parametrize("psum", [(), (0,)])
@pytest.mark.parametrize(
    ("shape", "axis"), [((128, 64), -1), ((3, 4, 5), 2), ((3, 4, 5), (1, 2)), ((1, 1), 1)]
)
def test_softmax(on, psum, shape, axis):
    x = data(shape, 11, -30, 30)
    result = on_tiles(lambda t: nl.softmax(t, axis), x, on=on, psum=psum)
    assert result.shape == shape
    np.testing.assert_allclose(result, softmax(x, axis), rtol=2e-5, atol=1e-7)


def test_softmax_of_large_numbers_does_not_overflow():
    x = np.array([[1e30, 1e30, -1e30]], np.float32)
    assert on_tiles(nl.softmax, x).tolist() == [[0.5, 0.5, 0.0]]


def test_softmax_keeps_the_dtype_unless_asked():
    x = data((4, 8), 12).astype(ml_dtypes.bfloat16)
    assert on_tiles(nl.softmax, x).dtype == ml_dtypes.bfloat16
    wide = on_tiles(lambda t: nl.softmax(t, dtype=nl.float32), x)
    np.testing.assert_allclose(wide, softmax(x.astype(np.float32), 1), rtol=1e-5)
    assert refusal_on_tiles(lambda t: nl.softmax(t, 0), data((4, 4))).kind == "axis"


# ---- rms_norm ------------------------------------------------------------------------------------


def rms_norm(x, w, axes, n, epsilon=1e-6):
    x, w = x.astype(np.float64), w.astype(np.float64)
    return x / np.sqrt((x * x).sum(axis=axes, keepdims=True) / n + epsilon) * w


@pytest.mark.parametrize("on", PLATFORMS)
@pytest.mark.parametrize("weights", [(64, 32), (1, 32), (64, 1), (1, 1)])
def test_rms_norm(on, weights):
    x, w = data((64, 32), 13), data(weights, 14)
    result = on_tiles(lambda t, u: nl.rms_norm(t, u, axis=1, n=32), x, w, on=on)
    np.testing.assert_allclose(result, rms_norm(x, w, 1, 32), rtol=2e-5, atol=1e-6)


def test_rms_norm_over_several_or_some_axes():
    x, w = data((8, 3, 4), 15), data((8, 3, 4), 16)
    for axis in (2, (1, 2)):
        result = on_tiles(lambda t, u, a=axis: nl.rms_norm(t, u, a, 12), x, w)
        np.testing.assert_allclose(result, rms_norm(x, w, axis, 12), rtol=2e-5, atol=1e-6)


def test_rms_norm_uses_the_divisor_and_epsilon_it_is_given():
    x, w = data((4, 8), 17), np.ones((4, 8), np.float32)
    result = on_tiles(lambda t, u: nl.rms_norm(t, u, 1, 4, epsilon=0.5), x, w)
    np.testing.assert_allclose(result, rms_norm(x, w, 1, 4, 0.5), rtol=2e-5)


def test_rms_norm_dtypes():
    x, w = data((4, 64), 18).astype(ml_dtypes.bfloat16), np.ones((4, 64), np.float32)
    wanted = rms_norm(x.astype(np.float32), w, 1, 64)
    plain = on_tiles(lambda t, u: nl.rms_norm(t, u, 1, 64), x, w)
    assert plain.dtype == ml_dtypes.bfloat16
    wide = on_tiles(lambda t, u: nl.rms_norm(t, u, 1, 64, dtype=nl.float32), x, w)
    np.testing.assert_allclose(wide, wanted, rtol=1e-5)
    narrow = on_tiles(
        lambda t, u: nl.rms_norm(t, u, 1, 64, dtype=nl.float32, compute_dtype=nl.bfloat16), x, w
    )
    np.testing.assert_allclose(narrow, wanted, rtol=0.02)
    assert not np.array_equal(narrow, wide)


def test_rms_norm_refusals():
    x, w = data((4, 8)), data((4, 8))
    assert refusal_on_tiles(lambda t, u: nl.rms_norm(t, u, 0, 8), x, w).kind == "axis"
    assert refusal_on_tiles(lambda t, u: nl.rms_norm(t, u, 1, 0), x, w).kind == "argument"
    assert refusal_on_tiles(lambda t: nl.rms_norm(t, 1.0, 1, 8), x).kind == "argument"
    assert refusal_on_tiles(lambda t, u: nl.rms_norm(t, u, 1, 8), x, data((4, 7))).kind == "shape"
    assert refusal_on_tiles(lambda t, u: nl.rms_norm(t[:, 0:1], u, 1, 8), x, w).kind == "shape"
    assert refusal_when_strict(lambda t: nl.rms_norm(nl.load(t), t, 1, 8), x).kind == "buffer"


# ---- cost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda t: nl.sum(t, 1), 1),
        (lambda t: nl.all(t, 1), 1),
        (lambda t: nl.mean(t, 1), 2),
        (lambda t: nl.var(t, 1), 6),
        (lambda t: nl.softmax(t), 6),
        (lambda t: nl.rms_norm(t, t, 1, 8), 6),
    ],
)
def test_functions_are_a_few_instructions(function, count):
    assert sum(issued(function, data((8, 8))).values()) == count


# ---- properties ----------------------------------------------------------------------------------


@given(
    name=st.sampled_from(sorted(REDUCTIONS)),
    shape=st.lists(st.integers(1, 7), min_size=2, max_size=5),
    first=st.integers(1, 4),
    keepdims=st.booleans(),
    psum=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None)
def test_any_trailing_axes_of_any_shape(name, shape, first, keepdims, psum, seed):
    axes = tuple(range(min(first, len(shape) - 1), len(shape)))
    x = data(shape, seed)
    extra = {} if name == "all" else {"keepdims": keepdims}
    result = on_tiles(lambda t: getattr(nl, name)(t, axes, **extra), x, psum=(0,) if psum else ())
    wanted = REDUCTIONS[name](x.astype(np.float64), axis=axes)
    kept = len(shape) - len(axes)
    if name == "var" or (keepdims and name != "all"):
        assert result.shape == (*shape[:kept], *[1] * len(axes))
    else:
        assert result.shape == (tuple(shape[:kept]) if kept > 1 else (shape[0], 1))
    np.testing.assert_allclose(result.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


@given(
    rows=st.integers(1, 128), columns=st.integers(1, 40), scale=st.floats(0.01, 50), seed=st.integers(0, 99)
)
@settings(max_examples=200, deadline=None)
def test_softmax_rows_sum_to_one(rows, columns, scale, seed):
    x = data((rows, columns), seed) * np.float32(scale)
    result = on_tiles(nl.softmax, x)
    assert (result >= 0).all() and math.isclose(float(result.sum()), rows, rel_tol=1e-5)
    np.testing.assert_allclose(result, softmax(x, 1), rtol=2e-4, atol=1e-7)


def test_reductions_do_not_change_their_input():
    x = data((8, 8), 20)

    def body(t):
        tile = nl.load(t)
        for name in (*REDUCTIONS, "softmax"):
            getattr(nl, name)(tile, 1)
        nl.rms_norm(tile, tile, 1, 8)
        return tile

    np.testing.assert_array_equal(run(body, x), x)


# ---- partitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, (0, 1), (0, -1), [1, 0]])
@pytest.mark.parametrize("name", ["sum", "max"])
def test_partitions_are_reduced_with_a_warning(name, axis):
    @nki.jit
    def reduce(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        found = getattr(nl, name)(tile, axis=axis)
        out = nl.ndarray(found.shape, found.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, found)
        return out

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected = getattr(np, name)(x, axis=axis if axis == 0 else None)
    with pytest.warns(nki.NkiWarning, match="only the last dimensions"):
        np.testing.assert_array_equal(reduce(x), np.reshape(expected, (1, -1)))
