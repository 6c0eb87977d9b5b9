"""qkv_mla_mx and its V4 variant against float64 with emulated MX, rounded where the kernels round."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from mla_operands import as_mx, block_weights, rms, rotated, tables
from options.common import Option, each, near, on_both, refusal, refusals

from nkilib.experimental.qkv.qkv_cte_mla import (
    qkv_mla_mx,
    qkv_mla_mx_deepseek_v4,
    qkv_mla_mx_deepseek_v4_ref,
    qkv_mla_mx_ref,
)


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [qkv_mla_mx, qkv_mla_mx_deepseek_v4])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def operands(names, shapes):
    """Weights by name, and their matrices."""
    given, matrices = {}, {}
    for seed, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        given[f"{name}_hbm"], given[f"{name}_scale_hbm"], matrices[name] = block_weights(*shape, seed)
    return given, matrices


def basic(b=1, s=6, h=512, heads=2, nope=24, rope=16, v=20, kv_rank=512, q_rank=512, eps=1e-6):
    widths = (q_rank + kv_rank + rope, heads * (nope + rope), heads * (nope + v))
    given, matrices = operands(("wqkv_a", "wq_b", "wkv_b"), zip((h, q_rank, kv_rank), widths, strict=True))
    cos, sin = tables(b, s, rope)
    given |= {
        "x_hbm": random((b, s, h), "bfloat16", 5),
        "q_norm_gamma_hbm": random((1, q_rank), "bfloat16", 6),
        "kv_norm_gamma_hbm": random((1, kv_rank), "bfloat16", 7),
        "cos_cache_hbm": cos,
        "sin_cache_hbm": sin,
        "n_heads": heads,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": v,
        "kv_lora_rank": kv_rank,
        "qk_lora_rank": q_rank,
        "norm_eps": eps,
    }
    return given, matrices


def expected(a, w):
    heads, nope, rope = a["n_heads"], a["qk_nope_head_dim"], a["qk_rope_head_dim"]
    q_rank, kv_rank, eps = a["qk_lora_rank"], a["kv_lora_rank"], a["norm_eps"]
    latents = as_mx(a["x_hbm"]) @ w["wqkv_a"]
    qr, kv = latents[..., :q_rank], latents[..., q_rank : q_rank + kv_rank]
    shape = (*qr.shape[:2], heads, -1)
    q = (as_mx(rms(qr, a["q_norm_gamma_hbm"], eps)) @ w["wq_b"]).reshape(shape)
    both = (as_mx(rms(kv, a["kv_norm_gamma_hbm"], eps)) @ w["wkv_b"]).reshape(shape)
    turn = (a["cos_cache_hbm"], a["sin_cache_hbm"])
    pe = rotated(latents[:, :, None, q_rank + kv_rank :], *turn)
    q = np.concatenate([q[..., :nope], rotated(q[..., nope:], *turn)], axis=-1)
    k = np.concatenate([both[..., :nope], np.broadcast_to(pe, (*q.shape[:3], rope))], axis=-1)
    return q, k, both[..., nope:]


def compare(option, kernel, build, reference):
    arguments, matrices = build(**{k: v for k, v in option.changes.items() if not k.endswith("_hbm")})
    arguments |= {k: v for k, v in option.changes.items() if k.endswith("_hbm")}
    if option.refused:
        with pytest.raises((AssertionError, NotImplementedError), match=refusal(option.refused)):
            run(kernel, **arguments, lnc=option.lnc, on=option.on)
        return
    got = run(kernel, **arguments, lnc=option.lnc, on=option.on)
    for one, wanted in zip(got, reference(arguments, matrices), strict=True):
        assert one.dtype == ml_dtypes.bfloat16
        near(one, wanted, 2**-7)


def on_trn3(cases):
    return [case._replace(on="trn3") for case in cases]


SIZES = [
    Option("basic"),
    Option("one-token", {"s": 1}),
    Option("odd-tokens", {"s": 131}),
    Option("batch", {"b": 3, "s": 5}),
    Option("two-groups", {"s": 515}),
    Option("hidden-1024", {"h": 1024}),
    Option("one-head", {"heads": 1}),
    Option("eps", {"eps": 0.5}),
]
FULL = SIZES + [
    Option("deepseek-heads", {"heads": 3, "nope": 128, "rope": 64, "v": 128}),
    Option("many-heads", {"heads": 17, "nope": 128, "rope": 64, "v": 128, "s": 3}),
    Option("ranks", {"q_rank": 1536, "kv_rank": 1024}),
    Option("wide-values", {"v": 300}),
]
WRONG = [
    Option("refuses-head", {"nope": 500}, "head dimension"),
    Option("refuses-rank", {"q_rank": 640}, "wq_b_hbm"),
    Option("refuses-hidden", {"h": 640}, "wqkv_a_hbm"),
    Option("refuses-odd-rope", {"rope": 15}, "qk_rope_head_dim"),
    *refusals(
        x_hbm=random((1, 6, 512)),
        wqkv_a_scale_hbm=np.zeros((4, 8), np.uint8),
        wq_b_scale_hbm=np.zeros((4, 1), np.float32),
        wkv_b_hbm=np.zeros((128, 80), np.uint32),
        q_norm_gamma_hbm=random((1, 500), "bfloat16"),
        cos_cache_hbm=random((1, 5, 16), "bfloat16"),
    ),
]


@each(on_trn3(on_both(FULL) + WRONG) + [Option("refuses-trn2", {}, "qkv_mla_mx", on="trn2")])
def test_qkv_mla_mx(option):
    compare(option, qkv_mla_mx, basic, expected)


def basic_v4(b=1, s=6, h=512, heads=2, dim=40, rope=16, kv_rank=40, q_rank=512, eps=1e-6):
    kv_dim = kv_rank + rope
    given, matrices = operands(("wqkv", "wq_b"), ((h, q_rank + kv_dim), (q_rank, heads * dim)))
    cos, sin = tables(b, s, rope)
    given |= {
        "x_hbm": random((b, s, h), "bfloat16", 5),
        "q_norm_gamma_hbm": random((1, q_rank), "bfloat16", 6),
        "kv_norm_gamma_hbm": random((1, kv_dim), "bfloat16", 7),
        "cos_cache_hbm": cos,
        "sin_cache_hbm": sin,
        "n_heads": heads,
        "head_dim": dim,
        "qk_rope_head_dim": rope,
        "kv_lora_rank": kv_rank,
        "qk_lora_rank": q_rank,
        "norm_eps": eps,
    }
    return given, matrices


def expected_v4(a, w):
    rank, rope, eps = a["qk_lora_rank"], a["qk_rope_head_dim"], a["norm_eps"]
    latents = as_mx(a["x_hbm"]) @ w["wqkv"]
    turn = (a["cos_cache_hbm"], a["sin_cache_hbm"])
    q = as_mx(rms(latents[..., :rank], a["q_norm_gamma_hbm"], eps)) @ w["wq_b"]
    q = rms(q.reshape(*q.shape[:2], a["n_heads"], -1), eps=eps)
    kv = rms(latents[..., rank:], a["kv_norm_gamma_hbm"], eps)[:, :, None]
    q, kv = (np.concatenate([t[..., :-rope], rotated(t[..., -rope:], *turn)], axis=-1) for t in (q, kv))
    return q, kv[:, :, 0]


V4 = SIZES + [
    Option("wide-heads", {"heads": 3, "dim": 512, "rope": 64, "kv_rank": 448}),
    Option("many-heads", {"heads": 9, "dim": 512, "rope": 64, "s": 3}),
    Option("all-rotated", {"dim": 16}),
    Option("rank-1024", {"q_rank": 1024}),
]
WRONG_V4 = [
    Option("refuses-head", {"dim": 600}, "head dimension"),
    Option("refuses-rope", {"dim": 8}, "qk_rope_head_dim"),
    *refusals(
        x_hbm=random((6, 512), "bfloat16"),
        wqkv_hbm=np.zeros((128, 80), np.uint32),
        wqkv_scale_hbm=np.zeros((4, 8), np.uint8),
        wq_b_hbm=np.zeros((128, 80), np.float32),
        kv_norm_gamma_hbm=random((1, 40), "bfloat16"),
        sin_cache_hbm=random((1, 5, 16), "bfloat16"),
    ),
]


@each(on_trn3(on_both(V4) + WRONG_V4) + [Option("refuses-trn2", {}, "qkv_mla_mx_deepseek_v4", on="trn2")])
def test_qkv_mla_mx_deepseek_v4(option):
    compare(option, qkv_mla_mx_deepseek_v4, basic_v4, expected_v4)


def test_the_references_agree_with_these_within_what_mx_costs():
    a, w = basic(s=40)
    plain = qkv_mla_mx_ref(
        a["x_hbm"], w["wqkv_a"], w["wq_b"], a["q_norm_gamma_hbm"], w["wkv_b"], a["kv_norm_gamma_hbm"],
        a["cos_cache_hbm"], a["sin_cache_hbm"], 2, 16, 20,
    )  # fmt: skip
    a4, w4 = basic_v4(s=40)
    plain4 = qkv_mla_mx_deepseek_v4_ref(
        a4["x_hbm"], w4["wqkv"], w4["wq_b"], a4["q_norm_gamma_hbm"], a4["kv_norm_gamma_hbm"],
        a4["cos_cache_hbm"], a4["sin_cache_hbm"], 2, 16,
    )  # fmt: skip
    for one, wanted in zip((*plain, *plain4), (*expected(a, w), *expected_v4(a4, w4)), strict=True):
        assert np.linalg.norm(one - wanted) < 0.06 * np.linalg.norm(wanted)
