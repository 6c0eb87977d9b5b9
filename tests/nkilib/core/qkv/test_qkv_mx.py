"""The QKV projection with MX weights against float64 on numbers that the OCP emulation quantises."""

import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import cosine, each_lnc, invalid, random, run

import nki
import nki.isa as nisa
import nki.language as nl
from nki import mx
from nkilib.core.qkv import qkv, qkv_ref
from nkilib.core.qkv.qkv_tkg import qkv_tkg
from nkilib.core.utils.common_types import NormType, QKVOutputLayout, QKVWeightLayout, QuantizationType

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
MX, STATIC_MX, ROW_MX = QuantizationType.MX, QuantizationType.STATIC_MX, QuantizationType.ROW_MX
INTERLEAVED = QKVWeightLayout.MX_INTERLEAVED
HEADS = {"d_head": 32, "num_q_heads": 4, "num_kv_heads": 1}
H, COLUMNS = 1024, 192
each_format = pytest.mark.parametrize("form", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
each_size = pytest.mark.parametrize("batch, sequence", [(3, 1), (1, 131)])  # decode and prefill, both odd


def plain(h=H, columns=COLUMNS):
    return random((h, columns), "float32", 1, h**-0.5)


def mx_weights(w, form="float8_e4m3fn"):
    """Words [H/4, I], their scales [H/32, I], and the weights that they stand for."""
    data, scales = mx.quantize_lanes(mx.swizzle(np.ascontiguousarray(w.T), "innermost"), form, "ocp")
    seen = mx.unswizzle(mx.dequantize_lanes(data, scales), "innermost").T
    return mx.pack_x4(data).view(mx.x4_dtype(form)), scales, seen.astype(np.float64)


def seen_tokens(x):
    """[B, S, H] as MXFP8 sees it: 32 neighbours share a scale."""
    rows = np.asarray(x, np.float64).astype(BF16).astype(np.float64).reshape(-1, x.shape[-1])
    return mx_emulation.quantized(rows, scheme="1x32").values.reshape(x.shape)


def agree(actual, wanted):
    """As spec/library/qkv.md asks of MX."""
    assert actual.shape == wanted.shape
    actual = actual.astype(np.float64)
    np.testing.assert_allclose(actual, wanted, rtol=1e-2, atol=1e-2 * np.abs(wanted).max())
    assert cosine(actual, wanted) > 0.9999


def swizzled(x):
    """Element 4 r + q at q H / 4 + r."""
    return np.ascontiguousarray(x.reshape(*x.shape[:-1], -1, 4).swapaxes(-1, -2).reshape(x.shape))


@each_lnc
@each_format
@each_size
def test_mx_weights_are_multiplied_with_mxfp8_tokens(lnc, form, batch, sequence):
    x = random((batch, sequence, H), "bfloat16")
    words, scales, seen = mx_weights(plain(), form)
    y = run(qkv, x, words, lnc=lnc, on="trn3", quantization_type=MX, qkv_w_scale=scales)
    agree(y, seen_tokens(x) @ seen)


@each_lnc
@each_size
def test_tokens_may_come_in_the_order_of_the_weights_with_gamma_and_residuals(lnc, batch, sequence):
    x, a, b = (random((batch, sequence, H), "bfloat16", seed) for seed in range(3))
    gamma = random((1, H), "bfloat16", 4)
    words, scales, seen = mx_weights(plain())
    options = {"fused_norm_type": NormType.RMS_NORM, "fused_residual_add": True}
    result = run(
        qkv,
        swizzled(x),
        words,
        lnc=lnc,
        on="trn3",
        quantization_type=MX,
        qkv_w_scale=scales,
        mlp_prev=swizzled(a),
        attention_prev=swizzled(b),
        gamma_norm_weights=swizzled(gamma),
        is_h_dim_4h_transposed=True,
        **options,
    )
    total = sum(np.asarray(t, np.float64) for t in (x, a, b))
    normed = total / np.sqrt(np.square(total).mean(-1, keepdims=True) + 1e-6) * np.asarray(gamma, np.float64)
    if batch * sequence > 96:
        agree(result, seen_tokens(normed) @ seen)
    else:
        agree(result[0], seen_tokens(normed) @ seen)
        np.testing.assert_allclose(result[1].astype(np.float64), swizzled(total), rtol=1e-2, atol=1e-2)


@each_lnc
def test_heads_rope_and_caches_follow_as_without_mx(lnc):
    x, words_scales = random((2, 3, 512), "bfloat16"), mx_weights(plain(512))
    words, scales, seen = words_scales
    rope = {"fused_rope": True, "cos_cache": random((2, 3, 32), "float32", 5)}
    rope["sin_cache"] = random((2, 3, 32), "float32", 6)
    k, v = np.zeros((2, 8, 32), BF16), np.zeros((2, 8, 32), BF16)
    q, k, v = run(
        qkv,
        x,
        words,
        lnc=lnc,
        on="trn3",
        quantization_type=MX,
        qkv_w_scale=scales,
        bias=random((1, COLUMNS), "bfloat16", 7),
        k_cache=k,
        v_cache=v,
        **HEADS,
        **rope,
    )
    wanted = qkv_ref(seen_tokens(x), seen, bias=random((1, COLUMNS), "bfloat16", 7), **HEADS, **rope)
    agree(q, wanted.q)
    agree(k[:, :3], wanted.k)
    agree(v[:, :3], wanted.v)


@each_lnc
def test_transposed_tokens_and_layouts_of_heads(lnc):
    x = random((2, 9, 512), "bfloat16")
    words, scales, seen = mx_weights(plain(512))
    options = {"quantization_type": MX, "qkv_w_scale": scales, "output_layout": QKVOutputLayout.NBdS}
    transposed = np.ascontiguousarray(x.swapaxes(1, 2))
    y = run(qkv, transposed, words, lnc=lnc, on="trn3", transposed_in=True, d_head=32, **options)
    wanted = (seen_tokens(x) @ seen).reshape(2, 9, 6, 32).transpose(2, 0, 3, 1)
    agree(y, wanted)
    agree(run(qkv, x, words, lnc=lnc, on="trn3", d_head=32, **options), wanted)


# ---- STATIC_MX and ROW_MX ----------------------------------------------------------------------------


def fp8_weights(w, layout):
    """FP8 weights as [H/4, I, 4], with the rows of the layout, and as float64."""
    narrow = (w * 64).astype(FP8)
    h = len(w)
    r, q = np.ogrid[: h // 4, :4]
    rows = q // 2 * (h // 2) + 2 * r + q % 2 if layout == INTERLEAVED else 4 * r + q
    return np.ascontiguousarray(narrow[rows].transpose(0, 2, 1)), narrow.astype(np.float64)


@each_lnc
@each_size
@pytest.mark.parametrize("layout", list(QKVWeightLayout))
def test_static_mx_is_static_with_packed_weights(lnc, batch, sequence, layout):
    x = random((batch, sequence, H), "bfloat16")
    packed, seen = fp8_weights(plain(), layout)
    options = {"qkv_in_scale": np.full((1, 1), 0.02, np.float32)}
    options["qkv_w_scale"] = np.array([[0.5, 0.25, 2.0]], np.float32) / 64
    narrow = np.clip((x.astype(np.float32) / 0.02).astype(BF16).astype(np.float32), -448, 448).astype(FP8)
    by_column = np.repeat(options["qkv_w_scale"][0], [128, 32, 32])
    wanted = narrow.astype(np.float64) @ seen * 0.02 * by_column
    kinds = {"quantization_type": STATIC_MX, "weight_layout": layout, **HEADS, **options}
    agree(run(qkv, x, packed, lnc=lnc, on="trn3", **kinds), wanted)
    agree(run(qkv, narrow, packed, lnc=lnc, on="trn3", **kinds), wanted)
    flat = packed.reshape(H, COLUMNS)
    agree(run(qkv, x, flat, lnc=lnc, on="trn3", **kinds), wanted)


@each_lnc
@each_size
def test_row_mx_takes_tokens_with_their_scales(lnc, batch, sequence):
    rng = np.random.default_rng(0)
    narrow = random((batch, sequence, H), "float32", 3, 30.0).astype(FP8)
    factors = rng.uniform(0.5, 2, (batch, sequence, 1)).astype(np.float32)
    x = np.concatenate([narrow.view(np.uint8), factors.view(np.uint8)], axis=-1).view(FP8)
    packed, seen = fp8_weights(plain(), INTERLEAVED)
    scale = rng.uniform(0.5, 2, (1, COLUMNS)).astype(np.float32)
    y = run(
        qkv,
        x,
        packed,
        lnc=lnc,
        on="trn3",
        quantization_type=ROW_MX,
        qkv_w_scale=scale,
        weight_layout=INTERLEAVED,
    )
    agree(y, narrow.astype(np.float64) @ seen * factors * scale)


# ---- from SBUF, and what is refused ------------------------------------------------------------------


@nki.jit
def from_sbuf(x, words, scales):
    """qkv_tkg of tokens that stand in SBUF, a part of H for each core."""
    tokens, size = x.shape
    parts = nl.num_programs(0)
    tile = nl.ndarray((128, tokens, size // 128), x.dtype, buffer=nl.sbuf)
    width = size // 128 // parts
    for part in range(parts):
        columns = x[:, part * size // parts : (part + 1) * size // parts]
        place = tile[:, :, part * width : (part + 1) * width]
        nisa.dma_copy(place, columns.reshape((tokens, 128, width)).permute((1, 0, 2)))
    return qkv_tkg(tile, words, norm_type=NormType.NO_NORM, quantization_type=MX, qkv_w_scale=scales)


@each_lnc
def test_decode_takes_tokens_from_sbuf(lnc):
    x = random((5, H), "bfloat16")
    words, scales, seen = mx_weights(plain())
    agree(run(from_sbuf, x, words, scales, lnc=lnc, on="trn3")[0], seen_tokens(x) @ seen)


def test_mismatched_arguments_raise():
    x, (words, scales, _) = random((1, 3, H), "bfloat16"), mx_weights(plain())

    def refuses(text, *args, on="trn3", **options):
        with invalid(text):
            run(qkv, *args, on=on, **options)

    kind = {"quantization_type": MX, "qkv_w_scale": scales}
    refuses("quantization_type.*trn3", x, words, on="trn2", **kind)
    refuses("qkv_w_scale: got None", x, words, quantization_type=MX)
    refuses("qkv_w_scale: got shape", x, words, quantization_type=MX, qkv_w_scale=scales[:8])
    refuses("H = 1000", x[..., :1000], words, **kind)
    refuses("input.*ROW_MX", x, words, quantization_type=ROW_MX, qkv_w_scale=scales)
    refuses("input.*MX quantises", x.astype(FP8), words, **kind)
    refuses("is_h_dim_4h_transposed", x, plain().astype(BF16), is_h_dim_4h_transposed=True)
    refuses("weight_layout", x, plain().astype(BF16), weight_layout=INTERLEAVED)
    with pytest.raises(ValueError, match="fused_qkv_weights has words"):
        run(qkv, x, words[:128], on="trn3", **kind)
