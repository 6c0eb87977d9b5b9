"""max8, nc_find_index8, nc_match_replace8, nc_stream_shuffle."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine import dtypes
from nki.machine.generations import find
from support import refused_tiles as refused
from support import run_tiles

CASTABLE = [d for d in dtypes.ALL if d.castable]
ONES = {"uint32": 0xFFFFFFFF, "uint16": 0xFFFF}


def f32(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def few_values(shape, dtype, distinct, seed=0):
    """Whole numbers of a dtype, many of them equal."""
    whole = np.random.default_rng(seed).integers(0, distinct, shape).astype(np.float32)
    return dtypes.cast(whole - (distinct // 2 if dtype.is_signed else 0), dtype)


def wide(array):
    return np.asarray(array).astype(np.float32).astype(np.float64)


def descending(x):
    """Python's own sort, NaN last."""
    return np.array([sorted(row, key=lambda v: (v != v, -v if v == v else 0)) for row in x])


def search_in_turns(data, vals, columns):
    """The definition, element by element; -1 for a value that is not there."""
    found = []
    for row, wanted in zip(data, vals, strict=True):
        taken, places = set(), [-1] * 8
        for j in columns:
            for i, value in enumerate(row):
                if value == wanted[j] and i not in taken:
                    taken.add(i)
                    places[j] = i
                    break
        found.append(places)
    return np.array(found)


# ---- max8 ----------------------------------------------------------------------------------------


def take_max8(dst, src):
    nisa.max8(dst, src)


@pytest.mark.parametrize("p, f", [(1, 8), (128, 9), (77, 513), (3, 16384)])
def test_max8_gives_the_eight_largest_in_descending_order(p, f):
    x = f32(p, f)
    [got] = run_tiles(take_max8, [x], [((p, 8), nl.float32)])
    np.testing.assert_array_equal(got, np.sort(x.astype(np.float64), axis=1)[:, ::-1][:, :8])


@pytest.mark.parametrize("dtype", CASTABLE)
def test_max8_reads_every_dtype_and_repeats_equal_values(dtype):
    x = few_values((5, 40), dtype, 6)
    [got] = run_tiles(take_max8, [x], [((5, 8), nl.float32)])
    np.testing.assert_array_equal(got, descending(wide(x))[:, :8])


@pytest.mark.parametrize("dtype", CASTABLE)
def test_max8_casts_its_result_to_the_dtype_of_dst(dtype):
    x = f32(4, 30) * 300
    [got] = run_tiles(take_max8, [x], [((4, 8), dtype)])
    wanted = dtypes.cast(descending(x)[:, :8].astype(np.float32), dtype)
    np.testing.assert_array_equal(wide(got), wide(wanted))


def test_max8_takes_nan_for_the_smallest_value_of_all():
    x = np.full((1, 12), np.nan, np.float32)
    x[0, [3, 7, 9]] = [-np.inf, 2, np.inf]
    [got] = run_tiles(take_max8, [x], [((1, 8), nl.float32)])
    np.testing.assert_array_equal(got[0], [np.inf, 2, -np.inf] + [np.nan] * 5)


def test_max8_reads_views_of_any_rank_and_writes_any_rank_in_psum():
    x = f32(6, 3, 4, 5)

    def body(dst, src):
        nisa.max8(dst, src[:, :, 1:4, ::2])

    [got] = run_tiles(body, [x], [((6, 2, 4), nl.float32)], in_psum=[0], out_psum=[0])
    part = x[:, :, 1:4, ::2].reshape(6, -1)
    np.testing.assert_array_equal(got.reshape(6, 8), descending(part)[:, :8])


def test_max8_may_write_over_its_source():
    x = f32(4, 20)
    [got] = run_tiles(lambda t: nisa.max8(t[:, 5:13], t), outputs=[x])
    wanted = x.copy()
    wanted[:, 5:13] = descending(x)[:, :8]
    np.testing.assert_array_equal(got, wanted)


