import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, invalid, random, run

from nkilib.experimental.scan import ssd, ssd_ref

BF16 = np.dtype(ml_dtypes.bfloat16)


def inputs(b, h, length, d, n, dtype="float32"):
    """Return inputs as in Mamba-2: steps from 0.001 to 0.1, A from -16 to -1."""
    rng = np.random.default_rng(3)
    arrays = {
        "x": random((b, h, length, d)),
        "dt": np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), (b, h, length))),
        "A": -rng.uniform(1, 16, h),
        "B": random((b, length, n), seed=1, scale=n**-0.5),
        "C": random((b, length, n), seed=2),
        "D": random((h,), seed=4),
        "initial_state": random((b, h, n, d), seed=5),
    }
    return {name: value.astype(dtype) for name, value in arrays.items()}


def check(arguments, chunk_size=128, lnc=1):
    mask = np.tri(chunk_size, dtype=np.float32)
    y, final_state = run(ssd, chunk_size=chunk_size, causal_mask=mask, lnc=lnc, **arguments)
    x = arguments["x"]
    exact, last = ssd_ref(**arguments)
    assert y.dtype == x.dtype and y.shape == x.shape
    assert final_state.dtype == np.float32 and final_state.shape == last.shape
    tolerance = 1e-3 if x.dtype == np.float32 else 2e-2
    rounded = exact.astype(x.dtype).astype(np.float64)
    # relative to each value; sums that cancel, to a tenth of the largest
    for got, wanted in ((y.astype(np.float64), rounded), (final_state, last)):
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=0.1 * tolerance * np.abs(wanted).max())


@each_lnc
@pytest.mark.parametrize("dtype", ["float32", BF16])
@pytest.mark.parametrize(
    "sizes, chunk_size",
    [((1, 8, 256, 64, 64), 128), ((2, 3, 60, 20, 70), 20), ((1, 1, 8, 300, 3), 4), ((1, 5, 99, 16, 128), 33)],
)
def test_chunks_match_the_recurrence(sizes, chunk_size, dtype, lnc):
    check(inputs(*sizes, dtype), chunk_size, lnc)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", BF16])
@pytest.mark.parametrize("sizes", [(2, 24, 512, 64, 128), (1, 80, 1024, 64, 128)])
def test_published_sizes_match_the_recurrence(sizes, dtype):
    check(inputs(*sizes, dtype))


@pytest.mark.tiny
@pytest.mark.parametrize("left_out", [["D"], ["initial_state"], ["D", "initial_state"]])
def test_optional_tensors_may_be_left_out(left_out):
    arguments = inputs(1, 2, 16, 4, 8)
    for name in left_out:
        del arguments[name]
    check(arguments, chunk_size=8)


def test_the_widest_heads_are_worked_on_one_at_a_time():
    check(inputs(1, 9, 8, 512, 4), chunk_size=8)


def test_dtypes_may_differ():
    arguments = inputs(1, 2, 16, 4, 8)
    check({**arguments, "x": arguments["x"].astype(BF16)}, chunk_size=8)
    arguments = inputs(1, 2, 16, 4, 8, BF16)
    check({**arguments, "dt": arguments["dt"].astype(np.float32)}, chunk_size=8)


@pytest.mark.parametrize("sign", [-1, 1])
def test_decays_beyond_the_range_of_float32_do_not_overflow(sign):
    """exp(-a) of the documented formula would be infinite: |a| reaches 128 in a chunk."""
    arguments = inputs(1, 1, 128, 8, 4)
    arguments["dt"][:] = 1.0
    arguments["A"][:] = sign * (1.0 if sign < 0 else 0.1)
    check(arguments)


def test_the_mask_is_applied_as_it_is():
    arguments = inputs(1, 1, 4, 2, 3)
    del arguments["initial_state"], arguments["D"]
    nothing = np.zeros((4, 4), np.float32)
    y, _ = run(ssd, chunk_size=4, causal_mask=nothing, **arguments)
    np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize(
    "wrong, text",
    [
        ({"x": (4, 8, 2)}, r"x: got shape \(4, 8, 2\), expected \[b, h, S, d\]"),
        ({"dt": (1, 2, 9)}, r"dt: got shape \(1, 2, 9\), expected \(1, 2, 8\)"),
        ({"A": (3,)}, r"A: got shape \(3,\), expected \(2,\)"),
        ({"B": (1, 9, 3)}, r"B: got shape \(1, 9, 3\), expected \[b, S, n\] with b = 1, S = 8"),
        ({"C": (1, 8, 4)}, r"C: got shape \(1, 8, 4\), expected \(1, 8, 3\)"),
        ({"D": (2, 1)}, r"D: got shape \(2, 1\), expected \(2,\)"),
        (
            {"initial_state": (1, 2, 4, 3)},
            r"initial_state: got shape \(1, 2, 4, 3\), expected \(1, 2, 3, 4\)",
        ),
        ({"causal_mask": (4, 8)}, r"causal_mask: got shape \(4, 8\), expected \(4, 4\)"),
        ({"B": (1, 8, 129), "C": (1, 8, 129)}, "B: got n = 129, allowed are at most 128"),
        ({"x": (1, 2, 8, 513)}, "x: got d = 513, allowed are at most 512"),
    ],
)
def test_shapes_that_disagree_are_named(wrong, text):
    arguments = {**inputs(1, 2, 8, 4, 3), "causal_mask": np.tri(4, dtype=np.float32), "chunk_size": 4}
    if "n = " in text or "d = " in text:
        del arguments["initial_state"]
    arguments.update({name: np.zeros(shape, np.float32) for name, shape in wrong.items()})
    with invalid(text):
        run(ssd, **arguments)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"chunk_size": 129}, "chunk_size: got 129, allowed are 1 to 128"),
        ({"chunk_size": 0}, "chunk_size: got 0, allowed are 1 to 128"),
        ({"chunk_size": 3}, "chunk_size: got 3, must divide S = 8"),
        (
            {"chunk_size": 4},
            r"causal_mask: got None, expected float32 \[4, 4\] with a lower triangle of ones",
        ),
        (
            {"chunk_size": 4, "causal_mask": np.tri(4, dtype=np.int32)},
            "causal_mask: got dtype int32, allowed",
        ),
    ],
)
def test_wrong_options_are_named(options, text):
    with invalid(text):
        run(ssd, **inputs(1, 2, 8, 4, 3), **options)


def test_the_compiler_accepts_the_kernel_and_its_example_runs():
    compiles_and_example_runs(ssd)
