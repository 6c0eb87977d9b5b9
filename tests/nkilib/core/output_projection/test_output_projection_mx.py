"""Both output projections with MX weights against float64 on numbers that the OCP emulation quantises."""

import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import cosine, each_lnc, random, run
from mx_weights import rows_in_words

import nki
import nki.isa as nisa
import nki.language as nl
from nki import mx
from nkilib.core.output_projection.output_projection_cte import output_projection_cte
from nkilib.core.output_projection.output_projection_tkg import output_projection_tkg
from nkilib.core.utils.common_types import QuantizationType

FP8 = ml_dtypes.float8_e4m3fn
MX, STATIC_MX = QuantizationType.MX, QuantizationType.STATIC_MX
each_format = pytest.mark.parametrize("form", ["float8_e4m3fn", "float4_e2m1fn"])


def expected(x, weight, bias=0.0):
    """x [tokens, N D] in MXFP8 times the weights."""
    x = np.asarray(x, np.float64)
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % 128)))
    return mx_emulation.quantized(padded, scheme="1x32").values[:, : x.shape[1]] @ weight + bias


def agree(actual, wanted):
    """rtol 5e-2 of spec/library/output_projection.md, and within bfloat16 nearly everywhere."""
    actual = np.asarray(actual, np.float64)
    assert actual.shape == wanted.shape
    np.testing.assert_allclose(actual, wanted, rtol=5e-2, atol=1e-2 * np.abs(wanted).max())
    assert cosine(actual, wanted) > 0.999


@each_lnc
@each_format
@pytest.mark.parametrize("n, d, s", [(4, 128, 40), (6, 64, 131), (8, 48, 7)])
def test_prefill_multiplies_mx_weights_with_mxfp8_attention(lnc, form, n, d, s):
    x = random((2, n, d, s), "bfloat16", 1)
    words, scales, weight = rows_in_words(n * d, 1040, form)
    bias = random((1, 1040), "bfloat16", 2)
    y = run(
        output_projection_cte, x, words, bias, lnc=lnc, on="trn3", quantization_type=MX, weight_scales=scales
    )
    tokens = x.transpose(0, 3, 1, 2).reshape(2 * s, n * d)
    agree(y.reshape(2 * s, -1), expected(tokens, weight, bias.astype(np.float64)))


@each_lnc
@each_format
@pytest.mark.parametrize("d, b, n, s", [(128, 4, 8, 1), (64, 3, 3, 1), (128, 2, 2, 3)])
def test_decode_multiplies_mx_weights_with_mxfp8_attention(lnc, form, d, b, n, s):
    x = random((d, b, n, s), "bfloat16", 1)
    words, scales, weight = rows_in_words(n * d, 512, form)
    y = run(output_projection_tkg, x, words, lnc=lnc, on="trn3", quantization_type=MX, weight_scale=scales)
    agree(y, expected(x.transpose(1, 3, 2, 0).reshape(b * s, n * d), weight))


@each_lnc
def test_decode_leaves_results_transposed(lnc):
    x = random((64, 4, 4, 1), "bfloat16", 1)
    words, scales, weight = rows_in_words(256, 512, "float4_e2m1fn")
    options = {"quantization_type": MX, "weight_scale": scales, "TRANSPOSE_OUT": True}
    y = run(output_projection_tkg, x, words, lnc=lnc, on="trn3", **options)
    agree(y.transpose(3, 1, 0, 2).reshape(4, 512), expected(x.transpose(1, 3, 2, 0).reshape(4, 256), weight))


def test_decode_takes_attention_from_sbuf_and_leaves_results_there():
    x = random((64, 3, 4, 1), "bfloat16", 1)
    words, scales, weight = rows_in_words(256, 512, "float8_e4m3fn")

    @nki.jit
    def around(x, words, scales):
        tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, x)
        y = output_projection_tkg(tile, words, quantization_type=MX, weight_scale=scales, OUT_IN_SB=True)
        out = nl.ndarray(y.shape, y.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, y)
        return out

    y = run(around, x, words, scales, on="trn3")
    agree(y, expected(x.transpose(1, 3, 2, 0).reshape(3, 256), weight))


@each_lnc
def test_static_mx_has_one_scale_for_each_operand(lnc):
    x, weight = random((1, 4, 64, 20), "bfloat16", 1), random((256, 640), "float32", 2, 0.1)
    narrow = (weight / 0.002).astype(FP8)
    lanes = narrow.reshape(64, 4, 640).transpose(0, 2, 1).reshape(256, 640)
    scales = {"input_scales": 0.01, "weight_scales": 0.002}
    y = run(
        output_projection_cte,
        x,
        lanes,
        lnc=lnc,
        on="trn3",
        quantization_type=STATIC_MX,
        **{name: np.full((128, 1), s, np.float32) for name, s in scales.items()},
    )
    wide = np.clip((x.astype(np.float64) / 0.01).astype(ml_dtypes.bfloat16).astype(np.float64), -448, 448)
    tokens = wide.astype(FP8).astype(np.float64).transpose(0, 3, 1, 2).reshape(20, 256)
    agree(y[0], tokens @ narrow.astype(np.float64) * 2e-5)


