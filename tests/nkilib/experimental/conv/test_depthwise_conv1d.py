"""Depthwise convolutions against torch's grouped ones, in float64."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, each_lnc, random, run

from nkilib.experimental.conv import depthwise_conv1d_implicit_gemm as depthwise
from nkilib.experimental.conv import depthwise_conv1d_implicit_gemm_ref as depthwise_ref

torch = pytest.importorskip("torch", reason="torch is not installed")
functional = torch.nn.functional

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype("float16")
F32 = np.dtype("float32")


def torch_depthwise(x, f, stride=1, padding=(0, 0)):
    wide = functional.pad(torch.tensor(np.asarray(x[:, :, 0], np.float64)), padding)
    weight = torch.tensor(np.asarray(f[:, 0], np.float64))
    return functional.conv1d(wide, weight, stride=stride, groups=x.shape[1]).numpy()[:, :, None]


def check(shape, lnc=1, dtype=F32, stride=1, padding=(0, 0), on="trn2"):
    """shape: N, C, W, S"""
    n, channels, width, taps = shape
    x, f = random((n, channels, 1, width), dtype), random((channels, 1, 1, taps), dtype, seed=1)
    options = {"padding": ((0, 0), padding), "stride": (1, stride), "feature_group_count": channels}
    got = run(depthwise, x, f, lnc=lnc, on=on, **options)
    close(got, torch_depthwise(x, f, stride, padding), dtype)


@each_lnc
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("shape", [(1, 256, 70, 4), (3, 6, 40, 7), (2, 200, 33, 3), (1, 262, 20, 5)], ids=str)
def test_every_channel_is_convolved_with_its_own_filter(shape, dtype, lnc):
    check(shape, lnc, dtype)


@pytest.mark.parametrize(
    "options",
    [
        {"padding": (3, 0)},
        {"padding": (2, 5), "stride": 2},
        {"stride": 7},
        {"padding": (40, 35), "stride": 3},
    ],
    ids=str,
)
def test_padding_and_stride_in_width(options):
    for shape in ((2, 130, 30, 4), (1, 2, 30, 1)):
        check(shape, 2, **options)


@pytest.mark.parametrize(
    "shape, options",
    [
        ((1, 2, 16, 16), {}),  # one output
        ((1, 1, 1, 1), {}),
        ((1, 3, 5, 2), {}),  # an odd number of channels on one core
        ((1, 2, 5000, 3), {}),  # several loads
        ((1, 2, 4500, 31), {"padding": (2000, 2100)}),  # the first one meets nothing but padding
        ((1, 2, 300, 200), {}),  # more taps than cached diagonals
        ((40, 4, 12, 3), {}),  # batches below each other, the last ones fewer
    ],
    ids=str,
)
def test_ragged_sizes(shape, options):
    for dtype in (F32, BF16):
        check(shape, dtype=dtype, **options)


def test_it_runs_on_every_generation():
    for platform in ("trn1", "trn2", "trn3"):
        check((1, 64, 1100, 4), on=platform, dtype=BF16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [(1, 1536, 2051, 4), (2, 512, 500, 31), (1, 128, 4096, 200), (1, 2, 16, 16)], ids=str
)
def test_published_sizes(shape):
    for lnc in (1, 2):
        check(shape, lnc, BF16)


def test_the_reference_equals_torch():
    x, f = random((2, 3, 1, 40)), random((3, 1, 1, 5), seed=1)
    got = depthwise_ref(x, f, padding=((0, 0), (2, 3)), stride=(1, 2))
    np.testing.assert_allclose(got, torch_depthwise(x, f, 2, (2, 3)), rtol=1e-12, atol=1e-12)


X, F = np.zeros((1, 4, 1, 9), np.float32), np.zeros((4, 1, 1, 3), np.float32)


@pytest.mark.parametrize(
    "arguments, options, text",
    [
        ((X[:, :, 0], F), {}, r"img_ref: got shape \(1, 4, 9\), expected \(N, C, 1, W\)"),
        ((X, F[0]), {}, r"filter_ref: got shape \(1, 1, 3\), expected \(C, 1, 1, S\)"),
        ((X, F[:3]), {}, r"filter_ref: got shape \(3, 1, 1, 3\), expected \(4, 1, 1, 3\)"),
        ((X, F.astype(BF16)), {}, "filter_ref: got bfloat16, expected float32 like img_ref"),
        ((X.astype(np.int32), F.astype(np.int32)), {}, "img_ref: got int32, allowed are"),
        ((X[:, :3], F[:3]), {"lnc": 2}, "img_ref: got C = 3, 2 cores take multiples of 2"),
        ((X, F), {"padding": ((1, 0), (0, 0))}, r"padding: got .*, allowed is \(0, 0\) in height"),
        ((X, F), {"padding": ((0, 0), (-1, 0))}, "padding: got -1 and 0"),
        ((X, F), {"stride": (2, 1)}, r"stride: got \(2, 1\), allowed is 1 in height"),
        ((X, F), {"stride": (1, 0)}, "stride: got 0, allowed are 1 and more"),
        ((X, F), {"rhs_dilation": (1, 2)}, r"rhs_dilation: got \(1, 2\), allowed is \(1, 1\)"),
        ((X, F), {"lhs_dilation": (1, 2)}, "lhs_dilation: got"),
        ((X, F), {"feature_group_count": 2}, "feature_group_count: got 2, allowed is C = 4"),
        ((X, F), {"batch_group_count": 2}, "batch_group_count: got 2, allowed is 1"),
        ((X, F), {"in_perm": (0, 1, 2, 3)}, "in_perm, kern_perm, out_perm: got"),
        ((X[..., :2], F), {}, "3 taps with dilation 1, which reach over 3 elements, more than the 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_refused(arguments, options, text):
    with pytest.raises(AssertionError, match=text):
        run(depthwise, *arguments, **options)


def test_the_compiler_takes_it_and_its_example_is_right():
    compiles_and_example_runs(depthwise)