@settings(max_examples=200, deadline=None)
@given(p=st.integers(1, 128), f=st.integers(8, 60), distinct=st.integers(1, 50), seed=st.integers(0, 2**31))
def test_max8_agrees_with_a_sort(p, f, distinct, seed):
    x = np.random.default_rng(seed).integers(-distinct, distinct, (p, f)).astype(np.float32)
    [got] = run_tiles(take_max8, [x], [((p, 8), nl.float32)])
    np.testing.assert_array_equal(got, np.sort(x, axis=1)[:, :-9:-1])


def test_max8_refuses_wrong_sizes_and_dtypes():
    good = [((4, 8), nl.float32)]
    refused("shape", "at least 8 elements per partition, it has 7", take_max8, [f32(4, 7)], good)
    refused("free-limit", "the limit is 16384", take_max8, [f32(4, 16385)], good)
    refused("shape", "dst must have 8 elements", take_max8, [f32(4, 9)], [((4, 9), nl.float32)])
    refused("shape", "src has 5 partitions, dst has 4", take_max8, [f32(5, 9)], good)
    refused("dtype", "no engine can convert", take_max8, [f32(4, 9)], [((4, 8), nl.float8_e8m0fnu)])


def test_max8_refuses_a_source_in_hbm():
    @nki.jit
    def kernel(x):
        dst = nl.ndarray((4, 8), nl.float32, buffer=nl.sbuf)
        nisa.max8(dst, x)

    with pytest.raises(nki.NkiError) as e:
        kernel(f32(4, 9))
    assert e.value.kind == "buffer"
    assert "src is in HBM" in str(e.value)


# ---- nc_find_index8 ------------------------------------------------------------------------------


def find_index8(dst, data, vals):
    nisa.nc_find_index8(dst, data, vals)


@pytest.mark.tiny
def test_find_index8_gives_repeated_values_their_successive_places():
    data = np.array([[5, 1, 7, 5, 2, 9, 3, 4, 6]], np.float32)
    vals = np.array([[5, 5, 5, 9, 0, 1, 2, 7]], np.float32)
    [got] = run_tiles(find_index8, [data, vals], [((1, 8), nl.uint32)])
    np.testing.assert_array_equal(got[0], [0, 3, ONES["uint32"], 5, ONES["uint32"], 1, 4, 2])


@pytest.mark.parametrize("out", ["uint32", "uint16"])
@pytest.mark.parametrize("dtype", CASTABLE)
def test_find_index8_searches_every_dtype(dtype, out):
    data, vals = few_values((7, 33), dtype, 9, 1), few_values((7, 8), dtype, 9, 2)
    [got] = run_tiles(find_index8, [data, vals], [((7, 8), out)])
    wanted = search_in_turns(wide(data), wide(vals), range(8))
    np.testing.assert_array_equal(got, np.where(wanted < 0, ONES[out], wanted))


def test_find_index8_compares_float32_values_so_zeros_match_and_nan_never_does():
    data = np.array([[np.nan, -0.0, 2**24, 1, 1, 1, 1, np.inf]], np.float32)
    whole = np.array([[0, 2**24 + 1, -1, -1, -1, -1, -1, -1]], np.int32)
    floats = np.array([[np.nan, 0.0, np.inf, -np.inf, 3, 3, 3, 3]], np.float32)

    def body(a, b, data, whole, floats):
        nisa.nc_find_index8(a, data, whole)
        nisa.nc_find_index8(b, data, floats)

    a, b = run_tiles(body, [data, whole, floats], [((1, 8), nl.uint16)] * 2)
    np.testing.assert_array_equal(a[0], [1, 2] + [65535] * 6)
    np.testing.assert_array_equal(b[0], [65535, 1, 7] + [65535] * 5)


def test_find_index8_takes_a_broadcast_view_of_psum_and_the_largest_size():
    data = f32(128, 2, 8192)
    top = data.reshape(128, -1).max(axis=1, keepdims=True)

    def body(dst, data, top):
        nisa.nc_find_index8(dst, data, top.broadcast(1, 8))

    [got] = run_tiles(body, [data, top], [((128, 8), nl.uint16)], in_psum=[1])
    np.testing.assert_array_equal(got[:, 0], data.reshape(128, -1).argmax(axis=1))
    np.testing.assert_array_equal(got[:, 1:], ONES["uint16"])


