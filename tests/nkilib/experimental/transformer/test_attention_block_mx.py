"""The attention block of decode with MX weights against its reference on numbers that MXFP8 holds."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import cosine, each_lnc, random, run
from mx_weights import by_blocks, places_of_rows, rows_in_words

from nkilib.core.utils.common_types import QuantizationType
from nkilib.experimental.transformer.attention_block_tkg import attention_block_tkg, attention_block_tkg_ref

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
H, N, D = 512, 4, 32
COLUMNS = (N + 2) * D
REQUIRED = attention_block_tkg.func.__code__.co_varnames[:36]


def held(x, places):
    """Return x rounded to MXFP8; quantising it again changes nothing."""
    return by_blocks(x.reshape(-1, H).astype(np.float64), places).reshape(x.shape).astype(BF16)


def inputs(**changed):
    """Return two sequences of one new token each, with a cache of 256 keys."""
    mask = (np.random.default_rng(3).random((256, 2, N, 1)) < 0.7).astype(np.uint8)
    mask[-1] = 1
    given = dict.fromkeys(REQUIRED) | {
        "X": held(random((2, 1, H), BF16), places_of_rows(H, "innermost")),
        "quantization_type_qkv": QuantizationType.MX,
        "K_cache": random((2, 1, 320, D), BF16, 4),
        "V_cache": random((2, 1, 320, D), BF16, 5),
        "attention_mask": mask,
    }
    return given | changed


def agree(got, expected):
    assert got.shape == expected.shape
    got = got.astype(np.float64)
    np.testing.assert_allclose(got, expected, rtol=5e-2, atol=3e-2 * np.abs(expected).max())
    assert cosine(got, expected) > 0.999


@each_lnc
@pytest.mark.parametrize("form", ["float4_e2m1fn", "float8_e4m3fn"])
def test_both_projections_take_mx_weights(form, lnc):
    words, scales, seen = rows_in_words(H, COLUMNS, form)
    arguments = inputs(W_qkv=words, weight_dequant_scale_qkv=scales)
    plain = arguments | {"W_qkv": seen, "quantization_type_qkv": QuantizationType.NONE}
    wanted = attention_block_tkg_ref(**plain)
    for result, expected in zip(
        run(attention_block_tkg, **arguments, lnc=lnc, on="trn3"),
        (wanted[0], wanted[1].transpose(2, 0, 1), wanted[2]),
        strict=True,
    ):
        agree(result, expected)
    words, scales, seen = rows_in_words(N * D, H, form, 7)
    arguments |= {"W_out": words, "weight_dequant_scale_out": scales}
    arguments["quantization_type_out"] = QuantizationType.MX
    out = run(attention_block_tkg, **arguments, lnc=lnc, on="trn3")[0]
    expected = attention_block_tkg_ref(**plain | {"W_out": seen})[0]
    assert cosine(out.astype(np.float64), expected) > 0.998  # attention's result has become MXFP8, too


@each_lnc
def test_hidden_states_may_be_transposed_by_four(lnc):
    words, scales, seen = rows_in_words(H, COLUMNS)
    arguments = inputs(W_qkv=words, weight_dequant_scale_qkv=scales)
    expected = attention_block_tkg_ref(
        **arguments | {"W_qkv": seen, "quantization_type_qkv": QuantizationType.NONE}
    )[0]
    x = arguments["X"].reshape(2, H // 512, 128, 4)
    arguments["X"] = np.ascontiguousarray(x.transpose(0, 3, 1, 2)).reshape(2, 1, H)
    agree(run(attention_block_tkg, **arguments, lnc=lnc, on="trn3", is_h_transposed_by_4=True)[0], expected)


def test_static_mx_is_accepted_and_wrong_arguments_raise():
    weight = random((H, COLUMNS), "float32", 2, H**-0.5)
    narrow = (weight / 0.001).astype(FP8)
    arguments = inputs(quantization_type_qkv=QuantizationType.STATIC_MX)
    arguments["W_qkv"] = np.ascontiguousarray(narrow.reshape(H // 4, 4, COLUMNS).swapaxes(1, 2))
    arguments["weight_dequant_scale_qkv"] = np.full((128, 3), 0.001, np.float32)
    arguments["input_dequant_scale_qkv"] = np.full((128, 1), 0.125, np.float32)
    arguments["X"] = (arguments["X"].astype(np.float64) / 0.125).astype(FP8).astype(np.float64) * 0.125
    arguments["X"] = arguments["X"].astype(BF16)
    seen = narrow.astype(np.float64) * 0.001
    plain = arguments | {"W_qkv": seen, "quantization_type_qkv": QuantizationType.NONE}
    plain |= {"weight_dequant_scale_qkv": None, "input_dequant_scale_qkv": None}
    agree(run(attention_block_tkg, **arguments, on="trn3")[0], attention_block_tkg_ref(**plain)[0])
    with pytest.raises(AssertionError, match="is_h_transposed_by_4"):
        run(
            attention_block_tkg,
            **plain | {"W_qkv": weight.astype(BF16)},
            is_h_transposed_by_4=True,
            on="trn3",
        )
    with pytest.raises(AssertionError, match="trn3"):
        run(attention_block_tkg, **arguments, on="trn2")
