"""The documented QKV kernels: `qkv_cte` for prefill, `qkv_tkg` for decode, and `qkv`, which chooses one."""

from __future__ import annotations

import nki
import nki.language as nl
from nkilib.core.qkv.qkv_arguments import (
    Projection,
    Quantization,
    Residuals,
    TokenNorm,
    cache_of,
    check_unsupported,
    head_norm,
    projection_parameters,
    rope_of,
)
from nkilib.core.qkv.qkv_mx import as_mx
from nkilib.core.qkv.qkv_parameters import ArgumentNames
from nkilib.core.qkv.qkv_ref import qkv_ref
from nkilib.core.qkv.qkv_run import needs_prefill, run_decode, run_prefill
from nkilib.core.utils.allocator import BufferManager
from nkilib.core.utils.common_types import (
    DtypeMode,
    NormType,
    QKNormConfig,
    QKVOutputLayout,
    QKVWeightLayout,
    QuantizationType,
)
from nkilib.core.utils.types import DTypeLike, Tensor

__all__ = ["qkv", "qkv_cte", "qkv_ref", "qkv_tkg"]

DECODE_NAMES = ArgumentNames(
    "hidden",
    "qkv_w",
    "qkv_bias",
    residual="fused_add",
    residuals=("mlp_prev", "attn_prev"),
    norm="norm_type",
    gamma="norm_w",
    beta="norm_bias",
    eps="eps",
)


