"""batch_norm and its gradients against torch in float64."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, near, on_both, refusals

from nkilib import autograd
from nkilib.experimental.batch_norm import batch_norm, batch_norm_ref


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(batch_norm)


def batch(shape=(2, 3, 2, 3, 5), dtype="float32"):
    x = random(shape, dtype, seed=1)
    return {"x_in": x, "gamma": random(shape[1], seed=2), "beta": random(shape[1], seed=3)}


def plain(x, gamma, beta, eps=1e-5, fuse_relu=False):
    y = torch.nn.functional.batch_norm(x, None, None, gamma, beta, training=True, eps=eps)
    return torch.relu(y) if fuse_relu else y


def expected(x_in, gamma, beta, **options):
    x, gamma, beta = (torch.tensor(np.asarray(v, np.float64)) for v in (x_in, gamma, beta))
    y, axes = plain(x, gamma, beta, **options), (0, 2, 3, 4)
    return [v.numpy() for v in (y, x.mean(axes), x.var(axes, correction=0))]


CASES = [
    Option("basic"),
    Option("eps", {"eps": 0.5}),
    Option("relu", {"fuse_relu": True}),
    Option("one-channel", batch((3, 1, 2, 2, 2))),
    Option("one-batch", batch((1, 4, 3, 3, 3))),
    Option("130-channels", batch((2, 130, 1, 2, 3))),
    Option("long", batch((1, 2, 3, 30, 50))),
    Option("bfloat16", batch(dtype="bfloat16"), tolerance=2**-7),
    Option("float16", batch(dtype="float16"), tolerance=2**-9),
]
WRONG = refusals(x_in=None, gamma=None, beta=None, x_in__rank=random((2, 3)), gamma__shape=random(4))
WRONG += refusals(beta__shape=random((1, 3)), x_in__dtype=np.ones((2, 3, 2, 3, 5), np.int32))


@each(on_both(CASES) + [Option("trn3", on="trn3"), Option("trn1", on="trn1")] + WRONG)
def test_batch_norm(option):
    check(option, batch_norm, batch(), expected, 3e-6)


def test_the_reference_beside_the_kernel_agrees():
    for got, wanted in zip(
        batch_norm_ref(**batch(), fuse_relu=True), expected(**batch(), fuse_relu=True), strict=True
    ):
        near(got, wanted, 1e-12)


@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm_is_differentiable_in_torch(relu):
    results = []
    for function, dtype in ((autograd.batch_norm, torch.float32), (plain, torch.float64)):
        given = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in batch().values()]
        y = function(*given, 1e-5, relu)
        y = y[0] if isinstance(y, tuple) else y
        (y * torch.linspace(-1, 1, y.numel(), dtype=dtype).reshape(y.shape)).sum().backward()
        results.append([v.grad.numpy() for v in given])
    for got, wanted in zip(*results, strict=True):
        near(got, wanted, 1e-5)
