"""The decode step of latent attention against float64, head by head."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, check, each, near, on_both, refusals

from nkilib.experimental.deepseek_v32.mla_attention_block_gather_decode import (
    mla_attention_block_gather_decode,
    mla_attention_block_gather_decode_ref,
)
from nkilib.experimental.deepseek_v32.mla_decode_attention import (
    mla_decode_attention,
    mla_decode_attention_ref,
)
from nkilib.experimental.deepseek_v32.mla_decode_qkv import mla_decode_qkv, mla_decode_qkv_ref

KERNELS = [mla_decode_qkv, mla_decode_attention, mla_attention_block_gather_decode]


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", KERNELS)
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def projections(t=3, h=256, rank=128, heads=3, nope=16, latent=128, rope=8, blocks=5, size=7, negative=1):
    rng = np.random.default_rng(0)
    slots = rng.permutation(blocks * size)[:t].astype(np.int32)
    slots[:negative] = -1
    angle = rng.uniform(-3, 3, (t, rope // 2)).astype(np.float32)

    def bf16(*shape, seed, scale=1.0):
        return random(shape, "bfloat16", seed, scale)

    return {
        "hidden_states": bf16(t, h, seed=1),
        "wq_a": bf16(h, rank, seed=2, scale=h**-0.5),
        "q_norm_w": bf16(rank, seed=3),
        "wq_b": bf16(rank, heads * (nope + rope), seed=4, scale=rank**-0.5),
        "wkv_a": bf16(h, latent + rope, seed=5, scale=h**-0.5),
        "kv_norm_w": bf16(latent, seed=6),
        "cos": np.cos(angle),
        "sin": np.sin(angle),
        "w_uk": bf16(heads, nope, latent, seed=7, scale=nope**-0.5),
        "kv_cache": bf16(blocks, size, latent + rope, seed=8),
        "slot_mapping": slots,
    }


def rms(x, weight, eps):
    return x / np.sqrt(x @ x / len(x) + eps) * weight


def rotated(x, cos, sin):
    """Turn each pair of neighbours by its angle."""
    out = np.zeros(len(x))
    for i, (c, s) in enumerate(zip(cos, sin, strict=True)):
        out[2 * i : 2 * i + 2] = np.array([[c, -s], [s, c]]) @ x[2 * i : 2 * i + 2]
    return out


def qkv_by_token(
    hidden_states, wq_a, q_norm_w, wq_b, wkv_a, kv_norm_w, cos, sin, w_uk, kv_cache, slot_mapping,
    eps=1e-6, queries_in_sbuf=False,
):  # fmt: skip
    x, a, b, kv_a, uk = (w.astype(np.float64) for w in (hidden_states, wq_a, wq_b, wkv_a, w_uk))
    heads, nope, latent = uk.shape
    rope = 2 * cos.shape[1]
    lift, pe = np.zeros((latent, len(x), heads)), np.zeros((rope, len(x), heads))
    cache = kv_cache.astype(np.float64)
    for t, row in enumerate(x):
        q = rms(row @ a, q_norm_w.astype(np.float64), eps) @ b
        for head in range(heads):
            own = q[head * (nope + rope) : (head + 1) * (nope + rope)]
            lift[:, t, head] = own[:nope] @ uk[head]
            pe[:, t, head] = rotated(own[nope:], cos[t], sin[t])
        kv = row @ kv_a
        if slot_mapping[t] >= 0:
            block, place = divmod(slot_mapping[t], cache.shape[1])
            cache[block, place, :latent] = rms(kv[:latent], kv_norm_w.astype(np.float64), eps)
            cache[block, place, latent:] = rotated(kv[latent:], cos[t], sin[t])
    return lift, pe, cache


QKV = [
    Option("basic"),
    Option("one-token", projections(t=1, negative=0)),
    Option("33-tokens", projections(t=33, negative=2)),
    Option("128-tokens", projections(t=128, heads=1, blocks=20)),
    Option("one-tile", projections(h=128)),
    Option("odd-tiles", projections(h=384, rank=256)),
    Option("one-head", projections(heads=1)),
    Option("many-heads", projections(heads=19)),
    Option("deepseek", projections(t=2, h=512, rank=384, nope=128, latent=512, rope=64)),
    Option("wide-key", projections(rope=128)),
    Option("narrow-key", projections(rope=2)),
    Option("nothing-written", projections(negative=3)),
    Option("eps", {"eps": 0.5}),
]
QKV_WRONG = refusals(
    hidden_states=random((129, 256), "bfloat16"),
    hidden_states__width=random((3, 200), "bfloat16"),
    wq_a=random((256, 100), "bfloat16"),
    wq_a__dtype=random((256, 128)),
    q_norm_w=random(127, "bfloat16"),
    wq_b=random((128, 71), "bfloat16"),
    wkv_a=random((256, 137), "bfloat16"),
    kv_norm_w=random(127, "bfloat16"),
    cos=random((3, 8)),
    sin=random((2, 4)),
    w_uk=random((3, 130, 128), "bfloat16"),
    kv_cache=random((5, 7, 100), "bfloat16"),
    slot_mapping=np.zeros(3, np.float32),
)


@each(on_both(QKV) + [Option("trn3", on="trn3")] + QKV_WRONG)
def test_each_option_of_the_projections_is_right_or_refused(option):
    check(option, mla_decode_qkv, projections() | {"queries_in_sbuf": False}, qkv_by_token, 2**-6)


def gather(t=3, heads=3, latent=128, rope=8, depth=16, columns=40, k=128, left_out=5, scale=0.3, rows=160):
    rng = np.random.default_rng(1)
    chosen = np.stack([rng.permutation(max(k, rows))[:k] % rows for _ in range(t)]).astype(np.int32)
    chosen[:, rng.permutation(k)[:left_out]] = -1
    return {
        "q_lift": random((latent, t, heads), "bfloat16", 1),
        "q_pe": random((rope, t, heads), "bfloat16", 2),
        "kv_cache": random((rows // 8, 8, latent + rope), "bfloat16", 3),
        "topk_indices": chosen,
        "w_uv": random((heads, latent, depth), "bfloat16", 4, latent**-0.5),
        "w_o": random((heads * depth, columns), "bfloat16", 5, (heads * depth) ** -0.5),
        "softmax_scale": scale,
    }


def attention_by_head(q_lift, q_pe, kv_cache, topk_indices, w_uv, w_o, softmax_scale):
    heads, latent, depth = w_uv.shape
    cache = kv_cache.astype(np.float64).reshape(-1, kv_cache.shape[2])
    out = np.zeros((len(topk_indices), w_o.shape[1]))
    for t, chosen in enumerate(topk_indices):
        rows = [cache[i] for i in chosen if i >= 0]
        for head in range(heads):
            q = np.concatenate([q_lift[:, t, head], q_pe[:, t, head]]).astype(np.float64)
            scores = np.array([softmax_scale * (q @ row) for row in rows])
            powers = np.exp(scores - scores.max())
            mean = sum(p * row[:latent] for p, row in zip(powers, rows, strict=True)) / powers.sum()
            value = mean @ w_uv[head].astype(np.float64)
            out[t] += value @ w_o[head * depth : (head + 1) * depth].astype(np.float64)
    return out


ATTENTION = [
    Option("basic"),
    Option("one-token", gather(t=1)),
    Option("many-tokens", gather(t=17, heads=1)),
    Option("one-head", gather(heads=1)),
    Option("128-heads", gather(t=2, heads=128)),
    Option("deepseek", gather(t=2, latent=512, rope=64, depth=128, columns=300)),
    Option("many-rows", gather(k=640, rows=800)),
    Option("2048-rows", gather(t=1, k=2048, rows=2400)),
    Option("repeated-rows", gather(rows=40)),
    Option("all-rows", gather(left_out=0)),
    Option("one-row", gather(left_out=127)),
    Option("sharp", gather(scale=3.0)),
    Option("wide-key", gather(rope=128)),
    Option("one-column", gather(columns=1)),
]
ATTENTION_WRONG = refusals(
    q_lift=random((128, 3, 2), "bfloat16"),
    q_pe=random((9, 3, 3), "bfloat16"),
    kv_cache=random((20, 8, 300), "bfloat16"),
    kv_cache__dtype=random((20, 8, 136)),
    topk_indices=np.zeros((3, 100), np.int32),
    topk_indices__rows=np.zeros((3, 2176), np.int32),
    topk_indices__dtype=np.zeros((3, 128), np.float32),
    w_uv=random((3, 128, 130), "bfloat16"),
    w_o=random((47, 40), "bfloat16"),
    softmax_scale=0.0,
)


@each(on_both(ATTENTION) + [Option("trn3", on="trn3")] + ATTENTION_WRONG)
def test_each_option_of_the_attention_is_right_or_refused(option):
    check(option, mla_decode_attention, gather(), attention_by_head, 2**-6)


def block(t=3, heads=3, latent=128, rope=8, k=128, **more):
    """Each token attends to rows of the cache and to its own, which the step writes."""
    given = projections(t=t, heads=heads, latent=latent, rope=rope, negative=0, **more)
    rows = given["kv_cache"].shape[0] * given["kv_cache"].shape[1]
    attention = gather(t=t, heads=heads, latent=latent, rope=rope, k=k, rows=max(rows, 8))
    del attention["q_lift"], attention["q_pe"], attention["kv_cache"]
    attention["topk_indices"] = attention["topk_indices"] % rows
    attention["topk_indices"][:, 5:] = -1
    attention["topk_indices"][:, 0] = given["slot_mapping"]
    return given | attention


def block_by_token(topk_indices, w_uv, w_o, softmax_scale, **first):
    lift, pe, cache = qkv_by_token(**first)
    return attention_by_head(lift, pe, cache, topk_indices, w_uv, w_o, softmax_scale), cache


BLOCK = [
    Option("basic"),
    Option("one-token", block(t=1)),
    Option("nine-tokens", block(t=9)),
    Option("one-head", block(heads=1)),
    Option("ten-heads", block(heads=10)),
    Option("deepseek", block(t=2, latent=512, rope=64, nope=128, h=512, rank=256)),
    Option("more-rows", block(k=384)),
    Option("eps", {"eps": 0.25}),
]


@each(on_both(BLOCK) + [Option("trn3", on="trn3")] + refusals(w_o=random((5, 40), "bfloat16")))
def test_the_block_is_both_kernels(option):
    check(option, mla_attention_block_gather_decode, block(), block_by_token, 2**-5)


def test_the_references_agree_with_loops():
    first, second, both = projections(), gather(), block()
    for got, wanted in zip(mla_decode_qkv_ref(**first), qkv_by_token(**first), strict=True):
        near(got, wanted, 1e-12)
    near(mla_decode_attention_ref(**second), attention_by_head(**second), 1e-12)
    near(mla_attention_block_gather_decode_ref(**both)[0], block_by_token(**both)[0], 1e-12)


def test_the_cache_of_the_caller_is_updated():
    given = projections(negative=0)
    before = given["kv_cache"].copy()
    run(mla_decode_qkv, **given, queries_in_sbuf=False)
    assert (given["kv_cache"] != before).any(axis=2).sum() == 3
