"""gdn_conv1d_prefill_bwd against PyTorch's gradients in float64."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, on_both, refusals

from nkilib.experimental.gdn import gdn_conv1d_prefill_bwd, gdn_conv1d_prefill_bwd_ref


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(gdn_conv1d_prefill_bwd)


def call(batches=2, channels=5, tokens=9, taps=4, dtype="float32"):
    shape = (batches, channels, tokens)
    return {
        "dy": random(shape, dtype, 1),
        "mixed": random(shape, dtype, 2),
        "conv_weight": random((channels, taps), dtype, 3),
    }


def expected(dy, mixed, conv_weight):
    torch = pytest.importorskip("torch")
    x, w = (torch.tensor(a.astype(np.float64), requires_grad=True) for a in (mixed, conv_weight))
    taps = w.shape[1]
    sums = torch.nn.functional.conv1d(
        torch.nn.functional.pad(x, (taps - 1, 0)), w[:, None], groups=w.shape[0]
    )
    torch.nn.functional.silu(sums).backward(torch.tensor(dy.astype(np.float64)))
    return x.grad.numpy(), w.grad.numpy()


CASES = [
    Option("basic"),
    Option("one-channel", call(channels=1)),
    Option("one-token", call(tokens=1)),
    Option("one-tap", call(taps=1)),
    Option("16-taps", call(taps=16, tokens=31)),
    Option("130-channels", call(1, 130, 33, 3)),
    Option("many-tokens", call(1, 3, 2100, 4)),
    Option("bfloat16", call(dtype="bfloat16"), tolerance=3e-2),
]
WRONG = refusals(
    dy=random((2, 5, 8)),
    dy__dtype=random((2, 5, 9), "bfloat16"),
    mixed=random((5, 9)),
    conv_weight=random((4, 4)),
    conv_weight__taps=random((5, 17)),
)


@each(on_both(CASES) + WRONG)
def test_each_option_is_right_or_refused(option):
    check(option, gdn_conv1d_prefill_bwd, call(), expected, 1e-5)


def test_the_reference_agrees():
    for found, wanted in zip(gdn_conv1d_prefill_bwd_ref(**call()), expected(**call()), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_is_differentiable_in_torch():
    torch = pytest.importorskip("torch")
    from nkilib import autograd

    given = call()
    x, w = (torch.tensor(given[name], requires_grad=True) for name in ("mixed", "conv_weight"))
    autograd.gdn_conv1d_prefill(x, w)[0].backward(torch.tensor(given["dy"]))
    for found, wanted in zip((x.grad, w.grad), expected(**given), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-4)
