"""The 46 pages of the specification (docs/spec/library), which were built first."""

from __future__ import annotations

from nkilib.catalogue.rows import CatalogueRow

FIRST_PAGES = [
    CatalogueRow(
        "L01",
        "core.rmsnorm.rmsnorm_quant",
        "rmsnorm_quant_kernel RmsNormQuantKernelArgs",
        "2.27",
        also="layernorm normalization fp8",
    ),
    CatalogueRow("L02", "core.qkv.qkv", "qkv", "2.27", also="projection gqa mqa"),
    CatalogueRow("L02", "core.qkv.qkv_tkg", "qkv_tkg", "2.27"),
    CatalogueRow("L02", "core.qkv.qkv_cte", "qkv_cte", "2.27"),
    CatalogueRow(
        "L03",
        "core.attention.attention_cte",
        "attention_cte",
        "2.27",
        backward="attention_bwd",
        also="flash sdpa prefill sliding-window sink",
    ),
    CatalogueRow(
        "L04",
        "core.attention.attention_segmented_cte",
        "attention_segmented_cte load_kv_cache floor_nisa_kernel ceil_nisa_kernel",
        "2.30",
        also="flash sdpa prefill paged",
    ),
    CatalogueRow(
        "L05", "core.attention.attention_tkg", "attention_tkg AttnTKGConfig", "2.27", also="flash sdpa decode"
    ),
    CatalogueRow(
        "L06",
        "core.attention.attention_kv_parallel_segmented_cte",
        "attention_kv_parallel_segmented_cte",
        "2.30",
        also="flash sdpa prefill",
    ),
    CatalogueRow(
        "L07", "core.embeddings.rope", "RoPE RoPE_sbuf", "2.28", backward="RoPE", also="rotary position"
    ),
    CatalogueRow(
        "L08",
        "core.mlp.mlp",
        "mlp mlp_kernel fused_mlp_isa_kernel",
        "2.27",
        backward="mlp_bwd",
        also="feed-forward ffn swiglu layernorm",
    ),
    CatalogueRow("L09", "core.output_projection.output_projection_cte", "output_projection_cte", "2.27"),
    CatalogueRow("L10", "core.output_projection.output_projection_tkg", "output_projection_tkg", "2.27"),
    CatalogueRow(
        "L11",
        "core.router_topk.router_topk",
        "router_topk router_topk_input_x_load router_topk_input_w_load",
        "2.28",
        also="gating mixture of experts",
    ),
    CatalogueRow(
        "L12",
        "core.moe.moe_cte.moe_cte",
        "moe_cte MoECTESpec MoECTEImplementation QuantizationConfig ShardOnBlockConfig ShardOnIConfig",
        "2.28",
        backward="blockwise_mm_bwd",
        also="mixture of experts prefill bwmm",
    ),
    CatalogueRow("L13", "core.moe.moe_tkg.moe_tkg", "moe_tkg", "2.28", also="mixture of experts decode"),
    CatalogueRow(
        "L14",
        "core.quantization.fp8_quantize",
        "static_quantization row_quantization pre_combine_dequant_scales",
        "2.30",
    ),
    CatalogueRow("L15", "core.cumsum", "cumsum", "2.28", also="prefix sum"),
    CatalogueRow("L16", "core.subkernels.find_nonzero_indices", "find_nonzero_indices", "2.29"),
    CatalogueRow(
        "L17",
        "experimental.transformer.attention_block_tkg",
        "attention_block_tkg",
        "2.28",
        also="flash sdpa decode",
    ),
    CatalogueRow(
        "L18",
        "experimental.attention.ring_attention_fwd",
        "ring_attention_spmd_fwd",
        "2.30",
        backward="ring_attention_spmd_bwd",
        also="flash sdpa context-parallel",
    ),
    CatalogueRow(
        "L19",
        "experimental.attention.ring_attention_bwd",
        "ring_attention_spmd_bwd",
        "2.30",
        also="flash sdpa context-parallel",
    ),
    CatalogueRow(
        "L19", "experimental.attention.ring_attention_unpermute", "ring_attention_unpermute", "2.31"
    ),
    CatalogueRow(
        "L20",
        "experimental.transformer.transformer_tkg",
        "transformer_tkg",
        "2.29",
        also="decode megakernel llama",
    ),
    CatalogueRow(
        "L21", "experimental.conv.conv1d", "conv1d", "2.29", backward="conv1d_bwd", also="convolution"
    ),
    CatalogueRow(
        "L22",
        "experimental.conv.conv3d",
        "conv3d",
        "2.30",
        backward="conv3d_bwd",
        also="convolution video",
    ),
    CatalogueRow(
        "L23",
        "experimental.conv.depthwise_conv1d",
        "depthwise_conv1d_implicit_gemm",
        "2.28",
        backward="depthwise_conv1d_bwd",
        also="convolution mamba causal",
    ),
    CatalogueRow("L24", "experimental.collectives.fg_allgather", "fine_grained_allgather", "2.29"),
    CatalogueRow("L25", "experimental.collectives.fgcc", "allgather_compute_matmul", "2.29"),
    CatalogueRow(
        "L26", "experimental.collectives.sb2sb_allgather", "allgather_sb2sb allgather_sb2sb_tiled", "2.29"
    ),
    CatalogueRow(
        "L26",
        "experimental.collectives.collectives",
        "all_reduce_hbm_kernel all_gather_hbm_kernel reduce_scatter_hbm_kernel "
        "all_to_all_hbm_kernel rank_id_kernel dma_copy_rank_id_kernel",
        "2.31",
    ),
    CatalogueRow(
        "L27",
        "experimental.foreach.foreach_elementwise",
        "add_scalar_kernel sub_scalar_kernel mul_scalar_kernel div_scalar_kernel add_tensor_kernel "
        "sub_tensor_kernel mul_tensor_kernel div_tensor_kernel addcdiv_kernel addcmul_kernel "
        "lerp_kernel sqrt_kernel",
        "2.30",
    ),
    CatalogueRow(
        "L28", "experimental.foreach.foreach_norm", "l2_norm_kernel l1_norm_kernel linf_norm_kernel", "2.30"
    ),
    CatalogueRow(
        "L29",
        "experimental.matmul_mxfp8.matmul_mxfp8_generic_kernel",
        "matmul_mxfp8",
        "2.30",
        backward="matmul_mxfp8_backward",
    ),
    CatalogueRow(
        "L30",
        "experimental.mlp_mxfp8.mlp_fwd_mxfp8.mlp_fwd_mxfp8_kernel",
        "mlp_forward_mxfp8_nki compute_fused_gate_up_down_mxfp8",
        "2.30",
        backward="mlp_backward_mxfp8_nki",
    ),
    CatalogueRow(
        "L31",
        "experimental.mlp_mxfp8.mlp_bwd_mxfp8.mlp_bwd_mxfp8_kernel",
        "mlp_backward_mxfp8_nki mlp_backward_mxfp8_base_nki compute_phase1_down_proj_mm_grad_mxfp8 "
        "compute_phase2_hidden_states_grad_mxfp8 compute_phase3_gate_up_weight_grad_mxfp8 "
        "compute_phase4_down_weight_grad_mxfp8 get_program_sharding_info",
        "2.30",
    ),
    CatalogueRow(
        "L32",
        "core.moe_block.moe_block_tkg",
        "moe_block_tkg",
        "2.29",
        also="mixture of experts decode layernorm",
    ),
    CatalogueRow(
        "L32", "experimental.moe_block.mx_moe_block_tkg_wrapper", "mx_moe_block_tkg_wrapper", "2.30"
    ),
    CatalogueRow(
        "L33", "experimental.optimizer.fused_adam", "adam_kernel adamw_kernel", "2.30", also="adamw"
    ),
    CatalogueRow("L34", "experimental.pad.pad", "pad", "2.30"),
    CatalogueRow(
        "L35",
        "experimental.quantize_mxfp8.quantize_mxfp8",
        "quantize_block_mxfp8_kernel should_store_packed_scales",
        "2.30",
    ),
    CatalogueRow(
        "L36",
        "experimental.rng.rng",
        "get_rng_state_gpsimd set_rng_state_gpsimd generate_random",
        "2.30",
        also="random dropout",
    ),
    CatalogueRow("L37", "experimental.scan.linear_scan", "linear_scan", "2.30", also="recurrence"),
    CatalogueRow("L38", "experimental.scan.selective_scan", "selective_scan", "2.30", also="mamba ssm s6"),
    CatalogueRow("L39", "experimental.scan.ssd", "ssd", "2.30", also="mamba2 ssm state-space"),
    CatalogueRow("L40", "experimental.subkernels.topk_reduce", "topk_reduce", "2.29"),
    CatalogueRow("L41", "experimental.subkernels.argsort_unstable", "argsort_unstable", "2.30", also="sort"),
    CatalogueRow(
        "L42", "experimental.subkernels.build_all_to_all_v_metadata", "build_all_to_all_v_metadata", "2.30"
    ),
    CatalogueRow("L43", "experimental.subkernels.permute_routed_tokens", "permute_routed_tokens", "2.30"),
    CatalogueRow("L44", "experimental.dynamic_shapes", "dynamic_elementwise_add", "2.29"),
    CatalogueRow(
        "L45",
        "experimental.loss",
        "cross_entropy_forward cross_entropy_backward",
        "2.28",
        backward="cross_entropy_backward",
    ),
    CatalogueRow(
        "L46",
        "experimental.moe.bwd.blockwise_mm_backward",
        "blockwise_mm_bwd",
        "2.28",
        also="mixture of experts",
    ),
]
