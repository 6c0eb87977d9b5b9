"""The gradients of a gated MLP against torch's autograd in float64."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, near, on_both, refusals

from nkilib import autograd
from nkilib.core.utils.common_types import NormType
from nkilib.experimental.mlp_train import mlp_bwd, mlp_bwd_ref

NAMES = ("hidden", "gate_weight", "up_weight", "down_weight")
VECTORS = ("norm_weight", "norm_bias", "gate_bias", "up_bias", "down_bias")


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(mlp_bwd)


def normalised(hidden, kind, weight, bias, eps):
    if kind == NormType.RMS_NORM:
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + eps) * weight
    if kind == NormType.LAYER_NORM:
        return torch.nn.functional.layer_norm(hidden, hidden.shape[-1:], weight[0], bias[0], eps)
    return hidden


def forward(
    hidden,
    gate_weight,
    up_weight,
    down_weight,
    norm_weight=None,
    norm_bias=None,
    gate_bias=0.0,
    up_bias=0.0,
    down_bias=0.0,
    normalization_type=NormType.NO_NORM,
    eps=1e-6,
):
    x = normalised(hidden, normalization_type, norm_weight, norm_bias, eps)
    gate, up = x @ gate_weight + gate_bias, x @ up_weight + up_bias
    return (torch.nn.functional.silu(gate) * up) @ down_weight + down_bias


def call(tokens=5, size=6, inner=7, dtype="float32", vectors=(), **options):
    shapes = ((tokens, size), (size, inner), (size, inner), (inner, size))
    shapes = dict(zip(NAMES, shapes, strict=True))
    shapes |= {name: (1, inner if name in ("gate_bias", "up_bias") else size) for name in vectors}
    given = {name: random(shape, dtype, i) for i, (name, shape) in enumerate(shapes.items())}
    return given | {"grad_output": random((tokens, size), dtype, 9)} | options


def gradients(grad_output, normalization_type=NormType.NO_NORM, eps=1e-6, **given):
    leaves = {name: torch.tensor(x.astype(np.float64), requires_grad=True) for name, x in given.items()}
    options = {"normalization_type": normalization_type, "eps": eps}
    forward(**leaves, **options).backward(torch.tensor(grad_output.astype(np.float64)))
    return [leaves[name].grad.numpy() for name in (*NAMES, *VECTORS) if name in given]


BIASES = ("gate_bias", "up_bias", "down_bias")
RMS, LAYER = {"normalization_type": NormType.RMS_NORM}, {"normalization_type": NormType.LAYER_NORM}
ALL = call(vectors=VECTORS, **LAYER)
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
    Option("biases", call(vectors=BIASES)),
    Option("one-bias", call(vectors=("up_bias",))),
    Option("rms-norm", call(vectors=("norm_weight",), **RMS)),
    Option("rms-norm-eps", call(vectors=("norm_weight",), eps=0.3, **RMS)),
    Option("layer-norm", call(vectors=VECTORS[:2], **LAYER)),
    Option("all", ALL),
    Option("all-130-tokens", call(130, 140, 150, vectors=VECTORS, **LAYER)),
    Option("all-bfloat16", call(dtype="bfloat16", vectors=VECTORS, **LAYER), tolerance=2**-5),
    Option("bfloat16", call(dtype="bfloat16"), tolerance=2**-6),
    Option("float16", call(dtype="float16"), tolerance=2**-9),
]
WRONG = refusals(hidden=None, hidden__rank=random(5), gate_weight=random((5, 7)), up_weight=random((6, 8)))
WRONG += refusals(
    down_weight=random((6, 7)), grad_output=random((5, 7)), up_weight__dtype=random((6, 7), "bfloat16")
)
WRONG += refusals(norm_weight=random((1, 6)), gate_bias=random(7), up_bias=random((1, 6)))
WRONG += refusals(down_bias=random((1, 6), "bfloat16"), norm_bias=random((1, 6)), normalization_type="rms")
WRONG += [Option("rms-without-weight", RMS, refused="norm_weight")]
WRONG += [Option("layer-without-bias", LAYER | {"norm_weight": random((1, 6))}, refused="norm_bias")]


@each(on_both(CASES) + [Option("trn3", on="trn3"), Option("trn1", on="trn1")] + WRONG)
def test_gradients(option):
    check(option, mlp_bwd, call(), gradients, 4e-6)


def test_the_reference_beside_the_kernel_agrees():
    for got, expected in zip(mlp_bwd_ref(**call()), gradients(**call()), strict=True):
        near(got, expected, 1e-12)


@pytest.mark.parametrize("options, vectors", [({}, ()), (RMS, ("norm_weight",)), (LAYER, VECTORS)])
def test_mlp_is_differentiable_in_torch(options, vectors):
    shapes = {"hidden": (1, 128, 256), "gate_weight": (256, 128), "up_weight": (256, 128)}
    shapes |= {"down_weight": (128, 256)}
    shapes |= {name: (1, 128 if name in ("gate_bias", "up_bias") else 256) for name in vectors}
    results = []
    for function, dtype in ((autograd.mlp, torch.float32), (forward, torch.float64)):
        given = {
            name: torch.tensor(random(shape, seed=i, scale=0.2), dtype=dtype, requires_grad=True)
            for i, (name, shape) in enumerate(shapes.items())
        }
        (function(**given, **options) ** 2).sum().backward()
        results.append([x.grad.numpy() for x in given.values()])
    for got, expected in zip(*results, strict=True):
        near(got, expected, 1e-5)
