"""iota, affine_select, tensor_partition_reduce, the gathers, sequence_bounds, nonzero_with_count, topk."""

from __future__ import annotations

import itertools
import os
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.isa import affine
from nki.machine import dtypes
from nki.machine.generations import find
from support import refused_tiles as refused
from support import run_tiles, target, to_tile

CASTABLE = [d for d in dtypes.ALL if d.castable]
MOVED = [d for d in CASTABLE if d != "tfloat32"]  # numpy arrays of tfloat32 arrive as float32
INTEGERS = [d for d in CASTABLE if d.is_integer]
BF16 = ml_dtypes.bfloat16
FP32_MIN = float(np.finfo(np.float32).min)
PLATFORMS = ["trn1", "trn2", "trn3"]


def f32(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def whole(shape, dtype, low=-8, high=8, seed=0):
    """Whole numbers that every dtype holds exactly."""
    low = max(low, 0) if not dtype.is_signed else low
    numbers = np.random.default_rng(seed).integers(low, high, shape)
    return dtypes.cast(numbers.astype(np.float32), dtype)


def wide(array):
    return np.asarray(array).astype(np.float32).astype(np.float64)


def warned(kind, body, inputs=(), outputs=(), **options):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        results = run_tiles(body, inputs, outputs, **options)
    assert kind in [w.category.kind for w in seen]
    return results


# ---- iota ----------------------------------------------------------------------------------------


def iota_in_turns(pattern, partitions, offset=0, channel_multiplier=0):
    """The definition, value by value, as Python integers."""
    rows = []
    for p in range(partitions):
        row = []
        for places in itertools.product(*(range(num) for _, num in pattern)):
            steps = sum(place * step for place, (step, _) in zip(places, pattern, strict=True))
            row.append(offset + p * channel_multiplier + steps)
        rows.append(row)
    return np.array(rows, dtype=object)


def wrapped(values):
    return np.array([[(v + 2**31) % 2**32 - 2**31 for v in row] for row in values], np.int64)


@pytest.mark.tiny
@pytest.mark.parametrize("partitions", [1, 77, 128])
@pytest.mark.parametrize("on", PLATFORMS)
def test_iota_writes_an_affine_pattern(partitions, on):
    pattern = [[-7, 3], [0, 2], [5, 2], [1, 5]]
    [got] = run_tiles(
        lambda dst: nisa.iota(dst, pattern, offset=-3, channel_multiplier=60),
        outputs=[((partitions, 60), nl.int32)],
        on=on,
    )
    np.testing.assert_array_equal(got, iota_in_turns(pattern, partitions, -3, 60).astype(np.int64))


def test_iota_needs_only_the_total_of_the_pattern_to_fit_dst():
    [got] = run_tiles(lambda dst: nisa.iota(dst, [[10, 2], [1, 6]]), outputs=[((3, 4, 3), nl.int32)])
    np.testing.assert_array_equal(got.reshape(3, 12), iota_in_turns([[10, 2], [1, 6]], 3).astype(int))


def test_iota_counts_channels_from_the_first_partition_of_dst():
    def body(dst):
        nisa.memset(dst, -1)
        nisa.iota(dst[32:40], [[1, 3]], channel_multiplier=3)

    [got] = run_tiles(body, outputs=[((64, 3), nl.int32)])
    np.testing.assert_array_equal(got[32:40].reshape(-1), np.arange(24))
    assert (np.delete(got, range(32, 40), axis=0) == -1).all()


@pytest.mark.parametrize("dtype", CASTABLE)
def test_iota_casts_to_every_dtype(dtype):
    [got] = run_tiles(
        lambda dst: nisa.iota(dst, [[3, 100]], offset=-20, channel_multiplier=1), outputs=[((4, 100), dtype)]
    )
    exact = iota_in_turns([[3, 100]], 4, -20, 1).astype(np.float32)
    if dtype == "uint32":
        np.testing.assert_array_equal(got.view(np.int32), exact.astype(np.int64))  # the same bits
    else:
        np.testing.assert_array_equal(got, dtypes.cast(exact, dtype))


def test_iota_into_small_integers_saturates():
    [got] = run_tiles(lambda dst: nisa.iota(dst, [[100, 5]], offset=-100), outputs=[((1, 5), nl.uint8)])
    np.testing.assert_array_equal(got[0], [0, 0, 100, 200, 255])


def test_iota_is_exact_above_two_to_the_24():
    [got] = run_tiles(lambda dst: nisa.iota(dst, [[1, 4]], offset=2**24 + 1), outputs=[((1, 4), nl.int32)])
    np.testing.assert_array_equal(got[0], 2**24 + 1 + np.arange(4))


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_iota_wraps_at_32_bits(dtype):
    [got] = run_tiles(
        lambda dst: nisa.iota(dst, [[2**31 - 1, 4]], offset=2**31 - 1, channel_multiplier=2**30),
        outputs=[((3, 4), dtype)],
    )
    exact = iota_in_turns([[2**31 - 1, 4]], 3, 2**31 - 1, 2**30)
    np.testing.assert_array_equal(got.view(np.int32), wrapped(exact))


def test_iota_takes_numpy_integers_and_tuples():
    pattern = ((np.int64(2), np.int32(3)),)
    [got] = run_tiles(
        lambda dst: nisa.iota(dst, pattern, offset=np.int32(4), channel_multiplier=np.int64(10)),
        outputs=[((2, 3), nl.int32)],
    )
    np.testing.assert_array_equal(got, [[4, 6, 8], [14, 16, 18]])


def test_iota_takes_a_constant_row():
    [got] = run_tiles(lambda dst: nisa.iota(dst, [[0, 6]], offset=9), outputs=[((2, 6), nl.float32)])
    assert (got == 9).all()


def test_iota_reads_a_register_when_it_runs():
    def body(dst):
        register = nisa.register_alloc(5)
        nisa.register_move(register, -7)
        nisa.iota(dst, [[1, 4]], offset=register, channel_multiplier=100)

    [got] = run_tiles(body, outputs=[((2, 4), nl.int32)])
    np.testing.assert_array_equal(got, [[-7, -6, -5, -4], [93, 94, 95, 96]])


@settings(max_examples=200, deadline=None)
@given(
    pattern=st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(1, 4)), min_size=1, max_size=4),
    partitions=st.integers(1, 5),
    offset=st.integers(-(2**31), 2**31 - 1),
    channel_multiplier=st.integers(-(2**31), 2**31 - 1),
)
def test_iota_equals_its_definition(pattern, partitions, offset, channel_multiplier):
    count = int(np.prod([num for _, num in pattern]))
    got = affine.affine_values(tuple(pattern), partitions, channel_multiplier, offset)
    assert got.shape == (partitions, count)
    np.testing.assert_array_equal(
        got, wrapped(iota_in_turns(pattern, partitions, offset, channel_multiplier))
    )


