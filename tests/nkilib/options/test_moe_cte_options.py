"""Every option of moe_cte, of its implementations, and of its gradients."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_support import random, run
from options.common import Option, check, each, on_both, refusals
from options.expert_reference import ACTIVATIONS, run_expert

from nkilib.core.moe.moe_cte.moe_cte import (
    MoECTEImplementation,
    MoECTESpec,
    QuantizationConfig,
    ShardOnIConfig,
    SkipMode,
    moe_cte,
)
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.experimental.clamp_limits import ClampLimits
from nkilib.experimental.moe.bwd.blockwise_mm_backward import blockwise_mm_bwd
from nkilib.experimental.moe.bwd.moe_bwd_parameters import AffinityOption, KernelTypeOption, ShardOption

EXPERTS, TOKENS, H, INNER, BLOCK = 2, 300, 512, 16, 256
SCALES = ExpertAffinityScaleMode
LIMITS = ("gate_clamp_upper_limit", "gate_clamp_lower_limit", "up_clamp_upper_limit", "up_clamp_lower_limit")


def spec(name: str = "shard_on_block", **on_i) -> MoECTESpec:
    return MoECTESpec(MoECTEImplementation[name], shard_on_I=ShardOnIConfig(**on_i) if on_i else None)


def routed(blocks=((0, 200), (150, 300)), padding=TOKENS) -> np.ndarray:
    """Block n has the tokens of a range, then padding."""
    ids = np.full((len(blocks), BLOCK), padding, np.int32)
    for row, (first, last) in zip(ids, blocks, strict=True):
        row[: last - first] = np.arange(first, last)
    return ids.ravel()


def tensors(dtype="float32", inner=INNER, rows=TOKENS + 1) -> dict:
    return {
        "hidden_states": random((rows, H), dtype),
        "expert_affinities_masked": np.abs(random((rows * EXPERTS, 1), dtype, seed=1)),
        "gate_up_proj_weight": random((EXPERTS, H, 2, inner), dtype, seed=2, scale=H**-0.5),
        "down_proj_weight": random((EXPERTS, inner, H), dtype, seed=3, scale=inner**-0.5),
    }


BASIC = tensors() | {
    "token_position_to_id": routed(),
    "block_to_expert": np.array([[1], [0]], np.int32),
    "block_size": BLOCK,
    "spec": spec(),
    "compute_dtype": "float32",
}


def blockwise(hidden_states, expert_affinities_masked, gate_up_proj_weight, down_proj_weight, **a):
    skip = a.get("skip_dma") is not None and a["skip_dma"].skip_token
    count = len(hidden_states) - (not skip)
    affinities = np.asarray(expert_affinities_masked, np.float64).reshape(-1, EXPERTS)
    x, out = np.asarray(hidden_states, np.float64), np.zeros(np.shape(hidden_states))
    mode = a.get("expert_affinities_scaling_mode", SCALES.POST_SCALE)
    config = a.get("quantization_config") or QuantizationConfig()
    scales = (
        config.gate_up_proj_scale if a.get("gate_up_proj_scale") is None else a["gate_up_proj_scale"],
        config.down_proj_scale if a.get("down_proj_scale") is None else a["down_proj_scale"],
    )
    for n, ids in enumerate(a["token_position_to_id"].reshape(-1, BLOCK)):
        if a.get("conditions") is not None and np.ravel(a["conditions"])[n] == 0:
            break
        e = int(np.ravel(a["block_to_expert"])[n])
        ids = ids[(ids >= 0) & (ids < count)]
        if e >= EXPERTS or not ids.size:
            continue
        w = affinities[ids, e][:, None]
        before = mode in (SCALES.PRE_SCALE, SCALES.PRE_SCALE_DELAYED)
        y = run_expert(
            x[ids] * w if before else x[ids],
            e,
            gate_up_proj_weight,
            down_proj_weight,
            a.get("activation_function", ActFnType.SiLU),
            tuple(a.get(name) for name in LIMITS),
            (a.get("gate_and_up_proj_bias"), a.get("down_proj_bias")),
            scales,
            a.get("skip_gate_proj", False),
        )[2]
        y = y * w if mode == SCALES.POST_SCALE else y
        if a.get("is_tensor_update_accumulating", True):
            out[ids] += y
        else:
            out[ids] = y
    return out


FP8 = {
    name: (16 * tensors()[name]).astype(ml_dtypes.float8_e4m3)
    for name in ("gate_up_proj_weight", "down_proj_weight")
}
ROW = FP8 | {
    "gate_up_proj_scale": (0.05 + 0.02 * np.abs(random((EXPERTS, 1, 2 * INNER)))).astype(np.float32),
    "down_proj_scale": (0.05 + 0.02 * np.abs(random((EXPERTS, 1, H)))).astype(np.float32),
}
APART = {"token_position_to_id": routed(((0, 150), (150, 300)))}
CASES = [
    Option("basic"),
    *(Option(f"act-{act.name}", {"activation_function": act}) for act in ACTIVATIONS),
    *(Option(name, {name: 0.2 if "upper" in name else -0.1}) for name in LIMITS),
    *(Option(mode, {"expert_affinities_scaling_mode": SCALES[mode]}) for mode in ("NO_SCALE", "PRE_SCALE")),
    Option("gate-up-bias", {"gate_and_up_proj_bias": random((EXPERTS, 2, INNER), seed=4)}),
    Option("down-bias", {"down_proj_bias": random((EXPERTS, H), seed=5)}),
    Option("skip-gate", {"skip_gate_proj": True}),
    Option("not-accumulating", APART | {"is_tensor_update_accumulating": False}),
    Option("conditions", {"conditions": np.array([1, 0, 0], np.int32)}),
    Option("no-block", {"conditions": np.zeros(3, np.int32)}),
    Option("expert-beyond", {"block_to_expert": np.array([[1], [EXPERTS]], np.int32)}),
    Option("same-expert", {"block_to_expert": np.array([[1], [1]], np.int32)}),
    Option("flat-blocks", {"block_to_expert": np.array([1, 0], np.int32)}),
    Option(
        "skip-token",
        tensors(rows=TOKENS)
        | {"token_position_to_id": routed(padding=-1), "skip_dma": SkipMode(True, False)},
    ),
    Option("skip-weight", {"skip_dma": SkipMode(False, True)}),
    Option("accumulation", {"accumulation_dtype": "float32"}),
    Option("compute-bfloat16", {"compute_dtype": "bfloat16"}, tolerance=2**-6),
    Option("bfloat16", tensors("bfloat16"), tolerance=2**-6),
    Option("row-scales", ROW, tolerance=0.02),
    Option("one-scale", ROW | {"down_proj_scale": np.full((1, 1, H), 0.05, np.float32)}, tolerance=0.02),
    Option(
        "static-scales", ROW | {"gate_up_proj_scale": np.full((1, 1, 1), 0.05, np.float32)}, tolerance=0.02
    ),
    Option(
        "config-scales",
        FP8 | {"quantization_config": QuantizationConfig(ROW["gate_up_proj_scale"], ROW["down_proj_scale"])},
        tolerance=0.02,
    ),
    Option("I-144", tensors(inner=144)),
    *(Option(name, {"spec": spec(name)}) for name in ("shard_on_i", "shard_on_i_dropping")),
    Option("hybrid", {"spec": spec("shard_on_i_hybrid"), "conditions": np.array([1, 1, 0], np.int32)}),
    Option(
        "hybrid-dynamic",
        {"spec": spec("shard_on_i_hybrid", num_static_block=0), "conditions": np.array([1, 1, 0], np.int32)},
    ),
]


def without_padding(**arguments):
    """moe_cte's result without the row of the padding token, which is undefined."""
    skip = arguments.get("skip_dma") is not None and arguments["skip_dma"].skip_token
    return lambda out: out if skip else out[:-1]


