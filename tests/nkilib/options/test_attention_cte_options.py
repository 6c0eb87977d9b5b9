"""Every documented option of the kernels of prefill attention, one at a time, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from kernel_support import random
from options.common import Option, check, each, on_both, refusals

import nki.language as nl
from nkilib.core.attention.attention_cte import attention_cte
from nkilib.core.attention.attention_segmented_cte import attention_segmented_cte

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3
HEADS, KV, S, D = 4, 2, 128, 32
TOLERANCE = 1e-4


def attend(q: Any, k: Any, v: Any, seen: Any, scale: float, bias: Any = 0.0, sink: Any = None) -> tuple:
    """(out, maximum, sum of exponentials) of one head, query by query."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    scores = np.where(seen, scale * q @ k.T + bias, -np.inf)
    logit = -np.inf if sink is None else float(sink)
    out, maxima, sums = np.zeros((len(q), v.shape[1])), np.zeros(len(q)), np.zeros(len(q))
    for i, row in enumerate(scores):
        top = max(row.max(), logit)
        if np.isneginf(top):
            continue
        weights = np.exp(row - top)
        maxima[i], sums[i] = top, weights.sum() + np.exp(logit - top)
        out[i] = weights @ v
    return out, maxima, sums


def prefill(**o: Any) -> Any:
    """attention_cte, written from its page."""
    q = o["q"] if o.get("tp_q", True) else o["q"].swapaxes(1, 2)
    k = o["k"] if o.get("tp_k") else o["k"].swapaxes(1, 2)
    v, used = o["v"], 0
    if o.get("k_prior") is not None:
        used = int(o["prior_used_len"].flat[0])
        prior = o["k_prior"] if o.get("tp_k") else o["k_prior"].swapaxes(1, 2)
        k = np.concatenate([prior[:, :used], k], 1)
        v = np.concatenate([o["v_prior"][:, :used], v], 1)
    heads, queries = q.shape[:2]
    offset = 0 if o.get("cp_offset") is None else int(o["cp_offset"].flat[0])
    step = o["global_cp_deg"] if o.get("cp_strided_q_slicing") else 1
    place = offset + step * np.arange(queries)[:, None]
    column = np.arange(k.shape[1])[None]
    seen = np.ones((heads, queries, k.shape[1]), bool)
    if o.get("causal_mask", True):
        seen &= column - used <= place
    if o.get("sliding_window"):
        seen &= column - used > place - o["sliding_window"]
    if o.get("bound_min") is not None:
        low, high = (
            np.broadcast_to(o[f"bound_{n}"].reshape(-1, queries), (heads, queries)) for n in ("min", "max")
        )
        seen &= (column >= low[..., None]) & (column < high[..., None])
    bias = np.zeros((heads, queries, k.shape[1]))
    if o.get("position_bias") is not None:
        given = np.broadcast_to(o["position_bias"].astype(np.float64), (heads, *o["position_bias"].shape[1:]))
        if o.get("bias_layout", "dense") == "dense":
            bias += given
        else:
            for i in range(queries):
                for c in range(given.shape[2]):
                    key = i - o["bias_band_params"]["lower"] + c
                    if 0 <= key < k.shape[1]:
                        bias[:, i, key] += given[:, i, c]
    parts = []
    for head in range(heads):
        own = head // (heads // len(v))
        sink = None if o.get("sink") is None else o["sink"][head, 0]
        parts.append(attend(q[head], k[own], v[own], seen[head], o.get("scale", 1.0), bias[head], sink))
    out, maxima, sums = (np.stack([part[i] for part in parts]) for i in range(3))
    raw = o.get("skip_output_normalization")
    out = out if raw else out / np.where(sums > 0, sums, 1.0)[..., None]
    out = out.swapaxes(1, 2) if o.get("tp_out") else out
    if not o.get("cache_softmax"):
        return out
    last = sums if raw else 1 / sums
    return out, *(x.reshape(heads, -1, 128).swapaxes(1, 2) for x in (-maxima, last))


