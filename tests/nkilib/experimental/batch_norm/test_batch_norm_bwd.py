"""batch_norm_bwd against torch's autograd in float64."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, on_both, refusals

from nkilib.experimental.batch_norm import batch_norm_bwd


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(batch_norm_bwd)


def batch(shape=(2, 3, 2, 3, 5), dtype="float32"):
    x = random(shape, dtype, seed=1)
    wide, axes = x.astype(np.float64), (0, 2, 3, 4)
    return {
        "dy": random(shape, dtype),
        "x_in": x,
        "means": wide.mean(axes).astype(np.float32),
        "variances": wide.var(axes).astype(np.float32),
        "gamma": random(shape[1], seed=2),
        "beta": random(shape[1], seed=3),
    }


def by_autograd(dy, x_in, means, variances, gamma, beta, eps=1e-5, fuse_relu=False, relu_mask=None):
    """Statistics are computed anew, so that the gradient flows through them."""
    x, g, b = (torch.tensor(np.asarray(v, np.float64), requires_grad=True) for v in (x_in, gamma, beta))
    y = torch.nn.functional.batch_norm(x, None, None, g, b, training=True, eps=eps)
    if fuse_relu:
        y = torch.relu(y) if relu_mask is None else y * torch.tensor(np.asarray(relu_mask) != 0)
    y.backward(torch.tensor(np.asarray(dy, np.float64)))
    return [v.grad.numpy() for v in (x, g, b)]


MASK = np.random.default_rng(0).integers(0, 2, (2, 3, 2, 3, 5)).astype(np.float32)
CASES = [
    Option("basic"),
    Option("eps", {"eps": 0.5}),
    Option("relu", {"fuse_relu": True}),
    Option("mask", {"fuse_relu": True, "relu_mask": MASK}),
    Option("mask-int", {"fuse_relu": True, "relu_mask": MASK.astype(np.uint8)}),
    Option("no-relu", {"fuse_relu": None}),
    Option("one-channel", batch((3, 1, 2, 2, 2))),
    Option("one-batch", batch((1, 4, 3, 3, 3))),
    Option("130-channels", batch((2, 130, 1, 2, 3))),
    Option("long", batch((1, 2, 3, 30, 50))),
    Option("bfloat16", batch(dtype="bfloat16"), tolerance=2**-7),
    Option("float16", batch(dtype="float16"), tolerance=2**-9),
    Option("gamma-bfloat16", {"gamma": random(3, "bfloat16"), "beta": random(3, "bfloat16")}),
]
WRONG = refusals(dy=None, x_in=None, means=None, x_in__rank=random((2, 3)), dy__shape=random((2, 3, 2, 3, 4)))
WRONG += refusals(gamma=random(4), beta=random((1, 3)), variances=random(3, "bfloat16"), relu_mask=MASK)
WRONG += refusals(x_in__dtype=np.ones((2, 3, 2, 3, 5), np.int32))


@each(on_both(CASES) + WRONG + [Option("trn3", on="trn3")])
def test_batch_norm_bwd(option):
    check(option, batch_norm_bwd, batch(), by_autograd, 1e-5)
