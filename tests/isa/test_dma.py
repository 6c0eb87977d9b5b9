"""dma_copy, dma_transpose, dma_compute, and how they are cut into descriptors."""

from __future__ import annotations

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
import support
from nki.ir.descriptors import Descriptors, contiguous_run, elem_bytes, pieces
from nki.machine import dtypes
from nki.machine.generations import find
from support import target, to_tile

SKIP = nisa.oob_mode.skip
HW, SW, STATIC = nisa.dge_mode.hwdge, nisa.dge_mode.swdge, nisa.dge_mode.none
BF16 = ml_dtypes.bfloat16
CASTABLE = [d for d in dtypes.ALL if d.castable]
PLATFORMS = ["trn1", "trn2", "trn3"]


def f32(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def numbers(shape, dtype, seed=0):
    """Numbers that overflow, round and are exact, in a dtype's storage."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
    return dtypes.cast(values.astype(np.float32), dtype)


def column(ids, dtype=np.int32):
    return np.array(ids, np.int64).astype(dtype).reshape(-1, 1)


def wide(array):
    return np.asarray(array).astype(np.float32).astype(np.float64)


def run(body, *arrays, on="trn2"):
    """Call `body` in a kernel on HBM tensors; returns the result and the kinds of all warnings."""

    @nki.jit
    def kernel(*tensors):
        return body(*tensors)

    with target(on), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = kernel(*arrays)
    kinds = [w.category.kind for w in seen]
    return result, [kind for kind in kinds if kind != "no-effect"]  # some bodies return nothing


def refused(kind, text, body, *arrays, on="trn2"):
    return support.refused(kind, text, lambda: run(body, *arrays, on=on))


def hbm(shape, dtype):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


def sbuf(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


def out_of(tile):
    result = hbm(tile.shape, tile.dtype)
    nisa.dma_copy(result, tile)
    return result


def copied(x, dtype=None, **options):
    """x through one dma_copy into a new HBM tensor."""

    def body(x):
        result = hbm(x.shape, dtype or x.dtype)
        nisa.dma_copy(result, x, **options)
        return result

    return run(body, x, on="trn3")


# ---- dma_copy: meaning ---------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize("shape", [(1, 1), (128, 7), (77, 3, 5), (4, 2, 3, 2)])
@pytest.mark.parametrize("on", PLATFORMS)
def test_copies_between_hbm_and_sbuf_in_every_combination(shape, on):
    def body(x):
        tile, second, between = sbuf(shape), sbuf(shape), hbm(shape, nl.float32)
        nisa.dma_copy(tile, x)
        nisa.dma_copy(second, tile)
        nisa.dma_copy(between, second)
        result = hbm(shape, nl.float32)
        nisa.dma_copy(result, between)
        return result

    x = f32(*shape)
    got, seen = run(body, x, on=on)
    np.testing.assert_array_equal(got, x)
    assert not seen


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d != "tfloat32"])
def test_equal_dtypes_move_every_bit(dtype):
    raw = np.random.default_rng(1).integers(0, 256, (6, 8 * dtype.itemsize), np.uint8)
    if dtype.is_bool:
        raw &= 1

    def body(raw):
        tile = sbuf((6, 8), dtype)
        nisa.dma_copy(tile, raw.view(dtype))
        return out_of(tile.view(nl.uint8))

    got, _ = run(body, raw, on="trn3")
    np.testing.assert_array_equal(got, raw)


@pytest.mark.parametrize("target_dtype", CASTABLE)
@pytest.mark.parametrize("source", ["float32", "bfloat16", "int32", "uint8"])
def test_other_dtypes_are_cast_through_float32(source, target_dtype):
    x = numbers((9, 31), dtypes.resolve(source))
    got, _ = copied(x, target_dtype)
    expected = dtypes.cast(x.astype(np.float32), target_dtype)
    np.testing.assert_array_equal(wide(got), wide(expected))


def test_casts_round_saturate_and_lose_large_integers():
    got, _ = copied(np.array([[2.5, 3.5, 300.0, -1.0, np.nan]], np.float32), "uint8")
    np.testing.assert_array_equal(got, [[2, 4, 255, 0, 0]])
    got, _ = copied(np.array([[2**24 + 1, -1]], np.int32), "uint32")
    np.testing.assert_array_equal(got, [[2**24, 0]])
    got, _ = copied(np.array([[2**24 + 1, -1]], np.int32))
    np.testing.assert_array_equal(got, [[2**24 + 1, -1]])


@pytest.mark.parametrize("dtype", ["float8_e8m0fnu", "float8_e4m3fn_x4", "float4_e2m1fn_x4"])
def test_packed_and_scale_types_are_never_cast(dtype):
    def body(raw):
        nisa.dma_copy(sbuf((4, 2), nl.float32), raw.view(getattr(nl, dtype))[:, 0:2])

    refused("dtype", "no engine can convert", body, np.zeros((4, 8), np.uint8), on="trn3")


def test_elements_pair_in_row_major_order_whatever_the_shapes():
    def body(x):
        tile = sbuf((4, 6))
        nisa.dma_copy(tile, x)
        return out_of(tile)

    x = f32(2, 3, 4)
    got, seen = run(body, x)
    np.testing.assert_array_equal(got, x.reshape(4, 6))
    assert seen == ["dma-shape"]
    got, seen = run(body, x.reshape(4, 1, 6))  # dimensions of one element do not count
    assert not seen


def test_strided_and_permuted_views_copy_element_by_element():
    def body(x):
        tile = sbuf((4, 5, 3))
        nisa.dma_copy(tile, x.permute((2, 0, 1))[::2, :, 1:4])
        wide_tile = sbuf((4, 30))
        nisa.memset(wide_tile, 0.0)
        nisa.dma_copy(wide_tile[:, ::2], tile.reshape((4, 15)))
        return out_of(wide_tile)

    x = f32(5, 6, 8)
    got, _ = run(body, x)
    np.testing.assert_array_equal(got[:, ::2].reshape(4, 5, 3), x.transpose(2, 0, 1)[::2, :, 1:4])
    assert (got[:, 1::2] == 0).all()


def test_a_broadcast_source_is_repeated():
    def body(x):
        tile = sbuf((128, 6))
        nisa.dma_copy(tile, x.broadcast(0, 128))
        return out_of(tile)

    x = f32(1, 6)
    got, _ = run(body, x)
    np.testing.assert_array_equal(got, np.repeat(x, 128, axis=0))


def test_a_broadcast_destination_is_refused():
    def body(x):
        tile = sbuf((8, 1))
        nisa.dma_copy(tile.broadcast(1, 6), x)

    refused("write-broadcast", "dst repeats dimension 1", body, f32(8, 6))


@settings(max_examples=200, deadline=None)
@given(
    size=st.integers(2, 40),
    data=st.data(),
    source=st.sampled_from(["float32", "int32", "bfloat16"]),
    on_chip=st.booleans(),
)
def test_overlapping_sides_are_read_before_they_are_written(size, data, source, on_chip):
    count = data.draw(st.integers(1, size - 1))
    to, start = data.draw(st.integers(0, size - count)), data.draw(st.integers(0, size - count))
    x = np.arange(3 * size).astype(dtypes.resolve(source).storage).reshape(3, size)

    def body(x):
        tensor = to_tile(x, nl.sbuf) if on_chip else hbm(x.shape, x.dtype)
        if not on_chip:
            nisa.dma_copy(tensor, x)
        nisa.dma_copy(tensor[:, to : to + count], tensor[:, start : start + count])
        return out_of(tensor)

    got, _ = run(body, x)
    expected = x.copy()
    expected[:, to : to + count] = x[:, start : start + count]
    np.testing.assert_array_equal(got, expected)


def test_a_cast_onto_its_own_bytes_reads_first():
    def body(x):
        tile = to_tile(x, nl.sbuf)
        nisa.dma_copy(tile.view(nl.bfloat16)[:, 8:16], tile)
        return out_of(tile.view(nl.bfloat16)[:, 8:16])

    x = f32(4, 8)
    got, _ = run(body, x)
    np.testing.assert_array_equal(got, x.astype(BF16))


def test_the_callers_array_is_left_alone_by_a_copy_into_it():
    x, before = f32(4, 4), f32(4, 4)

    def body(x):
        result = hbm((4, 4), nl.float32)
        nisa.dma_copy(result, x)
        nisa.dma_copy(result[0:2], x[2:4])
        return result

    got, _ = run(body, x)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(got, x[[2, 3, 2, 3]])


@pytest.mark.parametrize("dtype", ["int32", "uint32", "bfloat16", "float8_e4m3fn_x4"])
@pytest.mark.parametrize("way", ["gather", "scatter"])
def test_skipped_rows_keep_their_bits(dtype, way):
    dtype = dtypes.resolve(dtype)
    raw = np.random.default_rng(2).integers(0, 2**32, (6, 4), np.uint32)
    old = np.random.default_rng(3).integers(0, 2**32, (5, 4), np.uint32)
    ids = [2, 0xFFFFFFFF, 5, 6, 0]

    def body(raw, old, ids):
        table = hbm((6, 4), nl.uint32)
        nisa.dma_copy(table, raw)
        tile, index = to_tile(old, nl.sbuf), to_tile(ids, nl.sbuf)
        rows = table.view(dtype).vector_select(0, index)
        if way == "gather":
            nisa.dma_copy(tile.view(dtype), rows, oob_mode=SKIP)
        else:
            nisa.dma_copy(rows, tile.view(dtype), oob_mode=SKIP)
        return table, out_of(tile)

    (table, tile), _ = run(body, raw, old, column(ids, np.uint32), on="trn3")
    if way == "gather":
        np.testing.assert_array_equal(tile, [raw[2], old[1], raw[5], old[3], raw[0]])
        np.testing.assert_array_equal(table, raw)
    else:
        expected = raw.copy()
        expected[[2, 5, 0]] = old[[0, 2, 4]]
        np.testing.assert_array_equal(table, expected)


@pytest.mark.parametrize(
    "dtypes_of", [("float32", "bfloat16"), ("bfloat16", "float32"), ("int32", "float32")]
)
def test_gathers_and_scatters_cast_too(dtypes_of):
    source, kept = map(dtypes.resolve, dtypes_of)
    x = numbers((7, 5), source)
    ids = [6, -1, 0]

    def body(x, ids):
        index, tile = to_tile(ids, nl.sbuf), sbuf((3, 5), kept)
        nisa.memset(tile, 0.0)
        nisa.dma_copy(tile, x.vector_select(0, index), oob_mode=SKIP)
        back = hbm((7, 5), source)
        nisa.dma_copy(back, x)
        nisa.dma_copy(back.vector_select(0, index), tile, oob_mode=SKIP)
        return out_of(tile), back

    (got, back), _ = run(body, x, column(ids))
    expected = dtypes.cast(x.astype(np.float32), kept)
    np.testing.assert_array_equal(wide(got[[0, 2]]), wide(expected[[6, 0]]))
    assert (wide(got[1]) == 0).all()
    again = dtypes.cast(expected[[6, 0]].astype(np.float32), source)
    np.testing.assert_array_equal(wide(back[[6, 0]]), wide(again))


def test_a_gather_pairs_rows_with_a_tile_of_another_rank():
    def body(x, ids):
        tile = sbuf((3, 2, 4))
        nisa.memset(tile, -1.0)
        nisa.dma_copy(tile, x.vector_select(0, to_tile(ids, nl.sbuf)), oob_mode=SKIP)
        return out_of(tile)

    x = f32(6, 8)
    got, _ = run(body, x, column([5, -1, 2]))
    np.testing.assert_array_equal(got.reshape(3, 8)[[0, 2]], x[[5, 2]])
    assert (got[1] == -1).all()


def test_narrow_floats_stored_as_float32_are_copied(monkeypatch):
    monkeypatch.setitem(os.environ, "NKI_PRECISE_FP", "0")
    x = f32(6, 8).astype(BF16)

    def body(x, ids):
        tile, raw = sbuf((6, 8), nl.bfloat16), sbuf((6, 16), nl.uint8)
        nisa.dma_copy(tile, x)
        nisa.dma_copy(raw.view(nl.bfloat16), tile)
        picked = sbuf((2, 8), nl.bfloat16)
        nisa.dma_copy(picked, x.vector_select(0, to_tile(ids, nl.sbuf)))
        turned = sbuf((8, 6), nl.bfloat16)
        nisa.dma_transpose(turned, x)
        return out_of(raw.view(nl.bfloat16)), out_of(picked), out_of(turned)

    (raw, picked, turned), _ = run(body, x, column([4, 1]))
    np.testing.assert_array_equal(wide(raw), wide(x))
    np.testing.assert_array_equal(wide(picked), wide(x[[4, 1]]))
    np.testing.assert_array_equal(wide(turned), wide(x.T))


# ---- dma_copy: rules -----------------------------------------------------------------------------


def copy_body(shape=(8, 4), dtype=nl.float32, **options):
    return lambda x: nisa.dma_copy(sbuf(shape, dtype), x, **options)


def test_psum_and_unequal_counts_are_refused():
    def psum(x):
        nisa.dma_copy(nl.ndarray((8, 4), nl.float32, buffer=nl.psum), x)

    problem = refused("buffer", "dst is in PSUM, which DMA cannot reach", psum, f32(8, 4))
    assert isinstance(problem, AssertionError)
    assert "nisa.tensor_copy" in str(problem)
    refused("shape", "dst has 32 elements, src has 36", copy_body(), f32(9, 4))
    refused("argument", "dst must be a tile", lambda x: nisa.dma_copy(3, x), f32(2, 2))
    refused("argument", "src is missing", lambda x: nisa.dma_copy(x, None), f32(2, 2))


def test_hardware_dge_needs_trn2_and_equal_dtypes():
    assert not run(copy_body(dge_mode=HW), f32(8, 4))[1]
    refused("generation", "dge_mode.hwdge needs trn2", copy_body(dge_mode=HW), f32(8, 4), on="trn1")
    refused("dtype", "hwdge moves bytes as they are", copy_body(dtype=nl.bfloat16, dge_mode=HW), f32(8, 4))


@pytest.mark.parametrize("mode", [HW, STATIC])
def test_a_vector_of_indices_needs_software_dge(mode):
    def body(x, ids):
        nisa.dma_copy(sbuf((2, 4)), x.vector_select(0, to_tile(ids, nl.sbuf)), dge_mode=mode)

    problem = refused("dge-mode", "a vector of indices cannot use", body, f32(8, 4), column([0, 1]))
    assert isinstance(problem, nki.isa.NkiValidationError)
    assert "nisa.dge_mode.swdge" in str(problem)


def test_two_vectors_of_indices_are_refused():
    def body(x, ids):
        index, other = to_tile(ids, nl.sbuf), hbm(x.shape, x.dtype)
        nisa.dma_copy(other.vector_select(0, index), x.vector_select(0, index))

    refused("indirect-twice", "both have a vector of indices", body, f32(8, 4), column([0, 1]))


def test_an_index_tile_holds_one_index_per_row():
    def body(x, ids):
        index = to_tile(ids, nl.sbuf)
        nisa.dma_copy(sbuf((2, 4)), x.ap([[4, 2], [1, 4]], vector_offset=index))

    refused("shape", "src has 2 rows, its indices have shape (3, 1)", body, f32(8, 4), column([0, 1, 2]))
    refused("shape", "its indices have shape (1, 2)", body, f32(8, 4), np.zeros((1, 2), np.int32))


def test_a_run_time_offset_without_dge_warns():
    def body(x, number):
        index = to_tile(number, nl.sbuf)
        nisa.dma_copy(sbuf((1, 4)), x.ap([[4, 1], [1, 4]], scalar_offset=index), dge_mode=STATIC)

    assert run(body, f32(8, 4), np.array([[2]], np.int32))[1] == ["static-dma-offset"]


def test_the_engine_is_sync_or_scalar_and_for_hardware_dge():
    for engine in (nisa.engine.sync, nisa.engine.scalar):
        assert not run(copy_body(dge_mode=HW, engine=engine), f32(8, 4))[1]
    refused("engine", "cannot start a DMA", copy_body(dge_mode=HW, engine=nisa.engine.vector), f32(8, 4))
    refused("engine", "for hardware DGE only", copy_body(engine=nisa.engine.sync), f32(8, 4))
    assert run(copy_body(engine=nisa.engine.scalar), f32(8, 4))[1] == ["dma-engine"]


def test_priorities_are_0_to_3_and_a_feature_of_trn3():
    assert not run(copy_body(priority=3), f32(8, 4), on="trn3")[1]
    assert run(copy_body(priority=0), f32(8, 4), on="trn2")[1] == ["priority"]
    for wrong in (4, -1, "high", 1.5):
        problem = refused("priority", "None or 0 to 3", copy_body(priority=wrong), f32(8, 4), on="trn3")
        assert isinstance(problem, ValueError)


def test_enums_are_members_but_dge_mode_takes_the_old_integers_every_time():
    def body(x):
        for _ in range(2):
            nisa.dma_copy(sbuf((8, 4)), x, dge_mode=3)
            assert nisa.dma_copy(sbuf((8, 4)), x, dge_mode=3).dge_mode is STATIC

    assert set(run(body, f32(8, 4))[1]) == {"legacy"}
    refused("enum", "nisa.dge_mode.hwdge", copy_body(dge_mode=9), f32(8, 4))
    refused("enum", "nisa.oob_mode.skip", copy_body(oob_mode=1), f32(8, 4))
    refused("enum", "nisa.engine.sync", copy_body(engine="sync"), f32(8, 4))


def test_skip_without_a_run_time_index_warns():
    assert run(copy_body(oob_mode=SKIP), f32(8, 4))[1] == ["oob-skip"]


@pytest.mark.parametrize("keyword, replacement", [("dst_rmw_op", "dma_compute"), ("mask", "min()")])
def test_keywords_of_older_releases_name_their_replacement(keyword, replacement):
    problem = refused("argument", f"'{keyword}'", copy_body(**{keyword: None}), f32(8, 4))
    assert replacement in str(problem)
    assert "accepted: dst, src, priority" in str(problem)


def test_unknown_keywords_are_explained_behind_a_legacy_wrapper():
    def body(x):
        nisa.dma_compute(x, [x], nl.add, scale=None)

    problem = refused("argument", "'scale'", body, f32(8, 4))
    assert "did you mean scales?" in str(problem)
    assert "test_dma.py" in str(problem)


# ---- dma_transpose -------------------------------------------------------------------------------

SHAPES = [(16, 128), (1, 1), (5, 9), (7, 3, 20), (1, 4, 2), (6, 2, 5, 11), (128, 1, 1, 33)]


@pytest.mark.tiny
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("on", PLATFORMS)
def test_transposes_exchange_the_first_and_the_last_dimension(shape, on):
    def body(x):
        tile = sbuf(x.shape[-1:] + x.shape[1:-1] + x.shape[:1], x.dtype)
        nisa.dma_transpose(tile, x)
        return out_of(tile)

    x = f32(*shape)
    got, seen = run(body, x, on=on)
    np.testing.assert_array_equal(got, np.swapaxes(x, 0, -1))
    assert not seen


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.itemsize > 1 and d != "tfloat32"])
@pytest.mark.parametrize("from_chip", [False, True])
def test_transposes_move_bits_of_every_2_and_4_byte_dtype(dtype, from_chip):
    raw = np.random.default_rng(1).integers(0, 256, (6, 9 * dtype.itemsize), np.uint8)

    def body(raw):
        source = to_tile(raw, nl.sbuf) if from_chip else raw
        tile = sbuf((9, 6), dtype)
        nisa.dma_transpose(tile, source.view(dtype), axes=[1, 0])
        return out_of(tile.view(nl.uint8))

    got, _ = run(body, raw, on="trn3")
    expected = raw.reshape(6, 9, dtype.itemsize).transpose(1, 0, 2).reshape(9, -1)
    np.testing.assert_array_equal(got, expected)


@settings(max_examples=200, deadline=None)
@given(shape=st.lists(st.integers(1, 9), min_size=2, max_size=4), wide=st.booleans(), seed=st.integers(0, 99))
def test_transposes_equal_numpy(shape, wide, seed):
    x = np.random.default_rng(seed).integers(-999, 999, shape).astype(np.int32 if wide else np.int16)

    def body(x):
        tile = sbuf(x.shape[-1:] + x.shape[1:-1] + x.shape[:1], x.dtype)
        nisa.dma_transpose(tile, x)
        return out_of(tile)

    got, _ = run(body, x)
    np.testing.assert_array_equal(got, np.swapaxes(x, 0, -1))


def test_a_square_tile_can_be_transposed_onto_itself():
    def body(x):
        tile = to_tile(x, nl.sbuf)
        nisa.dma_transpose(tile, tile)
        return out_of(tile)

    x = f32(12, 12)
    np.testing.assert_array_equal(run(body, x)[0], x.T)


def test_a_transpose_into_hbm_works_and_warns():
    def body(x):
        result = hbm((200, 3), nl.float32)
        nisa.dma_transpose(result, x)
        return result

    x = f32(3, 200)
    got, seen = run(body, x)
    np.testing.assert_array_equal(got, x.T)
    assert seen == ["transpose-hbm"]


def turned(x_shape, dtype=nl.bfloat16, dst=None, **options):
    """A body that transposes HBM `x` viewed in x_shape."""

    def body(x, *_):
        source = x.reshape(x_shape)
        shape = dst or (x_shape[-1], *x_shape[1:-1], x_shape[0])
        nisa.dma_transpose(sbuf(shape, dtype), source, **options)

    return body


def test_transposes_refuse_other_axes_and_shapes():
    x = f32(4, 6).astype(BF16)
    refused("axis", "axes=(0, 1) is not possible", turned((4, 6), axes=(0, 1)), x)
    refused("axis", "only (3, 1, 2, 0)", turned((2, 2, 1, 6), axes=(3, 2, 1, 0)), x)
    refused("rank", "2, 3 or 4 dimensions, it has 1", turned((24,), dst=(24, 1)), x)
    refused(
        "shape", "dst has shape (6, 4), the transpose has (6, 1, 1, 4)", turned((4, 1, 1, 6), dst=(6, 4)), x
    )
    refused("shape", "the transpose has (6, 4)", turned((4, 6), dst=(4, 6)), x)
    refused("dtype", "they must be equal", turned((4, 6), nl.float16), x)
    wide = np.zeros((2, 129), np.float32)
    refused("partition-limit", "at most 128", turned((2, 129), nl.float32, dst=(128, 2)), wide)


def test_transposes_refuse_single_bytes():
    problem = refused("dtype", "2 or 4 bytes", turned((4, 6), nl.uint8), np.zeros((4, 6), np.uint8))
    assert "view pairs of bytes" in str(problem)


def test_transposes_refuse_psum():
    def body(x):
        nisa.dma_transpose(nl.ndarray((6, 4), nl.float32, buffer=nl.psum), x)

    refused("buffer", "dst is in PSUM", body, f32(4, 6))


def test_hardware_transposes_have_their_own_limits():
    def halves(*shape):
        return np.zeros(shape, BF16)

    for shape in [(16, 128), (16, 3), (1, 16, 4), (4, 4, 7), (8, 2, 2, 128), (16, 3, 1, 5)]:
        assert not run(turned(shape, dge_mode=HW), halves(*shape))[1]
    refused("shape", "16 rows at a time, src has 32", turned((32, 8), dge_mode=HW), halves(32, 8))
    refused("shape", "src has 3 and 48", turned((3, 16, 8), dge_mode=HW), halves(3, 16, 8))
    refused("shape", "src has 4 and 12", turned((4, 3, 8), dge_mode=HW), halves(4, 3, 8))
    refused("dtype", "2-byte", turned((16, 8), nl.float32, dge_mode=HW), f32(16, 8))
    refused("generation", "needs trn2", turned((16, 8), dge_mode=HW), halves(16, 8), on="trn1")
    refused("dge-mode", "without indices cannot use", turned((16, 8), dge_mode=SW), halves(16, 8))
    assert not run(turned((16, 8), dge_mode=STATIC), halves(16, 8))[1]
    refused("priority", "0 to 3", turned((16, 8), priority=7), halves(16, 8))
    refused("oob-skip", "needs a src with a run-time index", turned((16, 8), oob_mode=SKIP), halves(16, 8))


def gathered(rows, *inner, oob_mode=nisa.oob_mode.error, dtype=nl.bfloat16, **options):
    """A body that gathers `rows` rows of shape `inner` by an index tile and transposes them."""

    def body(x, ids, old=None):
        index = to_tile(ids, nl.sbuf)
        size = int(np.prod(inner))
        steps = [[size, rows]]
        for d in range(len(inner)):
            steps.append([int(np.prod(inner[d + 1 :])), inner[d]])
        shape = (inner[-1], *inner[:-1], rows)
        tile = sbuf(shape, dtype) if old is None else to_tile(old, nl.sbuf)
        nisa.dma_transpose(tile, x.ap(steps, vector_offset=index), oob_mode=oob_mode, **options)
        return out_of(tile)

    return body


@pytest.mark.parametrize("on", ["trn2", "trn3"])
@pytest.mark.parametrize("inner", [(128,), (20,), (3, 8), (1, 4, 16), (4, 1, 16)])
@pytest.mark.parametrize("rows, columns", [(16, 1), (128, 1), (112, 1), (240, 2)])
def test_indirect_transposes_gather_down_the_partitions_of_the_indices(inner, rows, columns, on):
    x = f32(50, *inner).astype(BF16)
    partitions = 16 if rows == 16 else 128
    ids = np.random.default_rng(4).integers(0, 50, (partitions, columns)).astype(np.uint32)
    got, seen = run(gathered(rows, *inner, dge_mode=SW), x.reshape(50, -1), ids, on=on)
    flat = [int(ids[k % partitions, k // partitions]) for k in range(rows)]
    np.testing.assert_array_equal(got, np.swapaxes(x[flat], 0, -1))
    assert not seen


def test_indirect_transposes_skip_columns_of_dst():
    x = f32(50, 24).astype(BF16)
    old = f32(24, 32, seed=9).astype(BF16)
    ids = np.arange(32, dtype=np.uint32).reshape(32, 1) * 2
    got, _ = run(gathered(32, 24, oob_mode=SKIP), x, ids, old)
    np.testing.assert_array_equal(got[:, :25], x[::2].T)
    np.testing.assert_array_equal(got[:, 25:], old[:, 25:])
    refused("index", "index 50 of row 25", gathered(32, 24), x, ids, old)


def test_a_moved_source_can_be_transposed_and_skipped():
    def body(x, number):
        index, tile = to_tile(number, nl.sbuf), sbuf((6, 2), nl.bfloat16)
        nisa.memset(tile, 3.0)
        rows = x.ap([[6, 2], [1, 6]], scalar_offset=index)
        nisa.dma_transpose(tile, rows, oob_mode=SKIP)
        return out_of(tile)

    x = f32(5, 6).astype(BF16)
    np.testing.assert_array_equal(run(body, x, np.array([[3]], np.int32))[0], x[3:5].T)
    assert (run(body, x, np.array([[4]], np.int32))[0] == 3).all()


def test_indirect_transposes_refuse_what_is_documented():
    x = f32(50, 128).astype(BF16)

    def ids(p, f=1, dtype=np.uint32):
        return np.zeros((p, f), dtype)

    refused("generation", "a vector of indices needs trn2", gathered(16, 128), x, ids(16), on="trn1")
    refused("dtype", "indices must be uint32", gathered(16, 128), x, ids(16, dtype=np.int32))
    refused("dtype", "2-byte", gathered(16, 128, dtype=nl.float32), f32(50, 128), ids(16))
    refused("shape", "a multiple of 16", gathered(24, 128), x, ids(32))
    refused("shape", "16 indices for 32 rows", gathered(32, 128), x, ids(16))
    refused("shape", "16, 32, ... 128 partitions", gathered(16, 128), x, ids(24))
    refused("shape", "several columns of indices need 128", gathered(32, 128), x, ids(16, 2))
    refused("shape", "dimension 1 or 2 must be 1", gathered(16, 2, 4, 16), x, ids(16))
    refused("dge-mode", "a vector of indices cannot use", gathered(16, 128, dge_mode=HW), x, ids(16))
    refused("dge-mode", "a vector of indices cannot use", gathered(16, 128, dge_mode=STATIC), x, ids(16))

    def wide_rows(x, ids):
        rows = x.ap([[256, 16], [1, 256]], vector_offset=to_tile(ids, nl.sbuf))
        nisa.dma_transpose(hbm((256, 16), nl.bfloat16), rows)

    refused("partition-limit", "at most 128", wide_rows, f32(50, 256).astype(BF16), ids(16))

    def three(x, ids):
        index = to_tile(ids, nl.sbuf).reshape((128, 1, 2))
        nisa.dma_transpose(sbuf((128, 16), nl.bfloat16), x.ap([[128, 16], [1, 128]], vector_offset=index))

    refused("shape", "must have two dimensions", three, x, ids(128, 2))

    def scattered(x, index):
        rows = hbm((50, 16), nl.bfloat16).ap([[16, 16], [1, 16]], vector_offset=to_tile(index, nl.sbuf))
        nisa.dma_transpose(rows, x[0:16, 0:16])

    refused("indirect-view", "dst cannot have a vector of indices", scattered, x, ids(16))


# ---- dma_compute ---------------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize("count", [2, 3, 16])
@pytest.mark.parametrize("on", PLATFORMS)
def test_sources_are_added_in_float32_in_their_order(count, on):
    parts = [numbers((30, 11), dtypes.float32, seed=i) for i in range(count)]

    def body(*parts):
        result = hbm((30, 11), nl.float32)
        sources = [to_tile(p, nl.sbuf) if i % 2 else p for i, p in enumerate(parts)]
        nisa.dma_compute(result, sources, nl.add, scales=[1.0] * count)
        return result

    got, seen = run(body, *parts, on=on)
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part
    np.testing.assert_array_equal(got, expected)
    exact = np.sum([p.astype(np.float64) for p in parts], axis=0)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-2)
    assert not seen


@pytest.mark.parametrize("dtype", CASTABLE)
def test_sums_take_and_make_every_dtype(dtype):
    a, b = (dtypes.cast(np.arange(24, dtype=np.float32).reshape(4, 6) % n, dtype) for n in (3, 5))

    def body(a, b):
        result, tile = hbm((4, 6), dtype), sbuf((4, 6))
        nisa.dma_compute(result, (a, b), np.add)
        nisa.dma_compute(tile, [a, to_tile(b, nl.sbuf)], nl.add)
        return result, out_of(tile)

    (got, plain), _ = run(body, a, b, on="trn3")
    total = wide(a) + wide(b)
    np.testing.assert_array_equal(wide(got), wide(dtypes.cast(total.astype(np.float32), dtype)))
    np.testing.assert_array_equal(plain, total)


@settings(max_examples=200, deadline=None)
@given(
    count=st.integers(2, 6),
    shape=st.tuples(st.integers(1, 6), st.integers(1, 9)),
    seed=st.integers(0, 999),
    target_dtype=st.sampled_from(["float32", "bfloat16", "int16"]),
)
def test_sums_are_those_of_float64_rounded_once(count, shape, seed, target_dtype):
    rng = np.random.default_rng(seed)
    parts = [rng.integers(-2000, 2000, shape).astype(np.float32) / 8 for _ in range(count)]  # exact sums

    def body(*parts):
        result = hbm(shape, target_dtype)
        nisa.dma_compute(result, list(parts), nl.add)
        return result

    got, _ = run(body, *parts)
    exact = np.sum([p.astype(np.float64) for p in parts], axis=0)
    expected = dtypes.cast(exact.astype(np.float32), dtypes.resolve(target_dtype))
    np.testing.assert_array_equal(wide(got), wide(expected))


def test_listing_dst_accumulates():
    def body(x, y):
        tile = to_tile(x, nl.sbuf)
        nisa.dma_compute(tile, [tile, y], nl.add)
        nisa.dma_compute(tile, [y, tile, tile], nl.add)
        return out_of(tile)

    x, y = f32(4, 5), f32(4, 5, seed=1)
    np.testing.assert_allclose(run(body, x, y)[0], 2 * x + 3 * y, rtol=1e-5, atol=1e-5)


def test_one_source_is_copied_with_a_warning():
    def body(x):
        result = hbm((1, 3), nl.int32)
        nisa.dma_compute(result, [x], nl.add)
        return result

    x = np.array([[2**24 + 1, -1, 2**31 - 1]], np.int32)
    got, seen = run(body, x)
    np.testing.assert_array_equal(got, x)
    assert seen == ["dma-compute-single"]


def test_the_argument_order_of_nki_0_2_is_taken():
    def body(x, y):
        first, second = hbm((4, 5), nl.float32), hbm((4, 5), nl.float32)
        nisa.dma_compute(first, [x, y], [1.0, 1.0], nl.add)
        nisa.dma_compute(second, [x, y], (1, 1), reduce_op=nl.add)
        return first, second

    x, y = f32(4, 5), f32(4, 5, seed=1)
    (first, second), seen = run(body, x, y)
    np.testing.assert_array_equal(first, x + y)
    np.testing.assert_array_equal(second, x + y)
    assert seen == ["legacy", "legacy"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("first", [True, False])
def test_scatter_add_adds_tiles_to_rows_of_hbm(dtype, first):
    dtype = dtypes.resolve(dtype)
    table = dtypes.cast(np.arange(24, dtype=np.float32).reshape(6, 4), dtype)
    extra = dtypes.cast(np.arange(12, dtype=np.float32).reshape(3, 4) * 2, dtype)

    def body(table, ids, extra):
        result, index = hbm((6, 4), dtype), to_tile(ids, nl.sbuf)
        nisa.dma_copy(result, table)
        pattern = [[4, 3], [1, 4]]
        rows = result.ap(pattern, vector_offset=index)
        same = result.ap(pattern, vector_offset=index)
        tile = to_tile(extra, nl.sbuf)
        nisa.dma_compute(rows, [same, tile] if first else [tile, rows], nl.add, oob_mode=SKIP)
        return result

    got, seen = run(body, table, column([5, -1, 0]), extra)
    expected = wide(table)
    expected[5] += wide(extra)[0]
    expected[0] += wide(extra)[2]
    np.testing.assert_array_equal(wide(got), expected)
    assert not seen


def test_scatter_add_with_equal_indices_adds_to_the_old_value_and_the_last_wins():
    def body(table, ids, extra):
        result, index = hbm((3, 2), nl.float32), to_tile(ids, nl.sbuf)
        nisa.dma_copy(result, table)
        rows = result.vector_select(0, index)
        nisa.dma_compute(rows, [rows, to_tile(extra, nl.sbuf)], nl.add)
        return result

    table, extra = f32(3, 2), f32(3, 2, seed=1)
    got, seen = run(body, table, column([1, 1, 0]), extra)
    np.testing.assert_array_equal(got, [table[0] + extra[2], table[1] + extra[1], table[2]])
    assert seen == ["scatter-dup"]


@pytest.mark.parametrize("first", [True, False])
def test_gather_add_adds_rows_of_hbm_to_a_tile(first):
    def body(table, ids, start):
        tile, rows = to_tile(start, nl.sbuf), table.vector_select(0, to_tile(ids, nl.sbuf))
        nisa.dma_compute(tile[:, :], [tile, rows] if first else [rows, tile], nl.add, oob_mode=SKIP)
        return out_of(tile)

    table, start = f32(6, 4), f32(3, 4, seed=1)
    got, seen = run(body, table, column([5, 6, 0]), start)
    np.testing.assert_array_equal(got, [start[0] + table[5], start[1], start[2] + table[0]])
    assert not seen


def test_gather_add_out_of_bounds_is_an_error():
    def body(table, ids):
        tile = sbuf((2, 4))
        nisa.memset(tile, 0.0)
        nisa.dma_compute(tile, [tile, table.vector_select(0, to_tile(ids, nl.sbuf))], nl.add)

    assert isinstance(refused("index", "index 9 of row 1", body, f32(6, 4), column([5, 9])), IndexError)


def sum_body(**options):
    return lambda x, y: nisa.dma_compute(hbm(x.shape, nl.float32), [x, y], **{"reduce_op": nl.add, **options})


def test_sums_refuse_what_is_documented():
    x = f32(4, 5)
    refused("op", "is not possible here", sum_body(reduce_op=nl.maximum), x, x)
    refused("op", "scales must all be 1.0, got (2.0, 1.0)", sum_body(scales=[2.0, 1.0]), x, x)
    refused("shape", "1 scales for 2 sources", sum_body(scales=[1.0]), x, x)
    refused("argument", "scales must be None or", sum_body(scales=1.0), x, x)
    refused("oob-skip", "needs an operand with a vector", sum_body(oob_mode=SKIP), x, x)
    refused("enum", "nisa.oob_mode.skip", sum_body(oob_mode="skip"), x, x)
    refused("shape", "dst has 20 elements, src1 has 15", sum_body(), x, f32(3, 5))

    def many(count):
        return lambda x: nisa.dma_compute(hbm(x.shape, nl.float32), [x] * count, nl.add)

    refused("shape", "1 to 16 sources, got 17", many(17), x)
    refused("shape", "1 to 16 sources, got 0", many(0), x)
    refused("argument", "a list of tensors", lambda x: nisa.dma_compute(x, x, nl.add), x)
    refused("argument", "a list of tensors", lambda x: nisa.dma_compute(x, [x, 1.0], nl.add), x)

    def psum(x):
        tile = nl.ndarray((4, 5), nl.float32, buffer=nl.psum)
        nisa.dma_compute(hbm((4, 5), nl.float32), [x, tile], nl.add)

    refused("buffer", "src1 is in PSUM", psum, x)

    def packed(raw):
        view = raw.view(nl.float8_e4m3fn_x4)
        nisa.dma_compute(hbm((4, 2), nl.float8_e4m3fn_x4), [view, view], nl.add)

    refused("dtype", "no engine can convert", packed, np.zeros((4, 8), np.uint8), on="trn3")


def test_read_modify_write_refuses_what_is_documented():
    x, ids = f32(6, 4), column([0, 1, 2])

    def with_rows(call):
        def body(x, ids):
            table, tile, index = hbm((6, 4), nl.float32), sbuf((3, 4)), to_tile(ids, nl.sbuf)
            nisa.dma_copy(table, x)
            nisa.memset(tile, 1.0)
            call(table, table.vector_select(0, index), tile)

        return body

    cases = [
        ("shape", "needs two sources, got 3", lambda t, r, a: nisa.dma_compute(r, [r, a, a], nl.add)),
        ("shape", "needs two sources, got 1", lambda t, r, a: nisa.dma_compute(a, [r], nl.add)),
        (
            "op",
            "unique_indices must be True",
            lambda t, r, a: nisa.dma_compute(r, [r, a], nl.add, None, False),
        ),
        ("indirect-view", "must be dst itself", lambda t, r, a: nisa.dma_compute(r, [a, a], nl.add)),
        ("indirect-view", "must be dst itself", lambda t, r, a: nisa.dma_compute(t[0:3], [r, a], nl.add)),
        ("buffer", "src1 must be in SBUF", lambda t, r, a: nisa.dma_compute(r, [r, t[0:3]], nl.add)),
        ("buffer", "dst must be in SBUF", lambda t, r, a: nisa.dma_compute(t[0:3], [t[0:3], r], nl.add)),
    ]
    for kind, text, call in cases:
        refused(kind, text, with_rows(call), x, ids)


def test_another_tensor_of_the_same_shape_is_not_dst():
    """What makes a view dst itself is its storage, which no shape tells."""

    def body(x, ids, other):
        first, second = hbm((6, 4), nl.float32), hbm((6, 4), nl.float32)
        nisa.dma_copy(first, x)
        nisa.dma_copy(second, x)
        tile, index = sbuf((3, 4)), to_tile(ids, nl.sbuf)
        nisa.memset(tile, 1.0)
        for source in (first, second):
            rows = first.vector_select(0, index)
            nisa.dma_compute(rows, [source.vector_select(0, index), tile], nl.add)

    refused("indirect-view", "must be dst itself", body, f32(6, 4), column([0, 1, 2]), column([3, 4, 5]))


def test_a_run_time_offset_is_refused_in_sums():
    def body(x, number):
        index, tile = to_tile(number, nl.sbuf), sbuf((2, 4))
        nisa.memset(tile, 1.0)
        rows = x.ap([[4, 2], [1, 4]], scalar_offset=index)
        nisa.dma_compute(tile, [tile, rows], nl.add)

    refused("indirect-view", "src1 has a run-time offset", body, f32(6, 4), np.array([[1]], np.int32))


# ---- descriptors ---------------------------------------------------------------------------------


def described(body, *arrays, on="trn2"):
    """(descriptors, rate fraction, who generates them) of the instruction a body returns."""
    found = []

    def kernel_body(*tensors):
        instruction = body(*tensors)
        m = find(on)
        found.append((instruction.descriptors(m), instruction.rate_fraction(m), instruction.generated_by(m)))
        assert instruction.cost(m).cycles == 0

    run(kernel_body, *arrays, on=on)
    return found[0]


def test_a_dense_load_is_one_descriptor_per_partition():
    x = f32(128, 512)
    assert described(lambda x: nisa.dma_copy(sbuf((128, 512)), x), x) == (
        [Descriptors(0, 128, 2048, 1, joined=128)],
        1.0,
        "software",
    )
    got, _, mode = described(lambda x: nisa.dma_copy(sbuf((128, 512)), x, dge_mode=HW), x)
    assert mode == "hardware"
    _, _, mode = described(lambda x: nisa.dma_copy(sbuf((128, 512)), x, dge_mode=STATIC), x)
    assert mode == "static"
    assert described(lambda x: nisa.dma_copy(sbuf((128, 512)), x), x, on="trn1")[2] == "static"


def test_a_slice_of_columns_is_contiguous_in_each_partition_and_row():
    def body(x):
        return nisa.dma_copy(sbuf((64, 100))[32:64, 0:50], x[0:32, 7:57])

    assert described(body, f32(64, 100))[0] == [Descriptors(32, 32, 200, 1)]


def test_strides_on_either_side_cut_pieces():
    x = f32(16, 64)
    assert described(lambda x: nisa.dma_copy(sbuf((16, 32)), x[:, ::2]), x)[0] == [Descriptors(0, 16, 4, 32)]
    assert described(lambda x: nisa.dma_copy(sbuf((16, 128))[:, ::2], x), x)[0] == [
        Descriptors(0, 16, 4, 64, joined=16)
    ]

    def blocks(x):
        return nisa.dma_copy(sbuf((16, 8, 8)), x.reshape((16, 8, 8)).permute((0, 2, 1)))

    assert described(blocks, x)[0] == [Descriptors(0, 16, 4, 64)]

    def rows(x):
        return nisa.dma_copy(sbuf((16, 4, 10))[:, :, 0:8], x.reshape((16, 8, 8))[:, 0:4])

    assert described(rows, x)[0] == [Descriptors(0, 16, 32, 4)]


def test_a_cast_counts_the_wider_side():
    x = f32(16, 64)
    assert described(lambda x: nisa.dma_copy(sbuf((16, 64), nl.bfloat16), x), x)[0] == [
        Descriptors(0, 16, 256, 1, joined=16)
    ]
    assert described(lambda x: nisa.dma_copy(sbuf((16, 64)), x), x.astype(BF16))[0] == [
        Descriptors(0, 16, 256, 1, joined=16)
    ]


def test_copies_between_hbm_tensors_go_row_by_row():
    x = f32(300, 64)
    assert described(lambda x: nisa.dma_copy(hbm((300, 64), nl.float32), x), x)[0] == [
        Descriptors(0, 300, 256, 1, joined=300)
    ]
    assert described(lambda x: nisa.dma_copy(hbm((64,), nl.float32), x[0]), x)[0] == [
        Descriptors(0, 1, 256, 1)
    ]


def test_gathers_are_one_descriptor_per_row_by_software():
    def body(x, ids):
        return nisa.dma_copy(sbuf((4, 64)), x.vector_select(0, to_tile(ids, nl.sbuf)))

    found = described(body, f32(9, 64), column([1, 2, 3, 4]), on="trn1")
    assert found == ([Descriptors(0, 4, 256, 1)], 1.0, "software")


def test_breaks_that_interleave_make_uneven_pieces():
    """Partitions of 6 elements against HBM runs of 4: pieces of 4 and 2, 2 and 4, ..."""

    def body(x):
        return nisa.dma_copy(sbuf((4, 6)), x[:, 0:4])

    found, _, _ = described(body, f32(6, 5))
    assert sorted(found) == sorted(
        [
            Descriptors(0, 4, 16, 1),
            Descriptors(0, 4, 8, 1),
        ]
    )
    assert sum(d.partitions * d.nbytes * d.per_partition for d in found) == 96


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_pieces_hold_every_byte_once_and_break_where_an_address_jumps(data):
    rows, inner = data.draw(st.integers(1, 6)), data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=2))
    gap = data.draw(st.integers(0, 2))
    total = rows * int(np.prod(inner))
    other = data.draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
    skip = data.draw(st.integers(0, 2))
    seen = []

    def body(x):
        tile = sbuf((rows, *inner[:-1], inner[-1] + gap))
        dst = tile[..., 0 : inner[-1]]
        src = x.reshape((total // other, other + skip))[:, 0:other]
        seen.append((dst, src, pieces(dst, src)))

    run(body, np.zeros((total // other, other + skip), np.float32))
    dst, src, found = seen[0]
    assert sum(d.partitions * d.nbytes * d.per_partition for d in found) == total * 4
    stream_dst = [sum(k * s for k, s in zip(p, dst.strides, strict=True)) for p in np.ndindex(*dst.shape)]
    stream_src = [sum(k * s for k, s in zip(p, src.strides, strict=True)) for p in np.ndindex(*src.shape)]
    row = total // rows
    jumps = sum(
        k % row == 0 or stream_dst[k] != stream_dst[k - 1] + 1 or stream_src[k] != stream_src[k - 1] + 1
        for k in range(total)
    )
    assert sum(d.partitions * d.per_partition for d in found) == jumps
    assert elem_bytes(dst, src) == 4
    assert 1 <= contiguous_run(dst) <= row


def test_transposes_run_at_a_fraction_of_the_rate():
    x = f32(16, 128).astype(BF16)

    def load(x):
        return nisa.dma_transpose(sbuf((128, 16), nl.bfloat16), x)

    def inside(x):
        return nisa.dma_transpose(sbuf((128, 16), nl.bfloat16), to_tile(x, nl.sbuf))

    assert described(load, x) == ([Descriptors(0, 128, 32, 1)], 0.9, "software")
    assert described(inside, x)[1] == 0.5
    assert described(load, x, on="trn1")[:2] == ([Descriptors(0, 128, 2, 16)], 1.0)


def test_sums_move_every_source_at_half_the_rate_before_trn3():
    def body(x, y):
        return nisa.dma_compute(hbm((8, 64), nl.float32), [x, y, x], nl.add)

    x = f32(8, 64)
    found = described(body, x, x)
    assert found == ([Descriptors(0, 8, 256, 1, joined=8)] * 3, 0.5, "static")
    assert described(body, x, x, on="trn3")[1] == 1.0

    def gather(x, ids):
        tile = sbuf((2, 64))
        nisa.memset(tile, 0.0)
        instruction = nisa.dma_compute(tile, [tile, x.vector_select(0, to_tile(ids, nl.sbuf))], nl.add)
        assert len(instruction.transfers()) == 2
        return instruction

    assert described(gather, x, column([1, 2]))[2] == "software"
