"""The indexer against float64 with emulated MX; its choice against its own scores, rounded."""

import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from mla_operands import as_mx
from mx_weights import rows_in_words
from options.common import Option, each, near, on_both, refusal, refusals

from nkilib.experimental.sparse_attention_indexer.sparse_attention_indexer_mx_bf16score import (
    sparse_attention_indexer_mx_bf16score,
    sparse_attention_indexer_ref,
)


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(sparse_attention_indexer_mx_bf16score)


def latents(b, s, rank):
    """MX of random latents as mla_qkv_cte_kernel exports it, and its numbers [B, S, rank]."""
    tiles = -(-s // 128)
    words = np.zeros((b * tiles, 128, rank // 512, 128), np.uint32)
    scales = np.zeros(words.shape, np.uint8)
    emulated = mx_emulation.quantized(random((b * s, rank), "bfloat16", 11), scheme="1x32")
    for token in range(b * s):
        batch, at = divmod(token, s)
        tile, column = batch * tiles + at // 128, at % 128
        codes = emulated.codes[token].reshape(-1, 128, 4).view(np.uint32)[..., 0]
        words[tile, :, :, column] = codes.T
        for block, code in enumerate(emulated.scales[:, token]):
            t, inside = divmod(block, 16)
            scales[tile, 32 * (inside // 4) + inside % 4, t, column] = code
    return words, scales, emulated.values.reshape(b, s, rank)


def call(
    b=1, s=20, dim=512, rank=512, heads=3, rope=64, k=16, start=0, room=4, scaled=True, dtype="bfloat16"
):
    wq, wq_scale, q_matrix = rows_in_words(rank, heads * 128, "float8_e4m3fn", 1)
    wk, wk_scale, k_matrix = rows_in_words(dim, 128, "float8_e4m3fn", 2)
    if not scaled:
        q_matrix = q_matrix / np.repeat(2.0 ** (wq_scale.astype(np.float64) - 127), 32, axis=0)
        k_matrix = k_matrix / np.repeat(2.0 ** (wk_scale.astype(np.float64) - 127), 32, axis=0)
    words, scales, qr = latents(b, s, rank)
    angle = np.random.default_rng(3).uniform(-3, 3, (s, rope // 2))
    mask = np.where(np.arange(start + s) > start + np.arange(s)[:, None], -1e30, 0.0).astype(np.float32)
    given = {
        "x": random((b * s, dim), dtype, 4),
        "wq_b": wq,
        "wk": wk,
        "k_norm_gamma": random(128, seed=5),
        "k_norm_beta": random(128, seed=6),
        "weights_proj": random((heads, dim), "bfloat16", 7, dim**-0.5),
        "cos": np.cos(angle).astype(np.float32),
        "sin": np.sin(angle).astype(np.float32),
        "k_cache": random((b, 128, start + s + room), "bfloat16", 8),
        "mask": np.tile(mask, (b, 1)),
        "n_heads": heads,
        "head_dim": 128,
        "rope_head_dim": rope,
        "index_topk": k,
        "start_pos": start,
        "batch_size": b,
        "qr_qtz_hbm": words,
        "qr_scale_hbm": scales,
    }
    if scaled:
        given |= {"wq_b_scale": wq_scale, "wk_scale": wk_scale}
    return given, {"q": q_matrix, "k": k_matrix, "qr": qr}


def turned(x, cos, sin):
    """RoPE of the first elements of x [B, S, heads, 128] as complex numbers."""
    half = cos.shape[1]
    z = (x[..., :half] + 1j * x[..., half : 2 * half]) * (cos + 1j * sin)[:, None, :]
    return np.concatenate([z.real, z.imag, x[..., 2 * half :]], axis=-1)


def bf16(x):
    return np.asarray(x, np.float64).astype(ml_dtypes.bfloat16).astype(np.float64)


def expected(a, n):
    b, heads = a["batch_size"], a["n_heads"]
    x = bf16(a["x"]).reshape(b, -1, a["x"].shape[1])
    s = x.shape[1]
    k = as_mx(x) @ n["k"]
    k = (k - k.mean(-1, keepdims=True)) / np.sqrt(k.var(-1, keepdims=True) + 1e-6)
    k = (k * a["k_norm_gamma"] + a["k_norm_beta"])[:, :, None]
    keys = bf16(turned(k, a["cos"], a["sin"]))[:, :, 0]
    cache = a["k_cache"].astype(np.float64).copy()
    phase, end = a.get("phase", "all"), a["mask"].shape[1]
    if phase == "all":
        cache[:, :, a["start_pos"] : end] = keys.swapaxes(1, 2)
    q = bf16((n["qr"] @ n["q"]).reshape(b, s, heads, 128))
    q = turned(q, a["cos"], a["sin"])
    plain = x if a.get("x_non_mx") is None else bf16(a["x_non_mx"]).reshape(x.shape)
    w = plain @ a["weights_proj"].astype(np.float64).T
    scores = [
        sparse_attention_indexer_ref(
            q[i], cache[i, :, :end].T, w[i], a["mask"][i * s : (i + 1) * s], a["index_topk"]
        )[0]
        for i in range(b)
    ]
    return keys, cache, np.concatenate(scores)


def places_of(index, a):
    """[B S, k] of the layouts of tiles."""
    b, s, k = a["batch_size"], a["x"].shape[0] // a["batch_size"], a["index_topk"]
    tiles, out = -(-s // 128), np.zeros((b * s, k), np.int64)
    for token in range(b * s):
        batch, at = divmod(token, s)
        t, g = divmod(at % 128, 8)
        for j in range(k):
            out[token, j] = index[batch * tiles + at // 128, t, 16 * g + j % 16, j // 16]
    return out


def compare(option):
    build = {key: value for key, value in option.changes.items() if key in call.__code__.co_varnames[:11]}
    a, n = call(**build)
    a |= {key: value for key, value in option.changes.items() if key not in build}
    if option.refused:
        with pytest.raises((AssertionError, NotImplementedError), match=refusal(option.refused)):
            run(sparse_attention_indexer_mx_bf16score, **a, lnc=option.lnc, on=option.on)
        return
    keys, cache, scores = expected(a, n)
    got, index = run(sparse_attention_indexer_mx_bf16score, **a, lnc=option.lnc, on=option.on)
    if a.get("phase") == "kproj":
        assert index is None
        near(got, keys[0], 2**-6)
        return
    near(a["k_cache"], cache, 2**-6)
    kept = a["mask"] == 0
    assert got.dtype == np.float32 and np.all(got[~kept] < -1e29)
    near(np.where(kept, got, 0), np.where(kept, scores, 0), 2**-6)
    if a.get("emit_flat_topk"):
        assert index.dtype == np.int32
    else:
        assert index.dtype == (np.int32 if a.get("emit_tiled_topk") else np.uint32)
        index = places_of(np.asarray(index), a)
    rounded = got.astype(ml_dtypes.bfloat16).astype(np.float64)
    chosen = np.take_along_axis(rounded, index, axis=1)
    np.testing.assert_array_equal(chosen, np.sort(rounded, axis=1)[:, -a["index_topk"] :])
    assert all(len(set(row)) == a["index_topk"] for row in index.tolist())


CASES = [
    Option("basic"),
    Option("one-head", {"heads": 1}),
    Option("odd-tokens", {"s": 131}),
    Option("two-batches", {"b": 2, "s": 17}),
    Option("earlier-keys", {"start": 30}),
    Option("many-keys", {"start": 600, "s": 9, "k": 64}),
    Option("wide", {"dim": 1024, "rank": 1024}),
    Option("five-heads-rope-32", {"heads": 5, "rope": 32}),
    Option("no-scales", {"scaled": False}),
    Option("float32-tokens", {"dtype": "float32"}),
    Option("x_non_mx", {"x_non_mx": random((20, 512), "bfloat16", 12)}),
    Option("flat", {"emit_flat_topk": True}),
    Option("tiled", {"emit_tiled_topk": True, "s": 40, "k": 32}),
    Option("hadamard", {"use_hadamard": True}),
    Option("kproj", {"phase": "kproj", "k_seq_out_hbm": np.zeros((20, 128), ml_dtypes.bfloat16)}),
    Option("score", {"phase": "score", "start": 10, "end_pos_arg": 30}),
]
WRONG = refusals(
    x=random((20, 500), "bfloat16"),
    wk=np.zeros((128, 64), np.uint32),
    wq_b=np.zeros((128, 128), np.uint32),
    wk_scale=np.zeros((4, 128), np.uint8),
    k_norm_gamma=random(64),
    weights_proj=random((2, 512), "bfloat16"),
    cos=random((20, 31)),
    k_cache=random((1, 128, 19), "bfloat16"),
    mask=random((20, 21)),
    head_dim=64,
    rope_head_dim=63,
    index_topk=24,
    index_topk__keys=32,
    x_mx_data=np.zeros((128, 20), np.uint32),
    phase="k",
    qr_scale_hbm=np.zeros((1, 128, 2, 128), np.uint8),
    n_heads=129,
) + [
    Option("refuses-both-layouts", {"emit_flat_topk": True, "emit_tiled_topk": True}, "emit_tiled_topk"),
    Option("refuses-no-latents", {"qr_qtz_hbm": None}, "qr_qtz_hbm"),
    Option("refuses-kproj-without-rows", {"phase": "kproj"}, "k_seq_out_hbm"),
    Option("refuses-end", {"end_pos_arg": 30}, "end_pos_arg"),
]


@each([case._replace(on="trn3") for case in on_both(CASES) + WRONG])
def test_each_option_is_right_or_refused(option):
    compare(option)


def test_trn2_is_refused():
    compare(Option("trn2", {}, "sparse_attention_indexer_mx_bf16score", on="trn2"))
