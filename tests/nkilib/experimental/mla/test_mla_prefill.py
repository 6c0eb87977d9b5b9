"""The projections around sparse latent attention against float64 with emulated MX."""

import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from mla_operands import as_mx, block_weights, packed_tokens, rms, rotated, tables
from options.common import Option, each, near, on_both, refusal, refusals

from nkilib.experimental.mla.deepseek.mla_qkv_cte import mla_qkv_cte_kernel, mla_qkv_cte_ref
from nkilib.experimental.mla.deepseek.mla_vup_oproj_cte import (
    mla_vupmx_oproj_cte_kernel,
    mla_vupmx_oproj_cte_ref,
)


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [mla_qkv_cte_kernel, mla_vupmx_oproj_cte_kernel])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def on_trn3(cases):
    return [case._replace(on="trn3") for case in cases]


def compare(option, kernel, build, check):
    arguments, numbers = build(**{k: v for k, v in option.changes.items() if "hbm" not in k})
    arguments |= {k: v for k, v in option.changes.items() if "hbm" in k}
    if option.refused:
        with pytest.raises((AssertionError, NotImplementedError), match=refusal(option.refused)):
            run(kernel, **arguments, lnc=option.lnc, on=option.on)
        return
    check(arguments, numbers, run(kernel, **arguments, lnc=option.lnc, on=option.on))


# ---- QKV -----------------------------------------------------------------------------------------


