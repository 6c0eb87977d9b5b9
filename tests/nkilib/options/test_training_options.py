"""Every option of the losses and of Adam."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_support import random
from options.common import Option, check, each, on_both, refusals

from nkilib.experimental.loss.cross_entropy import cross_entropy_backward, cross_entropy_forward
from nkilib.experimental.optimizer.fused_adam import adam_kernel, adamw_kernel

# ---- cross entropy -------------------------------------------------------------------------------------


def positions(n=6, v=40, dtype="float32", scale=3.0) -> dict:
    targets = np.random.default_rng(9).integers(0, v, n).astype(np.int32)
    return {"logits_hbm": random((n, v), dtype, scale=scale), "targets_hbm": targets, "chunk_size": v}


def forward(logits_hbm, targets_hbm, **schedule):
    x = logits_hbm.astype(np.float64)
    top = x.max(1, keepdims=True)
    lse = (top + np.log(np.exp(x - top).sum(1, keepdims=True)))[:, 0]
    return [lse - x[np.arange(len(x)), targets_hbm], lse]


FORWARD = positions() | {"dtype": "float32"}
LOSSES = [
    Option("basic"),
    Option("bfloat16-results", {"dtype": "bfloat16"}, tolerance=2**-8),
    Option("bfloat16-logits", {"logits_hbm": random((6, 40), "bfloat16", scale=3.0)}),
    Option("one-position", positions(n=1)),
    Option("129-positions", positions(n=129)),
    Option("one-word", positions(v=1)),
    Option("5000-words", positions(v=5000)),
    Option("batch-1", {"positions_per_batch": 1}),
    Option("batch-128", {"positions_per_batch": 128}),
    Option("chunk-1", {"chunk_size": 1}),
    Option("chunk-7", {"chunk_size": 7}),
    Option("large-logits", {"logits_hbm": random((6, 40), scale=300.0)}),
    Option("equal-logits", {"logits_hbm": np.full((6, 40), 5.0, np.float32)}),
    Option("first-target", {"targets_hbm": np.zeros(6, np.int32)}),
    Option("last-target", {"targets_hbm": np.full(6, 39, np.int32)}),
]


@each(on_both(LOSSES))
def test_forward(option):
    check(option, cross_entropy_forward, FORWARD, forward, 1e-5)


LOSS_REFUSED = refusals(
    logits_hbm=None,
    logits_hbm__rank=random(40),
    logits_hbm__dtype=random((6, 40), "float16"),
    targets_hbm=None,
    targets_hbm__shape=np.zeros(5, np.int32),
    targets_hbm__dtype=np.zeros(6, np.float32),
    positions_per_batch=0,
    positions_per_batch__large=129,
    chunk_size=0,
    chunk_size__large=41,
    dtype="float16",
    dtype__none=None,
)


@each(LOSS_REFUSED)
def test_forward_refusals(option):
    check(option, cross_entropy_forward, FORWARD, forward, 1e-5)


BACKWARD = FORWARD | {"lse_state_hbm": forward(**FORWARD)[1].astype(np.float32), "inplace": False}


def backward(logits_hbm, targets_hbm, lse_state_hbm, reduction="mean", **schedule):
    grad = np.exp(logits_hbm.astype(np.float64) - lse_state_hbm.astype(np.float64)[:, None])
    grad[np.arange(len(grad)), targets_hbm] -= 1
    return grad / len(grad) if reduction == "mean" else grad


GRADIENTS = [
    Option("basic"),
    Option("sum", {"reduction": "sum"}),
    Option("inplace", {"inplace": True}),
    Option("batch-3", {"positions_per_batch": 3}),
    Option("chunk-7", {"chunk_size": 7}),
    Option("dtype-bfloat16", {"dtype": "bfloat16"}),
    Option("lse-bfloat16", {"lse_state_hbm": BACKWARD["lse_state_hbm"].astype("bfloat16")}),
    Option("logits-bfloat16", {"logits_hbm": FORWARD["logits_hbm"].astype("bfloat16")}, tolerance=2**-8),
]


@each(on_both(GRADIENTS))
def test_backward(option):
    check(option, cross_entropy_backward, BACKWARD, backward, 1e-5)


GRADIENT_REFUSED = refusals(
    reduction="none",
    reduction__none=None,
    lse_state_hbm=None,
    lse_state_hbm__shape=np.zeros(5, np.float32),
    targets_hbm=None,
    chunk_size=41,
    positions_per_batch=0,
    dtype="float16",
)


@each(GRADIENT_REFUSED)
def test_backward_refusals(option):
    check(option, cross_entropy_backward, BACKWARD, backward, 1e-5)


# ---- Adam ----------------------------------------------------------------------------------------------


def number(value: float) -> np.ndarray:
    return np.full((128, 1), value, np.float32)


def tensors(shape=(10, 30), dtype="float32") -> dict:
    return {
        "param_ptr": random(shape, dtype),
        "grad_ptr": random(shape, dtype, seed=1),
        "exp_avg_ptr": random(shape, dtype, seed=2),
        "exp_avg_sq_ptr": np.abs(random(shape, dtype, seed=3)),
        "max_exp_avg_sq_ptr": np.abs(random(shape, dtype, seed=4)),
        "numel": int(np.prod(shape)),
    }


ADAM = tensors() | {
    "step_size_ptr": number(0.02),
    "inv_bc2_sqrt_ptr": number(1.7),
    "wd_factor_ptr": number(0.9),
    "beta1": 0.9,
    "beta2": 0.99,
    "eps": 1e-6,
}


def step(decoupled: bool):
    def reference(**a):
        wide = {n: np.asarray(x, np.float64) for n, x in a.items()}
        p, g, m, v = (wide[n] for n in ("param_ptr", "grad_ptr", "exp_avg_ptr", "exp_avg_sq_ptr"))
        decay, b1, b2 = wide["wd_factor_ptr"][0, 0], a["beta1"], a["beta2"]
        p, g = (p * decay, g) if decoupled else (p, g + decay * p)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        top = np.maximum(v, wide["max_exp_avg_sq_ptr"]) if a.get("amsgrad") else v
        root = np.sqrt(top) * wide["inv_bc2_sqrt_ptr"][0, 0] + a["eps"]
        results = [p - wide["step_size_ptr"][0, 0] * m / root, m, v]
        return [*results, top] if a.get("amsgrad") else results

    return reference


STEPS = [
    Option("basic"),
    Option("amsgrad", {"amsgrad": True}),
    Option("no-maximum", {"max_exp_avg_sq_ptr": None}),
    Option("beta1-0", {"beta1": 0.0}),
    Option("beta2-0", {"beta2": 0.0}),
    Option("beta1-0.5", {"beta1": 0.5}),
    Option("eps-0", {"eps": 0.0}),
    Option("eps-1", {"eps": 1.0}),
    Option("step_size-0", {"step_size_ptr": number(0.0)}),
    Option("step_size-bfloat16", {"step_size_ptr": np.full((128, 1), 0.5).astype("bfloat16")}),
    Option("wd_factor-0", {"wd_factor_ptr": number(0.0)}),
    Option("wd_factor-1", {"wd_factor_ptr": number(1.0)}),
    Option("inv_bc2_sqrt-30", {"inv_bc2_sqrt_ptr": number(30.0)}),
    Option("one-element", tensors((1,))),
    Option("129-elements", tensors((129,))),
    Option("three-axes", tensors((3, 50, 20))),
    Option("bfloat16", tensors(dtype="bfloat16"), tolerance=2**-8),
    Option("zero-gradient", {"grad_ptr": np.zeros((10, 30), np.float32)}),
]


@pytest.mark.parametrize("kernel", [adam_kernel, adamw_kernel], ids=["adam", "adamw"])
@each(on_both(STEPS))
def test_adam(option, kernel):
    check(option, kernel, ADAM, step(kernel is adamw_kernel), 1e-5)


ADAM_REFUSED = refusals(
    param_ptr=None,
    param_ptr__dtype=np.ones((10, 30), np.int32),
    grad_ptr=None,
    grad_ptr__shape=random((10, 29)),
    exp_avg_ptr=None,
    exp_avg_sq_ptr=None,
    step_size_ptr=None,
    step_size_ptr__shape=np.ones((1, 1), np.float32),
    inv_bc2_sqrt_ptr=None,
    wd_factor_ptr=None,
    numel=299,
    beta1=1.5,
    beta2=-0.1,
    eps=-1.0,
) + [Option("refuses-maximum", {"amsgrad": True, "max_exp_avg_sq_ptr": None}, "max_exp_avg_sq_ptr")]


@each(ADAM_REFUSED)
def test_adam_refusals(option):
    check(option, adam_kernel, ADAM, step(False), 1e-5)
