"""Plans: the same answers as one instruction at a time, with fewer and larger steps."""

from __future__ import annotations

import importlib.util
import threading
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from backend_agreement import assert_agrees, outcome
from nki.backends.fused import runner
from nki.backends.fused.arrays import ArrayPool
from nki.backends.fused.planner import NoPlan, plan_of
from nki.backends.lowered import lower
from support import target

MATMUL = Path(__file__).parents[3] / "examples" / "matmul" / "kernels.py"
spec = importlib.util.spec_from_file_location("matmul_kernels", MATMUL)
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)


@pytest.fixture(autouse=True)
def on_trn2():
    with target("trn2"):
        yield


def factors(k=300, m=260, n=1100, dtype=np.float32):
    chance = np.random.default_rng(0)
    return [chance.integers(-3, 4, shape).astype(dtype) for shape in ((k, m), (k, n))]


# ---- the same answers ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", kernels.STEPS[1:], ids=lambda k: k.__name__)
def test_ragged_matmuls_give_the_same_bits(kernel, dtype):
    arrays = factors(dtype=dtype)
    assert assert_agrees(kernel.trace(*arrays), arrays, exact=True)


def test_sums_stay_within_the_bound_of_float32_summation():
    chance = np.random.default_rng(1)
    left, right = (chance.standard_normal((512, n), dtype=np.float32) for n in (128, 512))
    program = kernels.tiled.trace(left, right)
    (found, _), _ = outcome(program, [left, right], "fused")
    exact = left.T.astype(np.float64) @ right
    bound = 512 * np.finfo(np.float32).eps * (np.abs(left).T.astype(np.float64) @ np.abs(right))
    assert (np.abs(found - exact) <= bound).all()


@nki.jit
def loaded_again(left, right, change):
    """left.T @ right three times, from equal loads; the second moving tile is changed after its load."""
    out = nl.ndarray((3, left.shape[1], 256), nl.float32, buffer=nl.shared_hbm)
    for number in range(3):
        stationary, moving = kernels.load(left, 0, 128, 0, 128), kernels.load(right, 0, 128, 0, 512)
        if number == 1 and change == "part":
            nisa.memset(moving[:, 100:200], 2.0)
        if number == 1 and change == "whole":
            nisa.dma_copy(moving, right[128:256])
        psum = nl.ndarray((left.shape[1], 256), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, stationary, moving[:, 64:320])
        nisa.dma_copy(out[number], kernels.drain(psum, nl.float32))
    return out


@pytest.mark.parametrize("change", ["", "part", "whole"])
def test_equal_loads_share_their_source_until_one_tile_is_changed(change):
    arrays = factors(256, 128, 512)
    assert assert_agrees(loaded_again.trace(*arrays, change), arrays, exact=True) == "ran"


# ---- what becomes of a program -------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", kernels.STEPS[1:], ids=lambda k: k.__name__)
def test_a_matmul_of_many_tiles_is_one_product_without_copies(kernel):
    plan = plan_of(lower(kernel.trace(*factors(384, 256, 1024))), forced=True)
    (step,) = plan.cores[0].steps
    assert (step.left.columns, step.right.columns, step.left.rows) == (256, 1024, 384)
    assert step.left.view is not None and step.right.view is not None and step.target is not None
    assert plan.cores[0].arena == plan.cores[0].packed == 0


@nki.jit
def transposed_products(x):
    """x @ x.T by tiles that TensorE transposes: a product that depends on another is in the next stage."""
    out = nl.ndarray((128, 128), nl.float32, buffer=nl.shared_hbm)
    tile, transposed = nl.ndarray((128, 128), nl.float32), nl.ndarray((128, 128), nl.float32)
    nisa.dma_copy(tile, x)
    psum = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
    nisa.nc_transpose(psum, tile)
    nisa.tensor_copy(transposed, psum)
    first = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(first, transposed, transposed)
    once = nl.ndarray((128, 128), nl.float32)
    nisa.activation(once, nl.relu, first)
    second = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(second, once, transposed)
    nisa.tensor_copy(tile, second)
    nisa.dma_copy(out, tile)
    return out


