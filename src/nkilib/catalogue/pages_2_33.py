"""The pages that release 2.33 added; a row is named after its page."""

from __future__ import annotations

from nkilib.catalogue.rows import CatalogueRow

PAGES_2_33 = [
    CatalogueRow(
        "avg-pooling-3d",
        "experimental.pooling",
        "avg_pooling_3d",
        "2.33",
        backward="avg_pooling_3d_backward",
        also="pool vision video",
    ),
    CatalogueRow("avg-pooling-3d-backward", "experimental.pooling", "avg_pooling_3d_backward", "2.33"),
    CatalogueRow(
        "max-pooling-3d",
        "experimental.pooling",
        "max_pooling_3d",
        "2.33",
        backward="max_pooling_3d_backward",
        also="pool vision video",
    ),
    CatalogueRow("max-pooling-3d-backward", "experimental.pooling", "max_pooling_3d_backward", "2.33"),
    CatalogueRow(
        "batch-norm-bwd", "experimental.batch_norm", "batch_norm_bwd", "2.33", also="batchnorm gradient"
    ),
    CatalogueRow(
        "conv3d-bwd",
        "experimental.conv.conv3d_bwd",
        "conv3d_bwd",
        "2.33",
        also="convolution video gradient",
    ),
    CatalogueRow(
        "flash-attention-2",
        "experimental.attention.flash_attention2_trn3",
        "flash_attention_2 FlashAttentionConfig",
        "2.33",
        backward="attention_bwd",
        also="sdpa bidirectional",
    ),
    CatalogueRow(
        "attention-const-max",
        "experimental.attention.attention_const_max",
        "attention_const_max AttentionLayout",
        "2.33",
        also="flash sdpa bidirectional",
    ),
    CatalogueRow(
        "gdn-cte",
        "experimental.gdn",
        "gdn_cte",
        "2.33",
        backward="gdn_cte_bwd",
        also="gated deltanet linear attention qwen prefill recurrence",
    ),
    CatalogueRow(
        "gdn-tkg", "experimental.gdn", "gdn_tkg", "2.33", also="gated deltanet linear attention qwen decode"
    ),
    CatalogueRow(
        "gdn-block-tkg",
        "experimental.gdn",
        "gdn_block_tkg",
        "2.33",
        also="gated deltanet linear attention qwen decode layer",
    ),
    CatalogueRow(
        "gdn-conv1d",
        "experimental.gdn",
        "gdn_conv1d_prefill gdn_conv1d_decode",
        "2.33",
        backward="gdn_conv1d_prefill_bwd",
        also="gated deltanet causal depthwise convolution qwen",
    ),
    CatalogueRow(
        "chunked-topk",
        "experimental.topk",
        "chunked_topk create_chunked_topk_config ChunkedTopkConfig",
        "2.33",
        also="sampling top-k vocabulary logits",
    ),
    CatalogueRow(
        "gpt-oss-tail-chunked-megakernel",
        "experimental.gpt_oss_tail",
        "gpt_oss_tail_chunked_megakernel",
        "2.33",
        also="sampling top-k top-p temperature lm_head logits token decode",
    ),
    CatalogueRow(
        "deepseek-v32-sparse-indexer",
        "experimental.deepseek_v32.sparse_indexer",
        "deepseek_v32_sparse_indexer",
        "2.33",
        also="lightning indexer sparse attention dsa top-k decode",
    ),
    CatalogueRow(
        "kda-tkg",
        "experimental.attention.kda_tkg",
        "kda_tkg",
        "2.33",
        also="kimi delta linear attention decode",
    ),
    CatalogueRow(
        "kda-block-tkg",
        "experimental.attention.kda_block_tkg",
        "kda_block_tkg",
        "2.33",
        also="kimi delta linear attention decode layer",
    ),
    CatalogueRow(
        "deepseek-v3-router",
        "experimental.deepseek_v32.deepseek_v3_router",
        "deepseek_v3_router RouterOutputs",
        "2.33",
        also="mixture of experts gate noaux_tc group limited decode",
    ),
    CatalogueRow(
        "mlp-deepseek-mx",
        "experimental.deepseekv32_mlp",
        "mlp_deepseek_mx",
        "2.33",
        also="mxfp8 gated mlp shared experts swiglu prefill",
    ),
    CatalogueRow(
        "bwmm-block-mx",
        "experimental.deepseek_v32.moe_cte",
        "bwmm_block_mx",
        "2.33",
        also="mixture of experts mxfp4 mxfp8 blockwise prefill",
    ),
    CatalogueRow(
        "mla-decode-qkv",
        "experimental.deepseek_v32.mla_decode_qkv",
        "mla_decode_qkv",
        "2.33",
        also="multi-head latent attention deepseek projection decode",
    ),
    CatalogueRow(
        "mla-decode-attention",
        "experimental.deepseek_v32.mla_decode_attention",
        "mla_decode_attention",
        "2.33",
        also="multi-head latent sparse attention gather deepseek decode",
    ),
    CatalogueRow(
        "mla-attention-block-gather-decode",
        "experimental.deepseek_v32.mla_attention_block_gather_decode",
        "mla_attention_block_gather_decode",
        "2.33",
        also="multi-head latent sparse attention block deepseek decode",
    ),
]
