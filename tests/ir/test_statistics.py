"""Counts of a run: live bytes, addresses, spills, traffic (docs/decisions/08-spill-instead-of-fail.md)."""

from __future__ import annotations

import warnings
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.ir.liveness import TileLifetimes
from nki.ir.statistics import Statistics
from nki.ir.storage import Storage
from nki.kernel.cache import programs
from nki.machine.generations import find
from nki.machine.memories import PSUM, SBUF
from random_programs import rich_programs
from support import target

KIB = 1024
X = np.ones((128, 512), np.float32)
TILE = 128 * 512 * 4  # bytes of a tile like X


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def counted(body, *args, degree=None):
    @nki.jit
    def kernel(*tensors):
        body(*tensors)

    return (kernel if degree is None else kernel[degree]).run(*args).statistics


def filled(shape=(128, 512), dtype=nl.float32, **where):
    tile = nl.ndarray(shape, dtype, **where)
    nisa.memset(tile, 1.0)
    return tile


@pytest.mark.tiny
def test_instructions_are_counted_by_name():
    def body(x):
        tile = filled()
        for _ in range(3):
            nisa.tensor_copy(tile, tile)
        nisa.dma_copy(x, tile)

    stats = counted(body, X.copy())
    assert stats.instructions == 5
    assert stats.by_instruction == {"memset": 1, "tensor_copy": 3, "dma_copy": 1}


# ---- live bytes ----------------------------------------------------------------------------------


def test_tiles_used_one_after_another_need_room_for_one():
    def body():
        for _ in range(10):
            filled()

    assert counted(body).sbuf_peak_bytes == TILE


def test_tiles_live_from_their_first_use_to_their_last():
    def body():
        a, b, c = filled(), filled(), nl.ndarray((128, 512), nl.float32)
        nisa.tensor_copy(b, a)  # a and b
        del a
        nisa.tensor_copy(c, b)  # b and c
        nisa.memset(c, 0.0)

    assert counted(body).sbuf_peak_bytes == 2 * TILE


def test_a_tile_that_is_referenced_but_unused_is_not_live():
    def body():
        kept = [filled() for _ in range(10)]
        nisa.memset(kept[-1], 0.0)

    assert counted(body).sbuf_peak_bytes == TILE


def test_a_tile_that_is_used_again_later_is_live_in_between():
    def body():
        early = filled()
        filled()
        filled()
        nisa.memset(early, 0.0)

    assert counted(body).sbuf_peak_bytes == 2 * TILE


def test_an_unused_allocation_costs_nothing():
    def body():
        unused = nl.ndarray((128, 512), nl.float32)
        filled((128, 2))
        return unused

    assert counted(body).sbuf_peak_bytes == 128 * 2 * 4


@pytest.mark.parametrize(("partitions", "share"), [(1, 4), (32, 4), (33, 2), (64, 2), (65, 1), (128, 1)])
def test_tiles_of_few_partitions_lie_side_by_side(partitions, share):
    """A quadrant or a half each, as the spills of a profile suppose."""
    assert counted(lambda: filled((partitions, 64), nl.bfloat16)).sbuf_peak_bytes == 128 * 128 // share


def test_a_tile_at_an_address_takes_its_column_of_every_partition():
    assert counted(lambda: filled((1, 64), nl.bfloat16, address=(0, 0))).sbuf_peak_bytes == 128 * 128


def test_views_keep_their_tile_live():
    def body():
        part = filled()[:, 0:2]
        filled((128, 4))
        nisa.memset(part, 0.0)

    assert counted(body).sbuf_peak_bytes == TILE + 128 * 16


def test_index_tiles_of_indirect_views_are_uses():
    def body(x):
        index = nl.ndarray((1, 1), nl.int32)
        nisa.memset(index, 0)
        filled((128, 4))
        nisa.dma_copy(nl.ndarray((1, 512), nl.float32), x[index].expand_dim(0))

    assert counted(body, X).sbuf_peak_bytes == 128 * (4 + 2048) // 4


def test_sbuf_and_psum_are_counted_apart():
    def body():
        filled()
        filled((128, 512), buffer=nl.psum)
        filled((128, 256), buffer=nl.psum)

    stats = counted(body)
    assert stats.sbuf_peak_bytes == TILE and stats.psum_peak_bytes == TILE


