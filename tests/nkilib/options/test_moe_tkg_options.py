"""Every option of moe_tkg."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_support import random, run
from options.common import Option, check, each, on_both, refusals
from options.expert_reference import ACTIVATIONS, run_expert

from nkilib.core.moe.moe_tkg.moe_tkg import moe_tkg
from nkilib.core.utils.common_types import (
    ActFnType,
    DtypeMode,
    ExpertAffinityScaleMode,
    MoEAllToAllVStrategy,
    MoEBlockIOLayout,
)

POST, NO = ExpertAffinityScaleMode.POST_SCALE, ExpertAffinityScaleMode.NO_SCALE
EXPERTS, H, INNER = 4, 128, 24
LIMITS = ("gate_clamp_upper_limit", "gate_clamp_lower_limit", "up_clamp_upper_limit", "up_clamp_lower_limit")


def experts(h=H, inner=INNER, count=EXPERTS, dtype="float32") -> dict:
    return {
        "expert_gate_up_weights": random((count, h, 2, inner), dtype, seed=1, scale=h**-0.5),
        "expert_down_weights": random((count, inner, h), dtype, seed=2, scale=inner**-0.5),
    }


def tokens(t=3, h=H, k=2, dtype="float32") -> dict:
    generator = np.random.default_rng(4)
    index = np.stack([generator.permutation(EXPERTS)[:k] for _ in range(t)]).astype(np.int32)
    affinities = np.abs(random((t, EXPERTS), seed=3)) + 0.1
    return {
        "hidden_input": random((t, h), dtype),
        "expert_affinities": affinities.astype(np.float32),
        "expert_index": index,
    }


BASIC = experts() | tokens() | {"is_all_expert": False}


def mixture(hidden_input, expert_gate_up_weights, expert_down_weights, is_all_expert, **a):
    x = np.asarray(hidden_input, np.float64)
    limits = tuple(a.get(name) for name in LIMITS)
    biases = (a.get("expert_gate_up_bias"), a.get("expert_down_bias"))
    scales = (a.get("expert_gate_up_weights_scale"), a.get("expert_down_weights_scale"))
    act = a.get("activation_fn", ActFnType.SiLU)
    weighted = a.get("expert_affinities_scaling_mode", NO) == POST
    affinities, index = a.get("expert_affinities"), a.get("expert_index")
    count = len(expert_gate_up_weights)
    out = np.zeros(x.shape)
    for e in range(count):
        y = run_expert(x, e, expert_gate_up_weights, expert_down_weights, act, limits, biases, scales)[2]
        for t in range(len(x)):
            if is_all_expert:
                rank = int(a["rank_id"][0, 0]) if a.get("rank_id") is not None else 0
                number = rank * count + e
                weight = float(affinities[t, number]) if weighted else 1.0
                if weighted and a.get("mask_unselected_experts") and number not in index[t]:
                    weight = 0.0
                out[t] += weight * y[t]
                continue
            for place in np.nonzero(index[t] == e)[0]:
                weight = 1.0
                if weighted:
                    eager = a.get("expert_affinities_eager")
                    weight = float(affinities[t, e] if eager is None else eager[t, place])
                out[t] += weight * y[t]
    return out


def rank(number: int) -> np.ndarray:
    return np.array([[number]], np.int32)


def fp8(dtype=ml_dtypes.float8_e4m3) -> dict:
    return {name: (16 * w).astype(dtype) for name, w in experts().items()}


ROW = fp8() | {
    "expert_gate_up_weights_scale": (0.05 + 0.02 * np.abs(random((EXPERTS, 2, INNER)))).astype(np.float32),
    "expert_down_weights_scale": (0.05 + 0.02 * np.abs(random((EXPERTS, H)))).astype(np.float32),
}
STATIC = fp8() | {
    "expert_gate_up_weights_scale": (0.05 + 0.02 * np.abs(random((EXPERTS, 2, 1)))).astype(np.float32),
    "expert_down_weights_scale": (0.05 + 0.02 * np.abs(random((EXPERTS, 1)))).astype(np.float32),
}
OCP = {"dtype_mode": DtypeMode.OCP} | fp8(ml_dtypes.float8_e4m3fn)


def common() -> list[Option]:
    """What selected and all experts have."""
    made = [
        Option("basic"),
        Option("post-scale", {"expert_affinities_scaling_mode": POST}),
        Option("gate-up-bias", {"expert_gate_up_bias": random((EXPERTS, 2, INNER), seed=5)}),
        Option("down-bias", {"expert_down_bias": random((EXPERTS, H), seed=6)}),
        Option(
            "down-bias-scaled",
            {"expert_down_bias": random((EXPERTS, H)), "expert_affinities_scaling_mode": POST},
        ),
        Option("one-token", tokens(t=1)),
        Option("33-tokens", tokens(t=33)),
        Option("H-384", experts(h=384) | tokens(h=384)),
        Option("I-130", experts(inner=130)),
        Option("I-2", experts(inner=2)),
        Option("output-bfloat16", {"output_dtype": "bfloat16"}, tolerance=2**-8),
        Option("bfloat16", experts(dtype="bfloat16") | tokens(dtype="bfloat16"), tolerance=2**-6),
        Option("row", ROW | tokens(dtype="bfloat16"), tolerance=0.02),
        Option("static", STATIC | tokens(dtype="bfloat16"), tolerance=0.02),
        Option("row-OCP", ROW | OCP | tokens(dtype="bfloat16"), tolerance=0.02, on="trn3"),
        Option(
            "affinities-bfloat16", {"expert_affinities": tokens()["expert_affinities"].astype("bfloat16")}
        ),
        Option("uint32-index", {"expert_index": tokens()["expert_index"].astype(np.uint32)}),
    ]
    made += [Option(f"act-{act.name}", {"activation_fn": act}) for act in ACTIVATIONS]
    return made + [Option(name, {name: 0.2 if "upper" in name else -0.1}) for name in LIMITS]


SELECTED = common() + [
    Option(
        "eager", {"expert_affinities_eager": random((3, 2), seed=7), "expert_affinities_scaling_mode": POST}
    ),
    Option("k-1", tokens(k=1)),
    Option("k-4", tokens(k=4)),
    Option("same-expert", {"expert_index": np.full((3, 2), 1, np.int32)}),
]


@each(on_both(SELECTED))
def test_selected_experts(option):
    check(option, moe_tkg, BASIC, mixture, 2e-5)


ALL = BASIC | {"is_all_expert": True, "rank_id": rank(0)}
WIDE = {"expert_affinities": np.abs(random((3, 3 * EXPERTS), seed=3)), "expert_affinities_scaling_mode": POST}
ALL_CASES = common() + [
    Option("no-rank", {"rank_id": None}),
    Option("rank-2", WIDE | {"rank_id": rank(2)}),
    Option("masked", {"mask_unselected_experts": True, "expert_affinities_scaling_mode": POST}),
    Option("masked-rank-1", WIDE | {"rank_id": rank(1), "mask_unselected_experts": True}),
    Option("no-index", {"expert_index": None}),
    Option("140-tokens", tokens(t=140)),
    Option(
        "dynamic", {"is_all_expert_dynamic": True, "block_size": 2, "expert_affinities_scaling_mode": POST}
    ),
    Option(
        "dynamic-masked",
        {
            "is_all_expert_dynamic": True,
            "block_size": 128,
            "expert_affinities_scaling_mode": POST,
            "mask_unselected_experts": True,
        },
    ),
]


@each(on_both(ALL_CASES))
def test_all_experts(option):
    check(option, moe_tkg, ALL, mixture, 2e-5)


@pytest.mark.parametrize("lnc", [1, 2])
def test_result_of_another_layout_or_into_a_given_tensor(lnc):
    arguments = experts(h=256) | tokens(h=256) | {"is_all_expert": False}
    wanted = mixture(**arguments)
    layout = MoEBlockIOLayout._128_Nprgs_Hfree_T
    for name in ("output_layout", "outp_layout"):
        got = run(moe_tkg, **arguments, lnc=lnc, **{name: layout})
        assert got.shape == (128, lnc, 2 // lnc, 3)
        back = got.transpose(3, 1, 0, 2).reshape(3, 256)
        np.testing.assert_allclose(back, wanted, atol=1e-5)
    given = np.zeros((3, 256), np.float32)
    run(moe_tkg, **arguments, lnc=lnc, output=given)
    np.testing.assert_allclose(given, wanted, atol=1e-5)


REFUSED = refusals(
    hidden_input=None,
    hidden_input__rank=random(H),
    hidden_input__H=random((3, 256)),
    hidden_input__dtype=np.ones((3, H), np.int32),
    hidden_input__many=random((129, H)),
    expert_gate_up_weights=None,
    expert_gate_up_weights__rank=random((EXPERTS, H, INNER)),
    expert_gate_up_weights__H=random((EXPERTS, 100, 2, INNER)),
    expert_down_weights=None,
    expert_down_weights__shape=random((EXPERTS, INNER + 1, H)),
    expert_down_weights__dtype=random((EXPERTS, INNER, H), "bfloat16"),
    expert_index=None,
    expert_index__shape=np.zeros((2, 2), np.int32),
    expert_index__k=np.zeros((3, 17), np.int32),
    expert_gate_up_bias=random((EXPERTS, 2, INNER + 1)),
    expert_down_bias=random((EXPERTS, H + 1)),
    expert_gate_up_weights_scale=np.ones((EXPERTS, 2, INNER), np.float32),
    hidden_input_scale=np.ones((1, 1), np.float32),
    expert_gate_up_input_scale=np.ones((EXPERTS, 1), np.float32),
    expert_down_input_scale=np.ones((EXPERTS, 1), np.float32),
    input_dequant_scale=np.ones((1, 1), np.float32),
    mask_unselected_experts=True,
    expert_affinities_scaling_mode=ExpertAffinityScaleMode.PRE_SCALE,
    expert_affinities_scaling_mode__none=None,
    activation_fn=None,
    activation_fn__text="silu",
    is_all_expert_dynamic=True,
    all_to_all_v_strategy=MoEAllToAllVStrategy.PACK_OUTPUT_ROWS,
    gate_clamp_upper_limit="1",
) + [
    Option(
        "refuses-affinities",
        {"expert_affinities": None, "expert_affinities_scaling_mode": POST},
        "expert_affinities",
    ),
    Option(
        "refuses-eager",
        {"expert_affinities_eager": random((3, 3)), "expert_affinities_scaling_mode": POST},
        "expert_affinities_eager",
    ),
    Option("refuses-fp8", fp8(), "expert_gate_up_weights"),
    Option("refuses-rank", {"is_all_expert": True, "expert_affinities_scaling_mode": POST}, "rank_id"),
    Option(
        "refuses-all-eager",
        {"is_all_expert": True, "expert_affinities_eager": random((3, 2))},
        "expert_affinities_eager",
    ),
    Option("refuses-block", {"is_all_expert": True, "is_all_expert_dynamic": True}, "block_size"),
    Option(
        "refuses-row",
        ROW | {"expert_down_weights_scale": np.ones((EXPERTS, INNER), np.float32)},
        "expert_down_weights_scale",
    ),
]


@pytest.mark.filterwarnings("ignore:.*has no effect")
@each(REFUSED)
def test_refusals(option):
    check(option, moe_tkg, BASIC, mixture, 2e-5)


@pytest.mark.parametrize(
    "given", [{"rank_id": rank(0)}, {"block_size": 64}, {"expert_affinities_eager": random((3, 2))}], ids=list
)
def test_arguments_without_effect_are_warned_about(given):
    with pytest.warns(UserWarning, match=f"moe_tkg: {next(iter(given))} has no effect"):
        run(moe_tkg, **BASIC, **given)
