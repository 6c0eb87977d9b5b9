"""Which release of the Neuron SDK added which options to kernels that existed before."""

from __future__ import annotations

ADDED = {  # release: {kernel: its new options}
    "2.28": {
        "attention_cte": "cp_strided_q_slicing",
        "mlp": "quantization_type gate_w_scale up_w_scale down_w_scale gate_up_in_scale down_in_scale "
        "quant_clipping_bound gate_clamp_upper_limit gate_clamp_lower_limit up_clamp_upper_limit "
        "up_clamp_lower_limit skip_gate_proj",
        "output_projection_cte": "quantization_type input_scales weight_scales",
        "output_projection_tkg": "quantization_type weight_scale input_scale",
        "qkv": "quantization_type qkv_w_scale qkv_in_scale k_cache v_cache k_scale v_scale fp8_max fp8_min "
        "kv_dtype use_block_kv block_size slot_mapping is_input_swizzled",
        "rmsnorm_quant_kernel": "input_dequant_scale",
    },
    "2.29": {
        "attention_block_tkg": "rmsnorm_QK_pre_rope_W_Q rmsnorm_QK_pre_rope_W_K KVDP KVDP_replica_group "
        "enable_fa_s_prior_tiling",
        "attention_bwd": "bound_min bound_max",
        "attention_cte": "mm_out_dtype bound_min bound_max",
        "attention_tkg": "start_pos_ids",
        "layernorm_tkg": "shard_on_h",
        "mlp": "sbm",
        "moe_tkg": "block_size is_all_expert_dynamic",
        "output_projection_cte": "output_dtype",
        "output_projection_tkg": "sbm",
        "qkv": "is_h_dim_4h_transposed weight_layout",
        "rmsnorm_tkg": "shard_on_h",
    },
    "2.30": {
        "attention_block_tkg": "transposed_in is_h_transposed_by_4 KVDP_collective_mode pos_ids "
        "swa_start_pos_ids S_ctx",
        "attention_bwd": "transpose_dv cp_offset",
        "attention_cte": "cp_striped_input skip_output_normalization",
        "blockwise_mm_bwd": "skip_grad_initialization blocking_params",
        "mlp": "mode mx_dummy_scale_hbm transposed_in transposed_out",
        "moe_block_tkg": "expert_gate_up_input_scale expert_down_input_scale is_all_expert_dynamic "
        "block_size inp_layout outp_layout",
        "moe_cte": "gate_up_proj_scale down_proj_scale",
        "moe_tkg": "expert_gate_up_input_scale expert_down_input_scale input_dequant_scale "
        "all_to_all_v_strategy outp_layout",
        "qkv": "k_cos_cache k_sin_cache transpose_k_cache transposed_in qk_norm_pre_rope qk_norm_post_rope "
        "strided_input_config output_hbm",
        "rmsnorm_quant_kernel": "pre_norm_gamma residual auto_resolve_fp8_dtype",
        "transformer_tkg": "attention_mask",
    },
    "2.31": {
        "attention_block_tkg": "fp8_packed KVDP_rank max_context_len dtype_mode",
        "attention_cte": "position_bias bias_layout bias_band_params",
        "attention_segmented_cte": "fp8_packed kvp_q_offset kvp_rank_id kvp_group_size kvp_cp_offset_int "
        "kvp_seg_block_offset_int",
        "attention_tkg": "max_context_len dtype_mode",
        "blockwise_mm_bwd": "hidden_states_grad_out expert_affinities_masked_grad_out "
        "gate_up_proj_weight_grad_out down_proj_weight_grad_out accumulation_dtype",
        "matmul_mxfp8": "load_with_PE_swizzle lhs_is_f_by_k rhs_is_f_by_k",
        "mlp": "use_contiguous_x4_gate_up dtype_mode gate_up_w_layout",
        "moe_cte": "gate_up_in_scale down_in_scale",
        "moe_tkg": "output_layout output dtype_mode",
        "output_projection_cte": "dtype_mode compact_weight_scales",
        "output_projection_tkg": "dtype_mode",
        "qkv": "fp8_packed dtype_mode",
        "qkv_cte": "fp8_packed dtype_mode",
        "qkv_tkg": "dtype_mode",
        "ring_attention_spmd_bwd": "bound_min bound_max",
        "ring_attention_spmd_fwd": "bound_min bound_max",
        "rmsnorm_quant_kernel": "dtype_mode",
        "topk_reduce": "token_base_index",
        "transformer_tkg": "dtype_mode",
    },
    "2.32": {
        "attention_block_tkg": "CP CP_replica_group CP_collective_mode",
        "attention_kv_parallel_segmented_cte": "apc_mode valid_num_prior_tokens",
        "attention_tkg": "cp_softmax_stats_out",
        "blockwise_mm_bwd": "skip_gate_proj",
        "matmul_mxfp8": "fast_dma_transpose enable_psum_copy_in quant_scheme",
        "moe_cte": "accumulation_dtype skip_gate_proj",
        "qkv": "q_squared_sum_out k_squared_sum_out v_squared_sum_out",
        "qkv_cte": "q_squared_sum_out k_squared_sum_out v_squared_sum_out",
        "rmsnorm_mx_quantize_tkg": "is_static_mx",
    },
    "2.33": {
        "attention_block_tkg": "bound_min bound_max",
        "mla_sparse_attention_cte_kernel": "dense q_pos_offset_hbm precision use_sbuf_indirect",
    },
}


def added_options(kernel: str) -> dict[str, str]:
    """Return {option: release} of the options that came after the kernel."""
    return {option: release for release, of in ADDED.items() for option in of.get(kernel, "").split()}
