"""RMSNorm and LayerNorm, forward and backward, against torch in float64."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, check, each, near, on_both, refusals

from nkilib import autograd
from nkilib.experimental.norm import layer_norm, layer_norm_bwd, rms_norm, rms_norm_bwd

KERNELS = {"rms": (rms_norm, rms_norm_bwd), "layer": (layer_norm, layer_norm_bwd)}


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [layer_norm, layer_norm_bwd, rms_norm, rms_norm_bwd])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def by_torch(x, gamma, beta=None, eps=1e-5):
    if beta is not None:
        return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * gamma


def call(rows=5, columns=7, dtype="float32", eps=1e-5, shift=0.5):
    x = (random((rows, columns)).astype(np.float64) + shift).astype(np.dtype(dtype))
    return {"x": x, "gamma": random((columns,), seed=1), "beta": random((columns,), seed=2), "eps": eps}


def leaves(given, kind):
    names = ("x", "gamma") if kind == "rms" else ("x", "gamma", "beta")
    found = {name: torch.tensor(given[name].astype(np.float64), requires_grad=True) for name in names}
    return found


def of_kind(given, kind):
    return {name: value for name, value in given.items() if kind == "layer" or name != "beta"}


CASES = [
    Option("basic"),
    Option("one-row", call(rows=1)),
    Option("130-rows", call(rows=130)),
    Option("300-rows", call(rows=300, columns=33)),
    Option("513-columns", call(rows=3, columns=513)),
    Option("4096-columns", call(rows=2, columns=4096), tolerance=4e-6),
    Option("eps", call(eps=0.3)),
    Option("far-from-zero", call(shift=10.0), tolerance=2e-5),
    Option("bfloat16", call(dtype="bfloat16"), tolerance=2**-8),
    Option("float16", call(dtype="float16"), tolerance=2**-10),
]
ON = [Option("trn3", on="trn3"), Option("trn1", on="trn1")]
WRONG = refusals(x=None, x__rank=random(5), x__wide=random((2, 4097)), gamma=random(6), gamma__none=None)


@each(on_both(CASES) + ON + WRONG)
@pytest.mark.parametrize("kind", list(KERNELS))
def test_forward(option, kind):
    def reference(eps, **given):
        return by_torch(**leaves(given, kind), eps=eps).detach().numpy()

    changed = option._replace(changes=of_kind(option.changes, kind))
    check(changed, KERNELS[kind][0], of_kind(call(), kind), reference, 2e-6)


def test_layer_norm_needs_a_beta_of_its_columns():
    for option in refusals(beta=random(6), beta__none=None):
        check(option, layer_norm, call(), lambda **_: None, 0.0)


@each(on_both(CASES) + ON)
@pytest.mark.parametrize("kind", list(KERNELS))
def test_backward(option, kind):
    given = call() | option.changes
    found = leaves(given, kind)
    dy = random(given["x"].shape, given["x"].dtype, seed=3)
    by_torch(**found, eps=given["eps"]).backward(torch.tensor(dy.astype(np.float64)))
    got = run(KERNELS[kind][1], dy, given["x"], given["gamma"], given["eps"], lnc=option.lnc, on=option.on)
    for grad, leaf in zip(got, found.values(), strict=True):
        near(grad, leaf.grad.numpy(), max(option.tolerance or 0, 2e-6))


@each(refusals(grad_output=random((5, 6)), grad_output__none=None, x=random(5), gamma=random(6)))
@pytest.mark.parametrize("kind", list(KERNELS))
def test_backward_refusals(option, kind):
    basic = {"grad_output": random((5, 7)), "x": call()["x"], "gamma": call()["gamma"]}
    check(option, KERNELS[kind][1], basic, lambda **_: None, 0.0)


@pytest.mark.parametrize("kind", list(KERNELS))
def test_is_differentiable_in_torch(kind):
    results = []
    function = autograd.rms_norm if kind == "rms" else autograd.layer_norm
    for norm, dtype in ((function, torch.float32), (by_torch, torch.float64)):
        given = [x.detach().to(dtype).requires_grad_() for x in leaves(call(), kind).values()]
        (norm(*given, eps=1e-5) ** 3).sum().backward()
        results.append([x.grad.numpy() for x in given])
    for got, expected in zip(*results, strict=True):
        near(got, expected, 2e-6)


def test_rope_is_differentiable_in_torch():
    from nkilib.core.embeddings.rope import RoPE_ref

    x, angle = random((64, 2, 3, 4)), random((32, 2, 4), seed=1)
    cos, sin, dy = np.cos(angle), np.sin(angle), random(x.shape, seed=2)
    leaf = torch.tensor(x, requires_grad=True)
    autograd.RoPE(leaf, torch.tensor(cos), torch.tensor(sin)).backward(torch.tensor(dy))
    basis = RoPE_ref(np.eye(64)[:, None, None, :], cos[:, :1, :1].repeat(64, 2), sin[:, :1, :1].repeat(64, 2))
    matrix = basis[:, 0, 0, :]  # of the rotation at the first place
    near(leaf.grad.numpy()[:, 0, 0, 0], matrix.T @ dy[:, 0, 0, 0].astype(np.float64), 1e-6)
