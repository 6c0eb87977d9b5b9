import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, invalid, random, run

from nkilib.experimental.scan import selective_scan, selective_scan_ref

BF16 = np.dtype(ml_dtypes.bfloat16)


def inputs(b, c, n, length, dtype="float32"):
    """Return inputs as in Mamba: steps from 0.001 to 0.1, decays from exp(-dt) to exp(-n dt)."""
    rng = np.random.default_rng(3)
    arrays = {
        "x": random((b, c, length)),
        "dt": np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), (b, c, length))),
        "A": -rng.uniform(1, n + 1, (c, n)),
        "B": random((b, n, length), seed=1),
        "C": random((b, n, length), seed=2),
        "D": random((c,), seed=4),
        "initial_state": random((b, c, n), seed=5),
    }
    return {name: value.astype(dtype) for name, value in arrays.items()}


def check(arguments, lnc=1):
    y, final_state = run(selective_scan, lnc=lnc, **arguments)
    x = arguments["x"]
    exact, last = selective_scan_ref(**arguments)
    assert y.dtype == x.dtype and y.shape == x.shape
    assert final_state.dtype == np.float32 and final_state.shape == last.shape
    tolerance = 1e-4 if x.dtype == np.float32 else 2e-2
    rounded = exact.astype(x.dtype).astype(np.float64)
    # relative to each value; sums over states that cancel, to a tenth of the largest
    for got, wanted in ((y.astype(np.float64), rounded), (final_state, last)):
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=0.1 * tolerance * np.abs(wanted).max())


@each_lnc
@pytest.mark.parametrize("dtype", ["float32", BF16])
@pytest.mark.parametrize("sizes", [(1, 128, 16, 512), (2, 150, 5, 700), (3, 7, 1, 20)])
def test_the_scan_matches_the_recurrence(sizes, dtype, lnc):
    check(inputs(*sizes, dtype), lnc)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", BF16])
@pytest.mark.parametrize("sizes", [(2, 1536, 16, 2048), (1, 2560, 16, 1000)])
def test_published_sizes_match_the_recurrence(sizes, dtype):
    check(inputs(*sizes, dtype))


@pytest.mark.tiny
@pytest.mark.parametrize("left_out", [["D"], ["initial_state"], ["D", "initial_state"]])
def test_optional_tensors_may_be_left_out(left_out):
    arguments = inputs(1, 20, 4, 30)
    for name in left_out:
        del arguments[name]
    check(arguments)


def test_many_states_make_shorter_tiles_of_time():
    check(inputs(1, 10, 128, 100))


def test_dtypes_may_differ():
    arguments = inputs(1, 20, 4, 30)
    check({**arguments, "x": arguments["x"].astype(BF16), "B": arguments["B"].astype(BF16)})


def test_two_halves_give_the_same_as_the_whole():
    whole = inputs(1, 10, 4, 600)
    y, final_state = run(selective_scan, **whole)
    half = {name: whole[name][..., :300] for name in ("x", "dt", "B", "C")}
    other = {name: whole[name][..., 300:] for name in ("x", "dt", "B", "C")}
    first, state = run(selective_scan, **{**whole, **half})
    second, state = run(selective_scan, **{**whole, **other, "initial_state": state})
    np.testing.assert_array_equal(np.concatenate([first, second], axis=-1), y)
    np.testing.assert_array_equal(state, final_state)


@pytest.mark.parametrize(
    "name, shape, text",
    [
        ("x", (4, 8), r"x: got shape \(4, 8\), expected \[b, c, L\]"),
        ("dt", (1, 4, 9), r"dt: got shape \(1, 4, 9\), expected \(1, 4, 8\)"),
        ("A", (5, 2), r"A: got shape \(5, 2\), expected \[c, n\] with c = 4"),
        ("B", (1, 3, 8), r"B: got shape \(1, 3, 8\), expected \(1, 2, 8\)"),
        ("C", (1, 2, 9), r"C: got shape \(1, 2, 9\), expected \(1, 2, 8\)"),
        ("D", (4, 1), r"D: got shape \(4, 1\), expected \(4,\)"),
        ("initial_state", (1, 2, 4), r"initial_state: got shape \(1, 2, 4\), expected \(1, 4, 2\)"),
    ],
)
def test_shapes_that_disagree_are_named(name, shape, text):
    arguments = {**inputs(1, 4, 2, 8), name: np.zeros(shape, np.float32)}
    with invalid(text):
        run(selective_scan, **arguments)


def test_the_compiler_accepts_the_kernel_and_its_example_runs():
    compiles_and_example_runs(selective_scan)
