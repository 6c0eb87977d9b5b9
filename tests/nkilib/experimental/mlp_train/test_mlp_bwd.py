"""The gradients of a gated MLP against torch's autograd in float64."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, near, on_both, refusals

from nkilib import autograd
from nkilib.experimental.mlp_train import mlp_bwd, mlp_bwd_ref

NAMES = ("hidden", "gate_weight", "up_weight", "down_weight")


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(mlp_bwd)


def forward(hidden, gate_weight, up_weight, down_weight):
    return (torch.nn.functional.silu(hidden @ gate_weight) * (hidden @ up_weight)) @ down_weight


def call(tokens=5, size=6, inner=7, dtype="float32"):
    shapes = ((tokens, size), (size, inner), (size, inner), (inner, size))
    given = {name: random(shape, dtype, i) for i, (name, shape) in enumerate(zip(NAMES, shapes, strict=True))}
    return given | {"grad_output": random((tokens, size), dtype, 9)}


def gradients(grad_output, **given):
    leaves = {name: torch.tensor(given[name].astype(np.float64), requires_grad=True) for name in NAMES}
    forward(**leaves).backward(torch.tensor(grad_output.astype(np.float64)))
    return [leaves[name].grad.numpy() for name in NAMES]


CASES = [
    Option("basic"),
    Option("one-token", call(tokens=1)),
    Option("one-channel", call(size=1, inner=1)),
    Option("128s", call(128, 128, 128)),
    Option("130-tokens", call(tokens=130)),
    Option("300-channels", call(3, 300, 20)),
    Option("600-inner", call(4, 5, 600)),
    Option("more-than-a-block", call(800, 9, 11)),
    Option("wide-block", call(6, 530, 800)),
    Option("bfloat16", call(dtype="bfloat16"), tolerance=2**-6),
    Option("float16", call(dtype="float16"), tolerance=2**-9),
]
WRONG = refusals(hidden=None, hidden__rank=random(5), gate_weight=random((5, 7)), up_weight=random((6, 8)))
WRONG += refusals(
    down_weight=random((6, 7)), grad_output=random((5, 7)), up_weight__dtype=random((6, 7), "bfloat16")
)


@each(on_both(CASES) + [Option("trn3", on="trn3"), Option("trn1", on="trn1")] + WRONG)
def test_gradients(option):
    check(option, mlp_bwd, call(), gradients, 4e-6)


def test_the_reference_beside_the_kernel_agrees():
    for got, expected in zip(mlp_bwd_ref(**call()), gradients(**call()), strict=True):
        near(got, expected, 1e-12)


def test_mlp_is_differentiable_in_torch():
    shapes = ((1, 128, 256), (256, 128), (256, 128), (128, 256))
    results = []
    for function, dtype in ((autograd.mlp, torch.float32), (forward, torch.float64)):
        given = [
            torch.tensor(random(shape, seed=i, scale=0.2), dtype=dtype, requires_grad=True)
            for i, shape in enumerate(shapes)
        ]
        (function(*given) ** 2).sum().backward()
        results.append([x.grad.numpy() for x in given])
    for got, expected in zip(*results, strict=True):
        near(got, expected, 1e-5)
