import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, invalid, random, run

from nkilib.experimental.scan import linear_scan, linear_scan_ref

BF16 = np.dtype(ml_dtypes.bfloat16)


def inputs(shape, dtype="float32", decay_dtype=None):
    decay = np.random.default_rng(1).uniform(-1, 1, shape).astype(decay_dtype or dtype)
    return decay, random(shape, dtype), random((*shape[:-1], 1), seed=2)


def check(decay, data, initial=None, lnc=1):
    result, final_state = run(linear_scan, decay, data, initial, lnc=lnc)
    exact, last = linear_scan_ref(decay, data, initial)
    assert result.dtype == data.dtype and final_state.dtype == np.float32
    assert result.shape == data.shape and final_state.shape == (*data.shape[:-1], 1)
    largest = np.abs(exact).max()
    rounded = exact.astype(data.dtype).astype(np.float64)
    rtol, atol = (1e-5, 1e-6) if data.dtype == np.float32 else (1e-2, 1e-3)
    np.testing.assert_allclose(result.astype(np.float64), rounded, rtol=rtol, atol=atol * largest)
    np.testing.assert_allclose(final_state, last, rtol=1e-5, atol=1e-6 * largest)


@each_lnc
@pytest.mark.parametrize("dtype", ["float32", BF16])
@pytest.mark.parametrize("shape", [(1, 128, 2048), (64, 33), (2, 150, 3000), (3, 2, 90, 7), (1, 1)])
def test_the_recurrence_runs_along_the_last_axis(shape, dtype, lnc):
    decay, data, initial = inputs(shape, dtype)
    check(decay, data, initial, lnc)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", BF16])
@pytest.mark.parametrize("shape", [(2, 300, 4096), (4, 1536, 1024), (130, 8192)])
def test_published_sizes_are_scanned(shape, dtype):
    check(*inputs(shape, dtype))


@pytest.mark.tiny
def test_without_an_initial_state_it_starts_at_zero():
    decay, data, _ = inputs((2, 5, 40))
    check(decay, data)


def test_decay_and_data_may_differ_in_dtype():
    decay, data, initial = inputs((3, 300), BF16, decay_dtype=np.float32)
    check(decay, data, initial.astype(BF16))


def test_the_final_state_is_not_rounded_to_the_dtype_of_the_data():
    decay, data = np.ones((1, 3000), BF16), np.full((1, 3000), 1 + 2**-7, BF16)
    _, final_state = run(linear_scan, decay, data)
    assert final_state[0, 0] == 3000 * (1 + 2**-7)


@pytest.mark.parametrize(
    "decay, data, initial, text",
    [
        ((8,), (8,), None, r"data: got shape \(8,\), expected \[..., P, L\]"),
        ((4, 8), (4, 9), None, r"decay: got shape \(4, 8\), expected \(4, 9\)"),
        ((4, 8), (4, 8), (4,), r"initial: got shape \(4,\), expected \(4, 1\)"),
    ],
)
def test_shapes_that_disagree_are_named(decay, data, initial, text):
    arrays = [None if shape is None else np.zeros(shape, np.float32) for shape in (decay, data, initial)]
    with invalid(text):
        run(linear_scan, *arrays)


def test_the_compiler_accepts_the_kernel_and_its_example_runs():
    compiles_and_example_runs(linear_scan)
