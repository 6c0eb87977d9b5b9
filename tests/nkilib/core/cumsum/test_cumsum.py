import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, invalid, random, run

from nkilib.core.cumsum import cumsum, cumsum_ref

BF16 = np.dtype(ml_dtypes.bfloat16)


def check(x, lnc=1, on="trn2", **options):
    got = run(cumsum, x, lnc=lnc, on=on, **options)
    assert got.shape == x.shape and got.dtype == x.dtype
    wanted = cumsum_ref(x).astype(x.dtype).astype(np.float64)
    if x.dtype == np.float32:  # documented: 1e-4 up to 1K, 1e-2 beyond 5K
        length = x.shape[-1]
        atol = 1e-4 if length <= 1024 else 1e-3 if length <= 5000 else 1e-2
        np.testing.assert_allclose(got, wanted, rtol=0, atol=atol)
    else:
        rtol = 1e-2 if x.dtype.itemsize == 2 else 5e-2
        np.testing.assert_allclose(
            got.astype(np.float64), wanted, rtol=rtol, atol=0.1 * rtol * np.abs(wanted).max()
        )


@each_lnc
@pytest.mark.parametrize("dtype", ["float32", BF16])
@pytest.mark.parametrize("shape", [(1, 64), (128, 2048), (300, 50), (5, 3, 700), (131, 2, 2049)])
def test_rows_are_summed(shape, dtype, lnc):
    check(random(shape, dtype), lnc)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", BF16])
@pytest.mark.parametrize("shape", [(2048, 8192), (300, 5000), (8, 10, 4096)])
def test_published_sizes_are_summed(shape, dtype):
    check(random(shape, dtype))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2])
def test_other_float_dtypes_are_summed(dtype):
    check(random((20, 100), dtype))


def test_float8_e4m3fn_is_summed_on_trn3():
    check(random((20, 100), ml_dtypes.float8_e4m3fn), on="trn3")


@pytest.mark.tiny
def test_the_running_sum_is_not_rounded_between_tiles():
    x = np.full((1, 4096), 1 + 2**-7, BF16)  # in bfloat16 the sum would stop growing at 256
    np.testing.assert_array_equal(run(cumsum, x), cumsum_ref(x).astype(BF16))


@pytest.mark.parametrize("axis, shape", [(-1, (4, 8)), (1, (4, 8)), (2, (2, 3, 8))])
def test_the_last_axis_has_two_names(axis, shape):
    check(random(shape), axis=axis)


@pytest.mark.parametrize(
    "shape, axis, text",
    [
        ((8,), -1, r"x: got shape \(8,\), expected \[B, H\] or \[B, S, H\]"),
        ((2, 2, 2, 2), -1, r"x: got shape \(2, 2, 2, 2\), expected"),
        ((4, 8), 0, r"axis: got 0, allowed are -1 and 1 for x of shape \(4, 8\)"),
        ((2, 4, 8), 1, "axis: got 1, allowed are -1 and 2"),
        ((2049, 1), -1, "x: got B = 2049, allowed are at most 2048"),
        ((2, 11, 8), -1, "x: got S = 11, allowed are at most 10"),
        ((2, 8193), -1, "x: got H = 8193, allowed are at most 8192"),
    ],
)
def test_wrong_arguments_are_named(shape, axis, text):
    with invalid(text):
        run(cumsum, np.zeros(shape, np.float32), axis)


def test_integers_raise():
    with pytest.raises(AssertionError, match="x: got dtype int32, allowed are float dtypes"):
        run(cumsum, np.zeros((4, 8), np.int32))


def test_the_compiler_accepts_the_kernel_and_its_example_runs():
    compiles_and_example_runs(cumsum)