@pytest.mark.parametrize(
    "pattern, text",
    [
        ([[1, 4], [1, 2], [1, 1], [1, 1], [1, 1]], "one to four"),
        ([], "one to four"),
        ([1, 8], "one to four"),
        ([[1, 2, 3]], "one to four"),
        ("x", "one to four"),
        ([[1, 0]], "num an int >= 1"),
        ([[1.5, 8]], "a step is an int"),
    ],
)
def test_iota_refuses_a_malformed_pattern(pattern, text):
    refused("pattern", text, lambda dst: nisa.iota(dst, pattern), outputs=[((4, 8), nl.int32)])


def test_iota_refuses_what_does_not_fit():
    out = [((4, 8), nl.int32)]
    refused("shape", "makes 6 values per partition, dst has 8", lambda d: nisa.iota(d, [[1, 6]]), outputs=out)
    refused("argument", "offset must be an int", lambda d: nisa.iota(d, [[1, 8]], offset=1.5), outputs=out)
    refused(
        "argument",
        "channel_multiplier must be an int",
        lambda d: nisa.iota(d, [[1, 8]], channel_multiplier=nisa.register_alloc(1)),
        outputs=out,
    )
    refused("argument", "dst must be a tile", lambda d: nisa.iota(3, [[1, 8]]), outputs=out)


def test_iota_refuses_psum_and_packed_types():
    refused(
        "buffer",
        "dst must be in SBUF",
        lambda dst: nisa.iota(dst, [[1, 8]]),
        outputs=[((4, 8), nl.int32)],
        out_psum=[0],
    )
    refused(
        "dtype",
        "no engine can convert",
        lambda dst: nisa.iota(dst, [[1, 8]]),
        outputs=[((4, 8), nl.float8_e4m3fn_x4)],
    )


# ---- affine_select -------------------------------------------------------------------------------

COMPARE = {
    "equal": lambda a: a == 0,
    "not_equal": lambda a: a != 0,
    "greater": lambda a: a > 0,
    "greater_equal": lambda a: a >= 0,
    "less": lambda a: a < 0,
    "less_equal": lambda a: a <= 0,
}


@pytest.mark.tiny
@pytest.mark.parametrize("on", PLATFORMS)
def test_affine_select_makes_a_causal_mask(on):
    x = f32(128, 128)

    def body(dst, tile):
        nisa.affine_select(dst, [[-1, 128]], 1, tile, FP32_MIN, cmp_op=nl.greater_equal)

    [got] = run_tiles(body, [x], [((128, 128), nl.float32)], on=on)
    np.testing.assert_array_equal(got, np.where(np.tri(128, dtype=bool), x, np.float32(FP32_MIN)))


def test_affine_select_masks_the_other_triangle_with_the_other_sign():
    x = f32(64, 64)

    def body(dst, tile):
        nisa.affine_select(dst, [[1, 64]], -1, tile, 0.0, cmp_op=nl.greater, offset=0)

    [got] = run_tiles(body, [x], [((64, 64), nl.float32)])
    np.testing.assert_array_equal(got, np.where(~np.tri(64, dtype=bool), x, 0))


@pytest.mark.parametrize("name", COMPARE)
def test_affine_select_compares_the_value_on_the_left_with_zero(name):
    x = f32(5, 12)
    pattern = [[-4, 3], [1, 4]]

    def body(dst, tile):
        nisa.affine_select(dst, pattern, 3, tile, -5.5, cmp_op=getattr(nl, name), offset=-2)

    [got] = run_tiles(body, [x], [((5, 12), nl.float32)])
    keep = COMPARE[name](iota_in_turns(pattern, 5, -2, 3)).astype(bool)
    np.testing.assert_array_equal(got, np.where(keep, x, -5.5))


@pytest.mark.parametrize("target_dtype", CASTABLE)
@pytest.mark.parametrize("source_dtype", [dtypes.float32, dtypes.bfloat16, dtypes.int32, dtypes.uint8])
def test_affine_select_casts_what_it_keeps_and_what_it_fills(source_dtype, target_dtype):
    x = whole((4, 16), source_dtype)

    def body(dst, tile):
        nisa.affine_select(dst, [[1, 16]], 0, tile, 3.0, cmp_op=nl.less, offset=-8)

    [got] = run_tiles(body, [x], [((4, 16), target_dtype)])
    expected = wide(x)
    expected[:, 8:] = 3.0
    np.testing.assert_array_equal(wide(got), wide(dtypes.cast(expected.astype(np.float32), target_dtype)))


def test_affine_select_keeps_every_bit_of_equal_dtypes():
    odd = np.array([[2**31 - 1, -(2**24) - 1, 2**24 + 1, 7]], np.int32)
    [got] = run_tiles(
        lambda dst, x: nisa.affine_select(dst, [[1, 4]], 0, x, 0, cmp_op=nl.less, offset=-3),
        [odd],
        [((1, 4), nl.int32)],
    )
    np.testing.assert_array_equal(got, [[2**31 - 1, -(2**24) - 1, 2**24 + 1, 0]])
    nans = np.array([[0x7F800001, 0xFFC12345]], np.uint32).view(np.float32)
    [got] = run_tiles(
        lambda dst, x: nisa.affine_select(dst, [[1, 2]], 0, x, 0, cmp_op=nl.greater_equal),
        [nans],
        [((1, 2), nl.float32)],
    )
    np.testing.assert_array_equal(got.view(np.uint32), nans.view(np.uint32))


