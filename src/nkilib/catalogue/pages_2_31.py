"""The pages that releases 2.31 and 2.32 added; a row is named after its page."""

from __future__ import annotations

from nkilib.catalogue.rows import CatalogueRow

PAGES_2_31 = [
    CatalogueRow(
        "rmsnorm-mx-prefill",
        "core.rmsnorm.rmsnorm_mx_prefill",
        "rmsnorm_mx_prefill",
        "2.32",
        also="layernorm normalization mxfp8 router gating mixture of experts deepseek",
    ),
    CatalogueRow(
        "qkv-cte-mla",
        "experimental.qkv.qkv_cte_mla",
        "qkv_mla_mx qkv_mla_mx_deepseek_v4",
        "2.31",
        also="mla latent attention deepseek projection mxfp8 prefill",
    ),
    CatalogueRow(
        "mla-qkv-cte",
        "experimental.mla.deepseek.mla_qkv_cte",
        "mla_qkv_cte_kernel",
        "2.32",
        also="mla latent attention deepseek projection mxfp8 prefill absorbed",
    ),
    CatalogueRow(
        "mla-vup-oproj-cte",
        "experimental.mla.deepseek.mla_vup_oproj_cte",
        "mla_vupmx_oproj_cte_kernel",
        "2.32",
        also="mla latent attention deepseek output projection mxfp8 prefill",
    ),
    CatalogueRow(
        "mla-sparse-attention-cte",
        "experimental.mla.deepseek.mla_sparse_attention_cte",
        "mla_sparse_attention_cte_kernel MlaPrecision",
        "2.32",
        also="mla latent sparse attention deepseek dsa prefill gather",
    ),
    CatalogueRow(
        "sparse-attention-indexer-mx-bf16score",
        "experimental.sparse_attention_indexer.sparse_attention_indexer_mx_bf16score",
        "sparse_attention_indexer_mx_bf16score",
        "2.32",
        also="mla sparse attention deepseek dsa lightning indexer topk mxfp8 prefill",
    ),
    CatalogueRow(
        "gather", "experimental.misc", "gather", "2.31", backward="gather_bwd", also="embedding lookup"
    ),
    CatalogueRow(
        "scatter-add",
        "experimental.misc",
        "scatter_add",
        "2.31",
        backward="scatter_add_bwd",
        also="index_add",
    ),
    CatalogueRow(
        "rmsnorm-router-topk-tkg",
        "experimental.moe_block.rmsnorm_router_topk_tkg",
        "rmsnorm_router_topk_tkg",
        "2.31",
        also="gating mixture of experts layernorm decode",
    ),
    CatalogueRow(
        "rmsnorm-router-topk-a2av",
        "experimental.moe_block.rmsnorm_router_topk_a2av",
        "rmsnorm_router_topk_a2av",
        "2.31",
        also="gating mixture of experts layernorm decode",
    ),
    CatalogueRow(
        "build-all2all-dispatch-metadata",
        "experimental.moe_block.build_all2all_dispatch_metadata",
        "build_all2all_dispatch_metadata",
        "2.32",
        also="mixture of experts",
    ),
    CatalogueRow(
        "batch-shard",
        "experimental.collectives.batch_shard",
        "attn_q_batch_shard AttnQBatchShardLayout",
        "2.31",
        also="data parallel gqa attention",
    ),
    CatalogueRow(
        "gpsimd-topk",
        "experimental.topk",
        "gpsimd_topk create_gpsimd_topk_config GpsimdTopkConfig",
        "2.32",
        also="sampling",
    ),
    CatalogueRow(
        "conv3d-temporal-unroll",
        "experimental.conv.conv3d_temporal_unroll",
        "conv3d_temporal_unroll should_use_temporal_unroll",
        "2.32",
        backward="conv3d_bwd",
        also="convolution video",
    ),
    CatalogueRow(
        "conv3d-transpose",
        "experimental.conv.conv3d_transpose",
        "conv3d_transpose",
        "2.32",
        backward="conv3d_transpose_bwd",
        also="transposed convolution deconvolution video",
    ),
    CatalogueRow(
        "ms-deformable-attention",
        "experimental.deformable_attention",
        "ms_deformable_attention",
        "2.31",
        backward="ms_deformable_attention_bwd",
        also="vision detector detr bilinear",
    ),
    CatalogueRow(
        "ms-deformable-attention-bwd",
        "experimental.deformable_attention",
        "ms_deformable_attention_bwd",
        "2.31",
        also="vision detector detr gradient",
    ),
    CatalogueRow(
        "permute-a2av",
        "experimental.collectives.a2av_train",
        "permute_a2av",
        "2.31",
        also="mixture of experts dispatch all-to-all training",
    ),
    CatalogueRow(
        "unpermute-a2av",
        "experimental.collectives.a2av_train",
        "unpermute_a2av",
        "2.31",
        also="mixture of experts combine all-to-all training",
    ),
    CatalogueRow(
        "matmul-mxfp8-generic-backward-kernel",
        "experimental.matmul_mxfp8.matmul_mxfp8_generic_backward_kernel",
        "matmul_mxfp8_backward",
        "2.32",
        also="gradient training linear gemm",
    ),
    CatalogueRow(
        "swa-fused-cte",
        "experimental.attention.swa_fused_cte",
        "swa_fused_cte",
        "2.32",
        also="gpt-oss sliding-window sink attention block prefill paged fp8",
    ),
    CatalogueRow(
        "attention-mxfp8-tkg",
        "experimental.attention_mxfp8.attention_mxfp8_tkg",
        "attention_mxfp8_tkg",
        "2.32",
        also="flash sdpa decode speculative paged mqa",
    ),
    CatalogueRow(
        "bwmm-shard-on-block-v2",
        "experimental.moe.moe_cte.bwmm_shard_on_block_v2",
        "bwmm_shard_on_block bwmm_shard_on_block_hybrid compute_same_weights_block_parallel_hbm "
        "load_down_proj_weight load_gate_up_proj_weights compute_block_output reduce_outputs "
        "load_and_transpose_gup_bias shard_strat2blk_idx shard_strat2new_blk_idx_offset "
        "load_and_broadcast_down_bias load_down_bias_raw bwmm_output_initialization bwmm_load_old_block",
        "2.31",
        also="mixture of experts prefill bwmm blockwise block sharding hybrid",
    ),
    CatalogueRow(
        "blockwise-mm-forward-mxfp8",
        "experimental.moe_mxfp8.fwd",
        "blockwise_mm_fwd_mxfp8 MXFP8MOECheckpointConfig",
        "2.32",
        backward="blockwise_mm_bwd_mxfp8",
        also="mixture of experts training dropless",
    ),
    CatalogueRow(
        "blockwise-mm-backward-mxfp8",
        "experimental.moe_mxfp8.bwd",
        "blockwise_mm_bwd_mxfp8",
        "2.31",
        also="mixture of experts training dropless gradient",
    ),
]
