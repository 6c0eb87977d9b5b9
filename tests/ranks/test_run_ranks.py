"""run_ranks: how ranks get their arguments, what comes back, and how it ends when it ends badly."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.ranks import World, join, per_rank, run_ranks, split
from support import target

BOTH = pytest.mark.parametrize("backend", ["local", "processes"])


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def hbm(like, name, shape=None):
    return nl.ndarray(shape or like.shape, like.dtype, buffer=nl.shared_hbm, name=name)


@nki.jit
def summed(x, group):
    src, dst, out = (hbm(x, name) for name in ("src", "dst", "out"))
    nisa.dma_copy(src, x)
    ncc.all_reduce([src], [dst], group, nl.add)
    nisa.dma_copy(out, dst)
    return out


@nki.jit
def numbered(x):
    """Writes its rank into x and returns it."""
    register = ncc.rank_id()
    nisa.register_store(x[0:1, 0:1], register)
    return x


def ints(rank, shape=(2, 3)):
    return np.full(shape, rank + 1, np.int32)


# ---- arguments -----------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("form", ["function", "sequence", "keywords", "dict"])
def test_every_form_of_inputs(form, backend):
    group = ((0, 1, 2),)
    inputs = {
        "function": lambda rank: (ints(rank), group),
        "sequence": [(ints(rank), group) for rank in range(3)],
        "keywords": lambda rank: {"x": ints(rank), "group": group},
        "dict": {"x": per_rank([ints(0), ints(1), ints(2)]), "group": group},
    }[form]
    results = run_ranks(summed, 3, inputs, backend=backend)
    assert len(results) == 3 and all((r == 6).all() for r in results)


@BOTH
def test_a_single_argument_needs_no_tuple_and_what_was_written_comes_back(backend):
    given = [ints(9) for _ in range(3)]
    results = run_ranks(numbered, 3, given, backend=backend)
    assert [int(r[0, 0]) for r in results] == [0, 1, 2] == [int(x[0, 0]) for x in given]
    assert all((x[1:] == 10).all() for x in given)


def test_arguments_that_are_no_tensors_must_be_equal():
    with pytest.raises(nki.NkiError) as caught:
        run_ranks(summed, 2, lambda rank: (ints(rank), ((0, 1),) if rank else ((1, 0),)))
    assert caught.value.kind == "rank-arguments" and "'group" in str(caught.value)
    with pytest.raises(nki.NkiError) as caught:
        run_ranks(summed, 2, lambda rank: (ints(rank, (2, rank + 1)), ((0, 1),)))
    assert caught.value.kind == "rank-arguments" and "int32[2, 1]" in str(caught.value)


@pytest.mark.parametrize(
    "settings, kind",
    [
        ({"world_size": 0}, "argument"),
        ({"world_size": 129}, "argument"),
        ({"backend": "mpi"}, "argument"),
        ({"inputs": [1]}, "rank-arguments"),
        ({"inputs": 3}, "argument"),
        ({"inputs": {"x": per_rank([1])}}, "rank-arguments"),
    ],
)
def test_wrong_calls_are_refused(settings, kind):
    given = {"world_size": 2, "inputs": lambda rank: (ints(rank), ((0, 1),)), **settings}
    with pytest.raises(nki.NkiError) as caught:
        run_ranks(summed, **given)
    assert caught.value.kind == kind


def test_processes_share_the_cores(monkeypatch):
    @nki.jit
    def told(x):
        raise ValueError(f"threads: {os.environ['OPEN_NKI_THREADS']}.")

    share = max(1, len(os.sched_getaffinity(0)) // 3)
    for given, threads in ((None, share), ("7", 7)):
        if given is not None:
            monkeypatch.setenv("OPEN_NKI_THREADS", given)
        with pytest.raises(ValueError, match=f"threads: {threads}\\."):
            run_ranks(told, 3, ints, backend="processes")


@BOTH
def test_torch_tensors_come_back_as_torch_tensors(backend):
    torch = pytest.importorskip("torch")
    x = [torch.full((2, 3), r + 1.0, dtype=torch.bfloat16) for r in range(2)]
    results = run_ranks(summed, 2, lambda rank: (x[rank], ((0, 1),)), backend=backend)
    assert all(torch.equal(r, torch.full((2, 3), 3.0, dtype=torch.bfloat16)) for r in results)


def test_shards():
    x = np.arange(24).reshape(2, 12)
    parts = split(x, 4, axis=1)
    assert [p.shape for p in parts] == [(2, 3)] * 4 and np.array_equal(join(parts, axis=1), x)
    with pytest.raises(nki.NkiError):
        split(x, 5, axis=1)


def test_one_hundred_and_twenty_eight_ranks_on_two_cores_each():
    everyone = (tuple(range(128)),)
    results = run_ranks(summed[2], 128, lambda rank: (ints(rank), everyone))
    assert all((r == 128 * 129 // 2).all() for r in results)


@nki.jit
def zeroed_stored_summed(x, group, looks):
    """The cores race: each zeroes everything, then stores its half. Ranks meet before that and after."""
    src, dst, out = (hbm(x, name) for name in ("src", "dst", "out"))
    tile, zeros = nl.ndarray((2, x.shape[1]), x.dtype), nl.ndarray(x.shape, x.dtype)
    if nl.program_id(0) == 1:  # one core is always some instructions ahead
        nisa.memset(tile, 7)
        nisa.dma_copy(tile, x[0:2])
    if looks:
        nl.device_print("begins", tile)
    nisa.dma_copy(dst, x)
    nisa.core_barrier(dst, (0, 1))
    ncc.all_reduce([dst], [src], group, nl.add)
    nisa.memset(zeros, 0)
    nisa.dma_copy(src, zeros)
    mine = nl.ds(2 * nl.program_id(0), 2)
    nisa.dma_copy(tile, x[mine])
    nisa.dma_copy(src[mine], tile)
    ncc.all_reduce([src], [dst], group, nl.add)
    nisa.dma_copy(out[mine], dst[mine])
    return out


@BOTH
@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("executor", ["auto", "reference"])
def test_cores_that_race_take_turns_among_ranks_too(backend, looks, executor, capfd):
    with nki.options(executor=executor):
        for _ in range(2):
            results = run_ranks(
                zeroed_stored_summed[2],
                3,
                lambda rank: (ints(rank, (4, 3)), ((0, 1, 2),), looks),
                backend=backend,
            )
            assert all((r == 6).all() for r in results)


@BOTH
@pytest.mark.parametrize("lnc", [1, 2])
def test_a_world_of_one(lnc, backend):
    (result,) = run_ranks(summed, 1, lambda rank: (ints(rank), ((0,),)), lnc=lnc, backend=backend)
    assert (result == 1).all()


def test_twenty_runs_are_one_run():
    x = np.random.default_rng(0).standard_normal((5, 4, 6)).astype(np.float32)
    runs = [run_ranks(summed[2], 5, lambda r: (x[r], ((4, 2, 0, 1, 3),))) for _ in range(20)]
    assert all(np.array_equal(a, b) for run in runs for a, b in zip(run, runs[0], strict=True))


def test_each_rank_begins_with_the_same_random_numbers():
    @nki.jit
    def draws():
        tile = nl.ndarray((2, 4), nl.uint32)
        nisa.rng(tile)
        out = nl.ndarray((2, 4), nl.uint32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    a, b = (run_ranks(draws, 3, lambda rank: (), backend=name) for name in ("local", "processes"))
    assert all(np.array_equal(r, a[0]) for r in (*a, *b))


def test_what_every_rank_would_say_is_said_once():
    @nki.jit
    def unnamed(x):
        src, dst = nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm), hbm(x, "dst")
        ncc.all_reduce([src], [dst], ((0, 1, 2, 3),), nl.add)
        return dst

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run_ranks(unnamed, 4, ints)
    assert [w.category.kind for w in said] == ["collective-unnamed"]


# ---- transports ----------------------------------------------------------------------------------


def test_a_transport_is_one_method():
    from nki.launch.world import attached

    class Echo(World):
        """Both ranks send the same."""

        def exchange(self, key, data):
            asked.append((key.members, key.number))
            return [data for _ in key.members]

    asked = []
    with attached(Echo(0, 2)):
        assert (summed(ints(2), ((1, 0),)) == 6).all()
        assert (summed(ints(3), ((0, 1),)) == 8).all()
    assert asked == [((0, 1), 1), ((0, 1), 2)]


# ---- when it goes wrong --------------------------------------------------------------------------


@nki.jit
def trips(x, group):
    """As many all_reduces as x says."""
    src, dst = hbm(x, "src"), hbm(x, "dst")
    nisa.dma_copy(src, x)
    count = nisa.register_alloc()
    nisa.register_load(count, x[0:1, 0:1])

    def body(_):
        ncc.all_reduce([src], [dst], group, nl.add)

    nl.fori_loop(0, count, body)
    return dst


@BOTH
def test_collectives_in_dynamic_loops_meet_iteration_by_iteration(backend):
    results = run_ranks(trips, 2, lambda rank: (ints(2), ((0, 1),)), backend=backend)
    assert all((r == 6).all() for r in results)


@BOTH
def test_a_rank_that_ends_early_is_told_as_a_table(backend):
    with pytest.raises(nki.NkiError) as caught:
        run_ranks(trips, 2, lambda rank: (ints(rank), ((0, 1),)), backend=backend)
    text = str(caught.value)
    assert caught.value.kind == "deadlock" and "rank  core  line" in text
    assert "it has finished" in text and "test_run_ranks.py:" in text
    assert "all_reduce into dst int32[2, 3] of ranks 0, 1" in text


@nki.jit
def differing(x, how):
    """Ranks other than 0 take part in something else."""
    src, dst, more = hbm(x, "src"), hbm(x, "dst"), hbm(x, "more", (2 * x.shape[0], x.shape[1]))
    nisa.dma_copy(src, x)
    zero, one = nisa.register_alloc(), nisa.register_alloc()
    nisa.register_load(zero, x[0:1, 0:1])
    nisa.register_load(one, x[0:1, 1:2])

    def first(_):
        ncc.all_reduce([src], [dst], ((0, 1),), nl.add)

    def second(_):
        if how == "op":
            ncc.all_reduce([src], [dst], ((0, 1),), nl.maximum)
        elif how == "operation":
            ncc.all_gather([src], [more], ((0, 1),), 0)
        elif how == "shape":
            ncc.all_reduce([src[0:1]], [dst[0:1]], ((0, 1),), nl.add)
        else:
            ncc.all_reduce([src], [dst], ((1, 0),), nl.add)

    nl.fori_loop(0, zero, first)
    nl.fori_loop(0, one, second)
    return dst


@BOTH
@pytest.mark.parametrize("how", ["op", "operation", "shape", "group"])
def test_ranks_that_call_different_collectives_are_told_both_calls(how, backend):
    ones = [np.array([[1, 0], [5, 5]], np.int32), np.array([[0, 1], [5, 5]], np.int32)]
    with pytest.raises(nki.NkiError) as caught:
        run_ranks(differing, 2, lambda rank: (ones[rank], how), backend=backend)
    text = str(caught.value)
    assert caught.value.kind == "collective-mismatch" and caught.value.rank == 0
    rows = [line for line in text.splitlines() if "test_run_ranks.py:" in line and line.startswith("  = ")]
    assert len(rows) == 2 and rows[0].startswith("  = 0     0") and rows[1].startswith("  = 1     0")


@nki.jit
def indexing(x, group):
    """Reads row x[0, 0] of a tensor with four rows."""
    src, dst, row = hbm(x, "src"), hbm(x, "dst"), hbm(x, "row", (1, 3))
    nisa.dma_copy(src, x)
    table = nl.zeros((4, 3), x.dtype, buffer=nl.shared_hbm, name="table")
    at = nisa.register_alloc()
    nisa.register_load(at, x[0:1, 0:1])
    nisa.dma_copy(row, table[nl.ds(at, 1)])
    ncc.all_reduce([src], [dst], group, nl.add)
    return dst


@BOTH
def test_the_error_of_one_rank_stops_all_and_names_it(backend):
    begin = time.monotonic()
    with pytest.raises(nki.NkiError) as caught:
        run_ranks(indexing, 4, lambda rank: (ints(3 * (rank == 2)), ((0, 1, 2, 3),)), backend=backend)
    assert caught.value.kind == "index" and caught.value.rank == 2
    assert str(caught.value).startswith("rank=2: ") and "nl.ds(at, 1)" in str(caught.value)
    assert time.monotonic() - begin < 5


@BOTH
def test_an_error_of_the_users_own_comes_through(backend):
    @nki.jit
    def raises(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_ranks(raises, 2, ints, backend=backend)


def test_a_rank_in_no_list_keeps_its_dst_and_hears_of_it():
    @nki.jit
    def partly(x):
        src, dst = hbm(x, "src"), nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm, name="dst")
        nisa.dma_copy(src, x)
        ncc.all_reduce([src], [dst], ((0, 1),), nl.add)
        return dst

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results = run_ranks(partly, 3, ints)
    assert [int(r[0, 0]) for r in results] == [3, 3, 0]
    assert [w.category.kind for w in said] == ["not-a-member"]


# ---- processes -----------------------------------------------------------------------------------


@nki.jit
def dies(x, group):
    if os.getpid() != x.shape[1] and x.shape[0] == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return summed(x, group)


def open_files():
    return len(os.listdir("/proc/self/fd"))


_there_before: set[str] = set()  # children of other tests in this process, such as a pool of workers


def all_children():
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return file.read().split()


@pytest.fixture(autouse=True)
def _children_before():
    _there_before.clear()
    _there_before.update(all_children())


def children():
    return [child for child in all_children() if child not in _there_before]


def test_a_killed_process_is_named_and_nothing_is_left():
    before = open_files()
    with pytest.raises(nki.NkiError) as caught:
        run_ranks(dies, 3, lambda rank: (ints(rank, (7, 3)), ((0, 1, 2),)), backend="processes")
    assert caught.value.kind == "rank-lost" and "SIGKILL" in str(caught.value)
    assert open_files() == before and children() == []


def test_too_long_is_told_as_a_table():
    @nki.jit
    def sleeps(x):
        time.sleep(5)
        return x

    with pytest.raises(nki.NkiError) as caught:
        run_ranks(sleeps, 2, ints, backend="processes", timeout=0.2)
    assert caught.value.kind == "rank-timeout" and "it runs" in str(caught.value)
    assert isinstance(caught.value, TimeoutError) and children() == []


def kill_one_at_random(moment, victim):
    """Start a world of three that would go round for long, and kill one of its processes."""

    def kill():
        deadline = time.monotonic() + 10
        while len(children()) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(moment)
        os.kill(int(children()[victim]), signal.SIGKILL)  # the oldest first, as they were started
        killed.append(time.monotonic())

    killed = []
    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(nki.NkiError) as caught:
        run_ranks(trips, 3, lambda rank: (ints(10**6), ((0, 1, 2),)), backend="processes")
    ended = time.monotonic()
    thread.join()
    assert caught.value.kind == "rank-lost" and caught.value.rank == victim
    assert children() == []
    return ended - killed[0]


@pytest.mark.parametrize("moment", [0.0, 0.02])
def test_a_process_killed_on_the_way_is_named(moment):
    before = open_files()
    assert kill_one_at_random(moment, 1) < 10
    assert open_files() == before


@pytest.mark.slow
def test_two_hundred_kills_at_random_moments_leave_nothing():
    generator, before = np.random.default_rng(0), open_files()
    took = [
        kill_one_at_random(float(generator.uniform(0, 0.15)), int(generator.integers(3))) for _ in range(200)
    ]
    assert open_files() == before
    assert np.median(took) < 1.0


def test_where_processes_cannot_fork_the_error_says_what_else_to_do(monkeypatch):
    monkeypatch.delattr(os, "fork")
    with pytest.raises(nki.NkiError, match="leave backend out"):
        run_ranks(numbered, 2, lambda rank: (np.zeros((1, 1), np.int32),), backend="processes")