def test_affine_select_fills_bfloat16_with_minus_infinity_for_fp32_min():
    x = f32(4, 8).astype(BF16)
    [got] = run_tiles(
        lambda dst, tile: nisa.affine_select(dst, [[1, 8]], 0, tile, FP32_MIN, cmp_op=nl.less, offset=-4),
        [x],
        [((4, 8), nl.bfloat16)],
    )
    np.testing.assert_array_equal(wide(got[:, 4:]), np.full((4, 4), -np.inf))
    np.testing.assert_array_equal(got[:, :4], x[:, :4])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_affine_select_works_in_place_and_on_shifted_overlaps(dtype):
    x = whole((8, 20), dtypes.resolve(dtype))

    def body(dst):
        nisa.affine_select(dst[:, 0:10], [[-1, 10]], 1, dst[:, 0:10], 5, cmp_op=nl.greater_equal)
        nisa.affine_select(dst[:, 9:19], [[-1, 10]], 1, dst[:, 10:20], 5, cmp_op=nl.greater_equal)

    [got] = run_tiles(body, outputs=[x])
    keep = np.tri(8, 10, dtype=bool)
    expected = wide(x)
    expected[:, 0:10] = np.where(keep, wide(x)[:, 0:10], 5)
    expected[:, 9:19] = np.where(keep, wide(x)[:, 10:20], 5)
    np.testing.assert_array_equal(wide(got), expected)


def test_affine_select_pairs_operands_of_different_rank_by_stream_order():
    x = f32(3, 2, 3, 4)

    def body(dst, tile):
        nisa.affine_select(dst, [[1, 24]], 0, tile, -1.0, cmp_op=nl.less, offset=-20)

    [got] = run_tiles(body, [x], [((3, 24), nl.float32)])
    expected = x.reshape(3, 24).copy()
    expected[:, 20:] = -1
    np.testing.assert_array_equal(got, expected)


def test_affine_select_reads_a_register_when_it_runs():
    x = f32(2, 8)

    def body(dst, tile):
        row = nisa.register_alloc(3)
        nisa.affine_select(dst, [[-1, 8]], 1, tile, 0.0, cmp_op=nl.greater_equal, offset=row)

    [got] = run_tiles(body, [x], [((2, 8), nl.float32)])
    np.testing.assert_array_equal(got, np.where(np.tri(2, 8, 3, dtype=bool), x, 0))


def test_affine_select_takes_the_argument_order_of_nki_0_2():
    x = f32(8, 8)
    expected = np.where(np.tri(8, dtype=bool), x, -9)
    forms = [
        lambda dst, t: nisa.affine_select(dst, [[-1, 8]], 0, 1, t, -9.0, nl.greater_equal),
        lambda dst, t: nisa.affine_select(dst, [[-1, 8]], 0, 1, t, -9.0, cmp_op=np.greater_equal),
        lambda dst, t: nisa.affine_select(
            dst, [[-1, 8]], 0, 1, t, on_false_value=-9.0, cmp_op=nl.greater_equal
        ),
    ]
    for form in forms:
        [got] = warned("legacy", form, [x], [((8, 8), nl.float32)])
        np.testing.assert_array_equal(got, expected)


def test_affine_select_compares_with_equal_by_default():
    x = f32(4, 4)
    [got] = run_tiles(
        lambda dst, tile: nisa.affine_select(dst, [[-1, 4]], 1, tile, 0.0), [x], [((4, 4), nl.float32)]
    )
    np.testing.assert_array_equal(got, np.diag(np.diag(x)))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_affine_select_equals_its_definition(data):
    pattern = data.draw(st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 5)), min_size=1, max_size=4))
    name = data.draw(st.sampled_from(sorted(COMPARE)))
    offset, multiplier = data.draw(st.integers(-20, 20)), data.draw(st.integers(-9, 9))
    partitions = data.draw(st.integers(1, 6))
    count = int(np.prod([num for _, num in pattern]))
    x = np.arange(partitions * count, dtype=np.float32).reshape(partitions, count)

    def body(dst, tile):
        nisa.affine_select(
            dst, [list(p) for p in pattern], multiplier, tile, -1, cmp_op=getattr(nl, name), offset=offset
        )

    [got] = run_tiles(body, [x], [((partitions, count), nl.float32)])
    keep = COMPARE[name](iota_in_turns(pattern, partitions, offset, multiplier)).astype(bool)
    np.testing.assert_array_equal(got, np.where(keep, x, -1))


def test_affine_select_refuses_what_is_documented():
    x, out = f32(4, 8), [((4, 8), nl.float32)]

    def select(dst, tile, pattern=((1, 8),), **options):
        options = {"channel_multiplier": 1, "on_false_value": 0.0, **options}
        nisa.affine_select(dst, pattern, on_true_tile=tile, **options)

    refused("op", "is not possible here", lambda d, t: select(d, t, cmp_op=nl.add), [x], out)
    refused("shape", "makes 7 values", lambda d, t: select(d, t, pattern=[[1, 7]]), [x], out)
    refused("shape", "8 elements per partition", lambda d, t: select(d, t[:, 0:4]), [x], out)
    refused("shape", "4 partitions", lambda d, t: select(d, t[0:2]), [x], out)
    refused("argument", "must be a number", lambda d, t: select(d, t, on_false_value=None), [x], out)
    refused("argument", "must be a number", lambda d, t: select(d, t, on_false_value=t), [x], out)
    refused("argument", "offset must be", lambda d, t: select(d, t, offset=0.5), [x], out)
    refused("buffer", "on_true_tile must be in SBUF", select, [x], out, in_psum=[0])
    refused("buffer", "dst must be in SBUF", select, [x], out, out_psum=[0])
    refused("dtype", "no engine can convert", select, [x], [((4, 8), nl.float8_e5m2_x4)])


