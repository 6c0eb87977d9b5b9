"""Replays: a recorded program on new data equals the kernel's Python run on it (spec/language.md 3.5)."""

from __future__ import annotations

import gc
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.kernel.cache
import nki.language as nl
from nki.backends.reference import random as random_state
from nki.backends.reference.memory import Memory
from random_programs import COLUMNS, OPERATIONS, ROWS, STEPS, Machine, data
from support import target, unseen


@pytest.fixture(autouse=True)
def empty_cache():
    nki.kernel.cache.clear()


def outcome(kernel, *args):
    """Everything a caller can see of a call: results, arguments afterwards, diagnostics, or the error."""
    random_state.reset()
    args = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run = kernel.run(*args)
            seen = [run.result, [str(d) for d in run.diagnostics], vars(run.statistics)["by_instruction"]]
        except nki.NkiError as problem:
            seen = [problem.kind, str(problem)]
    return [seen, [str(w.message) for w in caught], args]


def assert_same(a, b):
    """Equal structures; arrays bit for bit."""
    assert type(a) is type(b)
    if isinstance(a, (tuple, list)):
        assert len(a) == len(b), (a, b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    else:
        assert a == b


# ---- any program ---------------------------------------------------------------------------------

RUNS = []  # how often the Python ran
ran = unseen(RUNS)


@nki.jit
def interpret(x, index, operations, shape):
    ran(shape)
    out = nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.shared_hbm)
    machine = Machine(x, index, out)
    for name, *args in operations:
        STEPS[name](machine, *args)
    nisa.dma_copy(out[:, 0:2], machine.tiles[0][:, 0:2])
    if shape == "views":
        return out.reshape((COLUMNS, ROWS)), [out[2:4], x], None, 7
    return out


