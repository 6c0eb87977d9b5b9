"""Every option of blockwise_mm_bwd, the gradients of moe_cte."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_support import random, run
from options.common import Option, check, each, on_both, refusals
from options.expert_reference import ACTIVATIONS

from nkilib.core.moe.moe_cte.moe_cte import (
    SkipMode,
)
from nkilib.core.utils.common_types import ActFnType
from nkilib.experimental.clamp_limits import ClampLimits
from nkilib.experimental.moe.bwd.blockwise_mm_backward import blockwise_mm_bwd
from nkilib.experimental.moe.bwd.moe_bwd_parameters import AffinityOption, KernelTypeOption, ShardOption

EXPERTS, INNER = 2, 16

GRAD_TOKENS, GRAD_H, GRAD_BLOCK = 100, 256, 128


def training(dtype="float32", skip=False) -> dict:
    rows = GRAD_TOKENS + (not skip)
    ids = np.full((2, GRAD_BLOCK), -1 if skip else GRAD_TOKENS, np.int32)
    ids[0, :70], ids[1, :60] = np.arange(70), np.arange(40, 100)
    return {
        "hidden_states": random((rows, GRAD_H), dtype),
        "expert_affinities_masked": np.abs(random((rows * EXPERTS, 1), dtype, seed=1)),
        "gate_up_proj_weight": random((EXPERTS, GRAD_H, 2, INNER), dtype, seed=2, scale=0.1),
        "down_proj_weight": random((EXPERTS, INNER, GRAD_H), dtype, seed=3, scale=0.2),
        "gate_up_proj_act_checkpoint_T": random((2, 2, INNER, GRAD_BLOCK), dtype, seed=4),
        "down_proj_act_checkpoint": random((2, GRAD_BLOCK, GRAD_H), dtype, seed=5),
        "token_position_to_id": ids.ravel(),
        "output_hidden_states_grad": random((rows, GRAD_H), dtype, seed=6),
    }


TRAINING = training() | {
    "block_to_expert": np.array([[1], [0]], np.int32),
    "block_size": GRAD_BLOCK,
    "compute_dtype": "float32",
}


def slope(act, x):
    step = 1e-5
    return (ACTIVATIONS[act](x + step) - ACTIVATIONS[act](x - step)) / (2 * step)


def inside(saved, lower, upper):
    """Where a checkpoint is not at a limit, as its dtype holds the limit."""
    keep = np.ones(saved.shape, bool)
    for limit, beyond in ((lower, np.less_equal), (upper, np.greater_equal)):
        if limit is not None:
            keep &= ~beyond(saved.astype(np.float64), float(np.float32(limit).astype(saved.dtype)))
    return keep


def gradients(**a):
    wide = {n: np.asarray(x, np.float64) for n, x in a.items() if isinstance(x, np.ndarray)}
    x, dy = wide["hidden_states"], wide["output_hidden_states_grad"]
    gate_up, down = wide["gate_up_proj_weight"], wide["down_proj_weight"]
    weights = wide["expert_affinities_masked"].reshape(-1, EXPERTS)
    skip = a.get("skip_dma") is not None and a["skip_dma"].skip_token
    count, act = len(x) - (not skip), a.get("activation_type", ActFnType.SiLU)
    limits = a.get("clamp_limits") or ClampLimits()
    on_i = a.get("affinity_option") == AffinityOption.AFFINITY_ON_I
    dx, daff, dgu, dd = (
        np.zeros(x.shape),
        np.zeros(weights.shape),
        np.zeros(gate_up.shape),
        np.zeros(down.shape),
    )
    bgu, bd = np.zeros((EXPERTS, 2, INNER)), np.zeros((EXPERTS, x.shape[1]))
    for n, ids in enumerate(a["token_position_to_id"].reshape(-1, GRAD_BLOCK)):
        e = int(np.ravel(a["block_to_expert"])[n])
        real = (ids >= 0) & (ids < count)
        if e >= EXPERTS:
            continue
        saved = a["gate_up_proj_act_checkpoint_T"][n][:, :, real].transpose(0, 2, 1)
        g, u = saved.astype(np.float64)
        t = ids[real]
        w = weights[t, e][:, None]
        dm = dy[t] @ down[e].T
        if a.get("skip_gate_proj"):
            m, dg, du = ACTIVATIONS[act](u), np.zeros(g.shape), dm * w * slope(act, u)
        else:
            m = ACTIVATIONS[act](g) * u
            dg = dm * w * u * slope(act, g)
            du = dm * w * ACTIVATIONS[act](g)
            dg = dg * inside(
                saved[0], limits.non_linear_clamp_lower_limit, limits.non_linear_clamp_upper_limit
            )
            du = du * inside(saved[1], limits.linear_clamp_lower_limit, limits.linear_clamp_upper_limit)
        kept = wide.get("down_proj_act_checkpoint")
        daff[t, e] += (dm * m).sum(1) if on_i else (dy[t] * kept[n][real]).sum(1)
        dd[e] += (m * w).T @ dy[t]
        sides = np.stack([dg, du], 1)
        dgu[e] += np.einsum("th,tgi->hgi", x[t], sides)
        dx[t] += np.einsum("tgi,hgi->th", sides, gate_up[e])
        bgu[e] += sides.sum(0)
        bd[e] += (dy[t] * w).sum(0)
    results = [dx, daff.reshape(-1, 1), dgu, dd]
    return [*results, bgu, bd] if a.get("bias") else results


def clamped(limit: float, dtype: str, side: int) -> dict:
    """Checkpoints of which some are at a limit, rounded."""
    saved = training(dtype)["gate_up_proj_act_checkpoint_T"]
    saved[:, side] = np.minimum(saved[:, side].astype(np.float32), limit).astype(dtype)
    return {"gate_up_proj_act_checkpoint_T": saved}


GRADIENTS = [
    Option("basic"),
    *(
        Option(act.name, {"activation_type": act})
        for act in ACTIVATIONS
        if act.name in ("GELU", "Swish", "SquaredReLU")
    ),
    *(Option(option.name, {"shard_option": option}) for option in ShardOption),
    Option("on-I", {"affinity_option": AffinityOption.AFFINITY_ON_I, "down_proj_act_checkpoint": None}),
    Option("bias", {"bias": True}),
    Option("skip-gate", {"skip_gate_proj": True}),
    Option("skip-token", training(skip=True) | {"skip_dma": SkipMode(True, False)}),
    Option("accumulation", {"accumulation_dtype": "float32"}),
    Option("expert-beyond", {"block_to_expert": np.array([[1], [EXPERTS]], np.int32)}),
    Option("up-limits", {"clamp_limits": ClampLimits(0.5, -0.5)}),
    Option("gate-limits", {"clamp_limits": ClampLimits(None, None, 0.5, -0.5)}),
    Option(
        "0.7-up",
        training("bfloat16") | clamped(0.7, "bfloat16", 1) | {"clamp_limits": ClampLimits(0.7)},
        tolerance=2**-6,
    ),
    Option(
        "0.7-gate",
        training("bfloat16") | clamped(0.7, "bfloat16", 0) | {"clamp_limits": ClampLimits(None, None, 0.7)},
        tolerance=2**-6,
    ),
    Option("bfloat16", training("bfloat16"), tolerance=2**-6),
    Option("compute-bfloat16", {"compute_dtype": "bfloat16"}, tolerance=2**-6),
    Option("tiles", {"block_tile_size": 128}),
]


@each(on_both(GRADIENTS))
def test_gradients(option):
    arguments = TRAINING | option.changes
    got = run(blockwise_mm_bwd, **arguments, lnc=option.lnc)
    skip = "skip_dma" in option.changes
    for n, (one, wanted) in enumerate(zip(got, gradients(**arguments), strict=True)):
        last = None if skip or n > 1 else -1 if n == 0 else -EXPERTS  # the padding token's is undefined
        largest = np.abs(wanted).max()
        np.testing.assert_allclose(
            one[:last].astype(np.float64), wanted[:last], rtol=0, atol=(option.tolerance or 3e-5) * largest
        )


@pytest.mark.parametrize(
    "name", ["hidden_states_grad_out", "gate_up_proj_weight_grad_out", "down_proj_weight_grad_out"]
)
def test_gradients_are_added_to_given_ones(name):
    place = ["hidden_states_grad_out", "", "gate_up_proj_weight_grad_out", "down_proj_weight_grad_out"].index(
        name
    )
    wanted = gradients(**TRAINING)[place]
    given = np.ones(wanted.shape, np.float32)
    got = run(blockwise_mm_bwd, **TRAINING, **{name: given}, skip_grad_initialization=True)[place]
    np.testing.assert_allclose(got[:100], 1 + wanted[:100], atol=1e-3)


GRADIENTS_REFUSED = refusals(
    hidden_states=None,
    gate_up_proj_weight=None,
    gate_up_proj_weight__rank=random((EXPERTS, GRAD_H, INNER)),
    down_proj_weight=None,
    down_proj_weight__shape=random((EXPERTS, INNER, 128)),
    gate_up_proj_act_checkpoint_T=None,
    gate_up_proj_act_checkpoint_T__shape=random((2, 2, INNER, 64)),
    down_proj_act_checkpoint=None,
    token_position_to_id=None,
    block_to_expert=None,
    output_hidden_states_grad=None,
    output_hidden_states_grad__shape=random((5, GRAD_H)),
    block_size=100,
    compute_dtype="int32",
    shard_option=None,
    affinity_option=None,
    kernel_type_option=KernelTypeOption.DROPPING,
    activation_type=ActFnType.ReLU,
    activation_type__none=None,
    accumulation_dtype="int32",
) + [
    Option("refuses-skipped", {"skip_gate_proj": True, "clamp_limits": ClampLimits(1.0)}, "clamp_limits"),
]


@each(GRADIENTS_REFUSED)
def test_gradient_refusals(option):
    check(option, blockwise_mm_bwd, TRAINING, gradients, 2e-5)


def test_initialization_without_given_gradients_is_warned_about():
    with pytest.warns(UserWarning, match="skip_grad_initialization has no effect"):
        run(blockwise_mm_bwd, **TRAINING, skip_grad_initialization=True)
