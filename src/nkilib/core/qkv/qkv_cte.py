"""QKV projection of prefill, with everything that can be fused to it."""

from __future__ import annotations

import nki
import nki.language as nl
from nkilib.core.qkv.qkv_arguments import (
    InputNorm,
    Projection,
    Quantization,
    cache_of,
    check_unsupported,
    head_norm,
    projection_parameters,
    rope_of,
)
from nkilib.core.qkv.qkv_checks import check
from nkilib.core.qkv.qkv_mx import as_mx
from nkilib.core.qkv.qkv_parameters import QKVParameters, output_columns, output_shape, result_dtype
from nkilib.core.qkv.qkv_prefill import prefill
from nkilib.core.qkv.qkv_ref import qkv_ref as qkv_cte_ref
from nkilib.core.utils.allocator import BufferManager
from nkilib.core.utils.common_types import (
    DtypeMode,
    NormType,
    QKNormConfig,
    QKVOutputLayout,
    QKVWeightLayout,
    QuantizationType,
)
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.types import DTypeLike, Tensor

__all__ = ["qkv_cte", "qkv_cte_ref"]


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
        InputNorm(fused_norm_type, gamma_norm_weights, layer_norm_bias, norm_eps, hidden_actual),
        (mlp_prev, attention_prev) if fused_residual_add else (),
        (d_head, num_q_heads, num_kv_heads),
    )
    p.rope = rope_of(fused_rope, (cos_cache, sin_cache), (k_cos_cache, k_sin_cache))
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


def run_prefill(p: QKVParameters) -> Tensor | tuple[Tensor, ...]:
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