def test_find_index8_ignores_extra_partitions_of_vals_with_a_warning():
    data, vals = f32(3, 10), f32(5, 8)
    vals[:3] = data[:, :8]
    with pytest.warns(UserWarning, match="vals has 5 partitions, data has 3"):
        [got] = run_tiles(find_index8, [data, vals], [((3, 8), nl.uint32)])
    np.testing.assert_array_equal(got, np.tile(np.arange(8), (3, 1)))


def test_find_index8_may_write_over_its_values():
    data = f32(9, 20)

    def body(vals, data):
        nisa.nc_find_index8(vals, data, vals.view(nl.float32))

    [got] = run_tiles(body, [data], [np.ascontiguousarray(data[:, 4:12]).view(np.uint32)])
    np.testing.assert_array_equal(got, np.tile(np.arange(4, 12), (9, 1)))


def test_find_index8_refuses_wrong_sizes_and_dtypes():
    out = [((4, 8), nl.uint32)]
    refused("shape", "at least 8 elements", find_index8, [f32(4, 7), f32(4, 8)], out)
    refused("free-limit", "16384", find_index8, [f32(4, 16385), f32(4, 8)], out)
    refused("shape", "vals must have 8 elements", find_index8, [f32(4, 9), f32(4, 9)], out)
    refused("shape", "dst must have 8", find_index8, [f32(4, 9), f32(4, 8)], [((4, 1), nl.uint32)])
    refused("dtype", "allowed: uint32, uint16", find_index8, [f32(4, 9), f32(4, 8)], [((4, 8), nl.int32)])
    refused("shape", "data has 4 partitions, vals has 3", find_index8, [f32(4, 9), f32(3, 8)], out)
    refused("shape", "data has 5 partitions, dst has 4", find_index8, [f32(5, 9), f32(5, 8)], out)


# ---- nc_match_replace8 ---------------------------------------------------------------------------


def replace(data, vals, imm):
    """The definition: the new data, and where each column of vals was."""
    places = search_in_turns(wide(data), wide(vals), range(7, -1, -1))
    result = wide(data)
    for row, found in zip(result, places, strict=True):
        row[[i for i in found if i >= 0]] = imm
    return result, np.where(places < 0, ONES["uint32"], places)


@pytest.mark.tiny
def test_match_replace8_serves_equal_values_from_the_last_column():
    data = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    vals = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)

    def body(dst, index, data, vals):
        nisa.nc_match_replace8(dst, data, vals, -1.0, dst_idx=index)

    dst, index = run_tiles(body, [data, vals], [((1, 11), nl.float32), ((1, 8), nl.uint32)])
    np.testing.assert_array_equal(dst[0], [1, 2, -1, 4] + [-1] * 7)
    np.testing.assert_array_equal(index[0], [2, 10, 9, 8, 7, 6, 5, 4])


@pytest.mark.parametrize("dtype", CASTABLE)
def test_match_replace8_works_in_place_on_every_dtype(dtype):
    data, vals = few_values((6, 25), dtype, 7, 3), few_values((6, 8), dtype, 7, 4)
    imm = 1 if dtype.is_bool else 64

    def body(data, index, vals):
        nisa.nc_match_replace8(data, data, vals, imm, index)

    got, index = run_tiles(body, [vals], [data, ((6, 8), nl.uint32)])
    wanted, places = replace(data, vals, imm)
    np.testing.assert_array_equal(wide(got), wanted)
    np.testing.assert_array_equal(index, places)


def test_match_replace8_does_not_match_what_it_has_just_written():
    data = np.array([[2, 1, 2, 1, 2, 0, 0, 0]], np.float32)
    vals = np.array([[1, 1, 1, 2, 9, 9, 9, 9]], np.float32)

    def body(dst, index, data, vals):
        nisa.nc_match_replace8(dst, data, vals, 1.0, index)

    dst, index = run_tiles(body, [data, vals], [((1, 8), nl.float32), ((1, 8), nl.uint16)])
    np.testing.assert_array_equal(dst[0], [1, 1, 2, 1, 2, 0, 0, 0])
    np.testing.assert_array_equal(index[0], [65535, 3, 1, 0] + [65535] * 4)