BASIC: dict[str, Any] = {
    "q": random((HEADS, S, D), seed=1, scale=D**-0.5),
    "k": random((KV, D, S), seed=2),
    "v": random((KV, S, D), seed=3),
}
PRIOR = {
    "k_prior": random((KV, D, 96), seed=4),
    "v_prior": random((KV, 96, D), seed=5),
    "prior_used_len": np.array([50], np.int32),
}
LOW = np.arange(S, dtype=np.float32) // 32 * 32
BOUNDS = {"bound_min": LOW, "bound_max": LOW + 32}
OFFSET = {"cp_offset": np.array([[37]], np.int32)}
BAND = {"bias_layout": "banded", "bias_band_params": {"lower": 3, "upper": 2}}
BIAS = random((HEADS, S, S), seed=7)

CASES = [
    Option("basic"),
    Option("scale", {"scale": 0.3}),
    Option("no-mask", {"causal_mask": False}),
    Option("more-keys-than-queries", {"causal_mask": False, "q": random((HEADS, 70, D), seed=1)}),
    Option("prior", PRIOR),
    Option("prior-none-used", PRIOR | {"prior_used_len": np.array([0], np.int32)}),
    Option("prior-with-window", PRIOR | {"sliding_window": 20}),
    Option(
        "prior-rows",
        PRIOR | {"tp_k": True, "k": random((KV, S, D), seed=2), "k_prior": random((KV, 96, D), seed=4)},
    ),
    Option("sink", {"sink": random((HEADS, 1), seed=6, scale=3.0)}),
    Option("sliding_window", {"sliding_window": 17}),
    Option("sliding_window-1", {"sliding_window": 1}),
    Option("sliding_window-0", {"sliding_window": 0}),
    Option("tp_q", {"tp_q": False, "q": random((HEADS, D, S), seed=1)}),
    Option("tp_k", {"tp_k": True, "k": random((KV, S, D), seed=2)}),
    Option("tp_out", {"tp_out": True}),
    Option("cache_softmax", {"cache_softmax": True}),
    Option("cache_softmax-sink", {"cache_softmax": True, "sink": random((HEADS, 1), seed=6)}),
    Option("softmax_dtype", {"cache_softmax": True, "softmax_dtype": nl.bfloat16}, tolerance=1e-2),
    Option("skip_output_normalization", {"cache_softmax": True, "skip_output_normalization": True}),
    Option("mm_out_dtype", {"mm_out_dtype": nl.bfloat16}, tolerance=2e-2),
    Option("cp_offset", OFFSET),
    Option("cp_offset-behind", {"cp_offset": np.array([[-40]], np.int32)}),
    Option("cp_offset-window", OFFSET | {"sliding_window": 9}),
    Option("cp_strided_q_slicing", OFFSET | {"global_cp_deg": 3, "cp_strided_q_slicing": True}),
    Option("cp_striped_input", {"cp_offset": np.array([[-1]], np.int32), "cp_striped_input": True}),
    Option("bounds", BOUNDS),
    Option("bounds-of-a-column", {name: x[:, None] for name, x in BOUNDS.items()}),
    Option("bounds-of-heads", {name: np.tile(x, (HEADS, 1)) for name, x in BOUNDS.items()}),
    Option("bounds-without-mask", BOUNDS | {"causal_mask": False}),
    Option("position_bias", {"position_bias": BIAS}),
    Option("position_bias-of-all-heads", {"position_bias": BIAS[:1]}),
    Option("banded", BAND | {"position_bias": BIAS[:, :, :6]}),
    Option("bfloat16", {name: x.astype(BF16) for name, x in BASIC.items()}, tolerance=1.5e-2),
    Option("float16", {name: x.astype(np.float16) for name, x in BASIC.items()}, tolerance=5e-3),
    Option(
        "depth-128",
        {"q": random((2, 64, 128), scale=0.1), "k": random((1, 128, 64)), "v": random((1, 64, 128))},
    ),
    Option(
        "ragged", {"q": random((3, 77, 20), scale=0.2), "k": random((3, 20, 77)), "v": random((3, 77, 20))}
    ),
]
REFUSED = [
    *refusals(
        q__list=[1.0],
        q__rank=BASIC["q"][0],
        q__dtype=BASIC["q"].astype(np.int32),
        q__depth=random((HEADS, S, 31)),
        k__none=None,
        k__dtype=BASIC["k"].astype(BF16),
        k__shape=BASIC["k"][:, :, :5],
        v__none=None,
        v__depth=random((KV, S, 130)),
        scale=None,
        scale__zero=0.0,
        k_prior=PRIOR["k_prior"],
        v_prior=PRIOR["v_prior"],
        prior_used_len=PRIOR["prior_used_len"],
        sink=1.0,
        sink__shape=random((KV, 1)),
        sliding_window=-1,
        sliding_window__text="3",
        softmax_dtype=nl.int32,
        mm_out_dtype=nl.float16,
        cp_offset=1,
        cp_offset__two=np.zeros(2, np.int32),
        global_cp_deg=4,
        bound_min=LOW,
        bound_max=LOW,
        skip_output_normalization=True,
        position_bias=2.0,
        position_bias__shape=BIAS[:, :, :3],
        bias_layout="diagonal",
        bias_band_params={"lower": 1, "upper": 1},
    ),
    Option("refuses-scale-with-window", {"scale": 0.5, "sliding_window": 4}, "scale"),
    Option("refuses-scale-with-prior", PRIOR | {"scale": 0.5}, "scale"),
    Option("refuses-scale-with-offset", OFFSET | {"scale": 0.5}, "scale"),
    Option("refuses-window-without-mask", {"sliding_window": 4, "causal_mask": False}, "sliding_window"),
    Option("refuses-offset-without-mask", OFFSET | {"causal_mask": False}, "causal_mask"),
    Option("refuses-stride-without-degree", OFFSET | {"cp_strided_q_slicing": True}, "global_cp_deg"),
    Option(
        "refuses-statistics-of-ragged", {"cache_softmax": True, "q": random((HEADS, 70, D))}, "cache_softmax"
    ),
    Option(
        "refuses-band-without-params", {"bias_layout": "banded", "position_bias": BIAS}, "bias_band_params"
    ),
    Option("refuses-bias-with-prior", PRIOR | {"position_bias": BIAS}, "position_bias"),
]


