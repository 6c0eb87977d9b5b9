"""Selecting, broadcasting, transposing, multiplying, loading and storing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from bodies import (
    issued,
    kinds,
    kinds_on_tiles,
    on_tiles,
    refusal,
    refusal_on_tiles,
    refusal_when_strict,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import nki.isa as nisa
import nki.language as nl
from nki.machine import dtypes

PLATFORMS = ("trn1", "trn2", "trn3")
BF16 = ml_dtypes.bfloat16


def data(shape, seed=0, low=-3.0, high=3.0, dtype=np.float32):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def bits_of(array):
    return array.view(dtypes.UNSIGNED[array.itemsize])


# ---- where ---------------------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize(
    "dtype", [np.float32, BF16, np.uint8, np.uint16, np.int32, np.int8, np.bool_, np.uint32]
)
def test_where_selects_by_a_condition_of_any_dtype(dtype):
    condition = np.random.default_rng(1).integers(0, 2, (40, 20)).astype(dtype)
    x, y = data((40, 20), 2), data((40, 20), 3)
    np.testing.assert_array_equal(
        on_tiles(nl.where, condition, x, y), np.where(condition.astype(np.float32) != 0, x, y)
    )


def test_a_condition_is_true_when_it_is_not_zero():
    condition = np.array([[0.0, -0.0, 0.25, -3.0, np.nan]], np.float32)
    assert on_tiles(lambda c: nl.where(c, 1.0, 2.0), condition).tolist() == [[2, 2, 1, 1, 1]]


@pytest.mark.parametrize("psum", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_where_takes_psum_operands(psum, dtype):
    condition = np.random.default_rng(4).integers(0, 2, (16, 8)).astype(dtype)
    x, y = data((16, 8), 5), data((16, 8), 6)
    np.testing.assert_array_equal(on_tiles(nl.where, condition, x, y, psum=psum), np.where(condition, x, y))


@pytest.mark.parametrize(
    ("c", "x", "y"),
    [
        ((6, 4), (6, 1), (6, 4)),
        ((6, 1), (6, 4), (1, 4)),
        ((1, 4), (6, 1), (1, 1)),
        ((6, 1, 2), (6, 3, 1), (6, 3, 2)),
    ],
)
def test_where_broadcasts(c, x, y):
    condition = np.random.default_rng(7).integers(0, 2, c).astype(np.uint8)
    a, b = data(x, 8), data(y, 9)
    np.testing.assert_array_equal(on_tiles(nl.where, condition, a, b), np.where(condition, a, b))


def test_where_takes_numbers():
    condition = np.array([[1, 0]], np.uint8)
    x = np.array([[5.0, 6.0]], np.float32)
    assert on_tiles(lambda c, t: nl.where(c, t, -1), condition, x).tolist() == [[5, -1]]
    assert on_tiles(lambda c, t: nl.where(c, -1.5, t), condition, x).tolist() == [[-1.5, 6]]
    both = on_tiles(lambda c: nl.where(c, 7, 9), condition)
    assert both.dtype == np.uint8 and both.tolist() == [[7, 9]]


def test_where_promotes_tiles_and_never_numbers():
    condition = np.array([[1.0, 0.0]], np.float32)
    narrow, wide, integers = np.ones((1, 2), BF16), np.ones((1, 2), np.float32), np.ones((1, 2), np.int32)
    assert on_tiles(nl.where, condition, narrow, wide).dtype == np.float32
    assert on_tiles(nl.where, condition, narrow, narrow).dtype == BF16
    assert on_tiles(lambda c, t: nl.where(c, t, 0.5), condition, integers).tolist() == [[1, 0]]
    assert kinds_on_tiles(lambda c, t: nl.where(c, t, 0.5), condition, integers) == ["weak-scalar"]
    assert on_tiles(lambda c, t: nl.where(c, t, 2.0, nl.int8), condition, wide).tolist() == [[1, 2]]
    assert on_tiles(lambda c: nl.where(c, 3, 0), np.array([[True, False]])).tolist() == [[True, False]]


def test_selected_integers_keep_their_bits():
    condition = np.array([[1, 0]], np.uint8)
    x, y = np.array([[2**24 + 1, 3]], np.int32), np.array([[4, 2**31 - 1]], np.int32)
    assert on_tiles(nl.where, condition, x, y).tolist() == [[2**24 + 1, 2**31 - 1]]


def test_where_refusals():
    x = data((4, 4))
    assert refusal(lambda: nl.where(1, 2, 3)).kind == "argument"
    assert refusal_when_strict(lambda t: nl.where(t, 1.0, 2.0), x).kind == "buffer"
    assert refusal_when_strict(lambda t: nl.where(nl.load(t), t, 2.0), x).kind == "buffer"
    assert refusal_on_tiles(lambda c, t: nl.where(c, t, 0.0), x, data((4, 3))).kind == "shape"


@given(
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    mask=st.lists(st.booleans(), min_size=12, max_size=12),
    kind=st.sampled_from([np.float32, np.uint8, np.int32]),
    seed=st.integers(0, 99),
)
@settings(max_examples=200, deadline=None)
def test_where_follows_numpy_on_any_shapes(shape, mask, kind, seed):
    shapes = [[1 if m else n for n, m in zip(shape, mask[k:], strict=False)] for k in (0, 4, 8)]
    condition = np.random.default_rng(seed).integers(0, 2, shapes[0]).astype(kind)
    x, y = data(shapes[1], seed + 1), data(shapes[2], seed + 2)
    result = on_tiles(nl.where, condition, x, y)
    np.testing.assert_array_equal(result, np.where(condition, x, y))


# ---- dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", PLATFORMS)
def test_dropout_zeroes_about_the_rate_and_rescales_nothing(on):
    x = data((128, 200), 10, 1, 2)
    result = on_tiles(lambda t: nl.dropout(t, 0.25), x, on=on)
    dropped = result == 0
    assert abs(dropped.mean() - 0.25) < 0.02
    np.testing.assert_array_equal(result[~dropped], x[~dropped])


def test_dropout_at_the_ends_and_per_partition():
    x = data((64, 30), 11, 1, 2)
    np.testing.assert_array_equal(on_tiles(lambda t: nl.dropout(t, 0), x), x)
    assert (on_tiles(lambda t: nl.dropout(t, 1.0), x) == 0).all()
    rates = np.zeros((64, 1), np.float32)
    rates[::2] = 1
    result = on_tiles(nl.dropout, x, rates)
    assert (result[::2] == 0).all()
    np.testing.assert_array_equal(result[1::2], x[1::2])


def test_dropout_casts_and_refuses():
    x = data((4, 4), 12)
    assert on_tiles(lambda t: nl.dropout(t, 0.0, nl.bfloat16), x).dtype == BF16
    assert refusal_on_tiles(lambda t: nl.dropout(t, 1.5), x).kind == "argument"
    assert refusal_on_tiles(lambda t: nl.dropout(t, "x"), x).kind == "argument"
    assert refusal_on_tiles(lambda t: nl.dropout(t, t), x).kind == "shape"
    assert refusal_when_strict(lambda t: nl.dropout(t, 0.5), x).kind == "buffer"


# ---- expand_dims and broadcast_to ----------------------------------------------------------------


def test_expand_dims_is_a_view():
    def body(t):
        tile = nl.load(t)
        for axis, shape in ((1, (8, 1, 6)), (2, (8, 6, 1)), (-1, (8, 6, 1)), (-2, (8, 1, 6))):
            view = nl.expand_dims(tile, axis)
            assert view.shape == shape and view.storage is tile.storage
        assert nl.expand_dims(t, 0).shape == (1, 8, 6)
        return nl.expand_dims(tile, 1)

    x = data((8, 6))
    np.testing.assert_array_equal(run(body, x)[:, 0], x)
    assert refusal_on_tiles(lambda t: nl.expand_dims(t, 0), x).kind == "partition-dim"
    assert refusal_on_tiles(lambda t: nl.expand_dims(t, 5), x).kind == "index"
    assert refusal(lambda: nl.expand_dims(3, 0)).kind == "argument"


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        ((1, 6), (128, 6)),
        ((1, 6), (33, 6)),
        ((8, 1), (8, 6)),
        ((1, 1), (40, 6)),
        ((8, 1, 3), (8, 2, 3)),
        ((1, 2, 1), (5, 2, 4)),
        ((4, 4), (4, 4)),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, BF16, np.int32])
@pytest.mark.parametrize("psum", [(), (0,)])
def test_broadcast_to_copies_bits(source, shape, dtype, psum):
    x = data(source, 13, 0, 100).astype(dtype)
    result = on_tiles(lambda t: nl.broadcast_to(t, shape), x, psum=psum)
    np.testing.assert_array_equal(bits_of(result), bits_of(np.broadcast_to(x, shape).copy()))


def test_broadcast_to_returns_its_input_only_when_nothing_changes():
    def body(t):
        assert nl.broadcast_to(t, (4, 4)) is t
        assert nl.broadcast_to(t, [4, 4], nl.float32) is t
        cast = nl.broadcast_to(t, (4, 4), nl.int32)
        assert cast is not t and cast.dtype == nl.int32 and cast.buffer is nl.sbuf
        row = nl.broadcast_to(t[0:1], (7, 4), nl.bfloat16)
        assert row.dtype == nl.bfloat16 and row.buffer is nl.sbuf

    on_tiles(body, data((4, 4)))


@pytest.mark.parametrize("shape", [(4, 5), (4,), (4, 4, 1), (8, 4), 4, None])
def test_broadcast_to_refuses_what_does_not_fit(shape):
    assert refusal_on_tiles(lambda t: nl.broadcast_to(t, shape), data((4, 4))).kind == "shape"


def test_broadcast_to_refuses_hbm_when_strict():
    assert refusal_when_strict(lambda t: nl.broadcast_to(t, (4, 4)), data((1, 4))).kind == "buffer"


# ---- transpose and matmul ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(128, 128), (1, 1), (128, 1), (1, 128), (33, 70)])
@pytest.mark.parametrize("on", PLATFORMS)
def test_transpose_is_a_psum_tile(shape, on):
    x = data(shape, 14)

    def body(t):
        out = nl.transpose(t)
        assert out.buffer is nl.psum and out.shape == (shape[1], shape[0]) and out.dtype == nl.float32
        return out

    np.testing.assert_array_equal(on_tiles(body, x, on=on), x.T)


@pytest.mark.parametrize("dtype", [BF16, np.float16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("on", PLATFORMS)
def test_transpose_keeps_narrow_floats(dtype, on):
    x = data((20, 30), 15).astype(dtype)
    result = on_tiles(nl.transpose, x, on=on)
    assert result.dtype == dtype
    np.testing.assert_array_equal(bits_of(result), bits_of(x.T.copy()))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, np.uint32])
def test_transpose_moves_integers(dtype):
    x = np.random.default_rng(16).integers(0, 100, (20, 30)).astype(dtype)
    np.testing.assert_array_equal(on_tiles(nl.transpose, x), x.T)


def test_transpose_casts_takes_psum_and_keeps_nan():
    x = data((16, 8), 17)
    x[3, 4] = np.nan
    np.testing.assert_array_equal(on_tiles(nl.transpose, x, psum=(0,)), x.T)
    narrow = on_tiles(lambda t: nl.transpose(t, nl.bfloat16), x)
    np.testing.assert_array_equal(narrow.astype(np.float32), x.T.astype(BF16).astype(np.float32))


def test_transpose_refusals():
    assert refusal_on_tiles(nl.transpose, data((4, 2, 3))).kind == "shape"
    assert refusal_on_tiles(nl.transpose, data((4, 129))).kind == "free-limit"
    assert refusal_when_strict(nl.transpose, data((4, 4))).kind == "buffer"
    assert refusal(lambda: nl.transpose(2)).kind == "argument"


@pytest.mark.parametrize(("k", "m", "n"), [(128, 128, 512), (1, 1, 1), (17, 33, 65)])
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("on", PLATFORMS)
def test_matmul(k, m, n, dtype, on):
    x, y = data((m, k), 18).astype(dtype), data((k, n), 19).astype(dtype)
    wanted = x.astype(np.float64) @ y.astype(np.float64)

    def body(a, b):
        out = nl.matmul(a, b)
        assert out.buffer is nl.psum and out.dtype == nl.float32 and out.shape == (m, n)
        return out

    np.testing.assert_allclose(on_tiles(body, x, y, on=on), wanted, rtol=1e-4, atol=1e-4)
    straight = on_tiles(lambda a, b: nl.matmul(a, b, transpose_x=True), x.T.copy(), y, on=on)
    np.testing.assert_allclose(straight, wanted, rtol=1e-4, atol=1e-4)


def test_only_an_inserted_transpose_is_reported():
    x = data((8, 8))
    assert kinds_on_tiles(lambda a: nl.matmul(a, a), x) == ["matmul-transpose"]
    assert kinds_on_tiles(lambda a: nl.matmul(a, a, True), x) == []
    assert issued(lambda a: nl.matmul(a, a, True), x) == {"nc_matmul": 1}


def test_matmul_refusals():
    def refused(x, y, psum=(), transpose_x=True, on="trn2"):
        return refusal_on_tiles(lambda a, b: nl.matmul(a, b, transpose_x), x, y, psum=psum, on=on).kind

    assert refused(data((8, 4)), data((7, 4))) == "shape"
    assert refused(data((8, 4)), data((8, 4)), transpose_x=False) == "shape"
    assert refused(data((8, 2, 4)), data((8, 4))) == "shape"
    assert refused(data((8, 4)), data((8, 4)), psum=(0,)) == "buffer"
    assert refused(data((8, 4)), data((8, 4)), psum=(1,)) == "buffer"
    assert refused(data((8, 129)), data((8, 4))) == "free-limit"
    assert refused(data((8, 4)), data((8, 513)), on="trn3") == "free-limit"
    assert refused(data((8, 4)), data((8, 4)).astype(BF16)) == "dtype"
    assert refused(np.ones((8, 4), np.int32), np.ones((8, 4), np.int32)) == "dtype"
    assert refusal_when_strict(lambda t: nl.matmul(t, t), data((8, 8))).kind == "buffer"


def test_a_product_cannot_be_stored_without_a_copy():
    def body(t):
        nl.store(t, nl.matmul(nl.load(t), nl.load(t), transpose_x=True))

    problem = refusal(body, data((8, 8)))
    assert problem.kind == "buffer" and "nl.copy" in problem.help


# ---- load and store ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if not d.is_packed])
def test_a_load_and_a_store_keep_every_bit(dtype):
    raw = np.random.default_rng(20).integers(0, 2, (5, 6)).astype(dtype.storage)

    def body(t):
        tile = nl.load(t)
        assert tile.buffer is nl.sbuf and tile.shape == (5, 6) and tile.dtype is t.dtype
        out = nl.ndarray(t.shape, t.dtype, nl.shared_hbm)
        assert nl.store(out, tile) is None
        return out

    np.testing.assert_array_equal(run(body, raw, on="trn3").view(np.uint8), raw.view(np.uint8))


def test_loads_of_views_and_vectors():
    x = data((40, 12), 21)
    np.testing.assert_array_equal(run(lambda t: nl.load(t[3:30, 1:9:2]), x), x[3:30, 1:9:2])
    np.testing.assert_array_equal(run(lambda t: nl.load(t.permute((1, 0))), x), x.T)
    vector = run(lambda t: nl.load(t), x[0].copy())
    assert vector.shape == (12, 1)
    np.testing.assert_array_equal(vector[:, 0], x[0])
    np.testing.assert_array_equal(run(lambda t: nl.load(t, nl.int32), x), np.rint(x))
    np.testing.assert_array_equal(run(lambda t: nl.load(t.reshape((2, 20, 3, 4))), x), x.reshape(2, 20, 3, 4))


def test_rows_chosen_at_run_time_are_loaded():
    x = data((10, 6), 22)
    rows = np.array([[7], [0], [3]], np.int32)
    np.testing.assert_array_equal(
        run(lambda t, r: nl.load(t.vector_select(0, nl.load(r))), x, rows), x[[7, 0, 3]]
    )


def test_load_refusals():
    x = data((130, 4))
    problem = refusal(lambda t: nl.load(t), x)
    assert problem.kind == "partition-limit" and "load" in str(problem)
    assert refusal(lambda t: nl.load(t), x[:, 0].copy()).kind == "partition-limit"
    assert refusal_on_tiles(nl.load, x[:4]).kind == "buffer"
    assert refusal_on_tiles(nl.load, x[:4], psum=(0,)).kind == "buffer"
    assert refusal(lambda: nl.load(np.ones((2, 2)))).kind == "argument"


def test_stores_cast_and_drop_size_one_dimensions():
    x = data((6, 8), 23)

    def body(t):
        out = nl.zeros((6, 1, 8), nl.int32, nl.shared_hbm)
        nl.store(out[2:4], nl.load(t[2:4]))
        return out

    result = run(body, x)
    np.testing.assert_array_equal(result[2:4, 0], np.rint(x[2:4]))
    assert (result[:2] == 0).all()


def test_store_refusals():
    x = data((4, 6))
    assert refusal(lambda t: nl.store(t, nl.load(t[:, 0:5])), x).kind == "shape"
    assert refusal(lambda t: nl.store(t.reshape((6, 4)), nl.load(t)), x).kind == "shape"
    assert refusal(lambda t: nl.store(t, 1.0), x).kind == "argument"
    assert refusal_when_strict(lambda t: nl.store(t, t), x).kind == "buffer"
    assert refusal_on_tiles(lambda t: nl.store(t, t), x).kind == "buffer"
    assert refusal(lambda: nl.store(3, 4)).kind == "argument"


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int32, np.uint8, ml_dtypes.float8_e5m2, np.bool_])
@pytest.mark.parametrize("shape", [(200, 128), (16, 16), (1, 5), (7, 1)])
def test_load_transpose2d(dtype, shape):
    x = data(shape, 24, 0, 3).astype(dtype)
    result = run(lambda t: nl.load_transpose2d(t), x)
    assert result.dtype == dtype
    np.testing.assert_array_equal(bits_of(result), bits_of(x.T.copy()))


def test_load_transpose2d_casts_and_refuses():
    x = data((20, 8), 25)
    np.testing.assert_array_equal(run(lambda t: nl.load_transpose2d(t, nl.int32), x), np.rint(x.T))
    small = x.astype(np.uint8)
    np.testing.assert_array_equal(run(lambda t: nl.load_transpose2d(t, nl.float32), small), small.T)
    assert refusal(lambda t: nl.load_transpose2d(t), data((4, 129))).kind == "partition-limit"
    assert refusal(lambda t: nl.load_transpose2d(t), data((4, 2, 2))).kind == "shape"
    assert refusal_on_tiles(nl.load_transpose2d, x).kind == "buffer"


# ---- gather_flattened ----------------------------------------------------------------------------


@pytest.mark.parametrize("index", [np.uint32, np.int32, np.uint16])
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int32, np.uint8])
@pytest.mark.parametrize("psum", [(), (0,), (1,)])
def test_gather_flattened(index, dtype, psum):
    x = data((32, 3, 7), 26, 0, 90).astype(dtype)
    indices = np.random.default_rng(27).integers(0, 21, (32, 2, 5)).astype(index)
    result = on_tiles(nl.gather_flattened, x, indices, psum=psum)
    wanted = np.take_along_axis(x.reshape(32, 21), indices.reshape(32, 10).astype(np.int64), 1)
    np.testing.assert_array_equal(bits_of(result), bits_of(wanted.reshape(32, 2, 5)))


def test_gathers_by_strided_indices_cast_their_result():
    x = data((4, 8), 28)
    indices = np.arange(32, dtype=np.int32).reshape(4, 8) % 8
    result = on_tiles(lambda t, i: nl.gather_flattened(t, i[:, ::2], dtype=nl.bfloat16), x, indices)
    assert result.dtype == BF16
    np.testing.assert_array_equal(result, x[:, ::2].astype(BF16))


def test_gather_refusals():
    x, indices = data((4, 8)), np.zeros((4, 2), np.int32)

    def refused(x, i, **keywords):
        return refusal_on_tiles(lambda t, u: nl.gather_flattened(t, u, **keywords), x, i).kind

    assert refused(x, indices, axis=1) == "axis"
    assert refused(x, indices.astype(np.float32)) == "dtype"
    assert refused(x, np.zeros((3, 2), np.int32)) == "shape"
    assert refused(x, np.full((4, 2), 8, np.int32)) == "index"
    assert refused(x, np.full((4, 2), -1, np.int32)) == "index"
    assert refusal_when_strict(lambda t: nl.gather_flattened(t, t), indices).kind == "buffer"


# ---- random seeds --------------------------------------------------------------------------------


@pytest.mark.parametrize("on", PLATFORMS)
def test_the_same_seed_gives_the_same_numbers(on):
    def body():
        seed = nl.full((1, 1), 42, nl.int32)
        nl.random_seed(seed)
        first = nl.rand((128, 20), nl.float32)
        nl.random_seed(seed)
        second = nl.rand((128, 20), nl.float32)
        third = nl.rand((128, 20), nl.float32)
        nl.random_seed(nl.full((1, 1), 43, nl.int32))
        return first, second, third, nl.rand((128, 20), nl.float32)

    first, second, third, other = run(body, on=on)
    np.testing.assert_array_equal(first, second)
    assert (first != third).mean() > 0.9 and (first != other).mean() > 0.9


def test_seeds_are_tiles_of_one_word():
    problem = refusal(lambda: nl.random_seed(42))
    assert (
        problem.kind == "argument" and isinstance(problem, TypeError) and "nl.full((1, 1), 42" in problem.help
    )
    assert refusal(lambda: nl.random_seed(nl.zeros((2, 1), nl.int32))).kind == "shape"
    assert refusal(lambda: nl.random_seed(nl.zeros((1, 1), nl.int8))).kind == "dtype"
    assert refusal_when_strict(lambda t: nl.random_seed(t), np.ones((1, 1), np.int32)).kind == "buffer"


def test_older_cores_may_not_take_the_seed():
    def body():
        nl.random_seed(nl.full((1, 1), 1, nl.int32))

    assert kinds(body, on="trn2") == ["seed-engine"] and kinds(body, on="trn3") == []


def test_the_documented_example_of_matmul_holds():
    def body():
        x = nl.shared_identity_matrix(n=128, dtype=nl.float32)
        y = nl.full((128, 128), 1.0, dtype=nl.float32, buffer=nl.sbuf)
        product = nl.matmul(x, y, transpose_x=True)
        result = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(result, product)
        assert nl.equal(result, nl.full((128, 128), 1.0, dtype=nl.float32, buffer=nl.sbuf))
        assert not nl.equal(result, x)

    run(body)
