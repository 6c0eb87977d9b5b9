"""The QKV projection against its float64 reference: norms, layouts, FP8, heads, RoPE."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, cosine, each_lnc, random, run

from nkilib.core.qkv import qkv, qkv_ref
from nkilib.core.qkv.qkv_cte import qkv_cte
from nkilib.core.qkv.qkv_tkg import qkv_tkg
from nkilib.core.utils.common_types import (
    DtypeMode,
    NormType,
    QKNormConfig,
    QKVOutputLayout,
    QuantizationType,
)

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3
H, HEADS = 256, {"d_head": 32, "num_q_heads": 4, "num_kv_heads": 1}
I = 6 * 32  # noqa: E741  the manual's name
each_layout = pytest.mark.parametrize("layout", list(QKVOutputLayout))
each_norm = pytest.mark.parametrize(
    "norm", [NormType.NO_NORM, NormType.RMS_NORM, NormType.LAYER_NORM, NormType.RMS_NORM_SKIP_GAMMA]
)


def tokens(batch, sequence, hidden=H, dtype=BF16, seed=0):
    return random((batch, sequence, hidden), dtype, seed)


def weights(hidden=H, columns=I, dtype=BF16):
    return random((hidden, columns), dtype, 1, hidden**-0.5)


def norm_options(norm, hidden=H):
    options = {"fused_norm_type": norm}
    if norm in (NormType.RMS_NORM, NormType.LAYER_NORM):
        options["gamma_norm_weights"] = random((1, hidden), BF16, 2)
    if norm == NormType.LAYER_NORM:
        options["layer_norm_bias"] = random((1, hidden), BF16, 3)
    return options


def rope_options(batch, sequence, depth=32, keys=False):
    angle = np.random.default_rng(4).uniform(0, 6, (batch, sequence, depth))
    options = {"fused_rope": True, "cos_cache": np.cos(angle), "sin_cache": np.sin(angle)}
    if keys:
        options |= {"k_cos_cache": 2 * np.cos(angle + 1), "k_sin_cache": 3 * np.sin(angle + 1)}
    return {name: value if value is True else value.astype(BF16) for name, value in options.items()}


def agree(x, w, lnc=1, tolerance=1e-2, **options):
    """The kernel and its reference say the same; returns what the kernel said."""
    got = run(qkv, x, w, lnc=lnc, **options)
    result = got[0] if isinstance(got, tuple) else got
    expected = qkv_ref(x, w, **options).out
    assert result.shape == expected.shape
    assert result.dtype == (x.dtype if x.dtype == np.float16 else BF16)
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    assert cosine(result, expected) > 0.9999
    return got


@pytest.mark.tiny
@each_lnc
@each_layout
@pytest.mark.parametrize("sequence", [3, 64, 70])  # decode; prefill, tokens transposed by DMA or TensorE
def test_every_layout(layout, sequence, lnc):
    agree(tokens(2, sequence), weights(), lnc, output_layout=layout, bias=random((1, I), BF16, 5), **HEADS)


@each_lnc
@each_norm
@pytest.mark.parametrize("sequence", [3, 64, 70])
def test_every_norm(norm, sequence, lnc):
    agree(tokens(2, sequence), weights(), lnc, **norm_options(norm))


@each_norm
@pytest.mark.parametrize("sequence", [5, 100])
def test_padding_of_the_hidden_dimension_does_not_count(norm, sequence):
    x = tokens(1, sequence)
    x[..., 200:] = 0
    padded = {} if norm == NormType.NO_NORM else {"hidden_actual": 200}
    agree(x, weights(), **norm_options(norm), **padded)


@each_lnc
def test_decode_returns_the_sum_of_residuals_and_prefill_does_not(lnc):
    for sequence in (2, 60):
        x, mlp_prev, attention_prev = (tokens(2, sequence, seed=seed) for seed in (0, 7, 8))
        options = norm_options(NormType.RMS_NORM)
        options |= {"fused_residual_add": True, "mlp_prev": mlp_prev, "attention_prev": attention_prev}
        got = agree(x, weights(), lnc, **options)
        if sequence == 2:
            close(got[1], qkv_ref(x, weights(), **options).added)
        else:
            assert not isinstance(got, tuple)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("sequence", [3, 100])
def test_other_dtypes_of_tokens_and_weights(dtype, sequence):
    agree(tokens(1, sequence, dtype=dtype), weights(dtype=dtype), **norm_options(NormType.RMS_NORM))


@pytest.mark.parametrize("shape", [(1, 97, 512, 2, 2, 64), (3, 130, 128, 3, 1, 96), (1, 257, 384, 1, 1, 128)])
@each_lnc
def test_ragged_sizes(shape, lnc):
    batch, sequence, hidden, q_heads, kv_heads, depth = shape
    columns = (q_heads + 2 * kv_heads) * depth
    options = {"d_head": depth, "num_q_heads": q_heads, "num_kv_heads": kv_heads}
    options |= rope_options(batch, sequence, depth) | norm_options(NormType.RMS_NORM, hidden)
    w = weights(hidden, columns)
    for layout in (QKVOutputLayout.BSD, QKVOutputLayout.NBdS):
        agree(tokens(batch, sequence, hidden), w, lnc, output_layout=layout, **options)


@pytest.mark.parametrize("by_dma", [True, False])
def test_more_tokens_than_one_block_and_more_columns_than_one_span(by_dma):
    options = norm_options(NormType.RMS_NORM, 128) | {"load_input_with_DMA_transpose": by_dma}
    agree(tokens(1, 656, 128), weights(128, 640), **options)
    agree(tokens(1, 656, 1280), weights(1280, 64), load_input_with_DMA_transpose=by_dma)


def test_the_factor_of_a_norm_joins_scales_and_bias():
    scales = np.random.default_rng(6).uniform(0.1, 1, (1, I)).astype(np.float32)
    options = {"quantization_type": QuantizationType.ROW, "qkv_w_scale": scales, "bias": random((1, I), BF16)}
    options |= norm_options(NormType.RMS_NORM) | HEADS | rope_options(1, 128)
    agree(tokens(1, 128), weights(dtype=FP8), **options)


@each_norm
@each_lnc
def test_transposed_input(norm, lnc):
    x = np.ascontiguousarray(tokens(2, 70).swapaxes(1, 2))
    agree(x, weights(), lnc, transposed_in=True, **norm_options(norm))


def test_a_given_output_is_written_and_returned():
    for sequence in (2, 100):
        x, w = tokens(1, sequence), weights()
        out = np.zeros((1, sequence, I), BF16)
        run(qkv, x, w, output_hbm=out)
        close(out, qkv_ref(x, w).out)


# ---- FP8 -----------------------------------------------------------------------------------------


@each_lnc
@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("sequence", [3, 70])
def test_row_scales_of_fp8_weights(sequence, rows, lnc):
    scales = np.tile(np.random.default_rng(6).uniform(0.1, 1, (1, I)).astype(np.float32), (rows, 1))
    options = {"quantization_type": QuantizationType.ROW, "qkv_w_scale": scales}
    agree(tokens(2, sequence), weights(dtype=FP8), lnc, **options, **norm_options(NormType.RMS_NORM))


@each_lnc
@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("sequence", [3, 70])
@pytest.mark.parametrize("norm", [NormType.NO_NORM, NormType.LAYER_NORM])
def test_static_scales_quantise_the_tokens(norm, sequence, rows, lnc):
    options = {
        "quantization_type": QuantizationType.STATIC,
        "qkv_w_scale": np.tile(np.float32([0.5, 1.0, 2.0]), (rows, 1)),
        "qkv_in_scale": np.full((rows, 1), 0.02, np.float32),
        "bias": random((1, I), BF16, 5),
    }
    agree(tokens(2, sequence), weights(dtype=FP8), lnc, 2e-2, **options, **norm_options(norm), **HEADS)


def test_tokens_that_arrive_quantised_bring_their_scale():
    x = np.empty((1, 100, H + 4), FP8)
    x[..., :H] = tokens(1, 100, dtype=FP8)
    x[..., H:] = (1 + random((1, 100, 1), seed=7) ** 2).astype(np.float32).view(FP8)
    scales = random((1, I), seed=6) ** 2
    w = weights(dtype=FP8)
    options = {"quantization_type": QuantizationType.ROW, "qkv_w_scale": scales, "bias": random((1, I), BF16)}
    agree(x, w, **options)


def test_fp8_weights_without_a_quantisation_are_used_as_they_are():
    for sequence in (3, 100):
        agree(tokens(1, sequence), weights(dtype=FP8))


def test_ocp_fp8_on_trn3():
    options = {
        "quantization_type": QuantizationType.STATIC,
        "qkv_w_scale": np.float32([[0.5, 1.0, 2.0]]),
        "qkv_in_scale": np.full((1, 1), 0.01, np.float32),
        "dtype_mode": DtypeMode.OCP,
    }
    x, w = tokens(1, 100), weights(dtype=ml_dtypes.float8_e4m3fn)
    got = run(qkv, x, w, on="trn3", **options, **HEADS)
    expected = qkv_ref(x, w, **options, **HEADS).out
    np.testing.assert_allclose(
        got.astype(np.float64), expected, rtol=2e-2, atol=2e-2 * np.abs(expected).max()
    )


# ---- heads ---------------------------------------------------------------------------------------


@each_lnc
@pytest.mark.parametrize("keys", [False, True])
def test_rope_with_one_table_or_another_for_keys(keys, lnc):
    agree(tokens(2, 70), weights(), lnc, **HEADS, **rope_options(2, 70, keys=keys))
    agree(tokens(2, 3), weights(), lnc, **HEADS, **rope_options(2, 3, keys=keys))


@each_lnc
@pytest.mark.parametrize("when", ["pre", "post"])
def test_norms_of_heads_before_or_after_rope(when, lnc):
    gammas = {
        f"qk_norm_{when}_rope_{name}_gamma": random((1, 32), BF16, 7 + i) for i, name in enumerate("qk")
    }
    options = {f"qk_norm_{when}_rope": QKNormConfig(eps=1e-5)} | gammas
    options |= HEADS | rope_options(1, 130)
    agree(tokens(1, 130), weights(), lnc, **options)
    options[f"qk_norm_{when}_rope_k_beta"] = random((1, 32), BF16, 9)
    agree(tokens(1, 130), weights(), lnc, **options)


def test_both_norms_of_heads_without_rope_or_of_one_section_only():
    x, w = tokens(1, 10), weights()
    keys_only = QKNormConfig(q_norm=None, k_norm=NormType.LAYER_NORM)
    plain = QKNormConfig(NormType.RMS_NORM_SKIP_GAMMA, NormType.RMS_NORM_SKIP_GAMMA)
    agree(x, w, qk_norm_pre_rope=keys_only, **HEADS)
    agree(x, w, qk_norm_pre_rope=keys_only, qk_norm_post_rope=plain, **HEADS)


@each_lnc
@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_norm_over_all_heads_of_a_section(when, lnc):
    across = QKNormConfig(NormType.RMS_NORM_ACROSS_HEADS, NormType.RMS_NORM_ACROSS_HEADS, 1e-5)
    options = {f"qk_norm_{when}_rope": across, "d_head": 64, "num_q_heads": 9, "num_kv_heads": 2}
    options |= rope_options(1, 150, 64) | {"bias": random((1, 13 * 64), BF16)}
    for name, heads in (("q", 9), ("k", 2)):
        options[f"qk_norm_{when}_rope_{name}_gamma"] = random((1, heads * 64), BF16, 7)
    agree(tokens(1, 150), weights(columns=13 * 64), lnc, **options)


@each_lnc
def test_sums_of_squares_of_each_section(lnc):
    x, w = tokens(2, 70), weights()
    sums = [np.zeros((2, 70, 1), np.float32) for _ in range(3)]
    names = ("q_squared_sum_out", "k_squared_sum_out", "v_squared_sum_out")
    options = HEADS | rope_options(2, 70) | {"bias": random((1, I), BF16)}
    run(qkv, x, w, lnc=lnc, **options, **dict(zip(names, sums, strict=True)))
    for got, expected in zip(sums, qkv_ref(x, w, **options).square_sums, strict=True):
        np.testing.assert_allclose(got[..., 0], expected, rtol=1e-2)


# ---- refusals ------------------------------------------------------------------------------------


def refusal(error=AssertionError, x=None, w=None, **options):
    with pytest.raises(error) as raised:
        run(qkv, tokens(1, 2) if x is None else x, weights() if w is None else w, **options)
    return str(raised.value)


@pytest.mark.tiny
def test_wrong_arguments_raise_by_name():
    assert "fused_qkv_weights has 128 rows" in refusal(ValueError, w=weights(128))
    assert "mlp_prev: got None, needed by fused_residual_add" in refusal(ValueError, fused_residual_add=True)
    assert "multiples of 128" in refusal(x=tokens(1, 2, 96), w=weights(96))
    assert "gamma_norm_weights" in refusal(fused_norm_type=NormType.RMS_NORM)
    assert "d_head" in refusal(output_layout=QKVOutputLayout.NBSd)
    assert "cos_cache" in refusal(fused_rope=True, **HEADS)
    assert "num_q_heads" in refusal(**rope_options(1, 2))
    assert "qkv_w_scale" in refusal(w=weights(dtype=FP8), quantization_type=QuantizationType.ROW)
    assert "store_output_in_sbuf" in refusal(store_output_in_sbuf=True)
    assert "strided_input_config" in refusal(strided_input_config="dense")
    assert "k_scale" in refusal(ValueError, k_scale=np.ones((128, 1), np.float32))
    cache = np.zeros((1, 4, 32), BF16)
    assert "block_size" in refusal(use_block_kv=True, k_cache=cache, v_cache=cache, **HEADS)
    assert "NCC_INKI016" in refusal(hidden_actual=999)


@pytest.mark.parametrize("kernel", [qkv, qkv_cte, qkv_tkg])
def test_the_compiler_accepts_it_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)
