"""3-D convolutions against torch's, in float64."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, each_lnc, random, run

import nki
from nkilib.core.utils.common_types import ActFnType
from nkilib.experimental.conv import conv3d, conv3d_ref

torch = pytest.importorskip("torch", reason="torch is not installed")
functional = torch.nn.functional

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype("float16")
F32 = np.dtype("float32")
SAME = (1,) * 6


def wide(array):
    return torch.tensor(np.asarray(array, np.float64))


def torch_conv3d(x, f, bias=None, stride=(1, 1, 1), padding=(0,) * 6, dilation=(1, 1, 1)):
    x = functional.pad(wide(x), (*padding[4:], *padding[2:4], *padding[:2]))
    b = None if bias is None else wide(bias)
    return functional.conv3d(x, wide(f).permute(4, 3, 0, 1, 2), b, stride=stride, dilation=dilation).numpy()


def check(inputs, taps, columns, lnc=1, dtype=F32, bias=True, on="trn2", **options):
    """inputs: B, C_in, D, H, W"""
    x, f = random(inputs, dtype), random((*taps, inputs[1], columns), dtype, seed=1)
    shift = random((columns,), dtype, seed=2) if bias else None
    got = run(conv3d, x, f, shift, lnc=lnc, on=on, lnc_shard=True, **options)
    close(got, torch_conv3d(x, f, shift, **options), dtype, terms=int(np.prod(taps)) * inputs[1])


@each_lnc
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("channels", [3, 72, 130], ids=["taps in partitions", "one tile", "two tiles"])
def test_a_convolution_equals_that_of_torch(channels, dtype, lnc):
    check((1, channels, 3, 6, 7), (3, 3, 3), 20, lnc, dtype, padding=SAME)


@pytest.mark.parametrize("channels", [4, 70])
@pytest.mark.parametrize(
    "taps, options",
    [
        ((1, 1, 1), {"stride": (2, 2, 2)}),
        ((2, 3, 1), {"stride": (1, 2, 3), "padding": (0, 1, 2, 3, 4, 5), "dilation": (2, 1, 2)}),
        ((3, 1, 2), {"dilation": (1, 3, 2), "padding": (1, 1, 0, 0, 0, 1)}),
        ((2, 4, 4), {"stride": (2, 4, 4)}),  # patches
        ((1, 3, 3), {"padding": (0, 0, 6, 7, 8, 9)}),
        ((3, 3, 3), {"padding": (2, 0, 1, 1, 1, 1)}),  # causal in depth
    ],
    ids=str,
)
def test_stride_padding_and_dilation(channels, taps, options):
    check((2, channels, 4, 9, 8), taps, 5, **options)


@pytest.mark.parametrize(
    "inputs, taps, columns, options",
    [
        ((1, 3, 1, 1, 1), (1, 1, 1), 3, {}),
        ((1, 3, 2, 28, 28), (2, 14, 14), 40, {"stride": (2, 14, 14)}),
        ((1, 65, 1, 3, 600), (1, 3, 3), 4, {"padding": (0, 0, 1, 1, 1, 1)}),  # rows longer than a bank
        ((1, 5, 2, 30, 40), (1, 3, 3), 6, {"padding": (0, 0, 1, 1, 1, 1)}),  # several regions
        ((3, 66, 2, 3, 3), (2, 2, 2), 260, {}),  # few outputs, many channels
    ],
    ids=str,
)
def test_ragged_sizes(inputs, taps, columns, options):
    for lnc in (1, 2):
        check(inputs, taps, columns, lnc, **options)


def test_activations_and_no_bias():
    x, f = random((1, 5, 2, 5, 5)), random((2, 2, 2, 5, 6), seed=1)
    plain = torch_conv3d(x, f)
    close(run(conv3d, x, f), plain, terms=40)
    close(run(conv3d, x, f, activation_fn=ActFnType.ReLU), np.maximum(plain, 0), terms=40)
    for kind in (ActFnType.SiLU, ActFnType.Swish):
        close(run(conv3d, x, f, activation_fn=kind), plain / (1 + np.exp(-plain)), terms=40)
    gelu = functional.gelu(wide(plain)).numpy()
    close(run(conv3d, x, f, activation_fn=ActFnType.GELU), gelu, terms=40)
    gelu = functional.gelu(wide(plain), approximate="tanh").numpy()
    close(run(conv3d, x, f, activation_fn=ActFnType.GELU_Tanh_Approx), gelu, terms=40)


def test_taps_in_padding_are_not_multiplied():
    x, f = nki.TensorSpec((1, 128, 3, 16, 16), "bfloat16"), nki.TensorSpec((3, 3, 3, 128, 128), "bfloat16")
    profile = nki.profile(conv3d)(x, f, padding=SAME)
    inside = (2 + 3 + 2) * (15 + 16 + 15) ** 2  # outputs for which the taps meet input, in each axis
    assert profile.timeline.flops == 2 * 128 * 128 * inside


@pytest.mark.slow
@pytest.mark.parametrize(
    "inputs, taps, columns, options",
    [
        ((1, 3, 5, 32, 32), (3, 3, 3), 96, {"padding": SAME}),
        ((1, 384, 3, 16, 16), (3, 3, 3), 384, {"padding": SAME}),
        ((1, 3, 2, 224, 224), (2, 14, 14), 1280, {"stride": (2, 14, 14)}),
        ((2, 16, 4, 9, 7), (1, 1, 1), 8, {"stride": (2, 2, 2)}),
    ],
    ids=str,
)
def test_published_sizes(inputs, taps, columns, options):
    for lnc in (1, 2):
        check(inputs, taps, columns, lnc, BF16, **options)


def test_the_reference_equals_torch():
    x, f, b = random((2, 3, 4, 5, 6)), random((2, 3, 2, 3, 4), seed=1), random((4,), seed=2)
    options = {"stride": (1, 2, 3), "padding": (0, 1, 2, 3, 4, 5), "dilation": (2, 1, 2)}
    expected = torch_conv3d(x, f, b, **options)
    np.testing.assert_allclose(conv3d_ref(x, f, b, **options), expected, rtol=1e-12, atol=1e-12)


X, F = np.zeros((1, 4, 3, 3, 3), np.float32), np.zeros((2, 2, 2, 4, 5), np.float32)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((X[0], F), r"x_in: got shape .*, expected \(B, C_in, D, H, W\)"),
        ((X, F[0]), r"filters: got shape .*, expected \(K_d, K_h, K_w, C_in, C_out\)"),
        ((X, F[..., :3, :]), "filters: got C_in = 3 of .*, x_in has 4 channels"),
        ((X, F, None, (1, 1)), r"stride: got \(1, 1\), expected three numbers"),
        ((X, F, None, (1, 0, 1)), "stride: got 0, allowed are 1 and more"),
        ((X, F, None, (1, 1, 1), (1, 1, 1)), r"padding: got \(1, 1, 1\), expected six numbers"),
        ((X, F, None, (1, 1, 1), (0,) * 6, (1, 1)), r"dilation: got \(1, 1\), expected three numbers"),
        ((X, F, None, (1, 1, 1), (0,) * 6, (1, 3, 1)), "2 taps with dilation 3, which reach over 4 elements"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_refused(arguments, text):
    with pytest.raises(AssertionError, match=text):
        run(conv3d, *arguments)


def test_the_compiler_takes_it_and_its_example_is_right():
    compiles_and_example_runs(conv3d)