def test_a_transpose_is_fused_into_the_product_that_reads_it():
    x = np.random.default_rng(2).integers(-2, 3, (128, 128)).astype(np.float32)
    program = transposed_products.trace(x)
    assert assert_agrees(program, [x], exact=True)
    steps = plan_of(lower(program), forced=True).cores[0].steps
    assert [getattr(step, "kind", "product") for step in steps] == ["product", "compute", "product"]


def test_programs_that_do_not_pay_are_not_planned():
    found = plan_of(lower(kernels.tiled.trace(*factors(128, 128, 512))))
    assert isinstance(found, NoPlan) and "does not pay" in found.why


@nki.jit
def chosen_weights(x, weights, which):
    """x.T @ weights[:, which : which + 512]: the address of the weights is known at run time."""
    out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
    number = nl.ndarray((1, 1), nl.int32)
    nisa.dma_copy(number, which)
    first = nisa.register_alloc(number)
    psum = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
    for k in range(x.shape[0] // 128):
        rows = nl.ds(128 * k, 128)
        stationary, moving = nl.ndarray((128, 128), nl.float32), nl.ndarray((128, 512), nl.float32)
        nisa.dma_copy(stationary, x[rows])
        nisa.dma_copy(moving, weights[rows, nl.ds(first, 512)])
        nisa.nc_matmul(psum, stationary, moving)
    tile = nl.ndarray((128, 512), nl.float32)
    nisa.tensor_copy(tile, psum)
    nisa.dma_copy(out, tile)
    return out


def test_products_of_tiles_with_run_time_addresses_are_not_planned():
    rng = np.random.default_rng(3)
    x, weights = rng.integers(-2, 3, (4096, 128)), rng.integers(-2, 3, (4096, 1024))
    arrays = [x.astype(np.float32), weights.astype(np.float32), np.array([[512]], np.int32)]
    program = chosen_weights.trace(*arrays)
    found = plan_of(lower(program))
    assert isinstance(found, NoPlan) and "addressed at run time" in found.why
    assert assert_agrees(program, arrays, exact=True)


@nki.jit
def shows(x):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nl.device_print("x", tile)
    nisa.dma_copy(x, tile)


def test_kernels_that_print_run_one_by_one():
    found = plan_of(lower(shows.trace(np.ones((4, 4), np.float32))), forced=True)
    assert isinstance(found, NoPlan) and "printed" in found.why


# ---- diagnostics ---------------------------------------------------------------------------------


@nki.jit
def careless(x):
    out = nl.ndarray((128, 128), nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 128), nl.float32)
    nisa.dma_copy(tile[:, 0:64], x[:, 0:64])
    psum = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, tile, tile)  # half of it was never written
    nisa.tensor_copy(tile, psum)
    nisa.dma_copy(out, tile)
    return out


def test_a_warning_is_given_at_its_line_and_the_answer_is_the_reference():
    x = np.ones((128, 128), np.float32)
    program = careless.trace(x)
    wanted, beside = outcome(program, [x], "reference")
    found, too = outcome(program, [x], "fused")
    assert beside == too and any("never written" in text and "careless" not in text for text in too[1])
    assert wanted[0].tobytes() == found[0].tobytes()


@nki.jit
def shifts(x, count):
    tile, by = nl.ndarray((4, 8), nl.int32), nl.ndarray((4, 1), nl.int32)
    nisa.dma_copy(tile, x)
    nisa.dma_copy(by, count)
    nisa.tensor_scalar(tile, tile, nl.left_shift, by)
    nisa.dma_copy(x, tile)