@each(on_both(CASES))
def test_moe_cte(option):
    cut = without_padding(**option.changes)
    arguments = BASIC | option.changes
    got = run(moe_cte, **arguments, lnc=option.lnc)
    wanted = cut(blockwise(**arguments))
    largest = np.abs(wanted).max() or 1.0
    np.testing.assert_allclose(
        cut(got).astype(np.float64), wanted, rtol=0, atol=(option.tolerance or 2e-5) * largest
    )


REFUSED = refusals(
    spec=None,
    spec__name="shard_on_block",
    hidden_states=None,
    hidden_states__H=random((TOKENS + 1, 256)),
    hidden_states__dtype=np.ones((TOKENS + 1, H), np.int32),
    expert_affinities_masked=None,
    expert_affinities_masked__size=np.ones((5, 1), np.float32),
    gate_up_proj_weight=None,
    gate_up_proj_weight__rank=random((EXPERTS, H, INNER)),
    gate_up_proj_weight__I=random((EXPERTS, H, 2, 15)),
    down_proj_weight=None,
    down_proj_weight__shape=random((EXPERTS, INNER, 256)),
    down_proj_weight__dtype=random((EXPERTS, INNER, H), "bfloat16"),
    token_position_to_id=None,
    token_position_to_id__size=routed()[:-1],
    token_position_to_id__dtype=routed().astype(np.float32),
    block_to_expert=None,
    block_to_expert__dtype=np.zeros((2, 1), np.float32),
    block_size=128,
    conditions=np.ones(5, np.int32),
    gate_and_up_proj_bias=random((EXPERTS, 2, INNER + 1)),
    down_proj_bias=random((EXPERTS, H + 1)),
    gate_up_proj_scale=ROW["gate_up_proj_scale"],
    gate_up_activations_T=random((2, 2, INNER, BLOCK)),
    down_activations=random((2, BLOCK, H)),
    activation_function=None,
    activation_function__text="silu",
    compute_dtype="int32",
    expert_affinities_scaling_mode=None,
    gate_up_in_scale=np.ones((1, 1), np.float32),
    accumulation_dtype="bfloat16",
    gate_clamp_upper_limit="1",
) + [
    Option("refuses-hybrid", {"spec": spec("shard_on_i_hybrid")}, "conditions"),
    Option("refuses-mx", {"spec": spec("shard_on_i_mx")}, "gate_up_proj_weight"),
    Option(
        "refuses-skipped", {"skip_gate_proj": True, "gate_clamp_upper_limit": 1.0}, "gate_clamp_upper_limit"
    ),
    Option("refuses-in-scale", {"down_in_scale": np.ones((1, 1), np.float32)}, "gate_up_in_scale"),
]


@each(REFUSED)
def test_refusals(option):
    check(option, moe_cte, BASIC, blockwise, 2e-5)


# ---- gradients ---------------------------------------------------------------------------------------

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
    skip_grad_initialization=True,
) + [
    Option("refuses-skipped", {"skip_gate_proj": True, "clamp_limits": ClampLimits(1.0)}, "clamp_limits"),
]


@each(GRADIENTS_REFUSED)
def test_gradient_refusals(option):
    check(option, blockwise_mm_bwd, TRAINING, gradients, 2e-5)
