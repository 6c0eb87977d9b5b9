"""A replay gives the schedule again, and with a change what a new schedule would give."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine.generations import find
from nki.timing.change import Change
from nki.timing.replay import DmaEngines, Replay
from nki.timing.schedule import schedule
from nki.timing.what_if import WhatIf
from support import target

X = nki.TensorSpec((1024, 2048), "float32")


def trace_of(body, platform="trn2", cores=1):
    def kernel(x):
        body(x)

    with target(platform):
        return nki.jit(kernel)[cores].trace(X)


def timeline_of(body, platform="trn2", cores=1):
    trace = trace_of(body, platform, cores)
    return schedule(trace)


def tile(shape=(128, 512), dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype, buffer=buffer)


def loaded(x, i=0, shape=(128, 512)):
    new = tile(shape)
    nisa.dma_copy(new, x[128 * (i % 8) : 128 * (i % 8) + shape[0], : shape[1]])
    return new


def scaled(x):
    """Load, scale, store, sixteen times."""
    result = nl.ndarray((16 * 128, 512), nl.float32, buffer=nl.shared_hbm)
    for i in range(16):
        t = loaded(x, i)
        nisa.tensor_scalar(t, t, nl.multiply, 2.0)
        nisa.dma_copy(result[128 * i : 128 * i + 128, :], t)


def functions(x):
    """ScalarE changes its function at every instruction; VectorE reads PSUM beside it."""
    t, sums = loaded(x), tile(buffer=nl.psum)
    for i in range(8):
        nisa.activation(t, nl.exp if i % 2 else nl.tanh, t)
        nisa.tensor_copy(sums, t)
        nisa.tensor_tensor(t, t, sums, op=nl.add)
        nisa.iota(tile((128, 64), nl.int32), [[1, 64]], offset=0)


def products(x):
    """Matmuls whose results are read from one PSUM tile."""
    a, b, sums = loaded(x, 0, (128, 128)), loaded(x, 1), tile(buffer=nl.psum)
    for _ in range(8):
        nisa.nc_matmul(sums, a, b, accumulate=False)
        nisa.tensor_copy(tile(), sums, engine=nisa.engine.vector)


def overflow(x):
    """Sixty tiles of 8 KiB per partition are kept."""
    tiles = [loaded(x, i, (128, 2048)) for i in range(60)]
    for t in tiles:
        nisa.tensor_scalar(t, t, nl.multiply, 2.0)
    total = tile((128, 2048))
    nisa.memset(total, 0.0)
    for t in tiles:
        nisa.tensor_tensor(total, total, t, op=nl.add)


def meeting(x):
    """Two cores of unequal work meet."""
    t = loaded(x)
    for _ in range(1 + 6 * nl.program_id(0)):
        nisa.tensor_scalar(t, t, nl.multiply, 2.0)
    nisa.core_barrier(nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm), (0, 1))
    nisa.tensor_scalar(t, t, nl.multiply, 2.0)
    nisa.tensor_scalar(tile((64, 512)), t[:64, :], nl.multiply, 2.0)


@pytest.mark.tiny
@pytest.mark.parametrize("platform", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("body", [scaled, functions, products, overflow])
def test_without_a_change_a_replay_gives_the_times_of_the_timeline(body, platform):
    timeline = timeline_of(body, platform)
    assert Replay(timeline).run() == pytest.approx(timeline.work_ns, rel=1e-12)


def test_cores_with_a_barrier_are_replayed_together():
    timeline = timeline_of(meeting, cores=2)
    assert Replay(timeline).run() == pytest.approx(timeline.work_ns, rel=1e-12)


def test_slower_matmuls_change_the_what_if_and_not_the_timeline():
    timeline = timeline_of(products)
    what_if = WhatIf(timeline)
    tensor = [n for n, op in enumerate(timeline.operations) if op.kind == "tensor"]
    assert what_if.new_order_ns(Change(work=dict.fromkeys(tensor, 2.0))) > timeline.work_ns
    assert what_if.new_order_ns(Change()) == timeline.work_ns


def test_a_kernel_without_instructions_takes_no_time():
    assert Replay(timeline_of(lambda x: None)).run() == 0.0


STEPS = st.lists(st.tuples(st.sampled_from("lvsmgtpw"), st.integers(0, 5), st.integers(0, 5)), max_size=40)


def run_steps(steps):
    """A program over six tiles and two PSUM banks, as drawn."""

    def body(x):
        tiles = [tile() for _ in range(6)]
        for t in tiles:
            nisa.memset(t, 0.0)
        sums = [tile((128, 512), buffer=nl.psum) for _ in range(2)]
        for s in sums:
            nisa.memset(s, 0.0)
        result = nl.ndarray((6 * 128, 512), nl.float32, buffer=nl.shared_hbm)
        for what, i, j in steps:
            a, b = tiles[i], tiles[j]
            if what == "l":
                nisa.dma_copy(
                    a[: 32 * (j + 1) if j < 4 else 128, :], x[: 32 * (j + 1) if j < 4 else 128, :512]
                )
            elif what == "v":
                nisa.tensor_tensor(a, a, b, op=nl.add)
            elif what == "s":
                nisa.activation(a, (nl.exp, nl.tanh, nl.square)[j % 3], b)
            elif what == "m":
                nisa.nc_matmul(sums[i % 2], a[:, :128], b, accumulate=False)
            elif what == "g":
                nisa.tensor_tensor(a, a, b, op=nl.add, engine=nisa.engine.gpsimd)
            elif what == "t":
                nisa.tensor_copy(a, sums[j % 2])
            elif what == "p":
                nisa.activation(a, nl.copy, sums[j % 2])
            else:
                nisa.dma_copy(result[128 * j : 128 * j + 128, :], a)

    return body


@settings(max_examples=200, deadline=None)
@given(STEPS, st.sampled_from(["trn1", "trn2", "trn3"]))
def test_every_program_is_replayed_and_simulated_again_as_it_was_scheduled(steps, platform):
    timeline = timeline_of(run_steps(steps), platform)
    assert WhatIf(timeline).new_order_ns(Change()) == timeline.work_ns
    replay = Replay(timeline)
    assert replay.run() == pytest.approx(timeline.work_ns, rel=1e-9)
    free = replay.run(Change(issue={n: 0.0 for n, op in enumerate(timeline.operations) if op.is_dma}))
    assert free <= timeline.work_ns * (1 + 1e-9)


# ---- changes -------------------------------------------------------------------------------------


def both_ways(body, change_of, **fields):
    """(the replay with a change, the schedule on a machine with these fields), work in ns."""
    trace = trace_of(body)
    timeline = schedule(trace)
    replay = Replay(timeline)
    other = schedule(replace(trace, machine=replace(trace.machine, **fields)))
    changed = replay.run(change_of(timeline, replay))
    assert changed < timeline.work_ns
    return changed, other.work_ns


def many_loads(x):
    t = tile((128, 16))
    for _ in range(40):
        t = tile((128, 16))
        nisa.dma_copy(t, x[:128, :16])
    nisa.tensor_scalar(t, t, nl.multiply, 2.0)


def test_transfers_started_at_once_take_what_a_machine_without_that_cost_would():
    changed, other = both_ways(
        many_loads,
        lambda timeline, replay: Change(issue=dict.fromkeys(range(40), 0.0)),
        swdge_spacing_ns=0.0,
    )
    assert changed == pytest.approx(other, rel=1e-12)


def test_without_table_loads_it_takes_what_a_machine_without_them_would():
    changed, other = both_ways(
        functions,
        lambda timeline, replay: Change(tables=dict.fromkeys(replay.tables, 0.0)),
        activation_table_ns=0.0,
    )
    assert changed == pytest.approx(other, rel=1e-12)


def test_faster_matmuls_take_what_a_machine_with_them_would():
    def change(timeline, replay):
        work = {n: 522 / 2068 for n, op in enumerate(timeline.operations) if op.kind == "tensor"}
        return Change(work=work)

    changed, other = both_ways(products, change, fp32_matmul_factor=1, fp32_matmul_pairs=1)
    assert changed == pytest.approx(other, rel=1e-12)


def test_a_load_that_is_gone_takes_its_data_from_the_one_before():
    def twice(x):
        for _ in range(2):
            t = loaded(x)
            nisa.tensor_scalar(t, t, nl.multiply, 2.0)

    timeline = timeline_of(twice)
    replay, core = Replay(timeline), timeline.cores[0]
    first, second = sorted(
        (n for n, op in enumerate(timeline.operations) if op.is_dma), key=replay.at.__getitem__
    )
    changed = replay.run(Change(removed={second: first}))
    held = 156 - 95  # the second begins 95 ns before the first one's result is there
    result = 2 * (512 * 0.5 / 0.96) + held + 156  # two instructions, the data of both there at once
    assert changed == pytest.approx(core.done[first] + result)


def test_a_wait_that_is_dropped_lets_both_run_at_once():
    def chain(x):
        t = tile()
        nisa.memset(t, 1.0)
        nisa.activation(tile(), nl.copy, t)

    timeline = timeline_of(chain)
    core = timeline.cores[0]
    changed = Replay(timeline).run(Change(dropped={1: {0}}))
    assert changed == pytest.approx(max(core.done[0], core.done[1] - core.start[1]))


def test_two_changes_are_made_together():
    timeline = timeline_of(products)
    replay = Replay(timeline)
    matmuls = {n: 0.25 for n, op in enumerate(timeline.operations) if op.kind == "tensor"}
    loads = {n: 0.0 for n, op in enumerate(timeline.operations) if op.is_dma}
    faster, sooner = Change(work=matmuls), Change(issue=loads)
    assert replay.run(faster | sooner) <= min(replay.run(faster), replay.run(sooner))
    assert replay.run() == pytest.approx(timeline.work_ns)  # nothing is left of them


def test_equal_parts_and_single_parts_of_dma_engines_agree():
    machine = find("trn2")
    together, apart = DmaEngines(machine), DmaEngines(machine)
    for arrival, ns in ((100.0, 50.0), (110.0, 20.0), (900.0, 5.0)):
        parts = [(engine, ns) for engine in range(machine.dma_engines)]
        assert together.move(arrival, ns) == pytest.approx(apart.move(arrival, parts))
    alone = [(3, 40.0)]
    assert together.move(901.0, alone) == pytest.approx(apart.move(901.0, alone))
    assert together.move(902.0, 7.0) == pytest.approx(apart.move(902.0, 7.0))