@each(on_both(CASES) + REFUSED)
def test_attention_cte(option: Option) -> None:
    check(option, attention_cte, BASIC, prefill, TOLERANCE)


# ---- over a paged cache --------------------------------------------------------------------------

BLOCK, BLOCKS = 32, 9


def segmented(**o: Any) -> Any:
    """attention_segmented_cte, written from its page; keys of a sequence gathered block by block."""
    q = o["q"] if o.get("tp_q", True) else o["q"].swapaxes(1, 2)
    per, kv, d = o.get("num_q_heads", 1), o["v_cache"].shape[1], o["v_cache"].shape[3]
    size, out = o["block_size"], []
    at = int(o["prior_tokens"].flat[0]) + np.arange(q.shape[1])[:, None]
    for b in range(len(q)):
        head, keys, values = b % per * kv // per, [], []
        for block in o["block_tables"][b // per]:
            if block < 0:
                continue
            for token in range(size):
                keys.append(key_of(o, int(block), head, token, kv, d))
                values.append(o["v_cache"][block, head, token].astype(np.float64))
        k, v = np.stack(keys), np.stack(values)
        k = k if o.get("k_scale") is None else k * o["k_scale"][:d, 0]
        v = v if o.get("v_scale") is None else v * o["v_scale"][:d, 0]
        place = np.arange(len(k))[None]
        seen = (place <= at) & (place > at - (o.get("sliding_window") or 10**6))
        sink = None if o.get("sink") is None else o["sink"][b, 0]
        found, _, sums = attend(q[b], k, v, seen, o.get("scale", 1.0), sink=sink)
        out.append(found / np.where(sums > 0, sums, 1.0)[:, None])
    stacked = np.stack(out)
    return stacked.swapaxes(1, 2) if o.get("tp_out") else stacked


def key_of(o: dict, block: int, head: int, token: int, kv: int, d: int) -> np.ndarray:
    cache = o["k_cache"].astype(np.float64)
    if o.get("k_pre_transposed"):
        return cache[block * kv + head, :, token]
    if not o.get("fp8_packed"):
        return cache[block, head, token]
    if cache.ndim == 4:
        return cache[block, token // 2, head * d : (head + 1) * d, token % 2]
    return cache[block, head, token // 2, :, token % 2]


PAGED: dict[str, Any] = {
    "q": random((2, 128, D), seed=1, scale=D**-0.5),
    "k_cache": random((BLOCKS, 1, BLOCK, D), seed=2),
    "v_cache": random((BLOCKS, 1, BLOCK, D), seed=3),
    "block_tables": np.array([[3, 1, 8, 2, 0, 5, -1, -1]], np.int32),
    "prior_tokens": np.array([[64]], np.int32),
    "block_size": BLOCK,
    "prior_seg_size": 128,
    "num_q_heads": 2,
}
TWO = {"v_cache": random((BLOCKS, 2, BLOCK, D), seed=3)}
SCALE = np.random.default_rng(4).uniform(0.5, 2, (128, 1)).astype(np.float32)
NARROW = {"v_cache": random((BLOCKS, 1, BLOCK, D), FP8, 3)}
PAGED_CASES = [
    Option("basic"),
    Option("scale", {"scale": 0.3}),
    Option("no-prior", {"prior_tokens": np.array([[0]], np.int32)}),
    Option("prior_seg_size", {"prior_seg_size": 32}),
    Option("padding-in-front", {"block_tables": np.array([[-1, -1, 3, 1, 8, 2, 0, 5]], np.int32)}),
    Option("tp_q", {"tp_q": False, "q": random((2, D, 128), seed=1)}),
    Option("tp_out", {"tp_out": True}),
    Option("sliding_window", {"sliding_window": 50}),
    Option("sink", {"sink": random((2, 1), seed=6)}),
    Option(
        "num_q_heads-1",
        {"num_q_heads": 1, "block_tables": np.array([[3, 1, 8, 2, 0, 5], [4, 6, 7, 1, 2, 0]], np.int32)},
    ),
    Option("two-kv-heads", TWO | {"k_cache": random((BLOCKS, 2, BLOCK, D), seed=2)}),
    Option("k_pre_transposed", {"k_pre_transposed": True, "k_cache": random((BLOCKS, D, BLOCK), seed=2)}),
    Option(
        "k_pre_transposed-two-heads",
        TWO | {"k_pre_transposed": True, "k_cache": random((BLOCKS * 2, D, BLOCK), seed=2)},
    ),
    Option("k_scale", {"k_scale": SCALE}),
    Option("v_scale", {"v_scale": SCALE}),
    Option("fp8", NARROW | {"k_cache": random((BLOCKS, 1, BLOCK, D), FP8, 2)}),
    Option(
        "fp8_packed", NARROW | {"fp8_packed": True, "k_cache": random((BLOCKS, BLOCK // 2, D, 2), FP8, 2)}
    ),
    Option(
        "fp8_packed-by-head",
        NARROW | {"fp8_packed": True, "k_cache": random((BLOCKS, 1, BLOCK // 2, D, 2), FP8, 2)},
    ),
    Option(
        "bfloat16", {name: PAGED[name].astype(BF16) for name in ("q", "k_cache", "v_cache")}, tolerance=1.5e-2
    ),
    Option("hint-of-blocks", {"kvp_prior_load_blocks": 2}),
    *refusals(kvp_cp_offset_int=3, kvp_seg_block_offset_int=1),
    Option("hint-of-visible-blocks", {"kvp_prior_fully_visible": True}),
]
PAGED_REFUSED = refusals(
    q__none=None,
    q__rank=PAGED["q"][0],
    k_cache__none=None,
    k_cache__shape=random((BLOCKS, D, BLOCK)),
    v_cache__rank=random((BLOCKS, BLOCK, D)),
    block_tables__none=None,
    block_tables__dtype=np.zeros((1, 8), np.float32),
    block_tables__shape=np.zeros((2, 8), np.int32),
    prior_tokens__number=64,
    prior_seg_size=33,
    scale=-1.0,
    sliding_window=-3,
    sink=random((1, 1)),
    num_q_heads=3,
    k_scale=1.0,
    k_scale__shape=SCALE[:4],
    v_scale=SCALE[:4],
    kvp_rank_id=np.zeros((1, 1), np.int32),
    kvp_group_size=2,
)


@each(on_both(PAGED_CASES) + PAGED_REFUSED)
def test_attention_segmented_cte(option: Option) -> None:
    check(option, attention_segmented_cte, PAGED, segmented, TOLERANCE)
