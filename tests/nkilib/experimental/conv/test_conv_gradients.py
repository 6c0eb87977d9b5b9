"""The gradients of 1-D, depthwise and transposed convolutions against torch's autograd in float64."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, near, on_both, refusals
from torch.nn import functional as F

from nkilib import autograd
from nkilib.experimental.conv.conv_gradients import conv1d_bwd, conv3d_transpose_bwd
from nkilib.experimental.conv.depthwise_conv1d_bwd import depthwise_conv1d_bwd


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [conv1d_bwd, conv3d_transpose_bwd, depthwise_conv1d_bwd])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def one_row(x, filters, bias=None, stride=1, padding=(0, 0), dilation=1):
    return F.conv1d(F.pad(x, padding), filters.permute(2, 1, 0), bias, stride, 0, dilation)


def depthwise(x, filters, padding=((0, 0), (0, 0)), stride=(1, 1)):
    padded = F.pad(x[:, :, 0], padding[1])
    return F.conv1d(padded, filters[:, 0], None, stride[1], groups=x.shape[1])[:, :, None]


def transposed(x, filters, bias=None, stride=(1, 1, 1), padding=(0, 0, 0), dilation=(1, 1, 1)):
    weight = filters.permute(3, 4, 0, 1, 2).flip(2, 3, 4)
    return F.conv_transpose3d(x, weight, bias, stride, padding, dilation=dilation)


def gradients_of(forward, names, with_bias):
    """A function of dy, inputs and options: the gradients by autograd."""

    def gradients(dy, **given):
        wanted = {name: given.pop(name, True) for name in ("compute_dx", "compute_dw", "compute_db")}
        leaves = [torch.tensor(given.pop(name).astype(np.float64), requires_grad=True) for name in names]
        if with_bias:
            leaves.append(torch.zeros(leaves[1].shape[-1], dtype=torch.float64, requires_grad=True))
        forward(*leaves, **given).backward(torch.tensor(dy.astype(np.float64)))
        return [leaf.grad.numpy() for leaf, asked in zip(leaves, wanted.values(), strict=False) if asked]

    return gradients


def call(forward, names, shapes, dtype="float32", **options):
    x, filters = (random(shape, dtype, seed) for seed, shape in enumerate(shapes))
    shape = forward(*(torch.tensor(v.astype(np.float32)) for v in (x, filters)), **options).shape
    return {"dy": random(tuple(shape), dtype, seed=2), names[0]: x, names[1]: filters, **options}


PLAIN, IMAGE = ("x_in", "filters"), ("img_ref", "filter_ref")


def rows(shapes=((2, 3, 9), (3, 3, 4)), **options):
    return call(one_row, PLAIN, shapes, **options)


ROWS = [
    Option("basic"),
    Option("stride", rows(stride=2)),
    Option("padding", rows(padding=(2, 1))),
    Option("dilation", rows(dilation=3)),
    Option("all", rows(stride=3, padding=(1, 2), dilation=2)),
    Option("one-tap", rows(((1, 2, 5), (1, 2, 3)))),
    Option("130-channels", rows(((1, 130, 5), (2, 130, 3)))),
    Option("long", rows(((1, 2, 700), (4, 2, 3)))),
    Option("only-dw", {"compute_dx": False, "compute_db": False}),
    Option("bfloat16", rows(dtype="bfloat16"), tolerance=2**-6),
    *refusals(dy=None, x_in__rank=random((2, 3)), filters__rank=random((2, 3)), dy__shape=random((2, 4, 8))),
]


@each(on_both(ROWS) + [Option("trn3", on="trn3"), Option("trn1", on="trn1")])
def test_conv1d_bwd(option):
    check(option, conv1d_bwd, rows(), gradients_of(one_row, PLAIN, True), 4e-6)


def channels(shapes=((2, 3, 1, 9), (3, 1, 1, 4)), **options):
    return call(depthwise, IMAGE, shapes, **options)


CHANNELS = [
    Option("basic"),
    Option("stride", channels(stride=(1, 2))),
    Option("stride-wider-than-taps", channels(stride=(1, 5))),
    Option("causal", channels(padding=((0, 0), (3, 0)))),
    Option("padding", channels(padding=((0, 0), (1, 2)), stride=(1, 3))),
    Option("one-tap", channels(((1, 2, 1, 5), (2, 1, 1, 1)))),
    Option("130-channels", channels(((2, 130, 1, 5), (130, 1, 1, 2)))),
    Option("long", channels(((1, 2, 1, 2500), (2, 1, 1, 4)), padding=((0, 0), (3, 0)))),
    Option("bfloat16", channels(dtype="bfloat16"), tolerance=2**-6),
    *refusals(dy=None, img_ref__rank=random((2, 3)), filter_ref__shape=random((4, 1, 1, 4))),
    *refusals(dy__shape=random((2, 3, 1, 9)), filter_ref__dtype=random((3, 1, 1, 4), "bfloat16")),
]


@each(on_both(CHANNELS) + [Option("trn3", on="trn3"), Option("trn1", on="trn1")])
def test_depthwise_conv1d_bwd(option):
    check(option, depthwise_conv1d_bwd, channels(), gradients_of(depthwise, IMAGE, False), 4e-6)


def volumes(shapes=((2, 3, 2, 3, 4), (2, 2, 3, 3, 4)), **options):
    return call(transposed, PLAIN, shapes, **options)


VOLUMES = [
    Option("basic"),
    Option("stride", volumes(stride=(1, 2, 3))),
    Option("padding", volumes(padding=(0, 1, 1))),
    Option("dilation", volumes(dilation=(2, 1, 2))),
    Option("all", volumes(stride=(2, 1, 2), padding=(1, 0, 1), dilation=(1, 2, 2))),
    Option("one-tap", volumes(((1, 2, 2, 2, 2), (1, 1, 1, 2, 3)))),
    Option("130-channels", volumes(((1, 130, 1, 2, 3), (1, 2, 2, 130, 3)))),
    Option("130-columns", volumes(((1, 2, 1, 2, 3), (1, 2, 2, 2, 130)))),
    Option("bfloat16", volumes(dtype="bfloat16"), tolerance=2**-6),
    *refusals(dy=None, x_in__rank=random((2, 3)), filters__shape=random((2, 2, 3, 4, 4)), stride=(1, 1)),
    *refusals(dy__shape=random((2, 4, 3, 4, 5)), filters__dtype=random((2, 2, 3, 3, 4), "bfloat16")),
]


@each(on_both(VOLUMES) + [Option("trn3", on="trn3"), Option("trn1", on="trn1")])
def test_conv3d_transpose_bwd(option):
    check(option, conv3d_transpose_bwd, volumes(), gradients_of(transposed, PLAIN, True), 4e-6)


@pytest.mark.parametrize(
    "ours, theirs, shapes",
    [
        (autograd.conv1d, one_row, ((2, 3, 9), (3, 3, 4), (4,))),
        (autograd.conv1d, one_row, ((2, 3, 9), (3, 3, 4))),
        (autograd.conv3d_transpose, transposed, ((1, 3, 2, 3, 4), (2, 2, 3, 3, 4), (4,))),
        (autograd.depthwise_conv1d_implicit_gemm, depthwise, ((2, 3, 1, 9), (3, 1, 1, 4))),
    ],
)
def test_convolutions_are_differentiable_in_torch(ours, theirs, shapes):
    results = []
    for function, dtype in ((ours, torch.float32), (theirs, torch.float64)):
        given = [
            torch.tensor(random(shape, seed=i), dtype=dtype, requires_grad=True)
            for i, shape in enumerate(shapes)
        ]
        filled = (*given, None) if len(shapes) < 3 and theirs is one_row else given
        (function(*filled) ** 2).sum().backward()
        results.append([x.grad.numpy() for x in given])
    for got, wanted in zip(*results, strict=True):
        near(got, wanted, 1e-5)
