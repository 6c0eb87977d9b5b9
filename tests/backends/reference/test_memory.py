"""Memories: poison, written bytes, addresses, wide floats (spec/tensor.md 8, spec/language.md 4, 6.5)."""

from __future__ import annotations

import gc
import tracemalloc
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.reference import memory as memory_module
from nki.backends.reference.memory import ElementMap, Memory
from nki.backends.reference.placed import ChipMemory, PlacedMemory
from nki.ir.context import running
from nki.ir.storage import Storage
from nki.ir.tensor import whole
from support import run_tiles

FLOATS = [nl.float32, nl.bfloat16, nl.float16, nl.tfloat32, nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2]
INTEGERS = [nl.int8, nl.uint8, nl.int16, nl.uint16, nl.int32, nl.uint32]
NARROW = [nl.float16, nl.bfloat16, nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2]


def run(body, *arrays, strict=False):
    """The value `body(*tensors)` returned in a kernel, and the kinds of the diagnostics."""
    seen = []

    @nki.jit
    def kernel(tensors):
        seen.append(body(*tensors))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        finished = kernel.run(list(arrays))
    # these kernels return nothing on purpose
    return seen[0], [d.kind for d in finished.diagnostics if d.kind != "no-effect"]


def out_of(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def fill(tile, value):
    nisa.memset(tile, value)
    return tile


# ---- poison --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "buffer, address",
    [(nl.sbuf, None), (nl.sbuf, (0, 512)), (nl.psum, None), (nl.psum, (0, 512)), (nl.hbm, None)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_fresh_memory_is_nan_or_4(dtype, buffer, address):
    def body():
        return np.asarray(nl.ndarray((32, 24), dtype, buffer=buffer, address=address)).astype(np.float32)

    values, _ = run(body)
    assert (np.isnan(values) if dtype in FLOATS else values == 4).all()


@pytest.mark.parametrize("dtype", [nl.float8_e8m0fnu, nl.float8_e4m3fn_x4, nl.float4_e2m1fn_x4], ids=str)
def test_fresh_packed_memory_is_all_ones(dtype):
    values, _ = run(lambda: np.asarray(nl.ndarray((4, 6), dtype)))
    assert (values.view(np.uint8) == 0xFF).all()


@pytest.mark.tiny
def test_what_was_not_written_stays_poison():
    def body():
        tile = nl.ndarray((4, 6), nl.float32)
        nisa.memset(tile[1:3, 2:4], 5.0)
        return np.asarray(tile)

    wanted = np.full((4, 6), np.nan, np.float32)
    wanted[1:3, 2:4] = 5
    np.testing.assert_array_equal(run(body)[0], wanted)


# ---- reading what was never written --------------------------------------------------------------


def test_reading_a_fresh_tile_is_a_diagnostic_that_names_tile_and_lines():
    @nki.jit
    def kernel(x):
        late = nl.ndarray((4, 6), nl.float32, name="late")
        tile = nl.ndarray((4, 6), nl.float32)
        nisa.tensor_copy(tile, late)
        nisa.tensor_copy(tile, tile)  # what depends on it is not reported again
        nisa.dma_copy(x, tile)

    with pytest.warns(nki.NkiWarning, match="'late' is read, but part of it was never written") as caught:
        finished = kernel.run(np.zeros((4, 6), np.float32))
    [found] = finished.diagnostics
    first = kernel.func.__code__.co_firstlineno
    assert found.kind == "uninitialised" and found.site.lineno == first + 4
    assert f"test_memory.py:{first + 2}" in found.notes[0]
    assert len(caught) == 1 and caught[0].lineno == first + 4


@pytest.mark.parametrize("cache", ["0", "1"])
@pytest.mark.parametrize("dtype, rest", [("uint8", 0), ("int32", 0), ("float32", np.nan)])
def test_what_was_not_written_of_a_returned_tensor_is_0_or_nan(dtype, rest, cache, monkeypatch):
    monkeypatch.setenv("OPEN_NKI_CACHE", cache)

    @nki.jit
    def kernel(x):
        result = nl.ndarray((4, 6), x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(result[1:3], x)
        return result

    x = np.arange(1, 13).reshape(2, 6).astype(dtype)
    wanted = np.full((4, 6), rest, dtype)
    wanted[1:3] = x
    with pytest.warns(nki.NkiWarning, match="(?s)never written.*what was not written is (0|poison)"):
        np.testing.assert_array_equal(kernel(x), wanted)


def test_strict_mode_makes_it_an_error(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")

    @nki.jit
    def kernel(x):
        nisa.dma_copy(x, nl.ndarray((4, 6), nl.float32))

    with pytest.raises(nki.NkiError) as caught:
        kernel(np.zeros((4, 6), np.float32))
    assert caught.value.kind == "uninitialised"


def test_only_the_unwritten_part_is_reported():
    def body():
        tile, other = nl.ndarray((4, 8), nl.float32), nl.ndarray((4, 8), nl.float32)
        nisa.memset(tile[:, 0:4], 1.0)
        nisa.tensor_copy(other[:, 0:4], tile[:, 0:4])
        nisa.tensor_copy(other[0:2, 4:6], tile[0:2, 1:3])
        return None

    assert run(body)[1] == []

    def reads_more():
        tile, other = nl.ndarray((4, 8), nl.float32), nl.ndarray((4, 8), nl.float32)
        nisa.memset(tile[:, 0:4], 1.0)
        nisa.tensor_copy(other[:, 0:5], tile[:, 0:5])

    assert run(reads_more)[1] == ["uninitialised"]


def test_a_line_in_a_loop_is_reported_once_and_each_line_by_itself():
    def body():
        for _ in range(5):
            fresh, tile = nl.ndarray((4, 8), nl.float32), nl.ndarray((4, 8), nl.float32)
            nisa.tensor_copy(tile, fresh)
            nisa.tensor_copy(tile, fresh)

    assert run(body)[1] == ["uninitialised", "uninitialised"]


def test_tiles_written_in_pieces_count_as_written():
    def body():
        tile, sink = nl.ndarray((8, 12), nl.float32), nl.ndarray((8, 12), nl.float32)
        for p in range(0, 8, 2):
            for f in range(3):
                nisa.memset(tile[p : p + 2, f::3], 1.0)
        nisa.tensor_copy(sink, tile)

    assert run(body)[1] == ["start-partition"] or run(body)[1] == []
    assert "uninitialised" not in run(body)[1]


def test_views_of_other_widths_mark_and_check_bytes():
    def body():
        words, sink = nl.ndarray((4, 4), nl.int32), nl.ndarray((4, 8), nl.uint16)
        halves = words.view(nl.uint16)
        nisa.memset(halves[:, 0:3], 1)
        nisa.tensor_copy(sink[:, 0:3], halves[:, 0:3])  # written
        nisa.memset(words[:, 2:4], 1)
        nisa.tensor_copy(sink[:, 4:8], halves[:, 4:8])  # written through the other width
        nisa.tensor_copy(sink[:, 3:4], halves[:, 3:4])  # never written

    kinds = run(body)[1]
    assert kinds == ["uninitialised"]

    def read_first():
        words, sink = nl.ndarray((4, 4), nl.int32), nl.ndarray((4, 8), nl.uint16)
        nisa.memset(words[:, 0:2], 1)
        nisa.tensor_copy(sink[:, 0:4], words.view(nl.uint16)[:, 0:4])  # the map becomes one of bytes
        nisa.memset(words[:, 2:3], 1)
        nisa.tensor_copy(sink[:, 4:8], words.view(nl.uint16)[:, 4:8])

    assert run(read_first)[1] == ["uninitialised"]


def test_a_returned_tensor_that_was_not_written_is_reported_at_the_return():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((4, 6), x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((2, 6), x.dtype)
        nisa.dma_copy(tile, x[0:2])
        nisa.dma_copy(out[0:2], tile)
        return out

    with pytest.warns(nki.NkiWarning, match="never written"):
        finished = kernel.run(np.ones((4, 6), np.float32))
    [found] = finished.diagnostics
    assert found.kind == "uninitialised" and found.site.text == "return out"
    np.testing.assert_array_equal(finished.result, [[1] * 6] * 2 + [[np.nan] * 6] * 2)


def test_arguments_count_as_written():
    assert run(lambda x: out_of(x) and None, np.zeros((4, 6), np.float32))[1] == []


@st.composite
def pieces(draw):
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    count = draw(st.integers(1, 6))
    found = []
    for _ in range(count):
        p = sorted(draw(st.lists(st.integers(0, rows), min_size=2, max_size=2, unique=True)))
        width = draw(st.sampled_from([1, 2, 4]))
        length = columns * 4 // width
        f = sorted(draw(st.lists(st.integers(0, length), min_size=2, max_size=2, unique=True)))
        found.append((draw(st.booleans()), p, width, f, draw(st.integers(1, 3))))
    return rows, columns, found


@settings(max_examples=200, deadline=None)
@given(pieces())
def test_any_order_of_writes_and_reads_agrees_with_a_map_of_bytes(case):
    """Element maps against a plain array of bytes, through views of every width."""
    rows, columns, found = case
    storage = Storage(nl.sbuf, (rows, columns), nl.float32)
    memory = Memory(storage)
    tile = whole(storage, None)
    names = {1: nl.uint8, 2: nl.uint16, 4: nl.float32}
    written = np.zeros((rows, columns * 4), bool)
    for is_write, (p0, p1), width, (f0, f1), step in found:
        view = tile.view(names[width])[p0:p1, f0:f1:step]
        part = written.reshape(rows, -1, width)[p0:p1, f0:f1:step]
        if is_write:
            memory.write(view)
            part[...] = True
        assert memory.is_written(view) == part.all()
    assert memory.is_written(tile) == written.all()


# ---- explicit addresses --------------------------------------------------------------------------


def placed(shape, dtype=nl.float32, byte=0, partition=0, buffer=nl.sbuf, name=""):
    return nl.ndarray(shape, dtype, buffer=buffer, name=name, address=(partition, byte))


@pytest.mark.tiny
def test_overlapping_addresses_share_bytes_both_ways():
    def body():
        a, b = placed((32, 8)), placed((32, 8), byte=16)
        fill(a, 1.0)
        fill(b, 2.0)
        first = np.asarray(a)
        fill(a[:, 6:8], 3.0)
        return first, np.asarray(b)

    (a, b), _ = run(body)
    np.testing.assert_array_equal(a, np.tile([1, 1, 1, 1, 2, 2, 2, 2], (32, 1)))
    np.testing.assert_array_equal(b, np.tile([2, 2, 3, 3, 2, 2, 2, 2], (32, 1)))


def test_tensors_of_other_dtypes_see_the_bits():
    def body():
        words, halves = placed((4, 2), nl.uint32), placed((4, 4), nl.uint16)
        fill(words, 0x00020001)
        return np.asarray(halves)

    np.testing.assert_array_equal(run(body)[0], np.tile([1, 2, 1, 2], (4, 1)))


def test_partition_starts_are_physical():
    def body():
        whole_sbuf, upper = placed((128, 2)), placed((32, 2), partition=64)
        fill(whole_sbuf, 1.0)
        fill(upper, 5.0)
        return np.asarray(whole_sbuf)

    values, _ = run(body)
    assert (values[64:96] == 5).all() and (values[:64] == 1).all() and (values[96:] == 1).all()


def test_a_new_tensor_at_the_same_address_reads_the_old_contents():
    def body():
        fill(placed((4, 2)), 7.0)
        gc.collect()  # the first tensor is gone, its bytes are not
        return np.asarray(placed((4, 4)))

    values, _ = run(body)
    np.testing.assert_array_equal(values, np.tile([7, 7, np.nan, np.nan], (4, 1)))


def test_reading_what_another_tensor_wrote_last_is_a_stale_read():
    def body():
        a, b, sink = placed((32, 8), name="a"), placed((32, 8), name="b"), nl.ndarray((32, 8), nl.float32)
        fill(a, 1.0)
        nisa.tensor_copy(sink, a)  # its own bytes
        fill(b, 2.0)
        nisa.tensor_copy(sink, b)
        nisa.tensor_copy(sink, a)  # now b's

    assert run(body)[1] == ["stale-read"]


def test_a_stale_read_of_a_dead_tensors_bytes_and_an_uninitialised_one_differ():
    def stale():
        fill(placed((4, 2)), 7.0)
        nisa.tensor_copy(nl.ndarray((4, 2), nl.float32), placed((4, 2)))

    def uninitialised():
        fill(placed((4, 2)), 7.0)
        nisa.tensor_copy(nl.ndarray((4, 4), nl.float32), placed((4, 4)))

    assert run(stale)[1] == ["stale-read"]
    assert run(uninitialised)[1] == ["uninitialised"]


def test_a_tensor_that_shares_only_unwritten_bytes_is_not_stale():
    def body():
        a, b = placed((32, 8)), placed((32, 8), byte=16)
        sink = nl.ndarray((32, 4), nl.float32)
        fill(a, 1.0)
        fill(b[:, 4:8], 2.0)  # beyond a
        nisa.tensor_copy(sink, a[:, 4:8])
        fill(b[:, 0:2], 2.0)
        nisa.tensor_copy(sink, a[:, 0:4])  # before b
        nisa.tensor_copy(sink[:, 0:2], a[:, 6:8])  # between b's writes

    assert run(body)[1] == []


def test_neighbours_in_other_partitions_or_columns_are_not_stale():
    def body():
        a, b = placed((16, 8)), placed((16, 8), partition=16)
        c = placed((16, 8), byte=32)
        sink = nl.ndarray((16, 8), nl.float32)
        for tile in (a, b, c):
            fill(tile, 1.0)
        for tile in (a, b, c):
            nisa.tensor_copy(sink, tile)

    assert set(run(body)[1]) <= {"start-partition"}


def test_interleaved_columns_belong_to_the_tensor_that_wrote_them():
    def body():
        a, b = placed((4, 8)), placed((4, 8))
        sink = nl.ndarray((4, 4), nl.float32)
        fill(a, 1.0)
        fill(b[:, ::2], 2.0)
        nisa.tensor_copy(sink, a[:, 1::2])
        nisa.tensor_copy(sink, b[:, ::2])

    assert run(body)[1] == []


def test_unwritten_parts_of_placed_tiles_are_reported():
    def body():
        a, sink = placed((4, 8)), nl.ndarray((4, 8), nl.float32)
        fill(a[0:2], 1.0)
        nisa.tensor_copy(sink[0:2], a[0:2])
        nisa.tensor_copy(sink, a)

    assert run(body)[1] == ["uninitialised"]


def test_sixteen_tensors_on_four_slots():
    def body():
        slots = [placed((32, 8), byte=(i % 4) * 32, name=f"slot{i}") for i in range(16)]
        sums = []
        for i, tile in enumerate(slots):
            fill(tile, float(i))
            sums.append(np.asarray(tile))
            nisa.tensor_copy(nl.ndarray((32, 8), nl.float32), tile)
        return sums

    sums, kinds = run(body)
    assert kinds == [] and all((values == i).all() for i, values in enumerate(sums))


def test_a_write_checks_only_tensors_that_hold_bytes_there():
    """Lists of thousands of tensors on a few slots are common; only the last writers matter."""

    def body():
        slots = [fill(placed((32, 8), byte=(i % 4) * 4096), float(i)) for i in range(64)]
        running().read_back()
        memories = [running().memories[tile.storage] for tile in slots]
        left = [memory for memory in memories if memory.holds]
        return left == memories[-4:], sum(map(len, memories[0].chip.holders)), left[0].rivals()

    assert run(body)[0] == (True, 4, [])


def test_automatic_tiles_are_beside_explicit_ones():
    def body():
        automatic = fill(nl.ndarray((128, 64), nl.float32), 1.0)
        explicit = fill(placed((128, 64)), 2.0)
        later = fill(nl.ndarray((128, 64), nl.float32), 3.0)
        return np.asarray(automatic), np.asarray(explicit), np.asarray(later)

    values, _ = run(body)
    assert [v.flat[0] for v in values] == [1, 2, 3] and all((v == v.flat[0]).all() for v in values)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_any_use_of_overlapping_addresses_agrees_with_a_memory_of_bytes(data):
    """Tensors come, go, write and read in a small chip; the model notes the last writer of each byte."""
    rows, pitch = 4, 16
    chip = ChipMemory(rows, pitch)
    values, writers = np.zeros((rows, pitch), np.uint8), np.zeros((rows, pitch), int)
    dtypes = {1: nl.uint8, 2: nl.uint16, 4: nl.uint32}
    live, made = {}, 0
    for step in range(data.draw(st.integers(1, 14))):
        act = data.draw(st.sampled_from(["make", "make", "drop", "write", "write", "write", "read", "read"]))
        if act == "make" or not live:
            width = data.draw(st.sampled_from([1, 2, 4]))
            p, n = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(1, 8 // width + 1))
            count = data.draw(st.integers(1, rows - p))
            byte = data.draw(st.integers(0, (pitch - n * width) // width)) * width
            made += 1
            storage = Storage(nl.sbuf, (count, n), dtypes[width], address=(p, byte), number=made)
            live[made] = whole(storage, None), PlacedMemory(storage, chip)
            continue
        number = data.draw(st.sampled_from(sorted(live)))
        if act == "drop":
            live.pop(number)[1].released()
            continue
        tile, memory = live[number]
        count, n = tile.shape
        p0, f0 = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, n - 1))
        key = np.s_[
            p0 : data.draw(st.integers(p0 + 1, count)),
            f0 : data.draw(st.integers(f0 + 1, n)) : data.draw(st.integers(1, 2)),
        ]
        (partition, byte), width = tile.storage.address, tile.dtype.itemsize
        mine = np.s_[partition : partition + count, byte : byte + n * width]
        seen = values[mine].reshape(count, n, width)[key]
        owner = writers[mine].reshape(count, n, width)[key]
        if act == "write":
            memory.write(tile[key])[...] = step + 1
            seen[...] = np.full(seen.shape[:2], step + 1, tile.dtype.storage)[..., None].view(np.uint8)
            owner[...] = number
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = memory.read(tile[key])
        expected = [] if (owner == number).all() else ["stale-read"] if owner.all() else ["uninitialised"]
        assert [w.category.kind for w in caught] == expected
        known = (owner != 0).all(axis=-1)
        np.testing.assert_array_equal(got[known], seen.copy().view(tile.dtype.storage)[..., 0][known])
        assert (got[(owner == 0).all(axis=-1)] == 4).all()  # poison


def test_widened_reads_of_placed_tiles_never_go_stale():
    """A matmul converts its inputs to float32 once per write; another tensor's write must count."""

    def body(x):
        a = placed((32, 32), nl.bfloat16)
        b = placed((32, 32), nl.bfloat16)
        ones = fill(nl.ndarray((32, 32), nl.bfloat16), 1.0)
        psum = nl.ndarray((32, 32), nl.float32, buffer=nl.psum)
        fill(a, 1.0)
        nisa.nc_matmul(psum, ones, a, accumulate=False)
        fill(b, 2.0)
        nisa.nc_matmul(psum, ones, a, accumulate=False)
        return np.asarray(psum)

    values, kinds = run(body, np.zeros(1, np.int8))
    assert (values == 64).all() and kinds == ["stale-read"]


# ---- PSUM accumulation bits ----------------------------------------------------------------------


def accumulated(steps, dtype=nl.float32, address=None, columns=8):
    """A PSUM tile after the given steps; `product` adds (or stores) 32 through a view."""

    def body():
        ones = fill(nl.ndarray((32, 32), nl.bfloat16), 1.0)
        moving = fill(nl.ndarray((32, columns), nl.bfloat16), 1.0)
        psum = nl.ndarray((32, columns), dtype, buffer=nl.psum, address=address)

        def product(view, **options):
            nisa.nc_matmul(view, ones, moving[:, 0 : view.shape[1]], **options)

        steps(psum, product)
        return np.asarray(psum)[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(body)[0].tolist()


def test_the_first_matmul_overwrites_and_the_next_accumulate():
    def steps(psum, product):
        for _ in range(3):
            product(psum)

    assert accumulated(steps) == [96] * 8 == accumulated(steps, address=(0, 0))


def test_overlapping_matmuls_accumulate_on_the_overlap_alone():
    def steps(psum, product):
        product(psum[:, 0:5])
        product(psum[:, 3:8])

    assert accumulated(steps) == [32, 32, 32, 64, 64, 32, 32, 32]


@pytest.mark.parametrize("address", [None, (0, 0)])
def test_another_write_ends_the_accumulation_where_it_wrote(address):
    def steps(psum, product):
        product(psum)
        nisa.memset(psum[:, 2:4], 5.0)
        product(psum)

    assert accumulated(steps, address=address) == [64, 64, 32, 32, 64, 64, 64, 64]


def test_reading_does_not_end_the_accumulation():
    def steps(psum, product):
        product(psum)
        nisa.tensor_copy(nl.ndarray((32, 8), nl.float32), psum)
        product(psum)

    assert accumulated(steps) == [64] * 8


def test_a_fresh_tensor_at_the_same_address_starts_clean():
    def steps(psum, product):
        product(psum)
        again = nl.ndarray((32, 8), nl.float32, buffer=nl.psum, address=(0, 0))
        product(again)
        product(again[:, 0:4])

    assert accumulated(steps, address=(0, 0)) == [64] * 4 + [32] * 4


def test_a_matmul_into_one_of_two_live_tensors_clears_the_others_bits_there():
    def steps(psum, product):
        other = nl.ndarray((32, 4), nl.float32, buffer=nl.psum, address=(0, 16))
        product(psum)
        product(other[:, 0:2])
        product(psum)

    assert accumulated(steps, address=(0, 0)) == [64] * 4 + [32] * 2 + [64] * 2


def test_accumulate_false_overwrites_and_true_adds():
    def steps(psum, product):
        product(psum)
        product(psum, accumulate=False)
        product(psum[:, 0:4], accumulate=True)

    assert accumulated(steps) == [64] * 4 + [32] * 4


# ---- NKI_PRECISE_FP=0 ----------------------------------------------------------------------------


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("NKI_PRECISE_FP", "0")


ODD = np.array([[1.00001, -3.14159, 0.1, 100.3]], np.float32).repeat(4, 0)


@pytest.mark.parametrize("address", [None, (0, 64)], ids=["automatic", "placed"])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_floats_hold_float32_values(wide, dtype, address):
    def body(x):
        source = nl.ndarray((4, 4), nl.float32)
        nisa.dma_copy(source, x)
        tile = nl.ndarray((4, 4), dtype, address=address)
        nisa.tensor_copy(tile, source)
        twin = nl.ndarray((4, 4), dtype)
        nisa.tensor_copy(twin, tile)
        back = nl.ndarray((4, 4), nl.float32)
        nisa.tensor_copy(back, twin)
        assert tile.dtype is dtype and twin.view(nl.uint8).shape == (4, 4 * dtype.itemsize)
        return np.asarray(back)

    np.testing.assert_array_equal(run(body, ODD)[0], ODD)


def test_precise_mode_rounds_on_every_store():
    def body(x):
        tile, back = nl.ndarray((4, 4), nl.bfloat16), nl.ndarray((4, 4), nl.float32)
        nisa.dma_copy(tile, x)
        nisa.tensor_copy(back, tile)
        return np.asarray(back)

    np.testing.assert_array_equal(run(body, ODD)[0], ODD.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_results_and_written_arguments_leave_with_their_declared_dtype(wide, dtype):
    @nki.jit
    def kernel(x, written):
        out = nl.ndarray(x.shape, dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, dtype)
        nisa.dma_copy(tile, x)
        nisa.dma_copy(out, tile)
        nisa.dma_copy(written, tile)
        return out, out.reshape((16,)), out.view(nl.uint8)

    written = np.zeros((4, 4), dtype.storage)
    out, flat, bits = kernel(ODD, written)
    wanted = ODD.astype(dtype.storage)
    for got in (out, flat.reshape(4, 4), written, bits.view(dtype.storage)):
        assert got.dtype == dtype.storage
        np.testing.assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("address", [None, (0, 64)], ids=["automatic", "placed"])
def test_a_view_of_another_dtype_reads_rounded_bits_and_leaves_the_values(wide, address):
    def body(x):
        tile, bits = nl.ndarray((4, 4), nl.bfloat16, address=address), nl.ndarray((4, 4), nl.uint16)
        nisa.dma_copy(tile, x)
        nisa.tensor_copy(bits, tile.view(nl.uint16))
        back = nl.ndarray((4, 4), nl.float32)
        nisa.tensor_copy(back, tile)
        return np.asarray(bits), np.asarray(back)

    (bits, back), _ = run(body, ODD)
    np.testing.assert_array_equal(bits, ODD.astype(ml_dtypes.bfloat16).view(np.uint16))
    np.testing.assert_array_equal(back, ODD)


@pytest.mark.parametrize("address", [None, (0, 64)], ids=["automatic", "placed"])
def test_a_write_through_a_view_of_another_dtype_refreshes_the_values(wide, address):
    def body(x):
        tile = nl.ndarray((4, 4), nl.bfloat16, address=address)
        nisa.dma_copy(tile, x)
        nisa.memset(tile.view(nl.uint16)[:, 0:1], 0x3F80)  # 1.0, which 1.00001 rounds to: now it is 1.0
        nisa.memset(tile.view(nl.uint16)[:, 1:2], 0x4000)
        back = nl.ndarray((4, 4), nl.float32)
        nisa.tensor_copy(back, tile)
        return np.asarray(back)

    wanted = ODD.copy()
    wanted[:, 0], wanted[:, 1] = 1, 2
    np.testing.assert_array_equal(run(body, ODD)[0], wanted)


def test_a_narrow_view_of_another_storage_is_float32_for_instructions_and_bits_in_memory(wide):
    """uint8 and float32 storages seen as bfloat16 or fp8, beside tiles of that dtype."""

    def body(x):
        bits, tile = nl.ndarray((4, 4), nl.uint16), nl.ndarray((4, 4), nl.bfloat16)
        nisa.dma_copy(tile, x)
        nisa.tensor_copy(bits.view(nl.bfloat16), tile)
        nisa.tensor_copy(tile, bits.view(nl.bfloat16))
        fp8 = nl.ndarray((4, 4), nl.uint8)
        nisa.tensor_copy(fp8.view(nl.float8_e5m2), tile)
        halves = nl.ndarray((4, 2), nl.bfloat16)  # bfloat16 memory seen as fp8
        nisa.tensor_copy(halves.view(nl.float8_e5m2), tile)
        return np.asarray(bits), np.asarray(tile), np.asarray(fp8), np.asarray(halves.view(nl.uint8))

    (bits, tile, fp8, halves), _ = run(body, ODD)
    rounded = ODD.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(bits, rounded.view(np.uint16))
    np.testing.assert_array_equal(tile, rounded.astype(np.float32))
    small = rounded.astype(np.float32).astype(ml_dtypes.float8_e5m2).view(np.uint8)
    np.testing.assert_array_equal(fp8, small)
    np.testing.assert_array_equal(halves, small)


def test_other_dtypes_are_not_affected(wide):
    def body(x):
        found = []
        for dtype in (nl.int8, nl.tfloat32):
            tile = nl.ndarray((4, 4), dtype)
            nisa.dma_copy(tile, x)
            found.append(np.asarray(tile))
        return found

    (ints, tf32), _ = run(body, ODD)
    np.testing.assert_array_equal(ints, np.rint(ODD).astype(np.int8))
    assert (tf32.view(np.uint32) & 0x1FFF == 0).all()


def test_bfloat16_sums_differ_between_the_modes(monkeypatch):
    @nki.jit
    def kernel(x):
        total, tile = nl.ndarray((4, 4), nl.bfloat16), nl.ndarray((4, 4), nl.bfloat16)
        nisa.memset(total, 256.0)
        nisa.dma_copy(tile, x)
        for _ in range(64):
            nisa.tensor_tensor(total, total, tile, nl.add)
        out = nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, total)
        return out

    x = np.full((4, 4), 0.25, np.float32)
    assert (kernel(x) == 256).all()  # too small to change a bfloat16 256
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    assert (kernel(x) == 272).all()


def test_placed_tensors_share_bytes_in_the_wide_mode(wide):
    def body(x):
        a = nl.ndarray((4, 4), nl.bfloat16, address=(0, 64))
        b = nl.ndarray((4, 4), nl.bfloat16, address=(0, 64))
        c = nl.ndarray((4, 4), nl.uint16, address=(0, 64))
        nisa.dma_copy(a, x)
        first = np.asarray(b)
        bits = np.asarray(c)
        nisa.memset(b[:, 0:1], 9.0)
        return first, bits, np.asarray(a)

    (b, bits, a), _ = run(body, ODD)
    rounded = ODD.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(b, rounded.astype(np.float32))
    np.testing.assert_array_equal(bits, rounded.view(np.uint16))
    np.testing.assert_array_equal(a[:, 0], 9)
    np.testing.assert_array_equal(a[:, 1:], ODD[:, 1:])


def test_fresh_memory_is_poison_in_the_wide_mode(wide):
    def body():
        tile = nl.ndarray((4, 4), nl.bfloat16)
        nisa.memset(tile[:, 0:2], 1.0)
        return np.asarray(tile), np.asarray(nl.ndarray((4, 4), nl.float8_e4m3, address=(0, 0)))

    (tile, fresh), _ = run(body)
    np.testing.assert_array_equal(tile, np.tile([1, 1, np.nan, np.nan], (4, 1)).astype(np.float32))
    assert np.isnan(fresh).all()


def gather(dst, data, index):
    table = nl.ndarray(data.shape, data.dtype, buffer=nl.hbm)
    nisa.dma_copy(table, data)
    nisa.dma_copy(dst, table.vector_select(0, index))


def through_bytes(dst, data, index):
    raw = nl.ndarray((32, 64 * data.dtype.itemsize), nl.uint8)
    nisa.tensor_copy(raw, data.view(nl.uint8))
    nisa.dma_copy(dst, raw.view(data.dtype))


def onto_bytes(dst, data, index):
    raw = nl.ndarray((32, 64 * data.dtype.itemsize), nl.uint8)
    nisa.memset(raw, 0)
    nisa.tensor_tensor(raw.view(data.dtype), data, data, nl.add)
    nisa.tensor_copy(dst, raw.view(data.dtype))


def through_a_place(dst, data, index):
    placed_tile = nl.ndarray((32, 64), data.dtype, address=(0, 64))
    nisa.tensor_copy(placed_tile, data)
    nisa.dma_copy(dst, placed_tile)


def product(dst, data, index):
    psum = nl.ndarray((64, 64), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, data, data)
    nisa.tensor_scalar(dst, psum[0:32], nl.multiply, 2.0**-8)


EXACT = {
    "copy": lambda dst, data, index: nisa.tensor_copy(dst, data),
    "copy of another rank": lambda dst, data, index: nisa.tensor_copy(dst.reshape((32, 8, 8)), data),
    "copy on gpsimd": lambda dst, data, index: nisa.tensor_copy(dst, data, engine=nisa.engine.gpsimd),
    "sum": lambda dst, data, index: nisa.tensor_tensor(dst, data, data, nl.add),
    "activation": lambda dst, data, index: nisa.activation(dst=dst, op=nl.copy, data=data),
    "transpose": lambda dst, data, index: nisa.nc_transpose(
        dst=dst[:, 0:32], data=data[:, 0:32], engine=nisa.engine.vector
    ),
    "shuffle": lambda dst, data, index: nisa.nc_stream_shuffle(dst=dst, src=data, shuffle_mask=[3] * 32),
    "gather": gather,
    "through bytes": through_bytes,
    "onto bytes": onto_bytes,
    "through an explicit address": through_a_place,
    "product": product,
}


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e5m2], ids=lambda d: np.dtype(d).name
)
@pytest.mark.parametrize("body", EXACT.values(), ids=EXACT.keys())
def test_where_nothing_is_rounded_both_modes_agree_bit_for_bit(monkeypatch, body, dtype):
    rng = np.random.default_rng(0)
    data = rng.integers(0, 4, (32, 64)).astype(np.float32).astype(dtype)
    index = rng.integers(0, 32, (32, 1)).astype(np.int32)
    results = []
    for mode in ("1", "0"):
        monkeypatch.setenv("NKI_PRECISE_FP", mode)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results += run_tiles(body, [data, index], [np.zeros((32, 64), dtype)], on="trn2")
    precise, kept_wide = results
    assert precise.dtype == kept_wide.dtype == dtype
    if body is not product:  # a product rounds once, whatever the mode
        assert precise.any()
    np.testing.assert_array_equal(precise.view(np.uint8), kept_wide.view(np.uint8))


# ---- borrowed inputs -----------------------------------------------------------------------------


@pytest.mark.parametrize("precise", ["0", "1"])
def test_inputs_are_read_in_place_and_a_failing_kernel_leaves_them(monkeypatch, precise):
    monkeypatch.setenv("NKI_PRECISE_FP", precise)

    @nki.jit
    def kernel(x, y):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.memset(tile, 5.0)
        nisa.dma_copy(x, tile)
        nisa.dma_copy(y, tile)
        raise RuntimeError("stop")

    x, y = np.ones((4, 6), ml_dtypes.bfloat16), np.ones((4, 6), np.float32)
    with pytest.raises(RuntimeError, match="stop"):
        kernel(x, y)
    assert (x == 1).all() and (y == 1).all()


def test_a_read_only_input_can_be_read():
    x = np.ones((4, 6), np.float32)
    x.flags.writeable = False
    values, _ = run(lambda t: np.asarray(fill(nl.ndarray((4, 6), nl.float32), 1.0)), x)
    out, _ = run(lambda t: np.asarray(t), x)
    assert (out == 1).all() and (values == 1).all()


def test_a_contiguous_input_is_not_copied_before_it_is_written():
    x = np.ones((64, 1024), np.float32)

    def body(t):
        memories = running().memories
        before = np.shares_memory(memories[t.storage].raw, x)
        nisa.dma_copy(t[0:1], t[1:2])
        running().read_back()
        return before, np.shares_memory(memories[t.storage].raw, x)

    assert run(body, x)[0] == (True, False)


# ---- memory is given back ------------------------------------------------------------------------


def live_memories():
    gc.collect()
    return sum(isinstance(found, Memory) for found in gc.get_objects())


@nki.jit
def allocate_in_a_loop(x, count, address):
    for _ in range(count):
        tile = nl.ndarray((128, 64), nl.float32, address=address)
        nisa.memset(tile, 1.0)
    return live_memories()


@pytest.mark.parametrize("address", [None, (0, 0)], ids=["automatic", "placed"])
def test_ten_thousand_tiles_in_a_loop_stay_flat(address):
    x = np.zeros(1, np.int8)
    assert allocate_in_a_loop(x, 10_000, address) <= allocate_in_a_loop(x, 10, address) + 1


def test_a_loop_of_tiles_takes_no_more_bytes_than_a_few():
    def peak(count):
        tracemalloc.start()
        allocate_in_a_loop(np.zeros(1, np.int8), count, None)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(10)
    assert peak(1000) - peak(100) < 3_000_000  # the recorded program; 900 tiles have 29 MB


def test_tiles_with_references_live_and_dropped_ones_do_not():
    def body():
        running().read_back()  # from now on each instruction runs as it is issued
        held = [fill(nl.ndarray((4, 4), nl.float32), float(i)) for i in range(20)]
        with_kept = live_memories()
        views = [tile[0:1] for tile in held]
        del held
        with_views = live_memories()
        values = [np.asarray(view)[0, 0] for view in views]
        del views
        return with_kept, with_views, live_memories(), values

    (held, viewed, dropped, values), _ = run(body)
    assert held == viewed == dropped + 20 and values == list(range(20))


def test_the_pool_of_freed_tiles_is_bounded():
    def body():
        for columns in range(1, 200):
            for _ in range(3):
                fill(nl.ndarray((2, columns), nl.float32), 1.0)

    run(body)
    assert len(memory_module._free) <= memory_module._FREE_SIZES
    assert all(len(free) <= memory_module._FREE_PER_SIZE for free in memory_module._free.values())


def test_element_maps_count_what_is_missing():
    storage = Storage(nl.sbuf, (4, 6), nl.bfloat16)
    tile = whole(storage, None)
    flags = ElementMap(storage)
    flags.set(tile[0:2], 0, None, True)
    assert flags.missing == 12
    flags.set(tile.view(nl.uint8)[:, 0:1], 0, None, True)  # half an element in four partitions
    assert flags.missing == 2 * 12 - 2 and flags.granule == 1
    flags.set(tile, 0, None, True)
    assert flags.missing == 0
    flags.clear_bytes(slice(1, 3), -2, np.ones(4, bool))
    assert flags.missing == 4 and not flags.region(tile)[1:3, 0].any()


@pytest.mark.parametrize("degree", [1, 2])
def test_a_finished_call_leaves_no_memory_to_the_garbage_collector(degree):
    @nki.jit
    def kernel(x):
        tile = fill(nl.ndarray((128, 64), nl.float32, address=(0, 0)), 1.0)
        scratch = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm, name="scratch")
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm, name="out")
        nisa.dma_copy(scratch, tile)
        nisa.dma_copy(out, scratch)
        return out

    x = np.zeros(1, np.int8)
    kernel[degree](x)
    gc.collect()
    gc.disable()
    try:
        results = [kernel[degree](x) for _ in range(3)]
        left = [found for found in gc.get_objects() if isinstance(found, (Memory, ChipMemory))]
    finally:
        gc.enable()
    assert len(results) == 3 and left == []
