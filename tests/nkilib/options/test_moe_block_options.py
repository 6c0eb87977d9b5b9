"""Every option of moe_block_tkg: norm, router, experts and shared experts, composed in float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_support import random
from options.common import Option, check, each, on_both, refusals
from options.expert_reference import ACTIVATIONS, run_expert

from nkilib.core.moe_block.moe_block_tkg import moe_block_tkg
from nkilib.core.utils.common_types import (
    ActFnType,
    ExpertAffinityScaleMode,
    MoEBlockIOLayout,
    RouterActFnType,
)

EXPERTS, H, INNER = 6, 256, 24
SOFTMAX, SIGMOID = RouterActFnType.SOFTMAX, RouterActFnType.SIGMOID
POST = ExpertAffinityScaleMode.POST_SCALE
TRANSPOSED = MoEBlockIOLayout._128_Nprgs_Hfree_T
LIMITS = ("gate_clamp_upper_limit", "gate_clamp_lower_limit", "up_clamp_upper_limit", "up_clamp_lower_limit")
SHARED = {
    "shared_expert_gate_w": random((H, 40), seed=11, scale=H**-0.5),
    "shared_expert_up_w": random((H, 40), seed=12, scale=H**-0.5),
    "shared_expert_down_w": random((40, H), seed=13, scale=40**-0.5),
}
BASIC = {
    "inp": random((2, 3, H)),
    "gamma": (1 + 0.2 * random((1, H), seed=1)).astype(np.float32),
    "router_weights": random((H, EXPERTS), seed=2, scale=H**-0.5),
    "expert_gate_up_weights": random((EXPERTS, H, 2, INNER), seed=3, scale=H**-0.5),
    "expert_down_weights": random((EXPERTS, INNER, H), seed=4, scale=INNER**-0.5),
    "top_k": 2,
    "router_mm_dtype": "float32",
}


def block(**a):
    wide = {n: np.asarray(x, np.float64) for n, x in a.items() if isinstance(x, np.ndarray)}
    x = (wide["inp"] + wide.get("residual", 0.0)).reshape(-1, a["inp"].shape[-1])
    count = a.get("hidden_actual") or x.shape[1]
    n = x / np.sqrt((x * x).sum(1, keepdims=True) / count + a.get("eps", 1e-6)) * wide["gamma"]
    logits = n @ wide["router_weights"] + wide.get("router_bias", 0.0)
    act = a.get("router_act_fn") or SIGMOID
    limits = tuple(a.get(name) for name in LIMITS)
    biases = (a.get("expert_gate_up_bias"), a.get("expert_down_bias"))
    function = a.get("hidden_act_fn") or ActFnType.SiLU
    local = len(a["expert_gate_up_weights"])
    results = [
        run_expert(n, e, a["expert_gate_up_weights"], a["expert_down_weights"], function, limits, biases)[2]
        for e in range(local)
    ]
    out = np.zeros(n.shape)
    rank = int(a["rank_id"][0, 0]) if a.get("rank_id") is not None else 0
    for t, row in enumerate(logits):
        chosen = np.argsort(-row, kind="stable")[: a["top_k"]]
        kept = row if a.get("router_pre_norm", True) else row[chosen]
        value = 1 / (1 + np.exp(-row[chosen]))
        if act == SOFTMAX:
            value = np.exp(row[chosen]) / np.exp(kept).sum()
        value = value / value.sum() if a.get("norm_topk_prob") else value
        for e, weight in zip(chosen, value, strict=True):
            if rank * local <= e < (rank + 1) * local:
                weight = weight if a.get("expert_affinities_scaling_mode") == POST else 1.0
                out[t] += weight * results[e - rank * local][t]
    if "shared_expert_up_w" in wide:
        gate = n @ wide["shared_expert_gate_w"] + wide.get("shared_expert_gate_bias", 0.0)
        up = n @ wide["shared_expert_up_w"] + wide.get("shared_expert_up_bias", 0.0)
        out += (ACTIVATIONS[function](gate) * up) @ wide["shared_expert_down_w"] + wide.get(
            "shared_expert_down_bias", 0.0
        )
    made = [out] if a.get("skip_router_logits") else [out, logits]
    return [*made, x] if "residual" in wide else made


POSTED = {"expert_affinities_scaling_mode": POST}
ALL = POSTED | {"is_all_expert": True, "rank_id": np.array([[0]], np.int32)}
CASES = [
    Option("basic"),
    Option("post-scale", POSTED),
    Option("softmax", POSTED | {"router_act_fn": SOFTMAX}),
    Option("softmax-after", POSTED | {"router_act_fn": SOFTMAX, "router_pre_norm": False}),
    Option("sigmoid-after", POSTED | {"router_pre_norm": False}),
    Option("normalised", POSTED | {"norm_topk_prob": True}),
    Option("softmax-normalised", POSTED | {"norm_topk_prob": True, "router_act_fn": SOFTMAX}),
    Option(
        "defaults", {"router_act_fn": None, "hidden_act_fn": None, "expert_affinities_scaling_mode": None}
    ),
    Option("router-bias", POSTED | {"router_bias": random((1, EXPERTS), seed=5)}),
    Option("gate-up-bias", {"expert_gate_up_bias": random((EXPERTS, 2, INNER), seed=6)}),
    Option("down-bias", {"expert_down_bias": random((EXPERTS, H), seed=7)}),
    Option("eps", {"eps": 0.5}),
    Option("hidden-actual", {"hidden_actual": 200}),
    Option("top-1", {"top_k": 1}),
    Option("top-6", POSTED | {"top_k": 6}),
    Option("no-logits", {"skip_router_logits": True}),
    Option("residual", {"residual": random((2, 3, H), seed=8)}),
    Option("residual-no-logits", {"residual": random((2, 3, H), seed=8), "skip_router_logits": True}),
    Option("shared", SHARED),
    Option("shared-gate-bias", SHARED | {"shared_expert_gate_bias": random((1, 40), seed=9)}),
    Option("shared-up-bias", SHARED | {"shared_expert_up_bias": random((1, 40), seed=9)}),
    Option("shared-down-bias", SHARED | {"shared_expert_down_bias": random((1, H), seed=9)}),
    Option("one-token", {"inp": random((1, 1, H))}),
    Option("all-experts", ALL),
    Option("dynamic", ALL | {"is_all_expert_dynamic": True, "block_size": 4}),
    Option("dynamic-blocks-of-1", ALL | {"is_all_expert_dynamic": True, "block_size": 1}),
    Option(
        "second-rank",
        ALL
        | {"rank_id": np.array([[1]], np.int32)}
        | {n: BASIC[n][:3] for n in ("expert_gate_up_weights", "expert_down_weights")},
    ),
    *(Option(f"act-{act.name}", {"hidden_act_fn": act}) for act in ACTIVATIONS),
    *(Option(name, {name: 0.2 if "upper" in name else -0.1}) for name in LIMITS),
]


@each(on_both(CASES))
def test_block(option):
    check(option, moe_block_tkg, BASIC, block, 3e-5)


REFUSED = (
    refusals(
        inp=None,
        inp__rank=random((3, H)),
        inp__H=random((2, 3, 100)),
        gamma=None,
        gamma__shape=random((1, 128)),
        router_weights=None,
        router_weights__shape=random((128, EXPERTS)),
        expert_gate_up_weights=None,
        expert_down_weights=None,
        expert_down_weights__shape=random((EXPERTS, INNER + 1, H)),
        router_bias=random((1, 5)),
        expert_gate_up_bias=random((EXPERTS, 2, 5)),
        expert_down_bias=random((EXPERTS, 5)),
        top_k=0,
        top_k__large=9,
        hidden_act_scale_factor=2.0,
        hidden_act_bias=1.0,
        residual=random((2, 2, H)),
        expert_gate_up_input_scale=np.ones((EXPERTS, 1), np.float32),
        expert_down_input_scale=np.ones((EXPERTS, 1), np.float32),
        shared_expert_gate_w=random((H, 40)),
        shared_expert_gate_bias=random((1, 40)),
        shared_expert_up_bias=random((1, 40)),
        shared_expert_down_bias=random((1, H)),
        gate_clamp_upper_limit="1",
        hidden_act_fn="silu",
        hidden_actual=0,
    )
    + [
        Option("refuses-inp-layout", {"inp_layout": "T_H"}, "inp_layout"),
        Option("refuses-rows", {"inp_layout": TRANSPOSED}, "inp"),
        Option("refuses-outp-layout", {"outp_layout": "B_S_H"}, "outp_layout"),
        Option("refuses-dynamic", {"is_all_expert_dynamic": True, "block_size": 4}, "is_all_expert_dynamic"),
        Option("refuses-no-block", ALL | {"is_all_expert_dynamic": True}, "block_size"),
        Option(
            "refuses-shared",
            ALL | SHARED | {"is_all_expert_dynamic": True, "block_size": 4},
            "is_all_expert_dynamic",
        ),
    ]
    + [Option("refuses-rank", POSTED | {"is_all_expert": True}, "rank_id")]
)


def transposed_block(**a):
    """The result as [128, n, H / 128 / n, T] for n cores, and the logits."""
    out, logits = block(**{name: value for name, value in a.items() if name != "outp_layout"})
    cores = a["cores"]
    return np.ascontiguousarray(
        out.T.reshape(cores, 128, H // 128 // cores, -1).transpose(1, 0, 2, 3)
    ), logits


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("changes", [{}, SHARED, ALL], ids=["selected", "shared", "all"])
def test_the_result_transposed(changes, cores):
    option = Option("transposed", changes | {"outp_layout": TRANSPOSED}, lnc=cores)
    check(option, moe_block_tkg, BASIC, lambda **a: transposed_block(cores=cores, **a), 3e-5)


def token_by_token(inp, **a):
    """The block of tokens [128, n, J, T], whose columns are put together one by one."""
    partitions, parts, tiles, tokens = inp.shape
    rows = np.zeros((1, tokens, inp.size // tokens), inp.dtype)
    for p, c, j in np.ndindex(partitions, parts, tiles):
        rows[0, :, (c * partitions + p) * tiles + j] = inp[p, c, j]
    return block(inp=rows, **{name: value for name, value in a.items() if name != "inp_layout"})


SPREAD = {
    "one-part": {"inp": random((128, 1, 2, 6))},
    "two-parts": {"inp": random((128, 2, 1, 6))},
    "one-token": {"inp": random((128, 2, 1, 1))},
    "130-tokens": ALL | {"inp": random((128, 1, 2, 130))},
    "bfloat16-residual": {
        "inp": random((128, 2, 1, 5), "bfloat16"),
        "residual": random((1, 5, H), "bfloat16", seed=8),
    },
    "shared": SHARED | {"inp": random((128, 2, 1, 7))},
    "all-experts": ALL | {"inp": random((128, 1, 2, 7))},
}


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", SPREAD)
def test_tokens_arrive_with_columns_in_partitions(name, cores):
    option = Option(name, SPREAD[name] | {"inp_layout": TRANSPOSED}, lnc=cores)
    tolerance = 2e-2 if "bfloat16" in name else 3e-5
    check(option, moe_block_tkg, BASIC, token_by_token, tolerance)


@each(REFUSED)
def test_refusals(option):
    check(option, moe_block_tkg, BASIC, block, 3e-5)
