"""The output projection of prefill against its float64 reference."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import close, cosine, each_lnc, invalid, random, run

import nki
import nki.language as nl
from nkilib.core.output_projection.output_projection_cte import (
    output_projection_cte,
    output_projection_cte_ref,
)
from nkilib.core.output_projection.output_projection_cte import output_projection_cte as exported
from nkilib.core.utils.common_types import DtypeMode, QuantizationType

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3
SMALL = (2, 3, 48, 140, 210)  # B, N, D, S, H: ragged in all
ROW, STATIC = QuantizationType.ROW, QuantizationType.STATIC


def inputs(shape, dtype=BF16):
    """attention, weight, bias, whose result is about 1."""
    b, n, d, s, h = shape
    return [
        random((b, n, d, s), dtype),
        random((n * d, h), dtype, 1, (n * d) ** -0.5),
        random((1, h), dtype, 2),
    ]


def fp8_inputs(shape, kind, dtype=FP8, largest=240.0):
    """attention in float32, FP8 weight, bias, and the options."""
    attention, weight, bias = inputs(shape, "float32")
    row = kind == ROW
    top = np.abs(weight).max(0 if row else None)
    scale = np.broadcast_to(top / largest, (128, weight.shape[1] if row else 1)).astype(np.float32).copy()
    options = {"quantization_type": kind, "weight_scales": scale}
    if not row:
        options["input_scales"] = np.full((128, 1), 3 / largest, np.float32)  # clips a few
    return [attention, (weight / scale[0]).astype(dtype), bias], options


def agree(actual, expected, tolerance=1e-2):
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.tiny
@each_lnc
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_dtype_with_and_without_bias(dtype, lnc):
    attention, weight, bias = inputs(SMALL, dtype)
    y = run(output_projection_cte, attention, weight, bias, lnc=lnc)
    close(y, output_projection_cte_ref(attention, weight, bias), terms=weight.shape[0])
    y = run(output_projection_cte, attention, weight, lnc=lnc)
    close(y, output_projection_cte_ref(attention, weight), terms=weight.shape[0])


@each_lnc
@pytest.mark.parametrize(
    "shape", [(1, 1, 128, 512, 16384), (1, 8, 64, 700, 288), (1, 2, 128, 130, 4098), (1, 17, 128, 150, 1030)]
)
def test_shapes_with_several_blocks_in_each_direction(shape, lnc):
    args = inputs(shape)
    agree(run(output_projection_cte, *args, lnc=lnc), output_projection_cte_ref(*args))


@pytest.mark.slow
@each_lnc
@pytest.mark.parametrize(
    "shape",
    [(1, 8, 128, 2048, 8192), (1, 8, 64, 1024, 2880), (2, 5, 128, 640, 5120), (1, 8, 128, 700, 20704)],
)
def test_the_shapes_of_the_manual(shape, lnc):
    args = inputs(shape)
    agree(run(output_projection_cte, *args, lnc=lnc), output_projection_cte_ref(*args))


def test_more_tokens_than_stay_in_sbuf():
    args = inputs((1, 40, 128, 1100, 64))
    agree(run(output_projection_cte, *args), output_projection_cte_ref(*args))


def test_the_output_dtype_may_be_chosen():
    args = inputs(SMALL)
    y = run(output_projection_cte, *args, output_dtype=nl.float32)
    assert y.dtype == np.float32
    agree(y, output_projection_cte_ref(*args), 1e-5)


def test_attention_is_rounded_to_the_dtype_of_the_weights():
    attention, weight, bias = inputs(SMALL)
    wide = attention.astype(np.float32)
    agree(run(output_projection_cte, wide, weight), output_projection_cte_ref(attention, weight))


@each_lnc
@pytest.mark.parametrize("kind", [ROW, STATIC])
def test_fp8_weights(kind, lnc):
    args, options = fp8_inputs(SMALL, kind)
    y = run(output_projection_cte, *args, lnc=lnc, **options)
    expected = output_projection_cte_ref(*args, **options)
    agree(y, expected, 2e-2)
    assert cosine(y, expected) >= 0.999


@pytest.mark.parametrize("kind", [ROW, STATIC])
def test_attention_that_is_fp8_already_is_taken_as_it_is(kind):
    args, options = fp8_inputs(SMALL, kind)
    args[0] = (10 * args[0]).astype(FP8)
    y = run(output_projection_cte, *args, **options)
    assert y.dtype == BF16
    np.testing.assert_allclose(
        y.astype(np.float64), output_projection_cte_ref(*args, **options), rtol=1e-2, atol=1e-2
    )


def test_e4m3fn_on_trn3():
    args, options = fp8_inputs(SMALL, STATIC, ml_dtypes.float8_e4m3fn, 448.0)
    y = run(output_projection_cte, *args, on="trn3", dtype_mode=DtypeMode.OCP, **options)
    agree(y, output_projection_cte_ref(*args, dtype_mode=DtypeMode.OCP, **options), 2e-2)


def test_the_package_and_the_module_export_one_function():
    from nkilib.core.output_projection.output_projection_cte.output_projection_cte import (
        output_projection_cte as inner,
    )

    assert inner is exported


# ---- refusals ------------------------------------------------------------------------------------


def refused(text, *args, lnc=1, **options):
    with invalid(text):
        run(output_projection_cte, *args, lnc=lnc, **options)


def zeros(*shape, dtype=BF16):
    return np.zeros(shape, dtype)


def test_wrong_shapes_raise():
    refused(r"attention: got shape \(3, 48, 4\), expected \(B, N, D, S\)", zeros(3, 48, 4), zeros(144, 8))
    refused("attention: got D = 129, allowed are at most 128", zeros(1, 1, 129, 4), zeros(129, 8))
    refused(r"weight: got shape \(96, 8\), expected \(144, H\)", zeros(1, 3, 48, 4), zeros(96, 8))
    refused(r"attention: got B \* S = 131073 tokens", zeros(1, 1, 2, 131073), zeros(2, 8))
    refused("weight: got H = 32769, allowed are at most 32768", zeros(1, 1, 2, 4), zeros(2, 32769))
    refused("weight: got H = 9, 2 cores take multiples of 2", zeros(1, 1, 2, 4), zeros(2, 9), lnc=2)
    refused(r"bias: got shape \(1, 9\), expected \(1, 8\)", zeros(1, 1, 2, 4), zeros(2, 8), zeros(1, 9))


def test_wrong_dtypes_and_scales_raise():
    x, w, one = zeros(1, 1, 2, 4), zeros(2, 8), np.ones((128, 1), np.float32)
    fp8 = w.astype(FP8)
    refused("weight: got .*float8_e4m3, allowed are", x, fp8)
    refused("attention: got .*int32", x.astype(np.int32), w)
    refused(
        "weight: got .*bfloat16, expected .*float8_e4m3 with QuantizationType.ROW",
        x,
        w,
        quantization_type=ROW,
    )
    refused("weight_scales: got one with QuantizationType.NONE", x, w, weight_scales=one)
    refused("weight_scales: got None, needed by", x, fp8, quantization_type=ROW)
    refused(r"weight_scales: got shape \(128, 1\)", x, fp8, quantization_type=ROW, weight_scales=one)
    refused("input_scales: got None, needed by", x, fp8, quantization_type=STATIC, weight_scales=one)
    refused("input_scales: got one with QuantizationType.NONE", x, w, input_scales=one)


def test_scales_of_columns_with_mx_weights_raise():
    with invalid("quantization_type: got QuantizationType.ROW_MX, allowed are NONE"):
        run(output_projection_cte, zeros(1, 1, 2, 4), zeros(2, 8), quantization_type=QuantizationType.ROW_MX)


def test_compact_scales_are_refused_without_mx():
    with pytest.raises(AssertionError, match="compact_weight_scales: got True, allowed only with"):
        run(output_projection_cte, zeros(1, 1, 2, 4), zeros(2, 8), compact_weight_scales=True)


def test_it_reaches_90_percent_of_the_compute_roofline():
    b, n, d, s, h = 1, 8, 128, 2048, 8192
    specs = [nki.TensorSpec(shape, "bfloat16") for shape in ((b, n, d, s), (n * d, h))]
    modelled = run(nki.profile(output_projection_cte), *specs).total_us
    assert 2 * b * s * n * d * h / (2 * 128 * 128 * 2.4e3) >= 0.9 * modelled


def test_two_cores_start_with_little_of_both_operands():
    """Modelled microseconds; a kernel that waits for all tokens, or for wide weights, takes longer."""
    specs = [nki.TensorSpec(shape, "bfloat16") for shape in ((1, 8, 128, 2048), (1024, 4096))]
    assert run(nki.profile(output_projection_cte[2]), *specs).total_us <= 133.6
