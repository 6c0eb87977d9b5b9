"""1-D convolutions against torch's, in float64."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, each_lnc, random, run

from nkilib.core.utils.common_types import ActFnType
from nkilib.experimental.conv import conv1d, conv1d_ref

torch = pytest.importorskip("torch", reason="torch is not installed")
functional = torch.nn.functional

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype("float16")
F32 = np.dtype("float32")
ACTIVATIONS = {
    ActFnType.SiLU: functional.silu,
    ActFnType.Swish: functional.silu,
    ActFnType.GELU: functional.gelu,
    ActFnType.GELU_Tanh_Approx: lambda x: functional.gelu(x, approximate="tanh"),
    ActFnType.ReLU: functional.relu,
}


def wide(array):
    return torch.tensor(np.asarray(array, np.float64))


def torch_conv1d(x, f, bias=None, stride=1, padding=(0, 0), dilation=1, activation_fn=None):
    x = functional.pad(wide(x), padding)
    b = None if bias is None else wide(bias)
    y = functional.conv1d(x, wide(f).permute(2, 1, 0), b, stride=stride, dilation=dilation)
    return (y if activation_fn is None else ACTIVATIONS[activation_fn](y)).numpy()


def check(shape, lnc=1, dtype=F32, bias=True, on="trn2", lnc_shard=True, **options):
    """shape: B, C_in, L, K, C_out"""
    b, channels, length, taps, columns = shape
    x, f = random((b, channels, length), dtype), random((taps, channels, columns), dtype, seed=1)
    shift = random((columns,), dtype, seed=2) if bias else None
    got = run(conv1d, x, f, shift, lnc=lnc, on=on, lnc_shard=lnc_shard, **options)
    close(got, torch_conv1d(x, f, shift, **options), dtype, terms=taps * channels)


@each_lnc
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("channels", [3, 80, 200], ids=["taps in partitions", "one tile", "two tiles"])
def test_a_convolution_equals_that_of_torch(channels, dtype, lnc):
    check((2, channels, 61, 3, 140), lnc, dtype, padding=(1, 1))


@pytest.mark.parametrize("channels", [5, 70, 256])
@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "padding": (1, 1)},
        {"stride": 5},
        {"dilation": 3, "padding": (2, 0)},
        {"stride": 3, "dilation": 2, "padding": (0, 7)},
        {"padding": (9, 8)},
        {"stride": 7, "padding": (6, 1), "dilation": 5},
    ],
    ids=str,
)
def test_stride_padding_and_dilation(channels, options):
    check((1, channels, 33, 4, 9), **options)


@pytest.mark.parametrize(
    "shape, options",
    [
        ((1, 3, 17, 17, 5), {}),  # one output
        ((1, 1, 1, 1, 1), {}),
        ((3, 1, 50, 10, 40), {"stride": 5}),
        ((1, 131, 20, 2, 7), {}),  # a remainder of three channels
        ((2, 2, 30, 100, 6), {"padding": (50, 40)}),  # more taps than partitions, and than inputs
        ((1, 100, 2, 3, 5), {"padding": (6, 6), "dilation": 2}),  # no tap meets input everywhere
        ((1, 66, 3, 2, 4), {"padding": (9, 0), "stride": 4}),  # outputs that see padding alone
        ((1, 7, 1300, 3, 4), {"padding": (1, 1)}),  # several regions
        ((5, 65, 9, 3, 4), {"padding": (1, 1)}),  # several batches to a bank
    ],
    ids=str,
)
def test_ragged_sizes(shape, options):
    for lnc in (1, 2):
        check(shape, lnc, **options)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: a.name)
def test_an_activation_follows_the_bias(activation):
    for dtype in (F32, BF16):
        check((1, 20, 40, 3, 12), dtype=dtype, activation_fn=activation, padding=(1, 1))


def test_without_a_bias_and_without_sharding():
    for lnc in (1, 2):
        check((1, 90, 40, 3, 130), lnc, bias=False, lnc_shard=False)


def test_it_runs_on_every_generation():
    for platform in ("trn1", "trn2", "trn3"):
        check((1, 80, 600, 3, 12), on=platform, dtype=BF16, padding=(1, 1))


def test_filters_that_do_not_fit_into_sbuf_are_reloaded(monkeypatch):
    from nkilib.experimental.conv import convolve

    monkeypatch.setattr(convolve, "FILTER_BYTES", 1000)
    for channels in (6, 150):
        check((1, channels, 1100, 3, 300), padding=(1, 1), dtype=BF16)  # three tiles of output channels


def test_inputs_that_do_not_fit_into_sbuf_are_loaded_tap_by_tap(monkeypatch):
    from nkilib.experimental.conv import inputs

    monkeypatch.setattr(inputs, "DENSE_BYTES", 300)
    monkeypatch.setattr(inputs, "GATHERED_BYTES", 300)
    for channels in (6, 150):
        check((1, channels, 300, 40, 20), padding=(3, 1), dtype=BF16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape, options",
    [
        ((1, 80, 3000, 3, 384), {"padding": (1, 1)}),
        ((1, 384, 3000, 3, 384), {"padding": (1, 1), "stride": 2}),
        ((2, 1, 4096, 10, 512), {"stride": 5}),
        ((4, 4096, 64, 4, 128), {"padding": (3, 0), "dilation": 2}),
    ],
    ids=str,
)
def test_published_sizes(shape, options):
    for lnc in (1, 2):
        check(shape, lnc, BF16, **options)


def test_the_reference_equals_torch():
    x, f, b = random((2, 3, 40)), random((5, 3, 4), seed=1), random((4,), seed=2)
    for activation in (None, *ACTIVATIONS):
        options = {"stride": 2, "padding": (3, 1), "dilation": 2, "activation_fn": activation}
        expected = torch_conv1d(x, f, b, **options)
        np.testing.assert_allclose(conv1d_ref(x, f, b, **options), expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="activation_fn: got"):
        conv1d_ref(x, f, activation_fn=ActFnType.SquaredReLU)


X, F = np.zeros((1, 4, 9), np.float32), np.zeros((3, 4, 5), np.float32)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((X[0], F), r"x_in: got shape \(4, 9\), expected \(B, C_in, L\)"),
        ((X, F[0]), r"filters: got shape \(4, 5\), expected \(K, C_in, C_out\)"),
        ((X, F[:, :3]), "filters: got C_in = 3 of .*, x_in has 4 channels"),
        ((X, F.astype(BF16)), "filters: got bfloat16, expected float32 like x_in"),
        ((X, F, np.zeros(4, np.float32)), r"bias: got shape \(4,\), expected \(5,\)"),
        ((X, F, np.zeros(5, BF16)), "bias: got bfloat16, expected float32"),
        ((X.astype(np.int32), F.astype(np.int32)), "x_in: got int32, allowed are"),
        ((X, F, None, 0), "stride: got 0, allowed are 1 and more"),
        ((X, F, None, 1, (-1, 0)), "padding: got -1 and 0, allowed are numbers of 0 and more"),
        ((X, F, None, 1, (1,)), r"padding: got \(1,\), expected \(left, right\)"),
        ((X, F, None, 1, (0, 0), 0), "dilation: got 0"),
        ((X, F, None, 1, (0, 0), 5), "3 taps with dilation 5, which reach over 11 elements, more than the 9"),
        ((X, F, None, 1, (0, 0), 1, ActFnType.SquaredReLU), "activation_fn: got ActFnType.SquaredReLU"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_refused(arguments, text):
    with pytest.raises(AssertionError, match=text):
        run(conv1d, *arguments)


def test_the_compiler_takes_it_and_its_example_is_right():
    compiles_and_example_runs(conv1d)