def test_match_replace8_keeps_the_bits_it_does_not_replace():
    data = (np.arange(40, dtype=np.int32) + 2**24 + 1).reshape(2, 20)
    vals = np.zeros((2, 8), np.int32)
    body = lambda dst, d, v: nisa.nc_match_replace8(dst, d, v, 0)  # noqa: E731
    [got] = run_tiles(body, [data, vals], [((2, 20), nl.int32)])
    np.testing.assert_array_equal(got, data)


def test_match_replace8_casts_when_dst_has_another_dtype():
    data = f32(5, 3, 7)
    vals = np.ascontiguousarray(data.reshape(5, 21)[:, 2:10])

    def body(dst, d, v):
        nisa.nc_match_replace8(dst, d, v, -3.4028235e38)

    [got] = run_tiles(body, [data, vals], [((5, 21), nl.bfloat16)], in_psum=[0], out_psum=[0])
    wanted = data.reshape(5, 21).astype(nl.bfloat16.storage).astype(np.float32)
    wanted[:, 2:10] = -np.inf
    np.testing.assert_array_equal(got.astype(np.float32), wanted)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_match_replace8_reads_all_of_data_before_it_writes_a_shifted_dst():
    x = f32(3, 20)
    vals = np.repeat(x[:, :1], 8, axis=1)

    def body(t, v):
        nisa.nc_match_replace8(t[:, 1:], t[:, :-1], v, 0.0)

    [got] = run_tiles(body, [vals], [x])
    np.testing.assert_array_equal(got[:, 2:], x[:, 1:-1])
    np.testing.assert_array_equal(got[:, 1], 0)


@settings(max_examples=200, deadline=None)
@given(p=st.integers(1, 12), f=st.integers(8, 40), distinct=st.integers(1, 12), seed=st.integers(0, 2**31))
def test_find_and_replace_agree_with_the_element_by_element_definition(p, f, distinct, seed):
    g = np.random.default_rng(seed)
    data = g.integers(0, distinct, (p, f)).astype(np.float32)
    vals = g.integers(0, distinct + 1, (p, 8)).astype(np.float32)

    def body(found, replaced, index, data, vals):
        nisa.nc_find_index8(found, data, vals)
        nisa.nc_match_replace8(replaced, data, vals, -5.0, index)

    outputs = [((p, 8), nl.uint32), (data.shape, nl.float32), ((p, 8), nl.uint32)]
    found, replaced, index = run_tiles(body, [data, vals], outputs)
    ascending = search_in_turns(data, vals, range(8))
    np.testing.assert_array_equal(found, np.where(ascending < 0, ONES["uint32"], ascending))
    wanted, places = replace(data, vals, -5)
    np.testing.assert_array_equal(replaced, wanted)
    np.testing.assert_array_equal(index, places)


def test_max8_and_match_replace8_sort_a_row():
    x = f32(16, 24)

    def body(values, places, x):
        for i in range(0, 24, 8):
            nisa.max8(values[:, i : i + 8], x)
            nisa.nc_match_replace8(x, x, values[:, i : i + 8], float("-inf"), places[:, i : i + 8])

    values, places = run_tiles(body, [x], [((16, 24), nl.float32), ((16, 24), nl.uint32)])
    np.testing.assert_array_equal(values, np.sort(x, axis=1)[:, ::-1])
    np.testing.assert_array_equal(np.take_along_axis(x, places.astype(np.int64), 1), values)


