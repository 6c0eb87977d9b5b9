"""Every documented option of attention over several ranks, one at a time, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_support import random
from options.common import Option, each, near, refusal, refusals

import nki.language as nl
from nki.ranks import run_ranks
from nkilib.core.attention.attention_kv_parallel_segmented_cte import attention_kv_parallel_segmented_cte
from nkilib.experimental.attention.ring_attention_bwd import ring_attention_spmd_bwd
from nkilib.experimental.attention.ring_attention_fwd import ring_attention_spmd_fwd
from nkilib.experimental.attention.ring_attention_unpermute import ring_attention_unpermute
from support import target

BF16 = ml_dtypes.bfloat16
RANKS, B, H, S, D = 2, 1, 2, 128, 32
Q, K, V, DY = (random((B, H, RANKS * S, D), seed=i, scale=0.5) for i in range(4))


def whole(scale: float, causal: bool, documents: Any = None) -> tuple:
    """(out, log-sum-exp, probabilities) of the whole sequence, one query at a time."""
    q, k, v = (x.astype(np.float64) for x in (Q, K, V))
    out, lse, weights = np.zeros(q.shape), np.zeros(q.shape[:3]), np.zeros((B, H, RANKS * S, RANKS * S))
    for b, h, i in np.ndindex(q.shape[:3]):
        scores = scale * k[b, h] @ q[b, h, i]
        if causal:
            scores[i + 1 :] = -np.inf
        if documents is not None:
            scores[documents != documents[i]] = -np.inf
        lse[b, h, i] = np.logaddexp.reduce(scores)
        weights[b, h, i] = np.exp(scores - lse[b, h, i])
        out[b, h, i] = weights[b, h, i] @ v[b, h]
    return out, lse, weights


def part(x: np.ndarray, rank: int, striped: bool, axis: int = 2) -> np.ndarray:
    """A rank's tokens."""
    at = np.arange(rank, RANKS * S, RANKS) if striped else np.arange(rank * S, (rank + 1) * S)
    return np.ascontiguousarray(np.take(x, at, axis))


def columns(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.swapaxes(2, 3))


def ranked(kernel: Any, inputs: Any, lnc: int = 1) -> list:
    with target("trn2"):
        return run_ranks(kernel, RANKS, inputs, lnc=lnc)


CAUSAL = {"use_causal_mask": True, "softmax_scale": 1.0}
STRIPED = CAUSAL | {"striped_input": True}
FORWARD = [
    Option("basic"),
    Option("two-cores", lnc=2),
    Option("softmax_scale", {"softmax_scale": 0.7}),
    Option("causal", CAUSAL),
    Option("causal-two-cores", CAUSAL, lnc=2),
    Option("striped", STRIPED),
    Option("training", {"training": True}),
    Option("lse_dtype", {"training": True, "lse_dtype": nl.bfloat16}, tolerance=1e-2),
    Option("training-striped", STRIPED | {"training": True}),
    Option("tp_q", {"tp_q": False}),
    Option("tp_k", {"tp_k": False}),
    Option("replica_groups", {"replica_groups": ((0, 1),)}),
    Option("replica_groups-of-lists", {"replica_groups": [[0, 1]]}),
    Option("bounds", CAUSAL | {"packed": True}),
    Option("bounds-without-mask", {"packed": True}),
]


@each(FORWARD)
def test_ring_attention_forward(option: Option) -> None:
    o = {"tp_q": True, "tp_k": True} | option.changes
    striped, causal = o.get("striped_input", False), o.get("use_causal_mask", False)
    documents = np.arange(RANKS * S) // 96 if o.pop("packed", False) else None
    scale = o["softmax_scale"] if o.get("softmax_scale") is not None else D**-0.5

    def inputs(rank: int) -> dict[str, Any]:
        given = o | {"num_workers": RANKS, "v": part(V, rank, striped)}
        given["q"] = part(Q, rank, striped) if o["tp_q"] else columns(part(Q, rank, striped))
        given["k"] = part(K, rank, striped) if o["tp_k"] else columns(part(K, rank, striped))
        if documents is not None:
            low = part(documents[None] * 96, rank, striped, 1).astype(np.float32)
            given |= {"bound_min": low, "bound_max": low + 96}
        return given

    out, lse, _ = whole(scale, causal, documents)
    for rank, got in enumerate(ranked(ring_attention_spmd_fwd, inputs, option.lnc)):
        found = got[0] if o.get("training") else got
        near(found, part(out, rank, striped), option.tolerance or 1e-4)
        if o.get("training"):
            wanted = part(lse, rank, striped).reshape(B, H, -1, 128).swapaxes(2, 3)
            near(got[1], wanted, option.tolerance or 1e-4)


