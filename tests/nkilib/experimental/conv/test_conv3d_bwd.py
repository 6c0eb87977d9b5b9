"""conv3d_bwd against torch's autograd in float64."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, check, each, near, on_both, refusals

from nkilib import autograd
from nkilib.experimental.conv.conv3d_bwd import conv3d_bwd


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(conv3d_bwd)


def forward(x, filters, bias, stride, padding, dilation):
    ends = [padding[4], padding[5], padding[2], padding[3], padding[0], padding[1]]
    padded = torch.nn.functional.pad(x, ends)
    return torch.nn.functional.conv3d(padded, filters.permute(4, 3, 0, 1, 2), bias, stride, 0, dilation)


def gradients(dy, x_in, filters, stride=(1, 1, 1), padding=(0,) * 6, dilation=(1, 1, 1), **wanted):
    x, f = (torch.tensor(np.asarray(v, np.float64), requires_grad=True) for v in (x_in, filters))
    bias = torch.zeros(filters.shape[4], dtype=torch.float64, requires_grad=True)
    forward(x, f, bias, stride, padding, dilation).backward(torch.tensor(np.asarray(dy, np.float64)))
    named = {"compute_dx": x, "compute_dw": f, "compute_db": bias}
    return [leaf.grad.numpy() for name, leaf in named.items() if wanted.get(name, True)]


def layer(b=2, ci=3, co=4, size=(3, 4, 5), taps=(2, 3, 2), dtype="float32", **options):
    x, filters = random((b, ci, *size), dtype), random((*taps, ci, co), dtype, seed=1)
    given = {"stride": (1, 1, 1), "padding": (0,) * 6, "dilation": (1, 1, 1)} | options
    shape = forward(*(torch.tensor(v.astype(np.float32)) for v in (x, filters)), None, **given).shape
    return {"dy": random(tuple(shape), dtype, seed=2), "x_in": x, "filters": filters, **options}


CASES = [
    Option("basic"),
    Option("stride", layer(stride=(2, 1, 2))),
    Option("stride-3", layer(size=(4, 7, 8), stride=(1, 3, 2))),
    Option("padding", layer(padding=(1, 0, 2, 1, 0, 1))),
    Option("dilation", layer(size=(4, 5, 6), dilation=(2, 1, 3))),
    Option("all", layer(size=(4, 6, 7), stride=(2, 3, 1), padding=(0, 1, 2, 1, 1, 0), dilation=(1, 2, 2))),
    Option("one-tap", layer(taps=(1, 1, 1))),
    Option("one-batch", layer(b=1)),
    Option("130-channels", layer(b=1, ci=130, co=3, size=(2, 3, 3), taps=(1, 2, 2))),
    Option("130-columns", layer(b=1, ci=2, co=130, size=(2, 3, 3), taps=(1, 2, 2))),
    Option("wide", layer(b=1, size=(2, 3, 150), taps=(1, 1, 3))),
    Option("no-dx", {"compute_dx": False}),
    Option("only-dw", {"compute_dx": False, "compute_db": False}),
    Option("only-db", {"compute_dx": False, "compute_dw": False}),
    Option("bfloat16", layer(dtype="bfloat16"), tolerance=2**-6),
    Option("float16", layer(dtype="float16"), tolerance=2**-8),
]
BASIC = layer()
WRONG = refusals(
    dy=None, x_in=None, filters=None, dy__shape=random((2, 4, 2, 2, 3)), x_in__rank=random((3, 4))
)
WRONG += refusals(
    stride=(1, 1), padding=(1, 1, 1), dilation=(0, 1, 1), dy__dtype=BASIC["dy"].astype("float16")
)
WRONG += [Option("nothing", {f"compute_{name}": False for name in ("dx", "dw", "db")}, "compute_dx")]


@each(on_both(CASES) + WRONG + [Option("trn3", on="trn3")])
def test_conv3d_bwd(option):
    check(option, conv3d_bwd, BASIC, gradients, 1e-5)


@pytest.mark.parametrize("with_bias", [False, True])
def test_conv3d_is_differentiable_in_torch(with_bias):
    leaves = [torch.tensor(BASIC[name], requires_grad=True) for name in ("x_in", "filters")]
    bias = torch.zeros(4, requires_grad=True) if with_bias else None
    out = autograd.conv3d(*leaves, bias)
    out.backward(torch.tensor(BASIC["dy"]))
    for leaf, expected in zip([*leaves, bias][: 2 + with_bias], gradients(**BASIC), strict=False):
        near(leaf.grad.numpy(), expected, 1e-5)


def test_three_steps_of_descent_lower_the_loss():
    x, target = BASIC["x_in"], BASIC["dy"]
    filters, losses = BASIC["filters"].copy(), []
    for _ in range(3):
        y = forward(torch.tensor(x), torch.tensor(filters), None, (1, 1, 1), (0,) * 6, (1, 1, 1)).numpy()
        losses.append(float(((y - target) ** 2).mean()))
        _, dw, _ = run(conv3d_bwd, y - target, x, filters)
        filters -= 2e-3 * dw
    assert losses[0] > losses[1] > losses[2]
