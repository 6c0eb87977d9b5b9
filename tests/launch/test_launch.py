"""Two cores: sharing, order, errors, results (spec/language.md 2.3, 3.3, 12; spec/decisions.md 13, 15)."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.ir import context
from nki.launch import core as core_module
from support import target

X = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"):
        yield


def refusal(kernel, *args, degree=2):
    with pytest.raises(nki.NkiError) as caught:
        kernel[degree](*args)
    return caught.value


def kinds(run):
    """What was said; kernels here return nothing on purpose."""
    return [d.kind for d in run.diagnostics if d.kind != "no-effect"]


def fill(tensor, value):
    """Write a number to all of an HBM tensor."""
    tile = nl.ndarray((tensor.shape[0], *(tensor.shape[1:] or (1,))), tensor.dtype)
    nisa.memset(tile, value)
    nisa.dma_copy(tensor, tile)


# ---- shared tensors ------------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize("name", ["", "out"])
def test_the_cores_fill_one_shared_output(name):
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name=name)
        half = x.shape[0] // nl.num_programs(0)
        rows = nl.ds(nl.program_id(0) * half, half)
        tile = nl.ndarray((half, x.shape[1]), x.dtype)
        nisa.dma_copy(tile, x[rows])
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        nisa.dma_copy(out[rows], tile)
        return out

    assert np.array_equal(kernel[2](X), 2 * X)
    assert np.array_equal(kernel(X), 2 * X) and np.array_equal(kernel[1](X), 2 * X)


def test_the_nth_shared_tensor_of_a_name_is_one_storage():
    seen = {}

    @nki.jit
    def kernel(x):
        names = ["a", "", "a", "b", ""] if nl.program_id(0) == 0 else ["", "b", "a", "", "a"]
        made = [(name, nl.ndarray((4,), nl.float32, buffer=nl.shared_hbm, name=name)) for name in names]
        for name in ("a", "b", ""):
            seen.setdefault(name, []).append([id(t.storage) for n, t in made if n == name])

    kernel[2](X)
    assert all(first == second for first, second in seen.values())
    assert len({number for first, _ in seen.values() for number in first}) == 5


@settings(max_examples=200, deadline=None)
@given(st.permutations(range(4)), st.lists(st.integers(1, 5), min_size=4, max_size=4))
def test_named_tensors_match_in_any_order(order, sizes):
    @nki.jit
    def kernel(x):
        me = nl.program_id(0)
        tensors = {}
        for i in range(4) if me == 0 else order:
            tensors[i] = nl.ndarray((sizes[i],), nl.float32, buffer=nl.shared_hbm, name=f"t{i}")
        for i in range(4):
            if i % 2 == me:
                fill(tensors[i], float(i))
        return [tensors[i] for i in range(4)]

    with target("trn2"):
        for i, result in enumerate(kernel[2](X)):
            assert result.tolist() == [float(i)] * sizes[i]


@pytest.mark.parametrize("other", [dict(shape=(5,)), dict(dtype=nl.int32)])
def test_a_shared_tensor_must_look_the_same_on_both_cores(other):
    @nki.jit
    def kernel(x):
        options = {"shape": (4,), "dtype": nl.float32, **(other if nl.program_id(0) else {})}
        nl.ndarray(**options, buffer=nl.shared_hbm, name="same")

    problem = refusal(kernel, X)
    assert problem.kind == "shared-mismatch" and isinstance(problem, ValueError)
    assert "core 1" in str(problem) and "float32[4]" in str(problem) and "'same'" in str(problem)


def test_a_tensor_that_one_core_alone_makes_is_reported_at_its_line():
    @nki.jit
    def kernel(x):
        if nl.program_id(0) == 0:
            nl.ndarray((4,), nl.float32, buffer=nl.shared_hbm, name="lonely")

    with pytest.warns(nki.NkiWarning, match="only core 0 allocates"):
        run = kernel[2].run(X)
    assert kinds(run) == ["shared-one-sided"] and 'name="lonely"' in run.diagnostics[0].site.text
    assert "private_hbm" in run.diagnostics[0].help


def test_with_one_core_shared_tensors_are_ordinary():
    @nki.jit
    def kernel(x):
        a, b = (nl.ndarray((4,), nl.float32, buffer=nl.shared_hbm, name="t") for _ in range(2))
        return a.storage is b.storage

    assert kernel(X) is False and not kernel[1].run(X).diagnostics


def test_private_hbm_and_chip_memory_belong_to_one_core():
    storages = []

    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 4), x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        mine = nl.ndarray((1, 4), x.dtype, buffer=nl.private_hbm, name="mine")
        placed = nl.ndarray((1, 4), x.dtype, address=(0, 0))
        nisa.memset(placed, float(me))
        np.asarray(placed)
        storages.append((mine.storage, core_module.current().memories[placed.storage].raw))
        nisa.dma_copy(mine, placed)
        nisa.core_barrier(out, (0, 1))
        nisa.dma_copy(out[me : me + 1], mine)
        return out

    assert kernel[2](X)[:, 0].tolist() == [0, 1]
    (first, raw), (second, other) = storages[-2:]
    assert first is not second and not np.shares_memory(raw, other)


def test_arguments_are_shared_and_written_back_once():
    @nki.jit
    def kernel(x):
        assert x.buffer is nl.shared_hbm
        me = nl.program_id(0)
        tile = nl.ndarray((4, 4), x.dtype)
        nisa.memset(tile, float(me + 1))
        nisa.dma_copy(x[4 * me : 4 * me + 4], tile)

    x = X.copy()
    kernel[2](x)
    assert np.array_equal(x, np.repeat([[1.0], [2.0]], 4, axis=0) * np.ones((1, 4)))


def test_a_shared_tensor_is_poisoned_once():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 4), x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        nisa.dma_copy(out[me : me + 1], x[me : me + 1])
        return out

    assert np.array_equal(kernel[2](X), X[:2])


def test_shared_tensors_of_a_loop_body_are_one_storage_for_all_iterations_and_cores():
    seen = []

    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 4), x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)

        def body(i):
            shared = nl.ndarray((2, 4), x.dtype, buffer=nl.shared_hbm)
            seen.append(id(shared.storage))
            nisa.dma_copy(shared[me : me + 1], x[me : me + 1])
            nisa.core_barrier(shared, (0, 1))
            nisa.dma_copy(out[me : me + 1], shared[1 - me : 2 - me])
            nisa.core_barrier(shared, (0, 1))

        nl.fori_loop(0, 3, body)
        return out

    assert np.array_equal(kernel[2](X), X[[1, 0]]) and len(set(seen[-6:])) == 1


# ---- constants -----------------------------------------------------------------------------------


def test_constants_are_stored_once_for_both_cores():
    seen = []

    @nki.jit
    def kernel(x):
        seen.append(nl.shared_constant(np.arange(4, dtype=np.float32)).storage)

    kernel[2](X)
    assert seen[0] is seen[1]


def test_constants_must_not_depend_on_the_core():
    @nki.jit
    def kernel(x):
        nl.shared_constant(np.full(4, nl.program_id(0), np.float32))

    problem = refusal(kernel, X)
    assert problem.kind == "lnc-divergence" and "program_id" in problem.help


# ---- order ---------------------------------------------------------------------------------------


def test_programs_hand_over_only_where_they_meet_core_0_first(monkeypatch):
    order = []

    @nki.jit
    def kernel(x):
        me = nl.program_id(0)
        order.append((me, "begins"))
        nisa.core_barrier(x, (0, 1))
        order.append((me, "goes on"))

    monkeypatch.setenv("OPEN_NKI_CACHE", "0")  # each instruction runs as it is issued
    kernel[2](X)
    assert order == [(0, "begins"), (1, "begins"), (1, "goes on"), (0, "goes on")]


def test_programs_never_run_at_the_same_time():
    running, most = [], []

    @nki.jit
    def kernel(x):
        for _ in range(5):
            running.append(1)
            most.append(len(running))
            tile = nl.ndarray((128, 512), nl.float32)
            nisa.memset(tile, 0.0)
            running.pop()
            nisa.core_barrier(x, (0, 1))

    kernel[2](X)
    assert set(most) == {1}


def test_no_thread_stays_behind():
    @nki.jit
    def good(x):
        nisa.core_barrier(x, (0, 1))

    @nki.jit
    def stuck(x):
        if nl.program_id(0) == 1:
            nisa.core_barrier(x, (0, 1))

    before = threading.active_count()
    good[2](X)
    assert refusal(stuck, X).kind == "deadlock"
    assert threading.active_count() == before and context.running() is None


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("waits_first", [True, False])
def test_the_error_of_one_core_wins_over_the_wait_of_the_other(culprit, waits_first):
    @nki.jit
    def kernel(x):
        if nl.program_id(0) == culprit:
            if not waits_first:
                nisa.core_barrier(x, (0, 1))
            nl.ndarray((129, 4), nl.float32)
        nisa.core_barrier(x, (0, 1))

    problem = refusal(kernel, X)
    assert problem.kind == "partition-limit"
    assert f"raised on core {culprit}" in str(problem) and "nl.ndarray((129, 4)" in str(problem)


def test_the_users_own_errors_stay_untouched():
    @nki.jit
    def kernel(x):
        if nl.program_id(0) == 1:
            raise AssertionError("mine")
        nisa.core_barrier(x, (0, 1))

    with pytest.raises(AssertionError) as caught:
        kernel[2](X)
    assert caught.value.args == ("mine",) and not isinstance(caught.value, nki.NkiError)


def test_a_failed_call_leaves_arguments_and_the_next_call_alone():
    @nki.jit
    def kernel(x, broken):
        fill(x, 7.0)
        nisa.core_barrier(x, (0, 1))
        if broken and nl.program_id(0) == 1:
            nl.ndarray((0,), nl.float32)

    x = X.copy()
    assert refusal(kernel, x, True).kind == "shape"
    assert np.array_equal(x, X)
    kernel[2](x, False)
    assert (x == 7).all()


@pytest.mark.parametrize("cores", [1, 2])
def test_a_failed_call_keeps_no_memory_once_its_error_is_gone(cores):
    storages = []

    @nki.jit
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        storages.append(weakref.ref(tile.storage))  # what its bytes are found by
        nisa.dma_copy(tile, x[:, :1])

    gc.disable()
    try:
        with contextlib.suppress(nki.NkiError):
            kernel[cores](X)
        assert storages and not any(storage() for storage in storages)
    finally:
        gc.enable()


def test_an_interruption_stops_the_programs():
    steps = []

    @nki.jit
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        for step in range(1000):
            nisa.memset(tile, 0.0)
            steps.append(step)
            time.sleep(0.001)
            if step == 20:  # the main thread waits by now
                signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            kernel[2](X)
    finally:
        signal.signal(signal.SIGALRM, before)
    reached = len(steps)
    time.sleep(0.05)
    assert len(steps) == reached < 1000


def test_loops_that_run_differently_on_the_cores_are_reported():
    @nki.jit
    def kernel(x):
        nl.fori_loop(0, 2 + nl.program_id(0), lambda i: None)

    with pytest.warns(nki.NkiWarning, match="different numbers of iterations"):
        run = kernel[2].run(X)
    assert kinds(run) == ["lnc-divergence"]
    assert run.diagnostics[0].notes == ["core 0: 2", "core 1: 3"]


def test_loops_of_one_core_alone_are_fine():
    @nki.jit
    def kernel(x):
        if nl.program_id(0) == 0:
            nl.fori_loop(0, 2, lambda i: None)
        nl.fori_loop(0, 3, lambda i: None)

    assert kinds(kernel[2].run(X)) == []


def test_a_loop_that_runs_longer_on_one_core_ends_in_a_deadlock_report():
    @nki.jit
    def kernel(x):
        nl.fori_loop(0, 2 + nl.program_id(0), lambda i: nisa.core_barrier(x, (0, 1)) and None)

    text = str(refusal(kernel, X))
    assert "core 0 has finished" in text and "core 1 waits for core_barrier on x" in text


# ---- results -------------------------------------------------------------------------------------


def test_both_cores_must_return_the_same_tensors():
    @nki.jit
    def kernel(x):
        a, b = (nl.ndarray((4,), x.dtype, buffer=nl.shared_hbm) for _ in range(2))
        fill(a, 1.0)
        fill(b, 1.0)
        return (a, b) if nl.program_id(0) == 0 else (b, a)

    problem = refusal(kernel, X)
    assert problem.kind == "lnc-outputs" and isinstance(problem, ValueError)
    assert "return (a, b)" in str(problem)


def test_both_cores_must_return_the_same_structure():
    @nki.jit
    def kernel(x):
        return x if nl.program_id(0) == 0 else (x,)

    assert refusal(kernel, X).kind == "lnc-outputs"


def test_numbers_come_from_core_0():
    @nki.jit
    def kernel(x):
        return nl.program_id(0), "text", None

    assert kernel[2](X) == (0, "text", None)


def test_private_outputs_are_refused_on_two_cores():
    @nki.jit
    def kernel(x):
        return nl.zeros((4,), x.dtype, buffer=nl.private_hbm)

    problem = refusal(kernel, X)
    assert problem.kind == "output-buffer" and "each core has its own" in str(problem)
    with pytest.warns(nki.NkiWarning, match="private HBM"):
        assert not kernel(X).any()


# ---- degrees and nesting -------------------------------------------------------------------------


def test_trn1_has_one_core():
    @nki.jit
    def kernel(x):
        return nl.num_programs()

    with target("trn1"):
        assert kernel[1](X) == 1
        problem = refusal(kernel, X)
    assert problem.kind == "launch-grid" and "trn1" in str(problem)


def test_a_nested_kernel_runs_on_the_callers_cores():
    @nki.jit
    def inner(x):
        tile = nl.ndarray((4, 4), x.dtype)
        nisa.dma_copy(tile, x[4 * nl.program_id(0) : 4 * nl.program_id(0) + 4])
        return tile

    @nki.jit
    def outer(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        nisa.dma_copy(out[4 * me : 4 * me + 4], inner[2](x))
        return out

    assert np.array_equal(outer[2](X), X)

    @nki.jit
    def wrong(x):
        inner[1](x)

    assert refusal(wrong, X).kind == "launch-grid"


def test_meetings_pair_the_nth_visit_of_each_core(monkeypatch):
    offered = []

    @nki.jit
    def kernel(x):
        core = core_module.current()
        for visit in range(3):
            offers = core.execution.barriers.meet(core.state, "here", "a test", (core.index, visit))
            offered.append(dict(offers))

    monkeypatch.setenv("OPEN_NKI_CACHE", "0")
    kernel[2](X)
    assert offered.count({0: (0, 1), 1: (1, 1)}) == 2 and len(offered) == 6