BACKWARD = [
    Option("basic"),
    Option("two-cores", {"lnc_size": 2}, lnc=2),
    Option("softmax_scale", {"softmax_scale": 0.7}),
    Option("causal", {"use_causal_mask": True}),
    Option("striped", {"use_causal_mask": True, "striped_attention": True}),
    Option("mixed_precision", {"mixed_precision": False}),
    Option("replica_groups", {"replica_groups": ((0, 1),)}),
]


@each(BACKWARD)
def test_ring_attention_backward(option: Option) -> None:
    o = dict(option.changes)
    striped, causal = o.get("striped_attention", False), o.get("use_causal_mask", False)
    scale = o.get("softmax_scale") or D**-0.5
    out, lse, weights = whole(scale, causal)
    q, k, v, dy = (x.astype(np.float64) for x in (Q, K, V, DY))
    delta = (out * dy).sum(-1, keepdims=True)
    inner = weights * (np.einsum("bhqd,bhkd->bhqk", dy, v) - delta)
    wanted = (
        scale * np.einsum("bhqk,bhkd->bhqd", inner, k),
        scale * np.einsum("bhqk,bhqd->bhkd", inner, q),
        np.einsum("bhqk,bhqd->bhkd", weights, dy),
    )

    def inputs(rank: int) -> dict[str, Any]:
        names = ("q_ref", "k_ref", "v_ref", "o_ref", "dy_ref")
        tensors = (Q, K, V, out.astype(np.float32), DY)
        given = {name: columns(part(x, rank, striped)) for name, x in zip(names, tensors, strict=True)}
        stats = part(lse, rank, striped).astype(np.float32).reshape(B, H, -1, 128).swapaxes(2, 3)
        return o | given | {"lse_ref": np.ascontiguousarray(stats), "num_workers": RANKS}

    for rank, grads in enumerate(ranked(ring_attention_spmd_bwd, inputs, option.lnc)):
        for got, expected in zip(grads, wanted, strict=True):
            near(got, columns(part(expected, rank, striped)), 1e-3)


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("groups", [None, ((0, 1),)])
def test_stripes_become_contiguous(groups: Any, dtype: Any) -> None:
    x = np.arange(2 * RANKS * 8 * 3).reshape(2, RANKS * 8, 3).astype(dtype)
    got = ranked(ring_attention_unpermute, lambda rank: (x[:, rank::RANKS].copy(), groups, RANKS))
    for rank in range(RANKS):
        np.testing.assert_array_equal(got[rank], x[:, rank * 8 : (rank + 1) * 8])


ONE = part(Q, 0, False)
FORWARD_BASIC = {"q": ONE, "k": ONE, "v": ONE, "tp_q": True, "tp_k": True}
BOUND = np.zeros((B, S), np.float32)
WRONG_GROUPS = Option("refuses-groups", {"num_workers": 2, "replica_groups": ((0,),)}, "num_workers")


@each(
    refusals(
        q=None,
        q__shape=columns(ONE),
        k=[1.0],
        k__shape=ONE[:, :1],
        v=None,
        v__rank=ONE[0],
        striped_input=True,
        bound_min=BOUND,
        bound_max=BOUND,
        bound_min__number=3,
        softmax_scale=-1.0,
    )
    + [WRONG_GROUPS]
)
def test_ring_attention_forward_refuses(option: Option) -> None:
    with target("trn2"), pytest.raises((AssertionError, ValueError), match=refusal(option.refused)):
        ring_attention_spmd_fwd(**FORWARD_BASIC | option.changes)


COLUMNS_ONE = columns(ONE)
BACKWARD_BASIC = {f"{name}_ref": COLUMNS_ONE for name in ("q", "k", "v", "o", "dy")}
BACKWARD_BASIC |= {"lse_ref": np.zeros((B, H, 128, 1), np.float32)}