@each_lnc
def test_static_mx_leaves_fp8_attention_as_it_is(lnc):
    x, narrow = (
        random((1, 4, 64, 20), "float32", 1, 20.0).astype(FP8),
        random((256, 640), "float32", 2).astype(FP8),
    )
    lanes = narrow.reshape(64, 4, 640).transpose(0, 2, 1).reshape(256, 640)
    scales = {name: np.full((128, 1), 0.5, np.float32) for name in ("input_scales", "weight_scales")}
    y = run(output_projection_cte, x, lanes, lnc=lnc, on="trn3", quantization_type=STATIC_MX, **scales)
    tokens = x.astype(np.float64).transpose(0, 3, 1, 2).reshape(20, 256)
    agree(y[0], tokens @ narrow.astype(np.float64) / 4)


@each_lnc
@each_format
def test_a_scale_may_serve_128_by_128_weights(lnc, form):
    x, codes = random((1, 6, 64, 33), "bfloat16", 1), np.random.default_rng(0).integers(120, 130, (3, 4))
    words, _, _ = rows_in_words(384, 512, form)
    scales = np.repeat(np.repeat(codes, 4, axis=0), 128, axis=1).astype(np.uint8)
    weight = mx.dequantize_operand(
        mx.unpack_x4(words.view(np.uint32 if form == "float8_e4m3fn" else np.uint16), form),
        scales,
        "innermost",
        "dense",
    ).T.astype(np.float64)
    options = {
        "quantization_type": MX,
        "compact_weight_scales": True,
        "weight_scales": codes.astype(np.uint8),
    }
    y = run(output_projection_cte, x, words, lnc=lnc, on="trn3", **options)
    agree(y[0], expected(x.transpose(0, 3, 1, 2).reshape(33, 384), weight))


@each_lnc
@pytest.mark.parametrize("rows, s", [(512, 40), (640, 7), (128, 33)])
def test_attention_may_come_packed(lnc, rows, s):
    x = random((2, s, rows), "bfloat16", 1)
    words, scales, weight = rows_in_words(rows, 1040, "float4_e2m1fn")
    packed, of_x = [], []
    for tokens in x:
        data, dense = mx.quantize_operand(tokens, "float8_e4m3fn", "innermost", "dense")
        packed.append(mx.pack_x4(data))
        of_x.append(dense)
    attention = np.stack(packed)[:, None]
    options = {"quantization_type": MX, "weight_scales": scales, "input_scales": np.stack(of_x)}
    y = run(output_projection_cte, attention, words, lnc=lnc, on="trn3", **options)
    agree(y.reshape(2 * s, -1), expected(x.reshape(2 * s, rows), weight))
    in_bytes = attention.view(np.uint8)
    assert np.array_equal(run(output_projection_cte, in_bytes, words, lnc=lnc, on="trn3", **options), y)


def test_what_mx_lacks_is_said():
    x, (words, scales, _) = random((1, 4, 64, 20), "bfloat16", 1), rows_in_words(256, 512, "float8_e4m3fn")
    options = {"quantization_type": MX, "weight_scales": scales}
    with pytest.raises(AssertionError, match="allowed are NONE, STATIC, ROW, MX and STATIC_MX"):
        run(output_projection_cte, x, words, on="trn3", quantization_type=QuantizationType.ROW_MX)
    with pytest.raises(AssertionError, match="weight_scales: got shape"):
        run(output_projection_cte, x, words, on="trn3", compact_weight_scales=True, **options)
    with pytest.raises(AssertionError, match="input_scales: got None"):
        packed = np.zeros((1, 1, 64, 80), np.uint8)
        run(output_projection_cte, packed, words, on="trn3", **options)
    with pytest.raises(AssertionError, match="allowed from trn3 on"):
        run(output_projection_cte, x, words, on="trn2", **options)
    with pytest.raises(AssertionError, match="weight_scales: got None"):
        run(output_projection_cte, x, words, on="trn3", quantization_type=MX)


@pytest.mark.parametrize("n, d", [(1, 64), (16, 10)])
def test_prefill_takes_whole_blocks_of_128_rows(n, d):
    words, scales, _ = rows_in_words(n * d, 512, "float4_e2m1fn")
    options = {"on": "trn3", "quantization_type": MX, "weight_scales": scales}
    with pytest.raises(AssertionError, match=f"N D = {n * d}, MX takes multiples of 128"):
        run(output_projection_cte, random((1, n, d, 20), "bfloat16", 1), words, **options)
    packed, of_x = np.zeros((1, 1, n * d // 4, 80), np.uint8), np.full((1, n * d // 32, 20), 127, np.uint8)
    with pytest.raises(AssertionError, match=f"N D = {n * d}, MX takes multiples of 128"):
        run(output_projection_cte, packed, words, input_scales=of_x, **options)
    one = np.ones((128, 1), np.float32)
    options = {"on": "trn3", "quantization_type": STATIC_MX, "weight_scales": one, "input_scales": one}
    with pytest.raises(AssertionError, match=f"N D = {n * d}, MX takes multiples of 128"):
        run(
            output_projection_cte,
            random((1, n, d, 20), "bfloat16", 1),
            np.zeros((n * d, 512), FP8),
            **options,
        )
