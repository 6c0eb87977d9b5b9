"""Run-time addresses: rows by a vector of indices, views moved by a scalar, columns by an index tile."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
import support
from support import run_tiles, target, to_tile

SKIP = nisa.oob_mode.skip
BF16 = ml_dtypes.bfloat16


def f32(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def column(ids, dtype=np.int32):
    return np.array(ids, np.int64).astype(dtype).reshape(-1, 1)


def run(body, *arrays, on="trn2"):
    """Call `body` in a kernel on HBM tensors; returns the result and the kinds of all warnings."""

    @nki.jit
    def kernel(*tensors):
        return body(*tensors)

    with target(on), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = kernel(*arrays)
    return result, [w.category.kind for w in seen]


def refused(kind, text, body, *arrays, on="trn2"):
    return support.refused(kind, text, lambda: run(body, *arrays, on=on))


def out_of(tile):
    hbm = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(hbm, tile)
    return hbm


def copy_of(tensor):
    """An HBM tensor with the same contents, written whole."""
    hbm = nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(hbm, tensor)
    return hbm


# ---- rows ----------------------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize("count", [1, 5, 128])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_a_vector_of_indices_gathers_rows(count, dtype):
    x = f32(40, 24)
    ids = np.random.default_rng(1).integers(0, 40, count)

    def body(x, ids):
        tile = nl.ndarray((count, 24), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(tile, x.vector_select(0, to_tile(ids, nl.sbuf)))
        return out_of(tile)

    got, seen = run(body, x, column(ids, dtype))
    np.testing.assert_array_equal(got, [x[i] for i in ids])
    assert not seen


def addresses(row, columns, offset, pattern):
    """Flat positions of the elements of a row, in order."""
    start = offset + row * columns
    places = np.ndindex(*(count for _, count in pattern))
    return [start + sum(k * step for k, (step, _) in zip(p, pattern, strict=True)) for p in places]


@st.composite
def row_accesses(draw):
    """Sizes, a pattern behind the rows that may interleave or overlap, and indices with repeats."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    pattern = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=2))
    offset = draw(st.integers(0, 3))
    row = addresses(0, columns, offset, pattern)
    assume(max(row) < rows * columns and len(set(row)) == len(row))
    ids = draw(st.lists(st.integers(-2, rows + 1), min_size=1, max_size=8))
    return rows, columns, pattern, offset, ids


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(access=row_accesses(), seed=st.integers(0, 999))
def test_scatter_and_gather_of_rows_equal_the_definition(access, seed):
    rows, columns, pattern, offset, ids = access
    base = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    shape = (len(ids), *(count for _, count in pattern))
    values = np.random.default_rng(seed).integers(1000, 2000, shape).astype(np.int32)

    def body(base, ids, values):
        index, tensor = to_tile(ids, nl.sbuf), copy_of(base)
        whole = [[columns, ids.shape[0]], *map(list, pattern)]
        nisa.dma_copy(tensor.ap(whole, offset, vector_offset=index), values, oob_mode=SKIP)
        tile = to_tile(values, nl.sbuf)
        nisa.dma_copy(tile, base.ap(whole, offset, vector_offset=index), oob_mode=SKIP)
        return tensor, out_of(tile)

    (scattered, gathered), _ = run(body, base, column(ids), values)
    memory, fetched = base.reshape(-1).copy(), values.copy().reshape(len(ids), -1)
    for i, row in enumerate(ids):
        places = addresses(row, columns, offset, pattern)
        if row >= 0 and max(places) < memory.size:
            memory[places] = values[i].reshape(-1)
            fetched[i] = base.reshape(-1)[places]
    np.testing.assert_array_equal(scattered.reshape(-1), memory)
    np.testing.assert_array_equal(gathered.reshape(len(ids), -1), fetched)


