"""Every option of moe_cte and of its implementations."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_support import each_lnc, random, run
from options.common import Option, check, each, on_both, refusals
from options.expert_reference import ACTIVATIONS, run_expert

from nkilib.core.moe.moe_cte import bwmm
from nkilib.core.moe.moe_cte.moe_cte import (
    MoECTEImplementation,
    MoECTESpec,
    QuantizationConfig,
    ShardOnIConfig,
    SkipMode,
    moe_cte,
)
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode

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
    Option("refuses-in-scale", {"down_in_scale": np.ones((1, 1), np.float32)}, "gate_up_in_scale"),
]


def test_limits_of_a_skipped_gate_are_warned_about():
    with pytest.warns(UserWarning, match="moe_cte: gate_clamp_upper_limit has no effect"):
        run(moe_cte, **BASIC, skip_gate_proj=True, gate_clamp_upper_limit=1.0)


@each(REFUSED)
def test_refusals(option):
    check(option, moe_cte, BASIC, blockwise, 2e-5)


# ---- the entry points of the implementations ---------------------------------------------------------

ENTRY = {name: value for name, value in BASIC.items() if name != "spec"}
ENTRIES = {
    "intermediate": (bwmm.blockwise_mm_baseline_shard_intermediate, ENTRY),
    "hybrid": (
        bwmm.blockwise_mm_baseline_shard_intermediate_hybrid,
        ENTRY | {"conditions": np.array([1, 1, 0], np.int32)},
    ),
    "block": (bwmm.bwmm_shard_on_block, ENTRY),
}
ENTRY_CASES = [
    case
    for case in CASES
    if not set(case.changes)
    & {"spec", "conditions", "accumulation_dtype", "skip_gate_proj", "quantization_config"}
]


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
@each(on_both(ENTRY_CASES))
def test_entry_points(option, entry):
    kernel, basic = ENTRIES[entry]
    arguments = basic | option.changes
    got = run(kernel, **arguments, lnc=option.lnc)
    got = got.astype(np.float64).sum(1) if got.ndim == 3 else got
    cut = without_padding(**option.changes)
    wanted = cut(blockwise(**arguments))
    atol = (option.tolerance or 2e-5) * np.abs(wanted).max()
    np.testing.assert_allclose(cut(got).astype(np.float64), wanted, rtol=0, atol=atol)


@each_lnc
@pytest.mark.parametrize("entry", ["intermediate", "hybrid"])
def test_entry_points_skip_the_gate(entry, lnc):
    kernel, basic = ENTRIES[entry]
    arguments = basic | {"skip_gate_proj": True, "accumulation_dtype": "float32"}
    wanted = blockwise(**arguments)
    got = run(kernel, **arguments, lnc=lnc)
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    with pytest.raises(AssertionError, match="accumulation_dtype: got bfloat16"):
        run(kernel, **arguments | {"accumulation_dtype": "bfloat16"})


ENTRY_REFUSED = [
    case
    for case in REFUSED
    if set(case.changes) <= set(ENTRY) | {"gate_and_up_proj_bias", "down_proj_bias", "activation_function"}
]


@pytest.mark.parametrize("entry", ENTRIES)
@each(ENTRY_REFUSED)
def test_entry_point_refusals(option, entry):
    check(option, *ENTRIES[entry], blockwise, 2e-5)
