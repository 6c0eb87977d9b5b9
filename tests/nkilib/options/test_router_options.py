"""Every option of router_topk, against a sort in float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_support import random, run
from options.common import Option, each, fresh, near, on_both, refusal, refusals

from nkilib.core.router_topk.router_topk import router_topk
from nkilib.core.utils.common_types import RouterActFnType

SOFTMAX, SIGMOID, NOAUX = RouterActFnType.SOFTMAX, RouterActFnType.SIGMOID, RouterActFnType.NOAUX_TC


def tokens(t=5, h=128, e=12, k=3, dtype="float32", by_row=True) -> dict:
    x = random((t, h), dtype)
    return {
        "x": x if by_row else np.ascontiguousarray(x.T),
        "w": random((h, e), dtype, seed=1, scale=h**-0.5),
        "router_logits": np.zeros((t, e), np.float32),
        "expert_affinities": np.zeros((t, e), np.float32),
        "expert_index": np.zeros((t, k), np.int32),
        "k": k,
        "x_hbm_layout": int(by_row),
    }


BASIC = tokens() | {"w_bias": None, "act_fn": SOFTMAX, "x_sb_layout": 0}


def route(
    x,
    w,
    w_bias,
    act_fn,
    k,
    x_hbm_layout,
    router_pre_norm=True,
    norm_topk_prob=False,
    return_eager_affi=False,
    n_group=1,
    topk_group=1,
    routed_scaling_factor=1.0,
    **buffers,
):
    x = x.astype(np.float64) if x_hbm_layout == 1 else x.astype(np.float64).T
    logits = x @ w.astype(np.float64)
    bias = np.zeros(logits.shape[1]) if w_bias is None else np.ravel(w_bias).astype(np.float64)
    affinities = np.zeros(logits.shape)
    index = np.zeros((len(x), k), int)
    shown = logits if act_fn == NOAUX else logits + bias
    for t, row in enumerate(shown):
        if act_fn == NOAUX:
            score = 1 / (1 + np.exp(-row))
            choice = score + bias
            groups = np.split(np.arange(len(row)), n_group)
            best = sorted(range(n_group), key=lambda g: -np.sort(choice[groups[g]])[-2:].sum())
            allowed = np.concatenate([groups[g] for g in best[:topk_group]])
            index[t] = allowed[np.argsort(-choice[allowed], kind="stable")[:k]]
            values = score[index[t]]
            values = values / values.sum() if norm_topk_prob else values
            affinities[t, index[t]] = values * routed_scaling_factor
            continue
        index[t] = np.argsort(-row, kind="stable")[:k]
        chosen = np.isin(np.arange(len(row)), index[t])
        kept = chosen | router_pre_norm
        value = np.where(kept, np.exp(row - row.max()) if act_fn == SOFTMAX else 1 / (1 + np.exp(-row)), 0)
        value = value / value.sum() if act_fn == SOFTMAX else value
        if norm_topk_prob:
            value = np.where(chosen, value, 0)
            value = value / value.sum()
        affinities[t] = value
    results = [shown, index, affinities]
    return [*results, np.take_along_axis(affinities, index, 1)] if return_eager_affi else results


def check_router(option: Option, tolerance: float = 1e-5) -> None:
    arguments = BASIC | option.changes
    if option.refused:
        with pytest.raises((AssertionError, NotImplementedError), match=refusal(option.refused)):
            run(router_topk, **fresh(arguments), lnc=option.lnc)
        return
    expected = route(**arguments)
    got = run(router_topk, **fresh(arguments), lnc=option.lnc)
    np.testing.assert_array_equal(got[1], expected[1] if not arguments.get("skip_store_expert_index") else 0)
    if arguments.get("skip_store_router_logits"):
        expected[0] = np.zeros_like(expected[0])
    for one, wanted in zip((got[0], *got[2:]), (expected[0], *expected[2:]), strict=True):
        near(one, wanted, option.tolerance or tolerance)


def rules() -> list[Option]:
    made = []
    for act in (SOFTMAX, SIGMOID):
        for pre, norm in ((True, False), (True, True), (False, False)):
            rule = {"act_fn": act, "router_pre_norm": pre, "norm_topk_prob": norm}
            name = f"{act.name}-{pre}-{norm}"
            made.append(Option(name, rule))
            made.append(Option(f"{name}-eager", rule | {"return_eager_affi": True}))
            made.append(Option(f"{name}-scatter", rule | {"use_indirect_dma_scatter": True}))
            made.append(Option(f"{name}-bias", rule | {"w_bias": random((1, 12), seed=2)}))
    bias = random((1, 12), seed=2, scale=0.3)
    for groups, kept in ((1, 1), (2, 1), (3, 2), (6, 3), (4, 4)):
        rule = {"act_fn": NOAUX, "w_bias": bias, "n_group": groups, "topk_group": kept}
        made.append(Option(f"NOAUX-{groups}-{kept}", rule))
        made.append(Option(f"NOAUX-{groups}-{kept}-norm", rule | {"norm_topk_prob": True}))
        made.append(Option(f"NOAUX-{groups}-{kept}-2.5", rule | {"routed_scaling_factor": 2.5}))
        made.append(Option(f"NOAUX-{groups}-{kept}-eager", rule | {"return_eager_affi": True}))
    return made


def forms() -> list[Option]:
    made = [
        Option("columns", tokens(by_row=False)),
        Option("bias-flat", {"w_bias": random(12, seed=2)}),
        Option("bias-matmul", {"w_bias": random((1, 12), seed=2), "use_PE_broadcast_w_bias": True}),
        Option("column-tiling", {"use_column_tiling": True}),
        Option("column-tiling-40", tokens(t=40) | {"use_column_tiling": True}),
        Option("column-tiling-512", tokens(h=512) | {"use_column_tiling": True}),
        Option("no-index", {"skip_store_expert_index": True}),
        Option("no-logits", {"skip_store_router_logits": True}),
        Option("one-token", tokens(t=1)),
        Option("130-tokens", tokens(t=130)),
        Option("H-384", tokens(h=384)),
        Option("two-experts", tokens(e=2, k=1)),
        Option("all-experts", tokens(e=8, k=8)),
        Option("512-experts", tokens(e=512)),
        Option("k-1", tokens(k=1)),
        Option("k-8", tokens(k=8)),
        Option("uint32-index", {"expert_index": np.zeros((5, 3), np.uint32)}),
        Option("bfloat16-logits", {"router_logits": np.zeros((5, 12), "bfloat16")}, tolerance=2**-8),
        Option("bfloat16-affinities", {"expert_affinities": np.zeros((5, 12), "bfloat16")}, tolerance=2**-8),
        Option("bfloat16", tokens(dtype="bfloat16")),
        Option(
            "older-names", {"output_in_sbuf": False, "x_input_in_sbuf": False, "expert_affin_in_sb": False}
        ),
    ]
    return made + [Option(f"sb-layout-{i}", {"x_sb_layout": i}) for i in (1, 2, 3)]


@each(on_both(rules() + forms()))
def test_router(option):
    check_router(option)


@each([Option("even", tokens(t=6) | {"shard_on_tokens": True}, lnc=2)])
def test_cores_share_tokens(option):
    check_router(option)


REFUSED = refusals(
    x=None,
    x__rank=random(128),
    x__shape=random((5, 256)),
    x__dtype=random((5, 128), "bfloat16"),
    w=None,
    w__rank=random(128),
    w__H=random((100, 12)),
    w__E=random((128, 513)),
    w_bias=random(11),
    router_logits=None,
    router_logits__shape=np.zeros((5, 11), np.float32),
    expert_affinities=None,
    expert_affinities__shape=np.zeros((4, 12), np.float32),
    expert_index=None,
    expert_index__shape=np.zeros((5, 2), np.int32),
    expert_index__dtype=np.zeros((5, 3), np.float32),
    act_fn=None,
    act_fn__text="softmax",
    k=0,
    k__large=9,
    x_hbm_layout=2,
    x_sb_layout=4,
    shard_on_tokens=True,
    n_group=2,
    topk_group=2,
    routed_scaling_factor=2.5,
) + [
    Option("refuses-norm", {"router_pre_norm": False, "norm_topk_prob": True}, "norm_topk_prob"),
    Option("refuses-NOAUX-bias", {"act_fn": NOAUX}, "w_bias"),
    Option("refuses-NOAUX-n_group", {"act_fn": NOAUX, "w_bias": random(12), "n_group": 5}, "n_group"),
    Option(
        "refuses-NOAUX-topk_group",
        {"act_fn": NOAUX, "w_bias": random(12), "n_group": 3, "topk_group": 4},
        "topk_group",
    ),
    Option("refuses-scatter", tokens(t=130) | {"use_indirect_dma_scatter": True}, "use_indirect_dma_scatter"),
]


@each(REFUSED)
def test_refusals(option):
    check_router(option)