def test_of_equal_indices_the_last_row_wins_with_a_warning():
    values = f32(5, 3)

    def body(x, ids, values):
        tensor = copy_of(x)
        nisa.dma_copy(tensor.vector_select(0, to_tile(ids, nl.sbuf)), to_tile(values, nl.sbuf))
        return tensor

    got, seen = run(body, np.zeros((4, 3), np.float32), column([2, 0, 2, 2, 0]), values)
    np.testing.assert_array_equal(got, [values[4], [0, 0, 0], values[3], [0, 0, 0]])
    assert seen == ["scatter-dup"]


def test_rows_of_a_flattened_cache_interleave():
    """The transposed K cache of attention kernels: one element per step of a long stride."""
    batch, d, length = 3, 4, 10
    cache, new = f32(batch, d, length), f32(batch, d)
    slots = [7, 0, 9]

    def body(cache, ids, new):
        tensor = copy_of(cache)
        flat = tensor.reshape((batch * d * length,))
        index = to_tile(ids, nl.sbuf)
        where = flat.ap([[1, batch], [length, d], [1, 1]], vector_offset=index)
        nisa.dma_copy(where, to_tile(new, nl.sbuf).ap([[d, batch], [1, d], [1, 1]]))
        return tensor

    ids = column([b * d * length + slot for b, slot in enumerate(slots)], np.uint32)
    got, seen = run(body, cache, ids, new)
    expected = cache.copy()
    for b, slot in enumerate(slots):
        expected[b, :, slot] = new[b]
    np.testing.assert_array_equal(got, expected)
    assert not seen