def test_affine_select_refuses_hbm_tensors():
    @nki.jit
    def kernel(x):
        tile = nl.ndarray((4, 8), nl.float32, buffer=nl.sbuf)
        nisa.affine_select(tile, [[1, 8]], 0, x, 0.0)

    with pytest.raises(nki.NkiError) as e, target("trn2"):
        kernel(f32(4, 8))
    assert e.value.kind == "buffer"
    assert "HBM" in str(e.value)


# ---- tensor_partition_reduce ---------------------------------------------------------------------

REDUCTIONS = {"add": np.sum, "average": np.mean, "maximum": np.max}


@pytest.mark.parametrize("partitions", [1, 33, 128])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_partition_reduce_reduces_the_rows(name, partitions):
    x = f32(partitions, 40)
    [got] = run_tiles(
        lambda dst, data: nisa.tensor_partition_reduce(dst, getattr(nl, name), data),
        [x],
        [((1, 40), nl.float32)],
    )
    np.testing.assert_allclose(got[0], REDUCTIONS[name](x.astype(np.float64), axis=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", CASTABLE)
def test_partition_reduce_takes_every_dtype(dtype):
    x = whole((16, 6), dtype, -3, 4)
    [got] = run_tiles(
        lambda dst, data: nisa.tensor_partition_reduce(dst, np.add, data), [x], [((1, 6), nl.float32)]
    )
    np.testing.assert_array_equal(got[0], wide(x).sum(axis=0))
    [got] = run_tiles(
        lambda dst, data: nisa.tensor_partition_reduce(dst, nl.maximum, data), [x], [((1, 6), dtype)]
    )
    np.testing.assert_array_equal(wide(got[0]), wide(x).max(axis=0))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["bitwise_or", "bitwise_and"])
def test_partition_reduce_works_on_bit_patterns_of_integers(dtype, name):
    bits = np.random.default_rng(3).integers(0, 256, (7, 5 * dtype.itemsize), np.uint8)
    if name == "bitwise_and":
        bits |= 0xC3
    x = bits.view(dtype.storage)
    [got] = run_tiles(
        lambda dst, data: nisa.tensor_partition_reduce(dst, getattr(nl, name), data), [x], [((1, 5), dtype)]
    )
    expected = bits[0]
    for row in bits[1:]:
        expected = expected | row if name == "bitwise_or" else expected & row
    np.testing.assert_array_equal(got.view(np.uint8)[0], expected)


def test_partition_reduce_pairs_by_stream_order_and_works_in_place():
    x = f32(8, 2, 6)
    [got] = run_tiles(
        lambda dst, data: nisa.tensor_partition_reduce(dst, nl.add, data), [x], [((1, 3, 4), nl.float32)]
    )
    np.testing.assert_allclose(got.reshape(-1), x.sum(axis=0).reshape(-1), rtol=1e-6)
    [got] = run_tiles(lambda t: nisa.tensor_partition_reduce(t[0:1], nl.maximum, t), outputs=[x])
    np.testing.assert_array_equal(got[0], x.max(axis=0))
    np.testing.assert_array_equal(got[1:], x[1:])


def test_partition_reduce_propagates_nan():
    x = f32(4, 3)
    x[2, 1] = np.nan
    for op in (nl.add, nl.maximum):
        [got] = run_tiles(
            lambda d, t, op=op: nisa.tensor_partition_reduce(d, op, t), [x], [((1, 3), nl.float32)]
        )
        np.testing.assert_array_equal(np.isnan(got[0]), [False, True, False])


@settings(max_examples=200, deadline=None)
@given(
    partitions=st.integers(1, 20),
    count=st.integers(1, 9),
    name=st.sampled_from(["add", "average", "maximum"]),
    seed=st.integers(0, 10_000),
)
def test_partition_reduce_equals_float64(partitions, count, name, seed):
    x = f32(partitions, count, seed=seed)
    [got] = run_tiles(
        lambda dst, data: nisa.tensor_partition_reduce(dst, getattr(nl, name), data),
        [x],
        [((1, count), nl.float32)],
    )
    np.testing.assert_allclose(got[0], REDUCTIONS[name](x.astype(np.float64), axis=0), rtol=1e-5, atol=1e-5)


def test_partition_reduce_refuses_what_is_documented():
    x, out = f32(4, 8), [((1, 8), nl.float32)]
    reduce = nisa.tensor_partition_reduce
    for op in (nl.minimum, nl.multiply, nl.bitwise_xor, nl.subtract):
        refused("op", "is not possible here", lambda d, t, op=op: reduce(d, op, t), [x], out)
    refused("dtype", "needs integers", lambda d, t: reduce(d, nl.bitwise_or, t), [x], out)
    refused("shape", "1 partition", lambda d, t: reduce(d, nl.add, t), [x], [((2, 8), nl.float32)])
    refused(
        "shape", "8 elements per partition", lambda d, t: reduce(d, nl.add, t), [x], [((1, 7), nl.float32)]
    )
    refused("buffer", "data must be in SBUF", lambda d, t: reduce(d, nl.add, t), [x], out, in_psum=[0])
    refused("buffer", "dst must be in SBUF", lambda d, t: reduce(d, nl.add, t), [x], out, out_psum=[0])


# ---- local_gather --------------------------------------------------------------------------------


def gather_in_turns(src, index, run, count):
    """The definition, element by element."""
    partitions = src.shape[0]
    src = src.reshape(partitions, -1)
    index = index.reshape(partitions, -1)
    out = np.empty((partitions, count * run), src.dtype)
    for p in range(partitions):
        first = p // 16 * 16
        for k in range(count):
            start = int(index[first + k % 16, k // 16])
            for j in range(run):
                out[p, k * run + j] = src[p, start + j]
    return out


@pytest.mark.tiny
@pytest.mark.parametrize("partitions", [16, 48, 128])
@pytest.mark.parametrize("run", [1, 2, 4, 8, 16, 32])
def test_local_gather_shares_offsets_within_16_partitions(partitions, run):
    src = f32(partitions, 100)
    index = np.random.default_rng(1).integers(0, 100 - run + 1, (partitions, 2)).astype(np.uint16)
    [got] = run_tiles(
        lambda dst, s, i: nisa.local_gather(dst, s, i, num_elem_per_idx=run),
        [src, index],
        [((partitions, 32 * run), nl.float32)],
    )
    np.testing.assert_array_equal(got, gather_in_turns(src, index, run, 32))


@pytest.mark.parametrize("valid", [1, 5, 16, 19, 48])
def test_local_gather_uses_the_valid_indices_alone(valid):
    src = f32(32, 20)
    index = np.full((32, 3), 9999, np.uint16)
    for k in range(valid):
        index[k % 16, k // 16], index[16 + k % 16, k // 16] = k % 20, (7 * k) % 20
    [got] = run_tiles(
        lambda dst, s, i: nisa.local_gather(dst, s, i, 1, valid), [src, index], [((32, valid), nl.float32)]
    )
    np.testing.assert_array_equal(got, gather_in_turns(src, index, 1, valid))


@pytest.mark.parametrize("dtype", MOVED)
def test_local_gather_moves_every_dtype(dtype):
    src = whole((16, 30), dtype)
    index = np.random.default_rng(2).integers(0, 30, (16, 1)).astype(np.uint16)
    [got] = run_tiles(
        lambda dst, s, i: nisa.local_gather(dst, s, i), [src, index], [((16, 16), dtype)], on="trn3"
    )
    np.testing.assert_array_equal(got.view(np.uint8), gather_in_turns(src, index, 1, 16).view(np.uint8))


def test_local_gather_flattens_free_dimensions_and_works_on_itself():
    src, index = f32(16, 4, 6), np.arange(16, dtype=np.uint16).reshape(16, 1) + 8

    def body(tile, i):
        nisa.local_gather(tile.reshape((16, 24))[:, 0:16], tile, i)

    [got] = run_tiles(body, [index], [src])
    expected = src.reshape(16, 24).copy()
    expected[:, 0:16] = gather_in_turns(src, index, 1, 16)
    np.testing.assert_array_equal(got.reshape(16, 24), expected)


@settings(max_examples=200, deadline=None)
@given(
    groups=st.integers(1, 3),
    size=st.integers(1, 40),
    columns=st.integers(1, 3),
    run=st.sampled_from([1, 2, 4]),
    data=st.data(),
)
def test_local_gather_equals_its_definition(groups, size, columns, run, data):
    size += run
    count = data.draw(st.integers(1, 16 * columns))
    rng = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    src = rng.integers(-99, 99, (16 * groups, size)).astype(np.int16)
    index = rng.integers(0, size - run + 1, (16 * groups, columns)).astype(np.uint16)
    [got] = run_tiles(
        lambda dst, s, i: nisa.local_gather(dst, s, i, run, count),
        [src, index],
        [((16 * groups, count * run), nl.int16)],
    )
    np.testing.assert_array_equal(got, gather_in_turns(src, index, run, count))


def test_local_gather_refuses_what_is_documented():
    src, index = f32(16, 40), np.zeros((16, 2), np.uint16)
    out = [((16, 32), nl.float32)]

    def gather(dst, s, i, *rest):
        nisa.local_gather(dst, s, i, *rest)

    refused("dtype", "index has dtype int32", gather, [src, index.astype(np.int32)], out)
    refused("dtype", "must be equal", gather, [src, index], [((16, 32), nl.bfloat16)])
    refused("shape", "num_elem_per_idx must be", lambda d, s, i: gather(d, s, i, 3), [src, index], out)
    refused("shape", "32 indices x 2 elements make 64", lambda d, s, i: gather(d, s, i, 2), [src, index], out)
    refused("shape", "index holds 32 per group", lambda d, s, i: gather(d, s, i, 1, 33), [src, index], out)
    refused("shape", "index holds 32 per group", lambda d, s, i: gather(d, s, i, 1, 0), [src, index], out)
    refused("argument", "must be an int", lambda d, s, i: gather(d, s, i, 1, 2.5), [src, index], out)
    refused("shape", "partitions", gather, [f32(32, 40), index], out)
    refused("shape", "a multiple of 16", gather, [f32(8, 40), index[:8]], [((8, 32), nl.float32)])
    refused("buffer", "src_buffer must be in SBUF", gather, [src, index], out, in_psum=[0])
    many = np.zeros((16, 257), np.uint16)
    refused("free-limit", "4112 indices", gather, [src, many], [((16, 4112), nl.float32)])


def test_local_gather_refuses_offsets_outside_the_partition():
    src, index = f32(16, 40), np.zeros((16, 1), np.uint16)
    index[3] = 39
    [_] = run_tiles(lambda d, s, i: nisa.local_gather(d, s, i), [src, index], [((16, 16), nl.float32)])
    refused(
        "index",
        "offset 39 and 2 elements reach outside the 40 elements",
        lambda d, s, i: nisa.local_gather(d, s, i, 2),
        [src, index],
        [((16, 32), nl.float32)],
    )


# ---- nc_n_gather ---------------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize("partitions", [1, 60, 128])
def test_n_gather_picks_within_each_partition(partitions):
    data = f32(partitions, 700)
    picks = np.random.default_rng(4).integers(0, 700, (partitions, 33)).astype(np.uint32)
    picks[:, -1] = 699
    [got] = run_tiles(nisa.nc_n_gather, [data, picks], [((partitions, 33), nl.float32)])
    expected = [[data[p, k] for k in picks[p]] for p in range(partitions)]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", MOVED)
def test_n_gather_moves_every_dtype(dtype):
    data = whole((5, 9), dtype)
    picks = np.random.default_rng(5).integers(0, 9, (5, 4)).astype(np.uint32)
    [got] = run_tiles(nisa.nc_n_gather, [data, picks], [((5, 4), dtype)], on="trn3")
    expected = np.array([[data[p, k] for k in picks[p]] for p in range(5)])
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))


def test_n_gather_flattens_free_dimensions_on_all_sides():
    data = f32(6, 3, 2, 4)
    picks = np.random.default_rng(6).integers(0, 24, (6, 2, 5)).astype(np.uint32)
    [got] = run_tiles(nisa.nc_n_gather, [data, picks], [((6, 10), nl.float32)])
    flat = data.reshape(6, 24)
    expected = [[flat[p, k] for k in picks[p].reshape(-1)] for p in range(6)]
    np.testing.assert_array_equal(got, expected)


def test_n_gather_works_on_itself():
    data = f32(4, 8)
    picks = np.tile(np.arange(8, dtype=np.uint32)[::-1], (4, 1))
    [got] = run_tiles(lambda tile, p: nisa.nc_n_gather(tile, tile, p), [picks], [data])
    np.testing.assert_array_equal(got, data[:, ::-1])


def test_n_gather_warns_about_signed_indices():
    data, picks = f32(2, 4), np.array([[3, 0], [1, 1]], np.int32)
    [got] = warned("operand-dtype", nisa.nc_n_gather, [data, picks], [((2, 2), nl.float32)])
    np.testing.assert_array_equal(got, [[data[0, 3], data[0, 0]], [data[1, 1], data[1, 1]]])


@settings(max_examples=200, deadline=None)
@given(
    partitions=st.integers(1, 6), size=st.integers(1, 30), count=st.integers(1, 30), seed=st.integers(0, 9999)
)
def test_n_gather_equals_its_definition(partitions, size, count, seed):
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 2**32, (partitions, size), np.uint32)
    picks = rng.integers(0, size, (partitions, count)).astype(np.uint32)
    [got] = run_tiles(nisa.nc_n_gather, [data, picks], [((partitions, count), nl.uint32)])
    np.testing.assert_array_equal(got, [[data[p, k] for k in picks[p]] for p in range(partitions)])


def test_n_gather_refuses_what_is_documented():
    data, picks, out = f32(4, 8), np.zeros((4, 3), np.uint32), [((4, 3), nl.float32)]
    gather = nisa.nc_n_gather
    refused("dtype", "indices has dtype float32", gather, [data, f32(4, 3)], out)
    refused("dtype", "must be equal", gather, [data, picks], [((4, 3), nl.bfloat16)])
    refused("shape", "elements per partition", gather, [data, picks], [((4, 4), nl.float32)])
    refused("shape", "partitions", gather, [f32(5, 8), picks], out)
    refused("buffer", "data must be in SBUF", gather, [data, picks], out, in_psum=[0])
    picks[2, 1] = 8
    refused("index", "index 8 at [2, 1] is outside the 8 elements", gather, [data, picks], out)
    with pytest.warns(nki.errors.NkiWarning):
        refused("index", "index -1 at [0, 0]", gather, [data, np.full((4, 3), -1, np.int32)], out)


# ---- sequence_bounds -----------------------------------------------------------------------------


def bounds_in_turns(ids):
    n = len(ids)
    starts, ends = [], []
    for i, value in enumerate(ids):
        if value == 0:
            starts.append(n)
            ends.append(-1)
            continue
        first = last = i
        while first > 0 and ids[first - 1] == value:
            first -= 1
        while last < n - 1 and ids[last + 1] == value:
            last += 1
        starts.append(first)
        ends.append(last + 1)
    return [starts, ends]


@pytest.mark.tiny
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_sequence_bounds_of_the_documented_example(dtype):
    ids = np.array([[0, 1, 1, 2, 2, 2, 0, 3, 3]], dtype)
    for result in ("float32", "int32"):
        [got] = run_tiles(nisa.sequence_bounds, [ids], [((1, 2, 9), result)])
        np.testing.assert_array_equal(got[0, 0], [9, 1, 1, 3, 3, 3, 9, 7, 7])
        np.testing.assert_array_equal(got[0, 1], [-1, 3, 3, 6, 6, 6, -1, 9, 9])


@pytest.mark.parametrize("ids", [[0, 0, 0], [5], [0], [1, 1, 0, 1, 1], [2, 1, 2, 2, 1], [7] * 6])
def test_sequence_bounds_of_padding_single_runs_and_repeated_ids(ids):
    [got] = run_tiles(nisa.sequence_bounds, [np.array([ids], np.int32)], [((1, 2 * len(ids)), nl.int32)])
    np.testing.assert_array_equal(got.reshape(2, -1), bounds_in_turns(ids))


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_sequence_bounds_equals_its_definition(ids):
    [got] = run_tiles(nisa.sequence_bounds, [np.array([ids], np.float32)], [((1, 2, len(ids)), nl.float32)])
    np.testing.assert_array_equal(got[0], bounds_in_turns(ids))


def test_sequence_bounds_refuses_what_is_documented():
    ids, bounds = np.ones((1, 8), np.int32), nisa.sequence_bounds
    refused("shape", "16 elements per partition", bounds, [ids], [((1, 8), nl.int32)])
    refused(
        "shape",
        "segment_ids must have 1 partition",
        bounds,
        [np.ones((2, 8), np.int32)],
        [((1, 16), nl.int32)],
    )
    refused("shape", "dst must have 1 partition", bounds, [ids], [((2, 16), nl.int32)])
    refused("dtype", "segment_ids has dtype int16", bounds, [ids.astype(np.int16)], [((1, 16), nl.int32)])
    refused("dtype", "dst has dtype uint32", bounds, [ids], [((1, 16), nl.uint32)])
    refused("buffer", "must be in SBUF", bounds, [ids], [((1, 16), nl.int32)], in_psum=[0])


# ---- nonzero_with_count --------------------------------------------------------------------------


def nonzeros_in_turns(row, offset=0, padding=-1):
    found = [i + offset for i, value in enumerate(row) if value != 0]
    return found + [padding] * (len(row) - len(found)) + [len(found)]


@pytest.mark.tiny
def test_nonzero_with_count_of_the_documented_example():
    src = np.array([[0, 1, 1, 0, 0, 1, 0, 0]], np.int32)
    [got] = run_tiles(
        lambda dst, s: nisa.nonzero_with_count(dst, s, index_offset=16, padding_val=-1),
        [src],
        [((1, 9), nl.int32)],
    )
    np.testing.assert_array_equal(got, [[17, 18, 21, -1, -1, -1, -1, -1, 3]])


@pytest.mark.parametrize("on", ["trn2", "trn3"])
@pytest.mark.parametrize("partitions", [1, 16, 17, 40, 128])
def test_nonzero_with_count_touches_every_sixteenth_partition_alone(partitions, on):
    src = (np.random.default_rng(0).random((partitions, 30)) < 0.4).astype(np.float32)
    before = np.random.default_rng(1).integers(-99, 99, (partitions, 31)).astype(np.int32)
    [got] = run_tiles(lambda dst, s: nisa.nonzero_with_count(dst, s), [src], [before], on=on)
    expected = before.copy()
    for p in range(0, partitions, 16):
        expected[p] = nonzeros_in_turns(src[p])
    np.testing.assert_array_equal(got, expected)


def test_nonzero_with_count_leaves_fresh_partitions_unwritten():
    @nki.jit
    def kernel(x):
        tile = to_tile(x, nl.sbuf)
        dst = nl.ndarray((32, 5), nl.int32, buffer=nl.sbuf)
        nisa.nonzero_with_count(dst, tile)
        out = nl.ndarray((2, 5), nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(out[0:1], dst[0:1])
        nisa.dma_copy(out[1:2], dst[16:17])
        other = nl.ndarray((1, 5), nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(other, dst[1:2])
        return out, other

    x = np.zeros((32, 4), np.int32)
    x[16, 2] = 8
    with target("trn2"), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        got, other = kernel(x)
    np.testing.assert_array_equal(got, [[-1, -1, -1, -1, 0], [2, -1, -1, -1, 1]])
    np.testing.assert_array_equal(other, [[4] * 5])  # poison
    lines = [w.lineno for w in seen if w.category.kind == "uninitialised"]
    assert len(lines) == 1  # the copy of partition 1


def test_nonzero_with_count_reads_only_the_partitions_it_uses():
    @nki.jit
    def kernel(x):
        tile = nl.ndarray((32, 4), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(tile[0:1], x[0:1])
        nisa.dma_copy(tile[16:17], x[1:2])
        dst = nl.ndarray((32, 5), nl.int32, buffer=nl.sbuf)
        nisa.nonzero_with_count(dst, tile, 100, -5)
        out = nl.ndarray((2, 5), nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(out[0:1], dst[0:1])
        nisa.dma_copy(out[1:2], dst[16:17])
        return out

    x = np.array([[0, 3, 0, -0.0], [np.nan, 0, 0, 1e-30]], np.float32)
    with target("trn2"), warnings.catch_warnings():
        warnings.simplefilter("error")
        got = kernel(x)
    np.testing.assert_array_equal(got, [[101, -5, -5, -5, 1], [100, 103, -5, -5, 2]])


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, -0.0, 1.0, -3.5, np.nan]), min_size=7, max_size=7),
        min_size=1,
        max_size=3,
    ),
    offset=st.integers(-1000, 1000),
    padding=st.integers(-(2**31), 2**31 - 1),
)
def test_nonzero_with_count_equals_its_definition(rows, offset, padding):
    src = np.zeros((16 * len(rows), 7), np.float32)
    src[::16] = rows
    [got] = run_tiles(
        lambda dst, s: nisa.nonzero_with_count(dst, s, offset, padding),
        [src],
        [np.zeros((16 * len(rows), 8), np.int32)],
    )
    np.testing.assert_array_equal(got[::16], [nonzeros_in_turns(row, offset, padding) for row in rows])


