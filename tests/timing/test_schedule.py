"""The schedule: dependencies, shared resources, order and space."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.timing.psum_banks import Banks
from nki.timing.replay import Replay
from support import target


def profile(kernel, *args, on="trn2", **kwargs):
    with target(on):
        return nki.profile(kernel)(*args, **kwargs)


def bars(kernel, *args, on="trn2"):
    return profile(kernel, *args, on=on).timeline.bars


def by_label(found):
    return {bar.label: bar for bar in found if bar.label}


def zeros(shape, dtype=nl.float32, buffer=nl.sbuf, **kwargs):
    tile = nl.ndarray(shape, dtype, buffer=buffer)
    nisa.memset(tile, 0, **kwargs)
    return tile


X = nki.TensorSpec((128, 512), "float32")


@pytest.mark.tiny
def test_a_consumer_starts_after_its_producer_is_done():
    @nki.jit
    def kernel(x):
        a, b = nl.ndarray((128, 512), nl.float32), nl.ndarray((128, 512), nl.float32)
        nisa.dma_copy(a, x, name="load")
        nisa.tensor_scalar(b, a, nl.add, 1.0, name="add")
        nisa.activation(a, nl.exp, b, name="exp")

    found = by_label(bars(kernel, X))
    assert found["load"].end < found["add"].start < found["exp"].start
    assert found["add"].why == "data" and found["exp"].why == "data"
    assert found["add"].end <= found["exp"].start


def test_an_instruction_that_is_ready_overtakes_one_that_waits_for_a_load():
    @nki.jit
    def kernel(x):
        a, b = nl.ndarray((128, 512), nl.float32), zeros((128, 512))
        nisa.dma_copy(a, x)
        nisa.tensor_scalar(a, a, nl.add, 1.0, name="waits")
        nisa.tensor_scalar(b, b, nl.add, 1.0, name="ready")

    found = by_label(bars(kernel, X))
    assert found["ready"].start < found["waits"].start


def test_no_reorder_keeps_the_order_of_an_engine():
    @nki.jit
    def kernel(x):
        a, b = nl.ndarray((128, 512), nl.float32), zeros((128, 512))
        with nl.no_reorder():
            nisa.dma_copy(a, x)
            nisa.tensor_scalar(a, a, nl.add, 1.0, name="first")
            nisa.tensor_scalar(b, b, nl.add, 1.0, name="second")

    found = by_label(bars(kernel, X))
    assert found["first"].start < found["second"].start


def independent_pair(x):
    a, b = zeros((128, 512)), zeros((128, 512))
    nisa.tensor_scalar(a, a, nl.add, 1.0, name="plus")
    nisa.activation(b, nl.square, b, name="exp")


def test_with_schedule_makes_the_later_one_wait():
    kernel = nki.jit(independent_pair)
    free = by_label(bars(kernel, X))
    assert free["exp"].start < free["plus"].end
    tied = by_label(bars(kernel.with_schedule([("exp", "plus")]), X))
    assert tied["exp"].start >= tied["plus"].end


def test_with_schedule_takes_a_tensor_for_the_instructions_that_write_it():
    def body(x):
        a, b = nl.ndarray((128, 512), nl.float32, name="sums"), zeros((128, 512))
        nisa.memset(a, 0.0)
        nisa.tensor_scalar(a, a, nl.add, 1.0, name="plus")
        nisa.activation(b, nl.square, b, name="exp")

    kernel = nki.jit(body)
    free = by_label(bars(kernel, X))
    assert free["exp"].start < free["plus"].end
    tied = by_label(bars(kernel.with_schedule([("exp", "sums")]), X))
    assert tied["exp"].start >= tied["plus"].end


def test_with_schedule_raises_on_an_unknown_name():
    with pytest.raises(nki.NkiError) as problem:
        profile(nki.jit(independent_pair).with_schedule([("exp", "minus")]), X)
    assert problem.value.kind == "schedule"
    assert "minus" in str(problem.value) and "exp, plus" in str(problem.value)


def test_a_schedule_against_the_data_is_refused():
    @nki.jit
    def kernel(x):
        a = zeros((128, 512))
        nisa.tensor_scalar(a, a, nl.add, 1.0, name="one")
        nisa.tensor_scalar(a, a, nl.add, 1.0, name="two")

    with pytest.raises(nki.NkiError) as problem:
        profile(kernel.with_schedule([("one", "two")]), X)
    assert problem.value.kind == "schedule"


def test_vector_and_gpsimd_alternate_on_trn1_and_overlap_on_trn2():
    @nki.jit
    def kernel(x):
        a = nl.ndarray((128, 2048), nl.float32)
        b = nl.ndarray((128, 2048), nl.float32)
        nisa.memset(a, 0.0, name="vector")
        nisa.memset(b, 0.0, engine=nisa.engine.gpsimd, name="gpsimd")

    one, two = by_label(bars(kernel, X, on="trn1")), by_label(bars(kernel, X, on="trn2"))
    assert one["gpsimd"].start >= 2048 / 1.12  # after the vector engine's elements
    assert two["gpsimd"].start < two["vector"].end


def test_a_psum_tile_drained_late_holds_up_the_matmul_that_reuses_its_bank():
    @nki.jit
    def kernel(x, tiles):
        a, b = zeros((128, 128), nl.bfloat16), zeros((128, 512), nl.bfloat16)
        out = nl.ndarray((128, 512), nl.float32)
        for i in range(tiles):
            psum = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(psum, a, b, name=f"matmul {i}")
            for _ in range(4):
                nisa.tensor_copy(out, psum)

    found = by_label(profile(kernel, X, tiles=12).timeline.bars)
    assert found["matmul 7"].why in ("engine", "data")
    assert found["matmul 8"].why == "space"


def test_operations_that_wait_for_banks_are_tried_a_constant_number_of_times(monkeypatch):
    @nki.jit
    def kernel(x, tiles):
        a, b = zeros((128, 128), nl.bfloat16), zeros((128, 512), nl.bfloat16)
        for _ in range(tiles):
            psum = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(psum, a, b)
            nisa.tensor_copy(nl.ndarray((128, 512), nl.float32), psum, engine=nisa.engine.vector)

    asked = []
    fits = Banks.fits
    monkeypatch.setattr(
        Banks, "fits", lambda banks, needs, turn: asked.append(needs) or fits(banks, needs, turn)
    )
    profile(kernel, X, tiles=400)
    assert 800 < len(asked) < 8 * 400  # all of them at every freed bank would be 80,000


def test_more_than_sbuf_holds_spills_and_the_bytes_are_reported():
    @nki.jit
    def kernel(x, count):
        tiles = []
        for _ in range(count):
            tile = nl.ndarray((128, 8192), nl.float32)
            nisa.memset(tile, 0.0)
            tiles.append(tile)
        for tile in tiles:
            nisa.tensor_scalar(tile, tile, nl.add, 1.0)

    assert profile(kernel, X, count=6).timeline.spill_bytes == 0
    spilling = profile(kernel, X, count=8)  # 256 KiB per partition of 208
    assert spilling.timeline.spill_bytes > 0
    names = {bar.name for bar in spilling.timeline.bars}
    assert {"spill", "reload"} <= names


def test_the_same_kernel_gives_the_same_timeline_every_time():
    @nki.jit
    def kernel(x):
        for _ in range(50):
            a = nl.ndarray((128, 512), nl.float32)
            nisa.dma_copy(a, x)
            nisa.activation(a, nl.exp, a)

    first, second = bars(kernel, X), bars(kernel, X)
    assert [(b.start, b.end, b.waited_for) for b in first] == [(b.start, b.end, b.waited_for) for b in second]


def test_two_cores_wait_for_each_other_at_a_barrier():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 128, 512), nl.float32, buffer=nl.shared_hbm, name="out")
        core = nl.program_id(0)
        a = nl.ndarray((128, 512), nl.float32)
        nisa.dma_copy(a, x)
        for _ in range(20 if core else 1):
            nisa.activation(a, nl.exp, a)
        nisa.dma_copy(out[core], a)
        nisa.core_barrier(out, (0, 1), name="meet")
        return out

    found = [bar for bar in bars(kernel[2], X) if bar.label == "meet"]
    assert len(found) == 2
    assert found[0].end == pytest.approx(found[1].end)


def test_an_exchange_by_the_dma_of_gpsimd_does_not_queue_behind_transfers():
    @nki.jit
    def kernel(x, engine):
        core = nl.program_id(0)
        small, received = zeros((128, 8)), nl.ndarray((128, 8), nl.float32)
        out = nl.ndarray((2, 128, 512), nl.float32, buffer=nl.shared_hbm)
        for _ in range(20):
            a = nl.ndarray((128, 512), nl.float32)
            nisa.dma_copy(a, x)
            nisa.dma_copy(out[core], a)
        nisa.sendrecv(small, received, 1 - core, 1 - core, 0, dma_engine=engine, name="swap")
        return out

    with target("trn2"):
        own, shared = (
            [bar for bar in nki.profile(kernel[2])(X, engine).timeline.bars if bar.label == "swap"]
            for engine in (nisa.dma_engine.gpsimd_dma, nisa.dma_engine.dma)
        )
    assert {bar.engine for bar in own} == {"gpsimd"} and {bar.engine for bar in shared} == {"dma"}
    assert own[0].end == pytest.approx(own[1].end)
    assert own[0].end < shared[0].end


def test_exchanges_by_gpsimd_keep_their_order_when_pieces_arrive_in_another_on_one_core():
    @nki.jit
    def swap(x):
        core, pieces = nl.program_id(0), range(4)
        out = nl.ndarray((2, 128, 1024), nl.float32, buffer=nl.shared_hbm)
        mine = [nl.ndarray((128, 256), nl.float32) for _ in pieces]
        theirs = [nl.ndarray((128, 256), nl.float32) for _ in pieces]
        for i in reversed(pieces) if core else pieces:
            nisa.dma_copy(mine[i], x[:, 256 * i : 256 * (i + 1)])
        for i in pieces:
            fast = nisa.dma_engine.gpsimd_dma
            nisa.sendrecv(
                mine[i], theirs[i], 1 - core, 1 - core, pipe_id=i, dma_engine=fast, name=f"swap {i}"
            )
            nisa.dma_copy(out[core, :, 256 * i : 256 * (i + 1)], theirs[i])
        return out

    with target("trn2"):
        bars = nki.profile(swap[2])(nki.TensorSpec((128, 1024), nl.float32)).timeline.bars
    for core in range(2):
        labels = [bar.label for bar in bars if bar.core == core and bar.label]
        assert labels == [f"swap {i}" for i in range(4)]


def test_an_exchange_by_dma_begins_when_both_cores_are_ready():
    @nki.jit
    def kernel(x):
        core = nl.program_id(0)
        tile, received = zeros((128, 512)), nl.ndarray((128, 512), nl.float32)
        for _ in range(40 if core == 1 else 0):  # core 1 is late
            nisa.activation(tile, nl.exp, tile, name="work")
        nisa.sendrecv(tile, received, 1 - core, 1 - core, 0, name="swap")

    with target("trn2"):
        timeline = nki.profile(kernel[2])(X).timeline
    swaps = [bar for bar in timeline.bars if bar.label == "swap"]
    late = max(bar.end for bar in timeline.bars if bar.label == "work")
    assert len(swaps) == 2 and all(bar.start >= late for bar in swaps)
    assert Replay(timeline).run() == pytest.approx(timeline.work_ns, rel=0.01)


def test_profiling_does_no_arithmetic_unless_asked():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        a = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(a, x)
        nisa.tensor_scalar(a, a, nl.multiply, 2.0)
        nisa.dma_copy(out, a)
        return out

    x = np.ones((128, 16), np.float32)
    with target("trn2"):
        assert nki.profile(kernel)(x).result is None
        ran = nki.profile(kernel, run=True)(x)
    assert np.array_equal(ran.result, 2 * x)


# ---- parts of the PE array (spec/machine.md 5.2) ------------------------------------------------------


def tiled_matmuls(positions, size, count=8):
    """`count` rounds of matmuls, one on each part of the array, into banks of their own."""

    def body(x):
        stationary, moving = zeros((128, 128), nl.bfloat16), zeros((128, 512), nl.bfloat16)
        sums = [nl.ndarray((128, 512), nl.float32, buffer=nl.psum) for _ in positions]
        for _ in range(count):
            for (row, column), psum in zip(positions, sums):  # noqa: B905
                rows, columns = slice(row, row + size[0]), slice(column, column + size[1])
                nisa.nc_matmul(
                    psum[columns, :],
                    stationary[rows, columns],
                    moving[rows, :],
                    tile_position=(row, column),
                    tile_size=size,
                )

    found = [bar for bar in bars(nki.jit(body), X) if bar.name == "nc_matmul"]
    return max(bar.end for bar in found) - min(bar.start for bar in found)


def test_matmuls_on_separate_columns_of_the_array_run_at_the_same_time():
    alone = tiled_matmuls([(0, 0)], (128, 64))
    assert tiled_matmuls([(0, 0), (0, 64)], (128, 64)) < 1.1 * alone
    assert tiled_matmuls([(0, 0), (0, 0)], (128, 64)) > 1.5 * alone


def test_matmuls_on_separate_rows_of_the_array_run_at_the_same_time():
    alone = tiled_matmuls([(0, 0)], (64, 128))
    assert tiled_matmuls([(0, 0), (64, 0)], (64, 128)) < 1.1 * alone


def test_a_matmul_on_the_whole_array_waits_for_its_parts():
    def body(x):
        stationary, moving = zeros((128, 128), nl.bfloat16), zeros((128, 512), nl.bfloat16)
        one, two = (nl.ndarray((128, 512), nl.float32, buffer=nl.psum) for _ in range(2))
        half = {"tile_position": (0, 0), "tile_size": (128, 64)}
        nisa.nc_matmul(one[0:64, :], stationary[:, 0:64], moving, **half, name="part")
        nisa.nc_matmul(two, stationary, moving, name="whole")

    found = by_label(bars(nki.jit(body), X))
    assert found["whole"].start - found["part"].start >= 512 / 2.4


def test_a_loop_of_two_cores_that_swap_tiles_is_priced_as_often_as_it_runs():
    @nki.jit
    def kernel(x, count):
        core = nl.program_id(0)
        mine, theirs = zeros((128, 64)), nl.ndarray((128, 64), nl.float32)
        times = nisa.register_alloc(count)

        def body(i):
            nisa.sendrecv(mine, theirs, 1 - core, 1 - core, 0)
            nisa.tensor_tensor(mine, mine, theirs, nl.add)

        nl.fori_loop(0, times, body)
        out = nl.ndarray((2, 128, 64), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out[core], mine)
        return out

    x = np.zeros((128, 64), np.float32)
    counts = [np.full((1, 1), n, np.int32) for n in (1, 4)]
    once, often = (nki.profile(kernel, target="trn2", lnc=2)(x, count) for count in counts)
    swaps = [sum(bar.name == "sendrecv" for bar in p.timeline.bars) for p in (once, often)]
    assert swaps == [2, 8]
    assert often.total_us > once.total_us + 3