def test_each_core_has_memory_of_its_own():
    def body():
        a = filled()
        if nl.program_id(0) == 1:
            b = filled((128, 256))
            nisa.memset(a, 0.0)
            nisa.memset(b, 0.0)
        nisa.memset(a, 0.0)

    assert counted(body, degree=2).sbuf_peak_bytes == TILE + TILE // 2


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), min_size=1, max_size=24))
def test_the_peak_is_the_largest_sum_of_overlapping_lives(uses):
    """Any order of uses of up to six tiles, against a sweep over all moments."""
    sizes = {}
    for number, columns in uses:
        sizes.setdefault(number, columns)

    def body():
        tiles = {}
        for number, _ in uses:
            if number not in tiles:
                tiles[number] = nl.ndarray((66, sizes[number]), nl.float32)
            nisa.memset(tiles[number], 1.0)

    moments = [number for number, _ in uses]
    lives = {n: (moments.index(n), len(moments) - 1 - moments[::-1].index(n)) for n in sizes}
    peak = max(sum(sizes[n] for n, (a, b) in lives.items() if a <= t <= b) for t in range(len(moments)))
    assert counted(body).sbuf_peak_bytes == peak * 4 * 128


# ---- explicit addresses --------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.booleans(), st.integers(1, 64)), max_size=80), st.integers(1, 6)
)
def test_condensing_closed_lifetimes_never_changes_the_peak_and_its_tiles(steps, kept):
    """Tiles are used and given up in any order; one list of lives is condensed all the time, one never."""

    def peak(condense_at):
        tiles, living = TileLifetimes(find("trn2")), {}
        tiles.limit = dict.fromkeys(tiles.limit, condense_at)
        with mock.patch("nki.ir.liveness.CONDENSE_AT", condense_at):
            for now, (slot, gone, size) in enumerate(steps):
                storage = living.setdefault(slot, Storage(nl.sbuf, (128, size), nl.uint8, number=now))
                tiles.use(mock.Mock(storage=storage, indirection=None), now)
                if gone:
                    tiles.close(living.pop(slot))
            for storage in living.values():
                tiles.close(storage)
        most = tiles.peak(nl.sbuf)
        assert most.nbytes == sum(storage.pitch for storage in most.live)
        return most.nbytes, [storage.number for storage in most.live]

    assert peak(kept) == peak(10**9)