def test_nonzero_with_count_refuses_what_is_documented():
    src, out = np.ones((16, 8), np.int32), [((16, 9), nl.int32)]
    find_nonzero = nisa.nonzero_with_count
    refused("generation", "needs trn2", find_nonzero, [src], out, on="trn1")
    refused("shape", "9 elements per partition", find_nonzero, [src], [((16, 8), nl.int32)])
    refused("shape", "partitions", find_nonzero, [src], [((32, 9), nl.int32)])
    refused("dtype", "dst has dtype uint32", find_nonzero, [src], [((16, 9), nl.uint32)])
    refused("dtype", "src has dtype uint8", find_nonzero, [src.astype(np.uint8)], out)
    refused("argument", "index_offset", lambda d, s: find_nonzero(d, s, 0.5), [src], out)
    refused("argument", "padding_val", lambda d, s: find_nonzero(d, s, 0, 2**31), [src], out)
    refused("buffer", "src must be in SBUF", find_nonzero, [src], out, in_psum=[0])


# ---- topk ----------------------------------------------------------------------------------------


def topk_in_turns(src, n, k):
    """(values, positions) per group of 16 partitions, ascending."""
    found = []
    for g in range(src.shape[0] // 16):
        snake = [float(src[16 * g + e % 16, e // 16]) for e in range(n)]
        order = sorted(
            range(n), key=lambda e: (snake[e] != snake[e], -snake[e] if snake[e] == snake[e] else 0, e)
        )
        picked = order[:k][::-1]
        found.append(([snake[e] for e in picked], picked))
    return found


def check_topk(src, n, k, **options):
    partitions = src.shape[0]
    values, places = run_tiles(
        lambda v, i, s: nisa.topk(v, i, s, n),
        [src],
        [((partitions, k), nl.bfloat16), ((partitions, k), nl.uint32)],
        **options,
    )
    for g, (wanted, positions) in enumerate(topk_in_turns(src, n, k)):
        for p in range(16 * g, 16 * g + 16):
            np.testing.assert_array_equal(wide(values[p]), wanted)
            np.testing.assert_array_equal(places[p], positions)


@pytest.mark.tiny
@pytest.mark.parametrize("on", PLATFORMS)
@pytest.mark.parametrize("partitions, n, k", [(16, 42, 8), (32, 8, 8), (128, 200, 1), (16, 48, 48)])
def test_topk_finds_the_largest_in_ascending_order(partitions, n, k, on):
    check_topk(f32(partitions, 13).astype(BF16), n, k, on=on)


def test_topk_prefers_smaller_positions_among_equals():
    src = np.random.default_rng(8).integers(0, 3, (32, 4)).astype(BF16)
    check_topk(src, 64, 40)


def test_topk_ranks_nan_lowest_and_knows_infinities():
    src = f32(16, 2).astype(BF16)
    src[3, 0], src[5, 1], src[2, 0], src[0, 1] = np.nan, np.nan, -np.inf, np.inf
    check_topk(src, 32, 32)


def test_topk_ignores_what_lies_behind_n():
    src = f32(16, 3).astype(BF16)
    src[10:, 1] = 1e9
    src[:, 2] = 1e9
    check_topk(src, 26, 5)


@settings(max_examples=200, deadline=None)
@given(groups=st.integers(1, 2), columns=st.integers(1, 4), seed=st.integers(0, 9999), data=st.data())
def test_topk_equals_its_definition(groups, columns, seed, data):
    n = data.draw(st.integers(8, 16 * columns))
    k = data.draw(st.integers(1, n))
    src = np.random.default_rng(seed).integers(-5, 5, (16 * groups, columns)).astype(BF16)
    check_topk(src, n, k)


def test_topk_refuses_what_is_documented():
    src = f32(16, 4).astype(BF16)

    def out(p=16, k=8, kinds=(nl.bfloat16, nl.uint32)):
        return [((p, k), kinds[0]), ((p, k), kinds[1])]

    def top(n):
        return lambda v, i, s: nisa.topk(v, i, s, n)

    refused("dtype", "src has dtype float32", top(16), [f32(16, 4)], out())
    refused("dtype", "val_dst has dtype float32", top(16), [src], out(kinds=(nl.float32, nl.uint32)))
    refused("dtype", "idx_dst has dtype int32", top(16), [src], out(kinds=(nl.bfloat16, nl.int32)))
    refused("shape", "n must be from 8", top(7), [src], out())
    refused("shape", "n must be from 8", top(65536), [src], out())
    refused("shape", "holds 64", top(65), [src], out())
    refused("argument", "n must be an int", top(16.0), [src], out())
    refused("shape", "9 largest of 8", top(8), [src], out(k=9))
    refused("shape", "a multiple of 16", top(8), [src[:8]], out(p=8))
    refused("shape", "partitions", top(8), [src], out(p=32))
    refused("shape", "elements per partition", top(8), [src], [((16, 8), nl.bfloat16), ((16, 7), nl.uint32)])
    refused("buffer", "src must be in SBUF", top(8), [src], out(), in_psum=[0])


# ---- all of them ---------------------------------------------------------------------------------


def test_narrow_floats_stored_as_float32_pass_through(monkeypatch):
    monkeypatch.setitem(os.environ, "NKI_PRECISE_FP", "0")
    src = f32(16, 4).astype(BF16)
    check_topk(src, 64, 20)
    picks = np.random.default_rng(5).integers(0, 4, (16, 4)).astype(np.uint32)
    [got] = run_tiles(nisa.nc_n_gather, [src, picks], [((16, 4), nl.bfloat16)])
    np.testing.assert_array_equal(wide(got), [[wide(src)[p, k] for k in picks[p]] for p in range(16)])
    [got] = run_tiles(
        lambda dst, x: nisa.affine_select(dst, [[1, 4]], 0, x, 2.0, cmp_op=nl.less, offset=-2),
        [src],
        [((16, 4), nl.bfloat16)],
    )
    np.testing.assert_array_equal(wide(got[:, :2]), wide(src[:, :2]))
    assert (wide(got[:, 2:]) == 2).all()


def cost_of(body, inputs, outputs, on):
    """The cost of the first GpSimd instruction of a body."""
    seen = []
    run_tiles(lambda *tiles: seen.append(body(*tiles)), inputs, outputs, on=on)
    return seen[0].cost(find(on))


@pytest.mark.parametrize("on", PLATFORMS)
def test_costs_follow_the_machine_tables(on):
    m = find(on)
    out = [((16, 100), nl.float32)]
    x = f32(16, 100)
    assert cost_of(lambda d: nisa.iota(d, [[1, 100]]), [], out, on).cycles == 250
    assert cost_of(lambda d, t: nisa.affine_select(d, [[1, 100]], 0, t, 0.0), [x], out, on).cycles == 250
    reduced = cost_of(
        lambda d, t: nisa.tensor_partition_reduce(d, nl.add, t), [x], [((1, 100), nl.float32)], on
    )
    assert reduced.cycles == 150 + 16 * 100
    assert reduced.rests_on == ("gpsimd_partition_reduce",)
    picks = np.zeros((16, 100), np.uint32)
    assert cost_of(nisa.nc_n_gather, [x, picks], out, on).cycles == 150 + 4 * 100
    index = np.zeros((16, 2), np.uint16)
    gathered = cost_of(
        lambda d, s, i: nisa.local_gather(d, s, i, 4), [x, index], [((16, 128), nl.float32)], on
    )
    assert gathered.cycles == pytest.approx(150 + 32 * 4 * ((28 + 16) / 16) / 1)
    top = cost_of(
        lambda v, i, s: nisa.topk(v, i, s, 40),
        [x.astype(BF16)],
        [((16, 8), nl.bfloat16), ((16, 8), nl.uint32)],
        on,
    )
    assert top.cycles == 4 * 40 + 8
    assert top.fix_ns == m.fix_gpsimd_ns
