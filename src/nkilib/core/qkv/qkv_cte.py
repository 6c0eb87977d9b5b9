"""QKV projection of prefill, with everything that can be fused to it."""

from __future__ import annotations

from typing import Any

import nki
import nki.language as nl
from nkilib.core.qkv.qkv_checks import check
from nkilib.core.qkv.qkv_mx import as_mx
from nkilib.core.qkv.qkv_parameters import (
    Cache,
    HeadNorm,
    QKVParameters,
    Rope,
    output_columns,
    output_shape,
    result_dtype,
)
from nkilib.core.qkv.qkv_prefill import prefill
from nkilib.core.qkv.qkv_ref import qkv_ref as qkv_cte_ref
from nkilib.core.utils.common_types import (
    DtypeMode,
    NormType,
    QKNormConfig,
    QKVOutputLayout,
    QKVWeightLayout,
    QuantizationType,
    check_strided_input,
)
from nkilib.core.utils.kernel_assert import kernel_assert, not_built, value_assert
from nkilib.core.utils.kernel_helpers import (
    get_max_positive_value_for_dtype,
    get_verified_program_sharding_info,
    resolve_dtype_to_nki,
)
from nkilib.core.utils.projection import FP8

__all__ = ["qkv_cte", "qkv_cte_ref"]


@nki.jit
def qkv_cte(
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
    q_squared_sum_out: Any = None,
    k_squared_sum_out: Any = None,
    v_squared_sum_out: Any = None,
    strided_input_config: Any = None,
    output_hbm: Any = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    is_input_swizzled: bool = False,
) -> Any:
    """QKV projection of prefill: `qkv` for any number of tokens, of which cores share the rows.

        y = norm(input + mlp_prev + attention_prev) W + bias

    Arguments, options and results are those of `qkv`, which chooses this kernel for more than 96 tokens and
    for everything that follows the projection: norms of heads, RoPE, caches, squared sums.

    >>> import numpy as np
    >>> x, w = np.ones((1, 130, 128), np.float16), np.full((128, 96), 0.5, np.float16)
    >>> qkv_cte(x, w)[0, 129, :2]
    array([64., 64.], dtype=float16)
    """
    check_strided_input(strided_input_config)
    kernel_assert(not store_output_in_sbuf, "store_output_in_sbuf: got True, allowed is False")
    p = QKVParameters(
        input,
        fused_qkv_weights,
        output_layout,
        bias,
        quantization_type,
        qkv_w_scale,
        qkv_in_scale,
        (mlp_prev, attention_prev) if fused_residual_add else (),
        fused_norm_type,
        gamma_norm_weights,
        layer_norm_bias,
        norm_eps,
        hidden_actual,
        d_head,
        num_q_heads,
        num_kv_heads,
    )
    if fused_rope:
        k_cos = cos_cache if k_cos_cache is None else k_cos_cache
        k_sin = sin_cache if k_sin_cache is None else k_sin_cache
        p.rope = Rope((cos_cache, k_cos), (sin_cache, k_sin))
    p.before_rope = head_norm(
        qk_norm_pre_rope,
        (qk_norm_pre_rope_q_gamma, qk_norm_pre_rope_k_gamma),
        (qk_norm_pre_rope_q_beta, qk_norm_pre_rope_k_beta),
    )
    p.after_rope = head_norm(
        qk_norm_post_rope,
        (qk_norm_post_rope_q_gamma, qk_norm_post_rope_k_gamma),
        (qk_norm_post_rope_q_beta, qk_norm_post_rope_k_beta),
    )
    check_companions(k_cache, v_cache, k_scale, v_scale, use_block_kv, block_size)
    if k_cache is not None:
        limits = cache_limits(k_cache, k_scale, fp8_max, fp8_min, kv_dtype)
        p.cache = Cache(
            (k_cache, v_cache),
            (k_scale, v_scale),
            limits[0],
            limits[1],
            transpose_k_cache,
            fp8_packed,
            block_size if use_block_kv else 0,
            slot_mapping,
        )
    p.square_sums = (q_squared_sum_out, k_squared_sum_out, v_squared_sum_out)
    p.transposed_in = transposed_in
    p.dma_transpose = load_input_with_DMA_transpose
    p.output_hbm = output_hbm
    p.dtype_mode = dtype_mode
    as_mx(p, is_h_dim_4h_transposed or is_input_swizzled, weight_layout)
    return run(p)


def run(p: QKVParameters) -> Any:
    """Check, allocate the result, and compute it."""
    get_verified_program_sharding_info("qkv_cte", (0, 1), 2)
    check(p)
    out = p.output_hbm
    if out is None and output_columns(p) > 0:
        out = nl.ndarray(output_shape(p), result_dtype(p), buffer=nl.shared_hbm)
    prefill(p, out)
    if p.cache is None:
        return out
    keys, values = p.cache.tensors
    return (keys, values) if out is None else (out, keys, values)


def head_norm(config: Any, gammas: tuple, betas: tuple) -> Any:
    """The norm of a QKNormConfig; gammas given beside it win over those in it."""
    if config is None:
        return None
    q_gamma = config.q_gamma_norm_weights if gammas[0] is None else gammas[0]
    k_gamma = config.k_gamma_norm_weights if gammas[1] is None else gammas[1]
    skipped = NormType.RMS_NORM_SKIP_GAMMA
    q_gamma = None if config.q_norm == skipped else q_gamma
    k_gamma = None if config.k_norm == skipped else k_gamma
    return HeadNorm((config.q_norm, config.k_norm), (q_gamma, k_gamma), betas, config.eps)


def check_companions(
    k_cache: Any, v_cache: Any, k_scale: Any, v_scale: Any, use_block_kv: bool, block_size: Any
) -> None:
    """What is only allowed together."""
    value_assert(
        (k_cache is None) == (v_cache is None), "k_cache, v_cache: got one of them, both or none are allowed"
    )
    value_assert(
        (k_scale is None) == (v_scale is None), "k_scale, v_scale: got one of them, both or none are allowed"
    )
    value_assert(k_scale is None or k_cache is not None, "k_scale: got one without k_cache and v_cache")
    kernel_assert(not use_block_kv or k_cache is not None, "k_cache: got None, needed by use_block_kv")
    kernel_assert(not use_block_kv or block_size is not None, "block_size: got None, needed by use_block_kv")


def cache_limits(cache: Any, scale: Any, fp8_max: Any, fp8_min: Any, kv_dtype: Any) -> tuple:
    """(largest, smallest) value to store, where keys and values are quantised."""
    if scale is None:
        return (0.0, 0.0)
    largest = fp8_max
    if largest is None:
        dtype = cache.dtype if kv_dtype is None else resolve_dtype_to_nki(kv_dtype)
        if dtype not in FP8:
            not_built(f"kv_dtype={dtype} with k_scale", "quantised caches are FP8; give fp8_max")
        largest = get_max_positive_value_for_dtype(dtype)
    return (float(largest), float(-largest if fp8_min is None else fp8_min))