def qkv(b=1, s=6, h=512, heads=2, rope=16, kv_rank=512, q_rank=512, eps=1e-6, export=False, nope=128):
    x, seen = packed_tokens(random((b, s, h), "bfloat16", 5))
    a = block_weights(h, q_rank + kv_rank + rope, 1)
    q = block_weights(q_rank, heads * (nope + rope), 2)
    cos, sin = tables(b, s, rope)
    given = {
        "x_hbm_mx": x,
        "wqkv_a_hbm": a[0],
        "wqkv_a_scale_hbm": a[1],
        "wq_b_hbm": q[0],
        "wq_b_scale_hbm": q[1],
        "q_norm_gamma_hbm": random((1, q_rank), "bfloat16", 6),
        "kv_norm_gamma_hbm": random((1, kv_rank), "bfloat16", 7),
        "wuk_hbm": random((nope, heads * kv_rank), "bfloat16", 9, 0.1),
        "cos_cache_hbm": cos,
        "sin_cache_hbm": sin,
        "n_heads": heads,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "kv_lora_rank": kv_rank,
        "qk_lora_rank": q_rank,
        "norm_eps": eps,
    }
    if export:
        shape = (-(-b * s // 128), 128, q_rank // 512, 128)
        given |= {"qr_qtz_hbm": np.zeros(shape, np.uint32), "qr_scale_hbm": np.zeros(shape, np.uint8)}
    return given, {"x": seen, "a": a[2], "q": q[2]}


def check_qkv(a, n, got):
    heads, rope, eps = a["n_heads"], a["qk_rope_head_dim"], a["norm_eps"]
    q_rank, kv_rank = a["qk_lora_rank"], a["kv_lora_rank"]
    latents = n["x"] @ n["a"]
    qr = rms(latents[..., :q_rank], a["q_norm_gamma_hbm"], eps)
    q = (as_mx(qr) @ n["q"]).reshape(*qr.shape[:2], heads, 128 + rope)
    plain = q[..., :128].astype(ml_dtypes.bfloat16).astype(np.float64)
    lifted = [
        plain[:, :, h] @ a["wuk_hbm"][:, h * kv_rank : (h + 1) * kv_rank].astype(np.float64)
        for h in range(heads)
    ]
    turn = (a["cos_cache_hbm"], a["sin_cache_hbm"])
    expected = (
        np.stack(lifted, axis=2),
        rotated(q[..., 128:], *turn),
        rms(latents[..., q_rank : q_rank + kv_rank], a["kv_norm_gamma_hbm"], eps),
        rotated(latents[:, :, None, q_rank + kv_rank :], *turn)[:, :, 0],
    )
    for one, wanted in zip(got, expected, strict=True):
        assert one.dtype == ml_dtypes.bfloat16
        near(one, wanted, 2**-7)
    if "qr_qtz_hbm" in a:
        check_export(a["qr_qtz_hbm"], a["qr_scale_hbm"], qr.reshape(-1, q_rank))


def check_export(words, scales, qr):
    """Read the words and scales back; they stand for qr within what MX costs."""
    for token, row in enumerate(qr):
        i, s = divmod(token, 128)
        codes = words[i, :, :, s].T.copy().view(np.uint8).reshape(-1)
        factors = [
            2.0 ** (int(scales[i, 32 * (p // 32) + p % 32 // 8, t, s]) - 127)
            for t in range(words.shape[2])
            for p in range(128)
        ]
        form = mx_emulation.FORMATS["float8_e4m3fn"]
        values = mx_emulation.numbers(form)[codes & 0x7F] * np.where(codes & 0x80, -1, 1)
        values = values * np.repeat(factors, 4)
        assert np.linalg.norm(values - row) < 0.05 * np.linalg.norm(row)


QKV = [
    Option("basic"),
    Option("one-token", {"s": 1}),
    Option("odd-tokens", {"s": 131}),
    Option("batch", {"b": 3, "s": 5}),
    Option("two-groups", {"s": 515}),
    Option("hidden-2560", {"h": 2560}),
    Option("one-head", {"heads": 1}),
    Option("five-heads", {"heads": 5, "rope": 64}),
    Option("rank-1536", {"q_rank": 1536}),
    Option("eps", {"eps": 0.5}),
    Option("export", {"export": True}),
    Option("export-131", {"export": True, "s": 131, "q_rank": 1024}),
    Option("export-300", {"export": True, "s": 300}),
]
SHAPE = (1, 128, 1, 128)
EMPTY = np.zeros((1, 6, 640), ml_dtypes.float8_e4m3fn)
WRONG_QKV = [
    Option("refuses-nope", {"nope": 64}, "qk_nope_head_dim"),
    Option("refuses-rank", {"kv_rank": 1024}, "kv_lora_rank"),
    Option("refuses-rope", {"rope": 15}, "qk_rope_head_dim"),
    Option("refuses-export-alone", {"qr_qtz_hbm": np.zeros(SHAPE, np.uint32)}, "qr_scale_hbm"),
    Option(
        "refuses-export-shape",
        {"qr_qtz_hbm": np.zeros((1, 128, 1, 6), np.uint32), "qr_scale_hbm": np.zeros(SHAPE, np.uint8)},
        "qr_qtz_hbm",
    ),
    *refusals(
        x_hbm_mx=np.zeros((1, 6, 600), ml_dtypes.float8_e4m3fn),
        wuk_hbm=random((128, 500), "bfloat16"),
        wq_b_scale_hbm=np.zeros((4, 1), np.uint8),
        kv_norm_gamma_hbm=random((1, 500), "bfloat16"),
        sin_cache_hbm=random((1, 5, 16), "bfloat16"),
    ),
]


@each(
    on_trn3(on_both(QKV) + WRONG_QKV)
    + [Option("refuses-trn2", {"x_hbm_mx": EMPTY}, "mla_qkv_cte_kernel", on="trn2")]
)
def test_mla_qkv_cte_kernel(option):
    compare(option, mla_qkv_cte_kernel, qkv, check_qkv)


# ---- values and output projection ----------------------------------------------------------------


def projection(s=6, heads=4, hidden=200):
    up, down = block_weights(heads * 512, 128, 1), block_weights(heads * 128, hidden, 2)
    natural = random((s, heads, 512), "bfloat16", 3)
    laid_out = np.zeros_like(natural)
    for latent in range(512):
        laid_out[:, :, 128 * (latent % 4) + latent // 4] = natural[:, :, latent]
    given = {
        "out_attn_hbm": laid_out.reshape(1, s, -1),
        "wuv_qtz_hbm": up[0],
        "wuv_scale_hbm": up[1],
        "wo_qtz_hbm": down[0],
        "wo_scale_hbm": down[1],
    }
    return given, {"x": natural, "up": up[2], "down": down[2]}


def check_projection(a, n, got):
    heads = n["x"].shape[1]
    x = as_mx(n["x"])
    values = np.stack([x[:, h] @ n["up"][512 * h : 512 * h + 512] for h in range(heads)], axis=1)
    assert got.dtype == ml_dtypes.bfloat16
    near(got, (as_mx(values.reshape(len(x), -1)) @ n["down"])[None], 2**-7)


PROJECTION = [
    Option("basic"),
    Option("one-token", {"s": 1}),
    Option("odd-tokens", {"s": 131}),
    Option("two-groups", {"s": 515}),
    Option("eight-heads", {"heads": 8}),
    Option("twenty-heads", {"heads": 20, "s": 3}),
    Option("wide", {"hidden": 1100}),
    Option("narrow", {"hidden": 8}),
]
WRONG_PROJECTION = refusals(
    out_attn_hbm=random((1, 6, 3 * 512), "bfloat16"),
    out_attn_hbm__batch=random((2, 6, 2048), "bfloat16"),
    out_attn_hbm__dtype=random((1, 6, 2048)),
    wuv_qtz_hbm=np.zeros((512, 64), np.uint32),
    wuv_scale_hbm=np.zeros((15, 1), np.uint8),
    wo_qtz_hbm=np.zeros((120, 200), np.uint32),
    wo_scale_hbm=np.zeros((4, 1), np.uint8),
)


@each(
    on_trn3(on_both(PROJECTION) + WRONG_PROJECTION)
    + [Option("refuses-trn2", {}, "mla_vupmx_oproj_cte_kernel", on="trn2")]
)
def test_mla_vupmx_oproj_cte_kernel(option):
    compare(option, mla_vupmx_oproj_cte_kernel, projection, check_projection)


def test_the_references_agree_with_these_within_what_mx_costs():
    a, n = qkv(s=20)
    plain = mla_qkv_cte_ref(
        n["x"], n["a"], n["q"], a["q_norm_gamma_hbm"], a["kv_norm_gamma_hbm"], a["wuk_hbm"],
        a["cos_cache_hbm"], a["sin_cache_hbm"], 2, 16,
    )  # fmt: skip
    got = run(mla_qkv_cte_kernel, **a, on="trn3")
    b, m = projection(s=20)
    results = [*zip(plain, got, strict=True)]
    results.append(
        (
            mla_vupmx_oproj_cte_ref(b["out_attn_hbm"], m["up"], m["down"]),
            run(mla_vupmx_oproj_cte_kernel, **b, on="trn3"),
        )
    )
    for reference, one in results:
        assert np.linalg.norm(one.astype(np.float64) - reference) < 0.06 * np.linalg.norm(reference)
