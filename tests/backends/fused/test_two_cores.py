"""Two cores of a plan: in parallel where neither needs what the other writes, else in turns."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from backend_agreement import assert_agrees, outcome
from nki.backends.fused import backend
from nki.backends.fused.planner import plan_of
from nki.backends.fused.runner import PlanRunner
from nki.backends.lowered import lower
from support import target

COLUMNS = 256


@pytest.fixture(autouse=True)
def on_trn2():
    with target("trn2"):
        yield


def product(out, left, right, column):
    psum = nl.ndarray((128, COLUMNS), nl.float32, buffer=nl.psum)
    for k in range(0, left.shape[0], 128):
        a, b = nl.ndarray((128, 128), nl.float32), nl.ndarray((128, COLUMNS), nl.float32)
        nisa.dma_copy(a, left[k : k + 128])
        nisa.dma_copy(b, right[k : k + 128, column : column + COLUMNS])
        nisa.nc_matmul(psum, a, b)
    tile = nl.ndarray((128, COLUMNS), nl.float32)
    nisa.activation(tile, nl.exp, psum, scale=0.01)
    nisa.dma_copy(out[:, column : column + COLUMNS], tile)


@nki.jit
def halves(left, right):
    """Each core makes half of the columns."""
    out = nl.ndarray((128, 2 * COLUMNS), nl.float32, buffer=nl.shared_hbm)
    product(out, left, right, nl.program_id(0) * COLUMNS)
    return out


@nki.jit
def handed_over(left, right):
    """Core 1 reads what core 0 has written."""
    middle = nl.ndarray((128, 2 * COLUMNS), nl.float32, buffer=nl.shared_hbm, name="middle")
    out = nl.ndarray((128, 2 * COLUMNS), nl.float32, buffer=nl.shared_hbm, name="out")
    product(middle, left, right, nl.program_id(0) * COLUMNS)
    nisa.core_barrier(middle, (0, 1))
    tile = nl.ndarray((128, COLUMNS), nl.float32)
    other = (1 - nl.program_id(0)) * COLUMNS
    nisa.dma_copy(tile, middle[:, other : other + COLUMNS])
    nisa.dma_copy(out[:, other : other + COLUMNS], tile)
    return out


@nki.jit
def both_write(left, right):
    """Both cores write all of the result."""
    out = nl.ndarray((128, 2 * COLUMNS), nl.float32, buffer=nl.shared_hbm)
    for column in (0, COLUMNS):
        product(out, left, right, column)
    return out


def arrays():
    chance = np.random.default_rng(0)
    return [chance.integers(-3, 4, shape).astype(np.float32) for shape in ((256, 128), (256, 2 * COLUMNS))]


@pytest.mark.filterwarnings("ignore:both cores write")
@pytest.mark.parametrize(
    ("kernel", "independent"), [(halves, True), (handed_over, False), (both_write, False)]
)
def test_cores_are_independent_where_neither_needs_the_other(kernel, independent):
    given = arrays()
    program = kernel[2].trace(*given)
    assert plan_of(lower(program), forced=True).independent is independent
    assert assert_agrees(program, given, exact=True)


def test_independent_cores_run_at_the_same_time_and_give_the_same_bits(monkeypatch):
    given, inside = arrays(), []
    program = halves[2].trace(*given)
    barrier = threading.Barrier(2, timeout=60)
    run = PlanRunner.run

    def met(self):
        inside.append(self.core.index)
        barrier.wait()  # both are here before either continues
        run(self)

    alone = outcome(program, given, "fused", OPEN_NKI_THREADS="1")
    monkeypatch.setattr(PlanRunner, "run", met)
    both = outcome(program, given, "fused", OPEN_NKI_THREADS="2")
    assert sorted(inside) == [0, 1] and not barrier.broken
    assert alone[0][0].tobytes() == both[0][0].tobytes()


def test_cores_that_need_too_much_memory_together_take_turns(monkeypatch):
    given = arrays()
    program = halves[2].trace(*given)
    wanted = outcome(program, given, "reference")

    def never(*_):
        raise AssertionError("both at once")

    monkeypatch.setattr(backend, "run_concurrently", never)
    need = sum(part.arena + part.packed for part in plan_of(lower(program), forced=True).cores)
    assert need > 0
    seen, run = [], PlanRunner.run
    monkeypatch.setattr(PlanRunner, "run", lambda self: (seen.append(self.core.index), run(self))[1])
    monkeypatch.setattr(backend, "MAX_PARALLEL_BYTES", need - 1)
    found = outcome(program, given, "fused", OPEN_NKI_THREADS="2")
    assert seen == [0, 1] and found[0][0].tobytes() == wanted[0][0].tobytes()


def test_an_error_of_one_core_is_raised_as_when_cores_take_turns(monkeypatch):
    given = arrays()
    program = halves[2].trace(*given)
    wanted = outcome(program, given, "reference")
    run = PlanRunner.run

    def fails(self):
        if self.core.index == 1:
            raise RuntimeError("stop")
        run(self)

    monkeypatch.setattr(PlanRunner, "run", fails)  # then everything runs again, one by one
    found = outcome(program, given, "fused", OPEN_NKI_THREADS="2")
    assert found[0][0].tobytes() == wanted[0][0].tobytes()
