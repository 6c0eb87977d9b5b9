"""QKV projection: prefill or decode, whichever the number of tokens and the options ask for."""

from __future__ import annotations

from typing import Any

import nki
from nkilib.core.mlp.mlp_parameters import TKG_BS_SEQLEN_THRESHOLD
from nkilib.core.qkv.qkv_cte import qkv_cte
from nkilib.core.qkv.qkv_ref import qkv_ref
from nkilib.core.qkv.qkv_tkg import qkv_tkg
from nkilib.core.utils.common_types import (
    DtypeMode,
    NormType,
    QKNormConfig,
    QKVOutputLayout,
    QKVWeightLayout,
    QuantizationType,
    check_strided_input,
)
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import is_hbm_buffer
from nkilib.core.utils.projection import FP8

__all__ = ["qkv", "qkv_ref"]


@nki.jit
def qkv(
    input: Any,
    fused_qkv_weights: Any,
    output_layout: QKVOutputLayout = QKVOutputLayout.BSD,
    bias: Any = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    qkv_w_scale: Any = None,
    qkv_in_scale: Any = None,
    fused_residual_add: bool = False,
    mlp_prev: Any = None,
    attention_prev: Any = None,
    fused_norm_type: NormType = NormType.NO_NORM,
    gamma_norm_weights: Any = None,
    layer_norm_bias: Any = None,
    norm_eps: float = 1e-6,
    hidden_actual: int | None = None,
    fused_rope: bool = False,
    cos_cache: Any = None,
    sin_cache: Any = None,
    k_cos_cache: Any = None,
    k_sin_cache: Any = None,
    d_head: int | None = None,
    num_q_heads: int | None = None,
    num_kv_heads: int | None = None,
    k_cache: Any = None,
    v_cache: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    fp8_max: float | None = None,
    fp8_min: float | None = None,
    kv_dtype: Any = None,
    use_block_kv: bool = False,
    transpose_k_cache: bool = False,
    fp8_packed: bool = False,
    block_size: int | None = None,
    slot_mapping: Any = None,
    store_output_in_sbuf: bool = False,
    sbm: Any = None,
    use_auto_allocation: bool = False,
    load_input_with_DMA_transpose: bool = True,
    is_h_dim_4h_transposed: bool = False,
    weight_layout: QKVWeightLayout = QKVWeightLayout.CONTIGUOUS,
    transposed_in: bool = False,
    qk_norm_pre_rope: QKNormConfig | None = None,
    qk_norm_post_rope: QKNormConfig | None = None,
    qk_norm_pre_rope_q_gamma: Any = None,
    qk_norm_pre_rope_k_gamma: Any = None,
    qk_norm_post_rope_q_gamma: Any = None,
    qk_norm_post_rope_k_gamma: Any = None,
    qk_norm_pre_rope_q_beta: Any = None,
    qk_norm_pre_rope_k_beta: Any = None,
    qk_norm_post_rope_q_beta: Any = None,
    qk_norm_post_rope_k_beta: Any = None,
    strided_input_config: Any = None,
    output_hbm: Any = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    q_squared_sum_out: Any = None,
    k_squared_sum_out: Any = None,
    v_squared_sum_out: Any = None,
    is_input_swizzled: bool = False,
) -> Any:
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
    transposed_in. Decode wants H to be a multiple of 128 for each core, and returns (y, input + mlp_prev +
    attention_prev) if there are residuals. The compiler places all tiles, beside those of a manager `sbm`.
    Prefill turns tokens over by DMA if it may (load_input_with_DMA_transpose), if nothing but an RMSNorm of
    bfloat16 comes first and a core has a multiple of 16 tokens, else on TensorE.

    FP8 weights: ROW has qkv_w_scale [1, I] or [128, I] (row 0 counts), and takes input also as [B, S, H + 4],
    FP8 with a float32 scale. STATIC has qkv_in_scale [1, 1] and qkv_w_scale [1, 3] of queries, keys and
    values (also [1, 1] of all), and quantises the tokens. NONE uses FP8 weights as they are.

    MX weights (trn3; H is a multiple of 512) are four-packed, [H / 4, I] of FP8 or FP4 words or [H / 4, I, 4]
    of FP8: row r has elements 4 r ... 4 r + 3 of a column, and with weight_layout MX_INTERLEAVED 2 r, 2 r + 1
    and the same of the other half of H. is_h_dim_4h_transposed (is_input_swizzled is an older name) says that
    input, residuals and norm weights have element 4 r + q at q H / 4 + r. MX: qkv_w_scale [H / 32, I] holds
    E8M0 scales, tokens become MXFP8. STATIC_MX and ROW_MX have the scales of STATIC and ROW; the former
    leaves FP8 tokens [B, S, H] as they are, the latter wants them as [B, S, H + 4].

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
    check_strided_input(strided_input_config)
    kernel_assert(not store_output_in_sbuf, "store_output_in_sbuf: got True, allowed is False")
    after = fused_rope or qk_norm_pre_rope is not None or qk_norm_post_rope is not None
    sums = q_squared_sum_out is not None or k_squared_sum_out is not None or v_squared_sum_out is not None
    cached = k_cache is not None or v_cache is not None or k_scale is not None or use_block_kv
    if input.dtype in FP8 or transposed_in or after or sums or cached or not is_decoded(input):
        return qkv_cte(
            input=input,
            fused_qkv_weights=fused_qkv_weights,
            output_layout=output_layout,
            bias=bias,
            quantization_type=quantization_type,
            qkv_w_scale=qkv_w_scale,
            qkv_in_scale=qkv_in_scale,
            fused_residual_add=fused_residual_add,
            mlp_prev=mlp_prev,
            attention_prev=attention_prev,
            fused_norm_type=fused_norm_type,
            gamma_norm_weights=gamma_norm_weights,
            layer_norm_bias=layer_norm_bias,
            norm_eps=norm_eps,
            hidden_actual=hidden_actual,
            fused_rope=fused_rope,
            cos_cache=cos_cache,
            sin_cache=sin_cache,
            k_cos_cache=k_cos_cache,
            k_sin_cache=k_sin_cache,
            d_head=d_head,
            num_q_heads=num_q_heads,
            num_kv_heads=num_kv_heads,
            k_cache=k_cache,
            v_cache=v_cache,
            k_scale=k_scale,
            v_scale=v_scale,
            fp8_max=fp8_max,
            fp8_min=fp8_min,
            kv_dtype=kv_dtype,
            use_block_kv=use_block_kv,
            transpose_k_cache=transpose_k_cache,
            fp8_packed=fp8_packed,
            block_size=block_size,
            slot_mapping=slot_mapping,
            store_output_in_sbuf=store_output_in_sbuf,
            sbm=sbm,
            use_auto_allocation=use_auto_allocation,
            load_input_with_DMA_transpose=load_input_with_DMA_transpose,
            is_h_dim_4h_transposed=is_h_dim_4h_transposed,
            weight_layout=weight_layout,
            transposed_in=transposed_in,
            qk_norm_pre_rope=qk_norm_pre_rope,
            qk_norm_post_rope=qk_norm_post_rope,
            qk_norm_pre_rope_q_gamma=qk_norm_pre_rope_q_gamma,
            qk_norm_pre_rope_k_gamma=qk_norm_pre_rope_k_gamma,
            qk_norm_post_rope_q_gamma=qk_norm_post_rope_q_gamma,
            qk_norm_post_rope_k_gamma=qk_norm_post_rope_k_gamma,
            qk_norm_pre_rope_q_beta=qk_norm_pre_rope_q_beta,
            qk_norm_pre_rope_k_beta=qk_norm_pre_rope_k_beta,
            qk_norm_post_rope_q_beta=qk_norm_post_rope_q_beta,
            qk_norm_post_rope_k_beta=qk_norm_post_rope_k_beta,
            strided_input_config=strided_input_config,
            output_hbm=output_hbm,
            dtype_mode=dtype_mode,
            q_squared_sum_out=q_squared_sum_out,
            k_squared_sum_out=k_squared_sum_out,
            v_squared_sum_out=v_squared_sum_out,
            is_input_swizzled=is_input_swizzled,
        )
    return qkv_tkg(
        input,
        fused_qkv_weights,
        norm_w=gamma_norm_weights,
        fused_add=fused_residual_add,
        mlp_prev=mlp_prev,
        attn_prev=attention_prev,
        d_head=d_head,
        num_kv_heads=num_kv_heads,
        num_q_heads=num_q_heads,
        output_layout=output_layout,
        eps=norm_eps,
        norm_type=fused_norm_type,
        quantization_type=quantization_type,
        is_h_dim_4h_transposed=is_h_dim_4h_transposed or is_input_swizzled,
        qkv_w_scale=qkv_w_scale,
        qkv_in_scale=qkv_in_scale,
        qkv_bias=bias,
        norm_bias=layer_norm_bias,
        hidden_actual=hidden_actual,
        sbm=sbm,
        weight_layout=weight_layout,
        dtype_mode=dtype_mode,
        output_hbm=output_hbm,
    )


def is_decoded(x: Any) -> bool:
    """Few tokens."""
    return not is_hbm_buffer(x) or x.shape[0] * x.shape[1] <= TKG_BS_SEQLEN_THRESHOLD
