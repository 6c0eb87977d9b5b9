"""3-D pooling and its gradients against torch in float64."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, check, each, near, on_both, refusals

from nkilib import autograd
from nkilib.experimental.pooling import (
    avg_pooling_3d,
    avg_pooling_3d_backward,
    max_pooling_3d,
    max_pooling_3d_backward,
)

KERNELS = [avg_pooling_3d, avg_pooling_3d_backward, max_pooling_3d, max_pooling_3d_backward]


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", KERNELS)
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def last(x):
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def torch_pool(kind, x, kernel_size, stride=None, padding=0, data_format="NCDHW", output_format=None):
    """torch's result, and the input it was computed from."""
    values = np.asarray(x, np.float64)
    values = values if data_format == "NCDHW" else np.moveaxis(values, -1, 1)
    leaf = torch.tensor(values, requires_grad=True)
    pool = torch.nn.functional.max_pool3d if kind == "max" else torch.nn.functional.avg_pool3d
    return leaf, pool(leaf, kernel_size, stride, padding)


def forward(kind):
    def reference(src_tensor, **options):
        out = torch_pool(kind, src_tensor, **options)[1].detach().numpy()
        shown = options.get("output_format") or options.get("data_format", "NCDHW")
        return out if shown == "NCDHW" else np.moveaxis(out, 1, -1)

    return reference


def small(shape, dtype="float32"):
    """Many equal elements."""
    return np.random.default_rng(0).integers(0, 4, shape).astype(np.dtype(dtype))


X = random((2, 3, 5, 6, 7))
CASES = [
    Option("basic"),
    Option("overlap", {"kernel_size": 3, "stride": 1}),
    Option("padding", {"kernel_size": 3, "stride": 2, "padding": 1}),
    Option("mixed", {"kernel_size": (2, 3, 1), "stride": (1, 2, 3), "padding": (1, 0, 0)}),
    Option("gaps", {"kernel_size": 1, "stride": 2}),
    Option("whole", {"kernel_size": (5, 6, 7)}),
    Option("channels-last", {"src_tensor": last(X), "data_format": "NDHWC"}),
    Option("to-last", {"output_format": "NDHWC"}),
    Option("to-first", {"src_tensor": last(X), "data_format": "NDHWC", "output_format": "NCDHW"}),
    Option("130-channels", {"src_tensor": random((1, 130, 2, 2, 3))}),
    Option("large", {"src_tensor": random((1, 2, 5, 40, 33)), "kernel_size": 3, "stride": 2, "padding": 1}),
    Option("ties", {"src_tensor": small((1, 2, 4, 4, 6)), "kernel_size": 3, "stride": 1}),
    Option("bfloat16", {"src_tensor": random(X.shape, "bfloat16")}, tolerance=2**-8),
    Option("float16", {"src_tensor": random(X.shape, "float16")}, tolerance=2**-10),
]
BASIC = {"src_tensor": X, "kernel_size": 2}
WRONG = refusals(
    src_tensor=None, src_tensor__rank=random((2, 3, 4)), src_tensor__dtype=np.ones(X.shape, np.int32)
)
WRONG += refusals(
    kernel_size=9, kernel_size__two=(2, 2), kernel_size__zero=0, stride=0, padding=2, data_format="NHWC"
)
WRONG += refusals(output_format="NHWC", padding__negative=-1)


@each(on_both(CASES) + WRONG + [Option("trn3", on="trn3")])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_forward(option, kind):
    check(option, max_pooling_3d if kind == "max" else avg_pooling_3d, BASIC, forward(kind), 1e-6)


@each(on_both(CASES) + [Option("trn3", on="trn3")])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_backward(option, kind):
    options = BASIC | option.changes
    x = options.pop("src_tensor")
    leaf, out = torch_pool(kind, x, **options)
    dy = random(out.shape, x.dtype, seed=5)
    out.backward(torch.tensor(dy.astype(np.float64)))
    shown = options.get("output_format") or options.get("data_format", "NCDHW")
    results = [dy, out.detach().numpy().astype(x.dtype)]
    dy, y = results if shown == "NCDHW" else [last(r) for r in results]
    kernel = max_pooling_3d_backward if kind == "max" else avg_pooling_3d_backward
    given = (dy, x, y) if kind == "max" else (dy, x)
    got = run(kernel, *given, lnc=option.lnc, on=option.on, **options)
    expected = leaf.grad.numpy()
    near(got, expected if x.shape == expected.shape else last(expected), max(option.tolerance or 0, 1e-6))


@each(refusals(grad_output=random((1, 1, 1, 1, 1)), input_tensor=random(3), kernel_size=9, data_format="x"))
def test_backward_refusals(option):
    basic = {"grad_output": random((2, 3, 2, 3, 3)), "input_tensor": X, "kernel_size": 2}
    check(option, avg_pooling_3d_backward, basic, lambda **_: None, 0.0)
    check(
        option,
        max_pooling_3d_backward,
        basic | {"output_tensor": basic["grad_output"]},
        lambda **_: None,
        0.0,
    )


def test_both_are_differentiable_in_torch():
    results = []
    for largest, mean, dtype in (
        (autograd.max_pooling_3d, autograd.avg_pooling_3d, torch.float32),
        (torch.nn.functional.max_pool3d, torch.nn.functional.avg_pool3d, torch.float64),
    ):
        x = torch.tensor(X, dtype=dtype, requires_grad=True)
        (mean(largest(x, 2), (1, 3, 1), (1, 1, 1)) ** 2).sum().backward()
        results.append(x.grad.numpy())
    near(*results, 1e-6)