def test_the_step_of_the_first_pair_does_not_matter():
    x, ids = f32(6, 4), column([5, 0, 3])

    def body(x, ids):
        tensor, index = copy_of(x), to_tile(ids, nl.sbuf)
        tile = nl.ndarray((3, 4), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(tile, x.ap([[0, 3], [1, 4]], vector_offset=index))
        nisa.memset(tile, 7.0)
        nisa.dma_copy(tensor.ap([[0, 3], [1, 4]], vector_offset=index), tile)
        return tensor

    got, _ = run(body, x, ids)
    expected = x.copy()
    expected[[5, 0, 3]] = 7
    np.testing.assert_array_equal(got, expected)


def test_rows_may_be_read_as_another_dtype():
    raw = np.random.default_rng(3).integers(0, 256, (9, 8), np.uint8)
    ids = [8, 1, 4]

    def body(raw, ids, fresh):
        tensor, index = copy_of(raw), to_tile(ids, nl.sbuf)
        pattern = [[1, 3], [1, 2]]
        tile = nl.ndarray((3, 2), nl.int16, buffer=nl.sbuf)
        nisa.dma_copy(tile, raw.ap(pattern, offset=1, vector_offset=index, dtype=nl.int16))
        rows = tensor.ap(pattern, offset=1, vector_offset=index, dtype=nl.int16)
        nisa.dma_copy(rows, to_tile(fresh, nl.sbuf))
        return out_of(tile), tensor

    fresh = np.arange(6, dtype=np.int16).reshape(3, 2) * 300
    (got, scattered), _ = run(body, raw, column(ids), fresh)
    np.testing.assert_array_equal(got.view(np.uint8), raw[ids, 2:6])
    expected = raw.copy()
    expected[ids, 2:6] = fresh.view(np.uint8)
    np.testing.assert_array_equal(scattered, expected)


def test_a_broadcast_row_serves_every_index():
    x = f32(1, 4)

    def body(x, ids):
        tile = nl.ndarray((3, 4), nl.float32, buffer=nl.sbuf)
        repeated = x.broadcast(0, 5)
        nisa.dma_copy(tile, repeated.ap([[4, 3], [1, 4]], vector_offset=to_tile(ids, nl.sbuf)))
        return out_of(tile)

    got, _ = run(body, x, column([0, 999, 3]))
    np.testing.assert_array_equal(got, np.tile(x, (3, 1)))


@pytest.mark.parametrize(
    "bad, dtype", [(-1, np.int32), (2**32 - 1, np.uint32), (6, np.int32), (2**31 - 1, np.int32)]
)
def test_a_row_out_of_bounds_is_an_error_that_names_it(bad, dtype):
    def gather(x, ids):
        tile = nl.ndarray((3, 4), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(tile, x.vector_select(0, to_tile(ids, nl.sbuf)))
        return out_of(tile)

    problem = refused("index", f"index {bad} of row 1 ", gather, f32(6, 4), column([0, bad, 2], dtype))
    assert isinstance(problem, IndexError)
    assert "0 to 5 fit" in str(problem)
    assert "allocated at" in str(problem)


def test_a_row_is_out_of_bounds_when_its_tail_is():
    def body(x, ids):
        tile = nl.ndarray((2, 6), nl.float32, buffer=nl.sbuf)
        nisa.memset(tile, -1.0)
        rows = x.ap([[4, 2], [1, 6]], vector_offset=to_tile(ids, nl.sbuf))
        nisa.dma_copy(tile, rows, oob_mode=SKIP)
        return out_of(tile)

    x = f32(6, 4)
    got, _ = run(body, x, column([4, 5]))
    np.testing.assert_array_equal(got[0], x.reshape(-1)[16:22])
    np.testing.assert_array_equal(got[1], [-1] * 6)


def test_skipping_every_row_changes_nothing():
    def body(x, ids):
        tensor, index = copy_of(x), to_tile(ids, nl.sbuf)
        tile = to_tile(x[0:2], nl.sbuf)
        nisa.dma_copy(tile, x.vector_select(0, index), oob_mode=SKIP)
        nisa.dma_copy(tensor.vector_select(0, index), tile, oob_mode=SKIP)
        return tensor, out_of(tile)

    x = f32(6, 4)
    (tensor, tile), _ = run(body, x, column([-1, 6]))
    np.testing.assert_array_equal(tensor, x)
    np.testing.assert_array_equal(tile, x[0:2])


def test_a_fresh_tensor_knows_which_rows_were_scattered():
    def body(x, ids, others):
        fresh = nl.ndarray((8, 3), nl.float32, buffer=nl.shared_hbm)
        index = to_tile(ids, nl.sbuf)
        nisa.dma_copy(fresh.vector_select(0, index), to_tile(x, nl.sbuf), oob_mode=SKIP)
        tile = nl.ndarray((2, 3), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(tile, fresh[4:6])
        nisa.dma_copy(tile, fresh.vector_select(0, index), oob_mode=SKIP)
        nisa.dma_copy(tile, fresh.vector_select(0, to_tile(others, nl.sbuf)))
        return copy_of(fresh)

    x = f32(2, 3)
    got, seen = run(body, x, column([4, 5]), column([5, 0]))
    np.testing.assert_array_equal(got[4:6], x)
    assert np.isnan(np.delete(got, [4, 5], axis=0)).all()
    assert seen == ["uninitialised"] * 2  # the last gather, and the copy of all of it


def test_a_tensor_scattered_row_by_row_becomes_whole():
    def body(x, ids):
        fresh = nl.ndarray((6, 3), nl.float32, buffer=nl.shared_hbm)
        tile = to_tile(x, nl.sbuf)
        for part in range(3):
            index = to_tile(ids[2 * part : 2 * part + 2], nl.sbuf)
            nisa.dma_copy(fresh.vector_select(0, index), tile[2 * part : 2 * part + 2])
        return copy_of(fresh)

    x, order = f32(6, 3), [3, 5, 0, 1, 4, 2]
    got, seen = run(body, x, column(order))
    np.testing.assert_array_equal(got[order], x)
    assert not seen


def test_a_gather_with_skipped_rows_leaves_the_rest_of_a_fresh_tile_unwritten():
    def body(x, ids):
        tile = nl.ndarray((4, 3), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(tile, x.vector_select(0, to_tile(ids, nl.sbuf)), oob_mode=SKIP)
        return out_of(tile[0:1]), out_of(tile)

    x = f32(5, 3)
    (first, got), seen = run(body, x, column([2, -1, 4, 77]))
    np.testing.assert_array_equal(first, x[2:3])
    np.testing.assert_array_equal(got[[0, 2]], x[[2, 4]])
    assert np.isnan(got[[1, 3]]).all()
    assert seen == ["uninitialised"]


def test_the_index_is_read_when_the_instruction_runs():
    def body(x, first, second):
        index = to_tile(first, nl.sbuf)
        rows = x.vector_select(0, index)
        results = []
        for update in (None, second):
            if update is not None:
                nisa.dma_copy(index, update)
            tile = nl.ndarray((2, 3), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(tile, rows)
            results.append(out_of(tile))
        return results

    x = f32(9, 3)
    (one, two), _ = run(body, x, column([1, 2]), column([8, 0]))
    np.testing.assert_array_equal(one, x[[1, 2]])
    np.testing.assert_array_equal(two, x[[8, 0]])


def test_the_index_may_be_a_strided_column_of_a_wider_tile():
    def body(x, ids):
        wide = to_tile(ids, nl.sbuf)
        tile = nl.ndarray((4, 3), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(tile, x.ap([[3, 4], [1, 3]], vector_offset=wide.ap([[5, 4], [1, 1]], offset=2)))
        return out_of(tile)

    x = f32(20, 3)
    ids = np.arange(20, dtype=np.int32).reshape(4, 5)
    got, _ = run(body, x, ids)
    np.testing.assert_array_equal(got, x[[2, 7, 12, 17]])


# ---- one index moves the view --------------------------------------------------------------------


@pytest.mark.parametrize("by", ["register", "tile"])
def test_a_scalar_index_moves_views_in_hbm_and_on_chip(by):
    def body(x, number):
        tile = to_tile(x, nl.sbuf)
        where = to_tile(number, nl.sbuf)
        if by == "register":
            register = nisa.register_alloc()
            nisa.register_load(register, where)
            where = register
        narrow = nl.ndarray((6, 4), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(narrow, tile.ap([[12, 6], [1, 4]], scalar_offset=where, indirect_dim=1))
        row = nl.ndarray((2, 12), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(row, x.ap([[12, 2], [1, 12]], scalar_offset=where, indirect_dim=0))
        nisa.memset(tile.ap([[12, 6], [1, 1]], scalar_offset=where, indirect_dim=1), -1.0)
        return out_of(narrow), out_of(row), out_of(tile)

    x = f32(6, 12)
    (narrow, row, tile), _ = run(body, x, np.array([[3]], np.int32))
    np.testing.assert_array_equal(narrow, x[:, 3:7])
    np.testing.assert_array_equal(row, x[3:5])
    expected = x.copy()
    expected[:, 3] = -1
    np.testing.assert_array_equal(tile, expected)


@pytest.mark.parametrize("bad", [-1, 9, 2**30])
def test_a_scalar_index_out_of_bounds_is_an_error_that_names_it(bad):
    def on_chip(x, number):
        narrow = nl.ndarray((6, 4), nl.float32, buffer=nl.sbuf)
        where = to_tile(number, nl.sbuf)
        tile = to_tile(x, nl.sbuf)
        nisa.tensor_copy(narrow, tile.ap([[12, 6], [1, 4]], scalar_offset=where, indirect_dim=1))

    problem = refused(
        "index", f"run-time index {bad} reaches outside", on_chip, f32(6, 12), np.array([[bad]], np.int32)
    )
    assert isinstance(problem, IndexError)
    assert "0 to 8 fit" in str(problem)


@pytest.mark.parametrize("side", ["dst", "src"])
def test_a_scalar_index_out_of_bounds_skips_the_whole_transfer(side):
    def body(x, number):
        where, tensor = to_tile(number, nl.sbuf), copy_of(x)
        tile = nl.ndarray((2, 4), nl.float32, buffer=nl.sbuf)
        nisa.memset(tile, 5.0)
        if side == "src":
            nisa.dma_copy(tile, x.ap([[4, 2], [1, 4]], scalar_offset=where), oob_mode=SKIP)
        else:
            nisa.dma_copy(tensor.ap([[4, 2], [1, 4]], scalar_offset=where), tile, oob_mode=SKIP)
        return tensor, out_of(tile)

    x = f32(6, 4)
    (tensor, tile), _ = run(body, x, np.array([[5]], np.int32))
    np.testing.assert_array_equal(tensor, x)
    np.testing.assert_array_equal(tile, np.full((2, 4), 5.0))


def test_a_skipped_load_leaves_a_fresh_tile_unwritten():
    def body(x, number):
        tile = nl.ndarray((2, 4), nl.float32, buffer=nl.sbuf)
        rows = x.ap([[4, 2], [1, 4]], scalar_offset=to_tile(number, nl.sbuf))
        nisa.dma_copy(tile, rows, oob_mode=SKIP)
        return out_of(tile)

    got, seen = run(body, f32(6, 4), np.array([[5]], np.int32))
    assert np.isnan(got).all()
    assert seen == ["uninitialised"]


def test_a_matmul_takes_operands_and_destinations_with_run_time_offsets():
    def body(s, m, number):
        where = to_tile(number, nl.sbuf)
        stationary, moving = to_tile(s, nl.sbuf), to_tile(m, nl.sbuf)
        acc = nl.ndarray((8, 12), nl.float32, buffer=nl.psum)
        nisa.memset(acc, 0.0)
        for _ in range(2):
            nisa.nc_matmul(
                acc.ap([[12, 8], [1, 4]], scalar_offset=where, indirect_dim=1),
                stationary,
                moving.ap([[12, 16], [1, 4]], scalar_offset=where, indirect_dim=1),
            )
        out = nl.ndarray((8, 12), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(out, acc)
        return out_of(out)

    s, m = f32(16, 8, seed=1).astype(BF16), f32(16, 12, seed=2).astype(BF16)
    got, _ = run(body, s, m, np.array([[6]], np.int32))
    expected = np.zeros((8, 12))
    product = s.astype(np.float64).T @ m.astype(np.float64)
    expected[:, 6:10] = 2 * product[:, 6:10]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


# ---- columns -------------------------------------------------------------------------------------


def columns_in_turns(index, partitions, count, group):
    return np.array(
        [[index[p // group * group + i % group, i // group] for i in range(count)] for p in range(partitions)]
    )


@pytest.mark.tiny
@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int32, np.uint32])
@pytest.mark.parametrize("partitions", [16, 48, 128])
def test_an_index_tile_gathers_columns_in_groups_of_16(partitions, dtype):
    x = f32(partitions, 3, 10)
    index = np.random.default_rng(1).integers(0, 30, (partitions, 2)).astype(dtype)

    def body(dst, x, index):
        nisa.tensor_copy(dst, x.indirect(index, num_elem=25))

    [got] = run_tiles(body, [x, index], [((partitions, 25), nl.float32)], on="trn3")
    picked = columns_in_turns(index, partitions, 25, 16)
    flat = x.reshape(partitions, 30)
    np.testing.assert_array_equal(got, [[flat[p, c] for c in picked[p]] for p in range(partitions)])


@pytest.mark.parametrize("dtype", [BF16, np.float16])
def test_the_tensor_engine_gathers_columns_in_groups_of_32(dtype):
    stationary, x = f32(64, 16, seed=1).astype(dtype), f32(64, 20, seed=2).astype(dtype)
    index = np.random.default_rng(3).integers(0, 20, (64, 1)).astype(np.uint16)

    def body(dst, s, x, index):
        nisa.nc_matmul(dst, s, x.indirect(index, num_elem=30))

    [got] = run_tiles(body, [stationary, x, index], [((16, 30), nl.float32)], on="trn3", out_psum=[0])
    picked = columns_in_turns(index, 64, 30, 32)
    moving = np.array([[x[p, c] for c in picked[p]] for p in range(64)]).astype(np.float64)
    np.testing.assert_allclose(got, stationary.astype(np.float64).T @ moving, rtol=1e-5, atol=1e-5)


@settings(max_examples=200, deadline=None)
@given(
    partitions=st.sampled_from([16, 32]),
    size=st.integers(1, 12),
    seed=st.integers(0, 9999),
    count=st.integers(1, 32),
)
def test_scattered_columns_equal_the_definition_the_highest_position_winning(partitions, size, seed, count):
    rng = np.random.default_rng(seed)
    index = rng.integers(0, size, (partitions, 2)).astype(np.int32)
    values = rng.integers(0, 1000, (partitions, count)).astype(np.int32)
    before = -np.ones((partitions, size), np.int32)

    def body(dst, values, index):
        nisa.tensor_copy(dst.indirect(index, num_elem=count), values)

    [got] = run_tiles(body, [values, index], [before], on="trn3")
    expected = before.copy()
    for p in range(partitions):
        for i in range(count):
            expected[p, index[p // 16 * 16 + i % 16, i // 16]] = values[p, i]
    np.testing.assert_array_equal(got, expected)


def test_columns_are_scattered_through_strided_views():
    index = np.arange(16, dtype=np.int32).reshape(16, 1) % 4
    values = np.tile(np.arange(4, dtype=np.float32), (16, 1))

    def body(dst, values, index):
        nisa.tensor_copy(dst[:, ::2].indirect(index, num_elem=4), values)

    [got] = run_tiles(body, [values, index], [np.full((16, 8), -1, np.float32)], on="trn3")
    np.testing.assert_array_equal(got[0], [0, -1, 1, -1, 2, -1, 3, -1])


def test_scattered_columns_count_as_written_and_others_do_not():
    def body(values, index):
        fresh = nl.ndarray((16, 8), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(fresh.indirect(to_tile(index, nl.sbuf), num_elem=3), to_tile(values, nl.sbuf))
        part = nl.ndarray((16, 3), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(part, fresh[:, 2:5])
        nisa.tensor_copy(part, fresh.indirect(to_tile(index, nl.sbuf), num_elem=3))
        return out_of(part), out_of(fresh)

    index = np.full((16, 1), 0, np.int32)
    index[:3, 0] = [4, 2, 3]
    values = f32(16, 3)
    (part, fresh), seen = run(body, values, index, on="trn3")
    np.testing.assert_array_equal(part, values)
    np.testing.assert_array_equal(fresh[:, [4, 2, 3]], values)
    assert np.isnan(fresh[:, [0, 1, 5, 6, 7]]).all()
    assert seen == ["uninitialised"]  # only the copy of the whole tile


def test_index_tiles_that_do_not_fit_are_refused():
    x, index = f32(32, 8), np.zeros((32, 1), np.int32)

    def gather(count, view=lambda index: index):
        def body(x, index):
            dst = nl.ndarray((32, count), nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst, to_tile(x, nl.sbuf).indirect(view(to_tile(index, nl.sbuf)), num_elem=count))

        return body

    refused("shape", "17 elements requested", gather(17), x, index, on="trn3")
    refused(
        "shape", "need an index tile of 32 partitions", gather(16, lambda i: i[0:16]), x, index, on="trn3"
    )
    index[20] = 8
    refused("index", "indirect offset 8 is outside the 8 elements", gather(16), x, index, on="trn3")
    index[20] = -1
    refused("index", "indirect offset -1", gather(16), x, index, on="trn3")
    refused("generation", "needs trn3", gather(16), x, index, on="trn2")