def test_an_error_about_values_is_the_same_as_the_reference():
    arrays = [np.ones((4, 8), np.int32), np.full((4, 1), -1, np.int32)]
    program = shifts.trace(*arrays)
    assert outcome(program, arrays, "fused") == outcome(program, arrays, "reference")


def test_executor_plan_is_an_alias_of_fused(monkeypatch):
    arrays, seen, run = factors(384, 256, 1024), [], runner.PlanRunner.run
    monkeypatch.setattr(runner.PlanRunner, "run", lambda self: (seen.append(self.core.index), run(self)))
    with nki.options(executor="plan"):
        kernels.tiled.trace(*arrays).run(*arrays)
    assert seen == [0]


def test_an_executor_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_EXECUTOR", "fast")
    with pytest.raises(nki.NkiError, match="OPEN_NKI_EXECUTOR"):
        kernels.tiled(*factors(128, 128, 128))


# ---- threads and calls ---------------------------------------------------------------------------


def test_the_bits_do_not_depend_on_the_number_of_threads():
    chance = np.random.default_rng(3)
    arrays = [chance.standard_normal((256, n), dtype=np.float32) for n in (128, 2100)]
    program = kernels.tiled.trace(*arrays)
    found = [outcome(program, arrays, "fused", OPEN_NKI_THREADS=str(n))[0][0].tobytes() for n in (1, 2, 3)]
    assert found[0] == found[1] == found[2]


def test_calls_of_several_threads_share_a_plan_and_not_its_memory(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_EXECUTOR", "fused")
    found = {}
    inputs = {i: [a + i for a in factors(256, 128, 512)] for i in range(4)}

    def call(i):
        for _ in range(3):
            found[i] = kernels.tiled(*(a.astype(ml_dtypes.bfloat16) for a in inputs[i]))

    workers = [threading.Thread(target=call, args=(i,)) for i in inputs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for i, (left, right) in inputs.items():
        wanted = (left.T @ right).astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(found[i].astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("shared", [False, True])
def test_concurrent_calls_of_one_plan_have_memory_of_their_own(monkeypatch, shared):
    """With one memory for both, what one call has packed would be another's: this test would see it."""
    monkeypatch.setenv("OPEN_NKI_EXECUTOR", "fused")
    monkeypatch.setenv("OPEN_NKI_THREADS", "1")
    given = [[(a + i).astype(ml_dtypes.bfloat16) for a in factors(256, 128, 512)] for i in range(2)]
    program = kernels.tiled.trace(*given[0])
    plan_of(lower(program), forced=True)
    packed, multiplied = threading.Barrier(2, timeout=60), threading.Barrier(2, timeout=60)
    blocks = runner.blocks

    def met(*factors):
        packed.wait()  # both have packed their factors
        parts = blocks(*factors)
        return [lambda part=part: (part(), multiplied.wait()) for part in parts]

    monkeypatch.setattr(runner, "blocks", met)
    if shared:
        one = {}
        monkeypatch.setattr(ArrayPool, "take", lambda self, n: one.setdefault(n, np.empty(n, np.uint8)))
        monkeypatch.setattr(ArrayPool, "give_back", lambda self, array: None)
    found = [None, None]
    workers = [
        threading.Thread(target=lambda i=i: found.__setitem__(i, program.run(*given[i]))) for i in (0, 1)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    wide = [[a.astype(np.float32) for a in pair] for pair in given]
    wanted = [(left.T @ right).astype(ml_dtypes.bfloat16) for left, right in wide]
    same = [f.tobytes() == w.tobytes() for f, w in zip(found, wanted, strict=True)]
    assert all(same) is not shared


def test_the_first_call_and_the_next_ones_give_the_same_bits(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_EXECUTOR", "fused")
    chance = np.random.default_rng(4)
    arrays = [chance.standard_normal((256, n), dtype=np.float32) for n in (128, 512)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = (kernels.blocked_mnk(*arrays) for _ in range(2))
    assert first.tobytes() == second.tobytes()