def test_match_replace8_refuses_wrong_sizes_dtypes_and_replacements():
    def body(dst, data, vals, imm=0.0, index=None):
        nisa.nc_match_replace8(dst, data, vals, imm, index)

    x, v, out = f32(4, 12), f32(4, 8), [((4, 12), nl.float32)]
    refused("shape", "dst has 11", body, [x, v], [((4, 11), nl.float32)])
    refused("shape", "vals must have 8", body, [x, f32(4, 12)], out)
    refused("shape", "data has 4 partitions, vals has 5", body, [x, f32(5, 8)], out)
    refused("free-limit", "16384", body, [f32(4, 16385), v], [((4, 16385), nl.float32)])
    refused("argument", "imm must be a number", lambda d, x, v: body(d, x, v, v[:, 0:1]), [x, v], out)
    refused("argument", "imm must be a number", lambda d, x, v: body(d, x, v, "0"), [x, v], out)
    refused("argument", "dst_idx must be a tile", lambda d, x, v: body(d, x, v, 0.0, 3), [x, v], out)

    def with_index(dst, index, data, vals):
        nisa.nc_match_replace8(dst, data, vals, 0.0, index)

    refused("dtype", "dst_idx has dtype int32", with_index, [x, v], [*out, ((4, 8), nl.int32)])
    refused("shape", "dst_idx must have 8", with_index, [x, v], [*out, ((4, 12), nl.uint32)])
    refused("shape", "dst_idx has 3", with_index, [x, v], [*out, ((3, 8), nl.uint32)])


# ---- nc_stream_shuffle ---------------------------------------------------------------------------


def shuffled(dst, src, mask):
    """The definition, partition by partition."""
    result = dst.copy()
    for q in range(0, len(dst), 32):
        for i in range(32):
            if q + i < len(dst) and mask[i] != 255:
                result[q + i] = src[q + mask[i]]
    return result


@pytest.mark.parametrize("p", [32, 64, 96, 128])
def test_stream_shuffle_permutes_each_quadrant_in_place(p):
    x, mask = f32(p, 5), [(i + 5) % 32 for i in range(32)]
    [got] = run_tiles(lambda t: nisa.nc_stream_shuffle(t, t, mask), outputs=[x])
    np.testing.assert_array_equal(got, shuffled(x, x, mask))