def arguments(seed, rows=ROWS):
    index = np.random.default_rng(seed + 9).integers(0, rows + seed // 3, (ROWS, 1)).astype(np.int32)
    return data(seed, rows), index


@settings(max_examples=250, deadline=None)
@given(
    operations=st.lists(OPERATIONS, max_size=8).map(tuple),
    shape=st.sampled_from(["plain", "views"]),
    seeds=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
    rows=st.sampled_from([ROWS, 12]),
    precise=st.booleans(),
)
def test_a_replay_equals_the_python(operations, shape, seeds, rows, precise):
    with target("trn2"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("NKI_PRECISE_FP", str(int(precise)))
        patch.setenv("OPEN_NKI_CACHE", "0")
        expected = [outcome(interpret, *arguments(seed, rows), operations, shape) for seed in seeds]
        patch.setenv("OPEN_NKI_CACHE", "1")
        nki.kernel.cache.clear()
        RUNS.clear()
        found = [outcome(interpret, *arguments(seed, rows), operations, shape) for seed in seeds]
    assert_same(expected, found)
    expected_runs, known = 0, False
    for failed in (isinstance(seen[0], str) for seen, _, _ in found):
        # an instruction that fails is met again by the Python, which could catch it
        expected_runs += int(not known) + int(failed)
        known = known or not failed
    assert len(RUNS) == expected_runs


# ---- what belongs to a call ----------------------------------------------------------------------


@nki.jit
def double(x):
    ran("double")
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    held = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(held, x)
    nisa.tensor_tensor(held, held, held, nl.add)
    nisa.dma_copy(out, held)
    return out


@pytest.mark.tiny
def test_the_python_runs_once_and_the_data_is_new():
    RUNS.clear()
    for seed in range(3):
        np.testing.assert_array_equal(double(data(seed)), 2 * data(seed))
    assert RUNS == ["double"]


def test_results_of_two_calls_share_no_memory():
    first, second = double(data(0)), double(data(1))
    assert not np.shares_memory(first, second)
    second[...] = 0
    np.testing.assert_array_equal(first, 2 * data(0))
    np.testing.assert_array_equal(double(data(1)), 2 * data(1))


@nki.jit
def warns(x):
    held = nl.ndarray((ROWS, COLUMNS), nl.float32)
    nisa.dma_copy(held[:, 0:8], x[:, 0:8])
    nisa.tensor_scalar(held, held, nl.multiply, 2.0)  # reads what was never written
    out = nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.hbm)
    nisa.dma_copy(out, held)
    return out


def test_diagnostics_are_reported_at_every_call():
    warned = []
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = warns.run(data())
        warned.append([str(w.message) for w in caught])
        assert [d.kind for d in run.diagnostics] == ["uninitialised", "output-buffer"]
    assert warned[0] == warned[1] == warned[2]
    assert "reads what was never written" in warned[0][0]


def test_strict_mode_refuses_a_recorded_program(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warns(data())
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")
    with pytest.raises(nki.NkiError) as caught:
        warns(data())
    assert caught.value.kind == "uninitialised"


@nki.jit
def pick(x, index):
    ran("pick")
    out = nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.shared_hbm)
    rows = nl.ndarray((ROWS, 1), nl.int32)
    nisa.dma_copy(rows, index)
    nisa.dma_copy(out, x.vector_select(0, rows))
    return out


def test_an_error_of_a_replay_shows_the_line_of_the_kernel():
    good, bad = np.zeros((ROWS, 1), np.int32), np.full((ROWS, 1), 99, np.int32)
    with pytest.raises(nki.NkiError) as first:
        pick(data(), bad)
    pick(data(), good)
    RUNS.clear()
    with pytest.raises(nki.NkiError) as second:
        pick(data(), bad)
    assert RUNS == ["pick"] and second.value.kind == "index"  # the Python could catch it
    assert str(second.value) == str(first.value) and "x.vector_select(0, rows)" in str(second.value)
    np.testing.assert_array_equal(pick(data(), good), data()[[0] * ROWS])
    assert RUNS == ["pick"]


@nki.jit
def add_to(x, amount):
    held = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(held, x)
    nisa.tensor_scalar(held, held, nl.add, amount)
    nisa.dma_copy(x, held)
    return x


def test_arguments_are_written_in_place_and_returned():
    for seed in range(3):
        x = data(seed)
        assert add_to(x, 1.0) is x
        np.testing.assert_array_equal(x, data(seed) + 1)
    frozen = data(7)
    frozen.setflags(write=False)
    with pytest.raises(nki.NkiError) as caught:
        add_to(frozen, 1.0)
    assert caught.value.kind == "read-only-input"


def test_the_random_state_continues_from_call_to_call():
    @nki.jit
    def sample(x):
        out = nl.ndarray((4, 8), nl.uint32, buffer=nl.shared_hbm)
        bits = nl.ndarray((4, 8), nl.uint32)
        nisa.rng(bits)
        nisa.dma_copy(out, bits)
        return out

    random_state.reset()
    sampled = [sample(data()) for _ in range(3)]
    random_state.reset()
    nki.kernel.cache.clear()
    assert_same(sampled, [sample(data()) for _ in range(3)])
    assert not np.array_equal(sampled[0], sampled[1])


def test_registers_start_each_call_as_they_were_made():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((ROWS, 4), nl.float32, buffer=nl.shared_hbm)
        start = nisa.VirtualRegister(8)
        nisa.dma_copy(out, x[:, nl.ds(start, 4)])
        nisa.register_move(start, 1)
        return out

    for _ in range(3):
        np.testing.assert_array_equal(kernel(data()), data()[:, 8:12])


def test_device_print_prints_at_every_call(capsys):
    @nki.jit
    def kernel(x):
        nl.device_print("x is", x)

    for seed in range(2):
        kernel(data(seed))
        assert f"{data(seed)}" in capsys.readouterr().out


def test_statistics_are_those_of_the_recorded_run():
    first, second = double.run(data()), double.run(data(1))
    assert second.statistics.dma_bytes == first.statistics.dma_bytes == 2 * data().nbytes
    assert second.statistics.sbuf_peak_bytes == first.statistics.sbuf_peak_bytes > 0


# ---- memory and threads --------------------------------------------------------------------------


def test_tiles_live_only_between_their_first_and_last_use():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for row in range(x.shape[0]):
            held = nl.ndarray((1, x.shape[1]), x.dtype)
            nisa.dma_copy(held, x[row : row + 1])
            nisa.dma_copy(out[row : row + 1], held)
        return out

    x = data(rows=200)
    most, alive = [], set()
    original = Memory.__init__

    def counted(self, *args):
        original(self, *args)
        alive.add(id(self))
        most.append(len(alive))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Memory, "__init__", counted)
        patch.setattr(Memory, "__del__", lambda self: alive.discard(id(self)), raising=False)
        kernel(x)
        most.clear()
        np.testing.assert_array_equal(kernel(x), x)
        assert len(most) == 202 and max(most) - min(most) <= 4
        gc.collect()
        assert not alive


def test_threads_run_one_program_at_the_same_time():
    barrier = threading.Barrier(4)
    double(data())
    RUNS.clear()
    wrong = []

    def work(number):
        barrier.wait()
        for i in range(50):
            x = data(100 * number + i)
            if not np.array_equal(double(x), 2 * x):
                wrong.append((number, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and RUNS == []


def test_warnings_after_an_error_that_the_kernel_caught_are_repeated_at_the_next_call():
    @nki.jit
    def kernel(x, index):
        out = nl.ndarray((1, COLUMNS), x.dtype, buffer=nl.shared_hbm)
        row, place = nl.ndarray((1, COLUMNS), x.dtype), nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(place, index)
        try:
            nisa.dma_copy(row, x.select(0, place).expand_dim(0))
        except nki.NkiError:
            nisa.memset(row, 0.0)
        nisa.dma_copy(out, row)
        nl.ndarray((4,), nl.float32)  # a tile of one dimension: a warning
        return out

    args = data(), np.array([[99]], np.int32)
    first, again = outcome(kernel, *args), outcome(kernel, *args)
    assert len(first[1]) == 1 and "two dimensions" in first[1][0]
    assert_same(first, again)
    np.testing.assert_array_equal(kernel(*args), 0)
    np.testing.assert_array_equal(kernel(data(), np.array([[2]], np.int32)), data()[2:3])
    np.testing.assert_array_equal(kernel(*args), 0)  # and not what the call before found