@nki.jit
def qkv(
    input: Tensor,
    fused_qkv_weights: Tensor,
    output_layout: QKVOutputLayout = QKVOutputLayout.BSD,
    bias: Tensor | None = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    qkv_w_scale: Tensor | None = None,
    qkv_in_scale: Tensor | None = None,
    fused_residual_add: bool = False,
    mlp_prev: Tensor | None = None,
    attention_prev: Tensor | None = None,
    fused_norm_type: NormType = NormType.NO_NORM,
    gamma_norm_weights: Tensor | None = None,
    layer_norm_bias: Tensor | None = None,
    norm_eps: float = 1e-6,
    hidden_actual: int | None = None,
    fused_rope: bool = False,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    k_cos_cache: Tensor | None = None,
    k_sin_cache: Tensor | None = None,
    d_head: int | None = None,
    num_q_heads: int | None = None,
    num_kv_heads: int | None = None,
    k_cache: Tensor | None = None,
    v_cache: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    fp8_max: float | None = None,
    fp8_min: float | None = None,
    kv_dtype: DTypeLike | None = None,
    use_block_kv: bool = False,
    transpose_k_cache: bool = False,
    fp8_packed: bool = False,
    block_size: int | None = None,
    slot_mapping: Tensor | None = None,
    store_output_in_sbuf: bool = False,
    sbm: BufferManager | None = None,
    use_auto_allocation: bool = False,
    load_input_with_DMA_transpose: bool = True,
    is_h_dim_4h_transposed: bool = False,
    weight_layout: QKVWeightLayout = QKVWeightLayout.CONTIGUOUS,
    transposed_in: bool = False,
    qk_norm_pre_rope: QKNormConfig | None = None,
    qk_norm_post_rope: QKNormConfig | None = None,
    qk_norm_pre_rope_q_gamma: Tensor | None = None,
    qk_norm_pre_rope_k_gamma: Tensor | None = None,
    qk_norm_post_rope_q_gamma: Tensor | None = None,
    qk_norm_post_rope_k_gamma: Tensor | None = None,
    qk_norm_pre_rope_q_beta: Tensor | None = None,
    qk_norm_pre_rope_k_beta: Tensor | None = None,
    qk_norm_post_rope_q_beta: Tensor | None = None,
    qk_norm_post_rope_k_beta: Tensor | None = None,
    strided_input_config: object = None,
    output_hbm: Tensor | None = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    q_squared_sum_out: Tensor | None = None,
    k_squared_sum_out: Tensor | None = None,
    v_squared_sum_out: Tensor | None = None,
    is_input_swizzled: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """QKV projection, y = norm(x) W + bias, with norms of heads, RoPE and the KV cache.

        x = norm(input + mlp_prev + attention_prev)                 # residuals with fused_residual_add
        y = x W * scales + bias
        q, k = norm(RoPE(norm(y_q))), norm(RoPE(norm(y_k)))         # each where asked for
        RoPE: lower cos - upper sin, upper cos + lower sin          # halves of a head

    input [B, S, H] ([B, H, S] if transposed_in; decode: [128, T, H / 128] in SBUF), W [H, I], I = (Nq + 2
    Nkv) d: queries, keys, values. bias [1, I], norm weights [1, H], tables [B, S, d], weights of head norms
    [1, d]. bfloat16 or float16; float32 is rounded to bfloat16. H is a multiple of 128. The result is
    [B, S, I] (BSD), [N, B, S, d] (NBSd) or [N, B, d, S] (NBdS), in the dtype of the input, bfloat16 where
    that is float32 or FP8.

    Up to 96 tokens are decoded, unless an option needs prefill: RoPE, norms of heads, caches, squared sums,
    transposed_in. Decode needs H to be a multiple of 128 for each core, and returns (y, input + mlp_prev +
    attention_prev) if there are residuals. The compiler places all tiles, beside those of a manager `sbm`.
    Prefill transposes tokens by DMA if it may (load_input_with_DMA_transpose), if nothing but an RMSNorm of
    bfloat16 comes first and a core has a multiple of 16 tokens, else on TensorE.

    FP8 weights: ROW has qkv_w_scale [1, I] or [128, I] (row 0 counts), and takes input also as [B, S, H + 4],
    FP8 with a float32 scale. STATIC has qkv_in_scale [1, 1] and qkv_w_scale [1, 3] of queries, keys and
    values (also [1, 1] of all), and quantises the tokens. NONE uses FP8 weights as they are.

    MX weights (trn3; H is a multiple of 512) are four-packed, [H / 4, I] of FP8 or FP4 words or [H / 4, I, 4]
    of FP8: row r has elements 4 r ... 4 r + 3 of a column, and with weight_layout MX_INTERLEAVED 2 r, 2 r + 1
    and the same of the other half of H. is_h_dim_4h_transposed (an older name: is_input_swizzled) means that
    input, residuals and norm weights have element 4 r + q at q H / 4 + r. MX: qkv_w_scale [H / 32, I] holds
    E8M0 scales, tokens become MXFP8. STATIC_MX and ROW_MX have the scales of STATIC and ROW; the former
    leaves FP8 tokens [B, S, H] as they are, the latter needs them as [B, S, H + 4].

    With k_cache and v_cache the result is (q [B, S, Nq d], k_cache, v_cache), without q if there are no query
    heads; caches are written in place, divided by k_scale and v_scale and clipped if these are given. Flat:
    [B, max, Nkv d], keys [B, Nkv d, max] if transpose_k_cache. use_block_kv: token t goes to slot_mapping[t],
    nowhere if that is outside; [blocks, block_size, Nkv d], keys [blocks Nkv, d, block_size] if
    transpose_k_cache, [blocks, block_size / 2, Nkv d, 2] if fp8_packed.

    *_squared_sum_out, float32 with a number for each token, receive the sums of squares of q, k and v after
    the bias, before norms.

    >>> import numpy as np
    >>> x, w = np.ones((2, 3, 128), np.float16), np.full((128, 384), 0.5, np.float16)
    >>> qkv(x, w, QKVOutputLayout.NBSd, d_head=128).shape
    (3, 2, 3, 128)
    """
    check_unsupported(strided_input_config, store_output_in_sbuf)
    p = projection_parameters(
        Projection(input, fused_qkv_weights, bias, output_layout, output_hbm, transposed_in),
        Quantization(quantization_type, qkv_w_scale, qkv_in_scale, dtype_mode),
        TokenNorm(fused_norm_type, gamma_norm_weights, layer_norm_bias, norm_eps, hidden_actual),
        Residuals(bool(fused_residual_add), mlp_prev, attention_prev),
        (d_head, num_q_heads, num_kv_heads),
        ArgumentNames(),
    )
    p.rope = rope_of(fused_rope, (cos_cache, sin_cache), (k_cos_cache, k_sin_cache))
    p.before_rope = head_norm(
        "qk_norm_pre_rope",
        qk_norm_pre_rope,
        (qk_norm_pre_rope_q_gamma, qk_norm_pre_rope_k_gamma),
        (qk_norm_pre_rope_q_beta, qk_norm_pre_rope_k_beta),
    )
    p.after_rope = head_norm(
        "qk_norm_post_rope",
        qk_norm_post_rope,
        (qk_norm_post_rope_q_gamma, qk_norm_post_rope_k_gamma),
        (qk_norm_post_rope_q_beta, qk_norm_post_rope_k_beta),
    )
    p.cache = cache_of(
        (k_cache, v_cache),
        (k_scale, v_scale),
        (fp8_max, fp8_min, kv_dtype),
        (transpose_k_cache, fp8_packed),
        (use_block_kv, block_size, slot_mapping),
    )
    p.square_sums = (q_squared_sum_out, k_squared_sum_out, v_squared_sum_out)
    p.dma_transpose = load_input_with_DMA_transpose
    as_mx(p, is_h_dim_4h_transposed or is_input_swizzled, weight_layout)
    return run_prefill(p) if needs_prefill(p) else run_decode(p)


@nki.jit
def qkv_cte(
    input: Tensor,
    fused_qkv_weights: Tensor,
    output_layout: QKVOutputLayout = QKVOutputLayout.BSD,
    bias: Tensor | None = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    qkv_w_scale: Tensor | None = None,
    qkv_in_scale: Tensor | None = None,
    fused_residual_add: bool = False,
    mlp_prev: Tensor | None = None,
    attention_prev: Tensor | None = None,
    fused_norm_type: NormType = NormType.NO_NORM,
    gamma_norm_weights: Tensor | None = None,
    layer_norm_bias: Tensor | None = None,
    norm_eps: float = 1e-6,
    hidden_actual: int | None = None,
    fused_rope: bool = False,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    k_cos_cache: Tensor | None = None,
    k_sin_cache: Tensor | None = None,
    d_head: int | None = None,
    num_q_heads: int | None = None,
    num_kv_heads: int | None = None,
    k_cache: Tensor | None = None,
    v_cache: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    fp8_max: float | None = None,
    fp8_min: float | None = None,
    kv_dtype: DTypeLike | None = None,
    use_block_kv: bool = False,
    transpose_k_cache: bool = False,
    fp8_packed: bool = False,
    block_size: int | None = None,
    slot_mapping: Tensor | None = None,
    store_output_in_sbuf: bool = False,
    sbm: BufferManager | None = None,
    use_auto_allocation: bool = False,
    load_input_with_DMA_transpose: bool = True,
    is_h_dim_4h_transposed: bool = False,
    weight_layout: QKVWeightLayout = QKVWeightLayout.CONTIGUOUS,
    transposed_in: bool = False,
    qk_norm_pre_rope: QKNormConfig | None = None,
    qk_norm_post_rope: QKNormConfig | None = None,
    qk_norm_pre_rope_q_gamma: Tensor | None = None,
    qk_norm_pre_rope_k_gamma: Tensor | None = None,
    qk_norm_post_rope_q_gamma: Tensor | None = None,
    qk_norm_post_rope_k_gamma: Tensor | None = None,
    qk_norm_pre_rope_q_beta: Tensor | None = None,
    qk_norm_pre_rope_k_beta: Tensor | None = None,
    qk_norm_post_rope_q_beta: Tensor | None = None,
    qk_norm_post_rope_k_beta: Tensor | None = None,
    q_squared_sum_out: Tensor | None = None,
    k_squared_sum_out: Tensor | None = None,
    v_squared_sum_out: Tensor | None = None,
    strided_input_config: object = None,
    output_hbm: Tensor | None = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    is_input_swizzled: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """QKV projection of prefill: `qkv` for any number of tokens, of which cores share the rows.

        y = norm(input + mlp_prev + attention_prev) W + bias

    Arguments, options and results are those of `qkv`, which chooses this kernel for more than 96 tokens and
    for everything that follows the projection: norms of heads, RoPE, caches, squared sums.

    >>> import numpy as np
    >>> x, w = np.ones((1, 130, 128), np.float16), np.full((128, 96), 0.5, np.float16)
    >>> qkv_cte(x, w)[0, 129, :2]
    array([64., 64.], dtype=float16)
    """
    check_unsupported(strided_input_config, store_output_in_sbuf)
    p = projection_parameters(
        Projection(input, fused_qkv_weights, bias, output_layout, output_hbm, transposed_in),
        Quantization(quantization_type, qkv_w_scale, qkv_in_scale, dtype_mode),
        TokenNorm(fused_norm_type, gamma_norm_weights, layer_norm_bias, norm_eps, hidden_actual),
        Residuals(bool(fused_residual_add), mlp_prev, attention_prev),
        (d_head, num_q_heads, num_kv_heads),
        ArgumentNames(),
    )
    p.rope = rope_of(fused_rope, (cos_cache, sin_cache), (k_cos_cache, k_sin_cache))
    p.before_rope = head_norm(
        "qk_norm_pre_rope",
        qk_norm_pre_rope,
        (qk_norm_pre_rope_q_gamma, qk_norm_pre_rope_k_gamma),
        (qk_norm_pre_rope_q_beta, qk_norm_pre_rope_k_beta),
    )
    p.after_rope = head_norm(
        "qk_norm_post_rope",
        qk_norm_post_rope,
        (qk_norm_post_rope_q_gamma, qk_norm_post_rope_k_gamma),
        (qk_norm_post_rope_q_beta, qk_norm_post_rope_k_beta),
    )
    p.cache = cache_of(
        (k_cache, v_cache),
        (k_scale, v_scale),
        (fp8_max, fp8_min, kv_dtype),
        (transpose_k_cache, fp8_packed),
        (use_block_kv, block_size, slot_mapping),
    )
    p.square_sums = (q_squared_sum_out, k_squared_sum_out, v_squared_sum_out)
    p.dma_transpose = load_input_with_DMA_transpose
    as_mx(p, is_h_dim_4h_transposed or is_input_swizzled, weight_layout)
    return run_prefill(p)


@nki.jit
def qkv_tkg(
    hidden: Tensor,
    qkv_w: Tensor,
    norm_w: Tensor | None = None,
    fused_add: bool = False,
    mlp_prev: Tensor | None = None,
    attn_prev: Tensor | None = None,
    d_head: int | None = None,
    num_kv_heads: int | None = None,
    num_q_heads: int | None = None,
    output_layout: QKVOutputLayout = QKVOutputLayout.BSD,
    eps: float = 1e-6,
    norm_type: NormType = NormType.RMS_NORM,
    quantization_type: QuantizationType = QuantizationType.NONE,
    is_h_dim_4h_transposed: bool = False,
    qkv_w_scale: Tensor | None = None,
    qkv_in_scale: Tensor | None = None,
    output_in_sbuf: bool = False,
    qkv_bias: Tensor | None = None,
    norm_bias: Tensor | None = None,
    hidden_actual: int | None = None,
    sbm: BufferManager | None = None,
    weight_layout: QKVWeightLayout = QKVWeightLayout.CONTIGUOUS,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    output_hbm: Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """QKV projection of decode: y = norm(hidden + mlp_prev + attn_prev) W + bias.

    hidden [B, S, H] in HBM, or [128, T, H / 128] in SBUF; W [H, I]; up to 512 tokens. y is [B, S, I], [N, B,
    S, d] or [N, B, d, S] by `output_layout`. With fused_add it returns (y, hidden + mlp_prev + attn_prev).
    output_in_sbuf: [T, I] in every core, [d, N, T] with NBdS, of up to 128 tokens.

    Cores share the columns, or a long hidden dimension; H is a multiple of 128 for each. Where hidden and W
    are float32, all is computed in float32, and y is float32. Other options are those of `qkv`. The compiler
    places all tiles, beside those of a manager `sbm`.

    >>> import numpy as np
    >>> x, w = np.ones((4, 1, 256), np.float16), np.full((256, 384), 0.5, np.float16)
    >>> qkv_tkg(x, w, norm_type=NormType.NO_NORM)[3, 0, :2]
    array([128., 128.], dtype=float16)
    """
    p = projection_parameters(
        Projection(hidden, qkv_w, qkv_bias, output_layout, output_hbm),
        Quantization(quantization_type, qkv_w_scale, qkv_in_scale, dtype_mode),
        TokenNorm(norm_type, norm_w, norm_bias, eps, hidden_actual),
        Residuals(fused_add, mlp_prev, attn_prev),
        (d_head, num_q_heads, num_kv_heads),
        DECODE_NAMES,
    )
    p.output_in_sbuf = output_in_sbuf
    p.in_float32 = hidden.dtype == nl.float32 and qkv_w.dtype == nl.float32
    as_mx(p, is_h_dim_4h_transposed, weight_layout)
    return run_decode(p)