def test_stream_shuffle_leaves_partitions_marked_255_alone():
    x, y = f32(70, 3), f32(70, 3, seed=1)
    mask = [255 if i % 3 else i // 6 for i in range(32)]
    [got] = run_tiles(lambda d, s: nisa.nc_stream_shuffle(d, s, mask), [x], [y])
    np.testing.assert_array_equal(got, shuffled(y, x, mask))


def test_stream_shuffle_broadcasts_one_partition_into_any_quadrant():
    row, tile = f32(1, 6), f32(128, 6, seed=2)

    def body(tile, row):
        nisa.nc_stream_shuffle(dst=tile[64:96], src=row, shuffle_mask=[0] * 32)

    [got] = run_tiles(body, [row], [tile])
    np.testing.assert_array_equal(got[64:96], np.tile(row, (32, 1)))
    np.testing.assert_array_equal(np.delete(got, np.s_[64:96], 0), np.delete(tile, np.s_[64:96], 0))


@pytest.mark.parametrize("dtype", dtypes.ALL)
def test_stream_shuffle_moves_the_bits_of_every_dtype(dtype):
    raw = np.random.default_rng(3).integers(0, 2 if dtype.is_bool else 256, (32, 4 * dtype.itemsize))
    x = raw.astype(np.uint8).view(dtype.bits)

    def body(dst, src):
        nisa.nc_stream_shuffle(dst.view(dtype), src.view(dtype), range(31, -1, -1))

    [got] = run_tiles(body, [x], [(x.shape, x.dtype)])
    np.testing.assert_array_equal(got, x[::-1])


def test_stream_shuffle_reads_and_writes_psum_views_of_unequal_rank():
    x, mask = f32(40, 2, 6), [7] * 32

    def body(dst, src):
        nisa.nc_stream_shuffle(dst, src[:, :, ::2], np.array(mask))

    [got] = run_tiles(body, [x], [((40, 6), nl.float32)], in_psum=[0], out_psum=[0])
    np.testing.assert_array_equal(got, shuffled(np.zeros_like(got), x[:, :, ::2].reshape(40, 6), mask))


def test_stream_shuffle_counts_only_the_partitions_it_moves_as_read_and_written():
    @nki.jit
    def kernel(x, rows):
        src = nl.ndarray((32, 4), nl.float32, buffer=nl.sbuf)
        dst = nl.ndarray((32, 4), nl.float32, buffer=nl.sbuf)
        out = nl.ndarray((rows, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(src[0:1], x)
        nisa.nc_stream_shuffle(dst, src, [0] + [255] * 31)
        nisa.dma_copy(out, dst[0:rows])
        return out

    x = f32(1, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(kernel(x, 1), x)
    with pytest.warns(UserWarning, match="never written"):
        got = kernel(x, 3)
    np.testing.assert_array_equal(got, [x[0], [np.nan] * 4, [np.nan] * 4])


@settings(max_examples=200, deadline=None)
@given(
    p=st.integers(1, 128),
    extra=st.integers(0, 40),
    mask=st.lists(st.one_of(st.integers(0, 31), st.just(255)), min_size=32, max_size=32),
)
def test_stream_shuffle_agrees_with_the_definition(p, extra, mask):
    rows = [q + m for q in range(0, p, 32) for i, m in enumerate(mask) if q + i < p and m != 255]
    src, dst = f32(min(128, max(rows, default=0) + 1 + extra), 3), f32(p, 3, seed=1)
    [got] = run_tiles(lambda d, s: nisa.nc_stream_shuffle(d, s, mask), [src], [dst])
    np.testing.assert_array_equal(got, shuffled(dst, src, mask))


def test_stream_shuffle_warns_where_active_partitions_may_not_start():
    def body(tile, other):
        nisa.nc_stream_shuffle(tile[32:96], other[32:96], list(range(32)))

    with pytest.warns(UserWarning, match="64 active partitions it may start at 0, 64"):
        run_tiles(body, [f32(128, 4)], [f32(128, 4)])


def test_stream_shuffle_refuses_bad_masks_sources_sizes_and_dtypes():
    def shuffle(mask):
        return lambda dst, src: nisa.nc_stream_shuffle(dst, src, mask)

    x, out, same = f32(32, 4), [((32, 4), nl.float32)], list(range(32))
    refused("shape", "shuffle_mask has 31 entries", shuffle(same[1:]), [x], out)
    refused("argument", "must be a list of ints", shuffle([0.0] * 32), [x], out)
    refused("argument", "must be a list of ints", shuffle(3), [x], out)
    refused("shuffle-source", "shuffle_mask[31] is 32", shuffle([*same[1:], 32]), [x], out)
    refused("shuffle-source", "shuffle_mask[0] is -1", shuffle([-1] * 32), [x], out)
    refused("shuffle-source", "partition 1 of dst comes from partition 1", shuffle(same), [f32(1, 4)], out)
    refused("shuffle-source", "from partition 32", shuffle([0] * 32), [x], [((33, 4), nl.float32)])
    refused("shape", "dst has 4 elements per partition, src has 5", shuffle(same), [f32(32, 5)], out)
    refused("dtype", "they must be equal", shuffle(same), [x], [((32, 4), nl.int32)])


# ---- cost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ["trn1", "trn2", "trn3"])
def test_each_costs_a_cycle_per_element_of_the_vector_engine_on_every_generation(platform):
    handles = []

    def body(dst, index, src):
        handles.append(nisa.max8(dst[:, :8], src))
        handles.append(nisa.nc_find_index8(index, src, dst[:, :8]))
        handles.append(nisa.nc_match_replace8(dst, src, dst[:, :8], 0.0))
        handles.append(nisa.nc_stream_shuffle(dst, src, list(range(32))))

    run_tiles(body, [f32(32, 200)], [((32, 200), nl.float32), ((32, 8), nl.uint32)], on=platform)
    assert [h.cost(find(platform)).cycles for h in handles] == [200] * 4
    assert {h.runs_on for h in handles} == {nisa.engine.vector}