@each(
    refusals(
        q_ref=None,
        k_ref=ONE,
        v_ref=1.0,
        o_ref=ONE,
        dy_ref=None,
        lse_ref=np.zeros((B, H, 128, 3), np.float32),
        lse_ref__none=None,
        striped_attention=True,
        bound_min=BOUND,
        bound_max=BOUND,
        softmax_scale=0.0,
        lnc_size=2,
    )
    + [WRONG_GROUPS]
)
def test_ring_attention_backward_refuses(option: Option) -> None:
    with target("trn2"), pytest.raises((AssertionError, ValueError), match=refusal(option.refused)):
        ring_attention_spmd_bwd(**BACKWARD_BASIC | option.changes)


# ---- keys that several ranks hold ------------------------------------------------------------------

BLOCK, PRIOR = 32, 128
TOTAL = PRIOR + S
KEYS, VALUES = random((TOTAL, D), seed=5), random((TOTAL, D), seed=6)
QUERIES = random((RANKS, 1, S, D), seed=7, scale=D**-0.5)
EACH = TOTAL // BLOCK // RANKS  # blocks of a rank
ROUND = {"round_robin": True}


def over_all(rank: int, scale: float, window: int, factors: Any) -> np.ndarray:
    keys, values = KEYS.astype(np.float64), VALUES.astype(np.float64)
    keys, values = keys * factors.get("k_scale", 1.0), values * factors.get("v_scale", 1.0)
    out = np.zeros((S, D))
    for i in range(S):
        seen = np.arange(TOTAL) <= PRIOR + i
        if window:
            seen &= np.arange(TOTAL) > PRIOR + i - window
        scores = np.where(seen, scale * keys @ QUERIES[rank, 0, i].astype(np.float64), -np.inf)
        weights = np.exp(scores - scores.max())
        out[i] = weights @ values / weights.sum()
    return out


@each(
    [
        Option("basic"),
        Option("scale", {"scale": 0.5}),
        Option("tp_out", {"tp_out": True}),
        Option("sliding_window", {"sliding_window": 70}),
        Option("seg_size", {"seg_size": 32}),
        Option("round-robin", ROUND),
        Option("round-robin-window", ROUND | {"sliding_window": 70}),
        Option("k_scale", {"k_scale": 0.5}),
        Option("v_scale", {"v_scale": 3.0}),
        Option("two-cores", lnc=2),
    ]
)
def test_attention_over_ranks(option: Option) -> None:
    o = dict(option.changes)
    factors = {name: o.pop(name) for name in ("k_scale", "v_scale") if name in o}
    dealt = o.pop("round_robin", False)
    blocks = [x.reshape(-1, 1, BLOCK, D) for x in (KEYS, VALUES)]

    def inputs(rank: int) -> dict[str, Any]:
        own = [x[rank::RANKS] if dealt else x[rank * EACH : (rank + 1) * EACH] for x in blocks]
        at = PRIOR if dealt else PRIOR - rank * EACH * BLOCK
        more: dict[str, Any] = {name: np.full((128, 1), value, np.float32) for name, value in factors.items()}
        if dealt:
            more |= {"kvp_group_size": RANKS, "kvp_rank_id": np.array([[rank]], np.int32)}
        basic = {
            "q": QUERIES[rank],
            "k_cache": np.ascontiguousarray(own[0]),
            "v_cache": np.ascontiguousarray(own[1]),
            "block_tables": np.arange(EACH, dtype=np.int32)[None],
            "kvp_q_offset": np.array([[at]], np.int32),
            "replica_groups": (tuple(range(RANKS)),),
            "group_size": RANKS,
            "block_size": BLOCK,
            "seg_size": 128,
            "global_q_offset": PRIOR,
        }
        return basic | more | o

    scale, window = o.get("scale", 1.0), o.get("sliding_window", 0)
    for rank, got in enumerate(ranked(attention_kv_parallel_segmented_cte, inputs, option.lnc)):
        wanted = over_all(rank, scale, window, factors)[None]
        near(got, wanted.swapaxes(1, 2) if o.get("tp_out") else wanted, 1.5e-2)