def test_a_long_kernel_keeps_no_record_of_each_tile(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_CACHE", "0")  # nothing is recorded: it is counted on the way

    @nki.jit
    def kernel(x):
        for _ in range(2000):
            tile = nl.ndarray((4, 4), nl.float32)
            nisa.dma_copy(tile, x)
            nisa.dma_copy(nl.ndarray((4, 4), nl.float32, buffer=nl.hbm), tile)

    stats = kernel.run(X[:4, :4]).statistics
    assert stats.sbuf_peak_bytes == 128 * 16 // 4
    assert len(stats._cores[0].closed[nl.sbuf]) < 600 and len(stats._hbm) == 1
    assert stats.reloads == {"x": 2000.0}


@pytest.mark.parametrize("longest", [0, 1, 7, 30, 31, 10**6])
def test_a_program_too_long_to_record_is_counted_like_any_other(monkeypatch, longest):
    @nki.jit
    def kernel(x):
        kept = nl.ndarray((4, 16), nl.float32)
        for i in range(10):
            tile = nl.ndarray((4, 4 + i % 3), nl.float32)
            nisa.memset(tile, 1.0)
            nisa.dma_copy(kept[:, 0:4], x)
            nisa.tensor_copy(kept[:, 4 : 8 + i % 3], tile)
        scratch = nl.ndarray((4, 16), nl.float32, buffer=nl.hbm)
        nisa.dma_copy(scratch[:, 0:4], kept[:, 0:4])

    monkeypatch.setattr("nki.launch.launch.LONGEST_TRACE", longest)
    programs.clear()
    found = kernel.run(X[:4, :4]).statistics
    monkeypatch.setenv("OPEN_NKI_CACHE", "0")
    counted = kernel.run(X[:4, :4]).statistics
    for name in (
        "instructions",
        "by_instruction",
        "dma_transfers",
        "dma_bytes",
        "reloads",
        "sbuf_peak_bytes",
    ):
        assert getattr(found, name) == getattr(counted, name), name


def test_explicit_addresses_take_their_bytes_for_the_whole_kernel():
    def body():
        filled((128, 64), address=(0, 0))
        filled((128, 64), address=(0, 1024))
        filled((128, 16))

    assert counted(body).sbuf_peak_bytes == 128 * (256 + 256 + 64)


def test_overlapping_addresses_count_once():
    def body():
        for i in range(16):
            filled((128, 64), address=(0, (i % 4) * 256))
        filled((128, 64), address=(0, 128))
        filled((64, 64), address=(64, 0))

    assert counted(body).sbuf_peak_bytes == 128 * 4 * 256


# ---- spills --------------------------------------------------------------------------------------


def test_tiles_that_do_not_fit_are_reported_as_spill_not_as_error():
    def body():
        tiles = [filled((128, 8192)) for _ in range(8)]  # 256 KiB per partition
        for tile in tiles:
            nisa.memset(tile, 0.0)

    stats = counted(body)
    assert stats.sbuf_peak_bytes == 128 * 8 * 32 * KIB
    assert stats.spill_bytes == 128 * (8 * 32 * KIB - 212_984)


def test_tiles_that_fit_do_not_spill():
    assert counted(lambda: filled((128, 8192))).spill_bytes == 0 and counted(lambda: None).spill_bytes == 0


# ---- DMA -----------------------------------------------------------------------------------------


def test_transfers_and_bytes_are_counted_by_tensor():
    def body(x, y):
        tile = nl.ndarray((128, 512), nl.float32)
        scratch = nl.ndarray((128, 512), nl.bfloat16, buffer=nl.hbm, name="scratch")
        nisa.dma_copy(tile, x)
        nisa.dma_copy(tile[:, 0:256], x[:, 256:512])
        nisa.dma_copy(scratch, tile)
        nisa.dma_copy(y[0:64], scratch[0:64])

    stats = counted(body, X, X.copy())
    assert stats.dma_transfers == 4
    assert stats.hbm_read_bytes == {"tensors[0]": TILE + TILE // 2, "scratch": TILE // 4}
    assert stats.hbm_write_bytes == {"scratch": TILE // 2, "tensors[1]": TILE // 2}
    assert stats.dma_bytes == TILE + TILE // 2 + TILE // 2 + TILE // 2  # as written


def test_reloads_count_how_often_each_tensor_was_loaded():
    def body(x, y):
        for _ in range(4):
            tile = nl.ndarray((128, 512), nl.float32)
            nisa.dma_copy(tile, x)
        nisa.dma_copy(tile[0:64], y[0:64])

    stats = counted(body, X, X.copy())
    assert stats.reloads == {"tensors[0]": 4.0, "tensors[1]": 0.5}


def test_unnamed_tensors_are_known_by_their_line():
    def body():
        for _ in range(3):
            scratch = nl.ndarray((128, 512), nl.float32, buffer=nl.hbm)
            tile = filled()
            nisa.dma_copy(scratch, tile)
            nisa.dma_copy(tile, scratch)

    stats = counted(body)
    [(name, size)] = stats.hbm_read_bytes.items()
    assert name.startswith("hbm at test_statistics.py:") and size == 3 * TILE
    assert stats.reloads == {name: 1.0}


def test_on_chip_instructions_move_no_hbm_bytes():
    stats = counted(lambda: filled())
    assert stats.dma_transfers == 0 and stats.dma_bytes == 0 and not stats.hbm_read_bytes


def test_a_trace_without_data_counts_the_same():
    @nki.jit
    def kernel(x):
        for _ in range(3):
            tile = nl.ndarray((128, 512), nl.float32)
            nisa.dma_copy(tile, x)
            nisa.memset(nl.ndarray((128, 64), nl.float32, address=(0, 512)), 1.0)

    ran, traced = kernel.run(X).statistics, kernel.trace(X).statistics()
    assert ran.sbuf_peak_bytes == traced.sbuf_peak_bytes == TILE + 128 * 256
    assert ran.by_instruction == traced.by_instruction and ran.reloads == traced.reloads == {"x": 3.0}


@settings(max_examples=40, deadline=None)
@given(rich_programs(size=24))
def test_a_recorded_program_counts_as_its_instructions_one_by_one(traced):
    program, _ = traced
    streamed = Statistics(program.machine)
    for core, items in enumerate(program.unrolled()):
        sink = streamed.sink_of(core)
        for instruction, _ in items:
            sink(instruction)
    streamed.finish()
    recorded = program.statistics()
    for name in ("instructions", "by_instruction", "dma_transfers", "dma_bytes", "hbm_read_bytes", "reloads"):
        assert getattr(recorded, name) == getattr(streamed, name), name
    assert recorded.hbm_write_bytes == streamed.hbm_write_bytes
    for buffer in (SBUF, PSUM):
        assert recorded.peaks(buffer) == streamed.peaks(buffer)
