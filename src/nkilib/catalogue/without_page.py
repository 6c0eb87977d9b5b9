"""Kernels without a page: public helpers of the documented library, and extensions of ours."""

from __future__ import annotations

from nkilib.catalogue.rows import EXTENSION, HELPER, CatalogueRow

HELPERS = [
    CatalogueRow(
        HELPER,
        "core.subkernels.rmsnorm_mx_quantize_tkg",
        "rmsnorm_mx_quantize_tkg",
        "2.29",
        also="decode layernorm mxfp8",
    ),
    CatalogueRow(
        HELPER,
        "core.topk.rotational_topk",
        "rotational_topk create_rotational_topk_config RotationalTopkConfig create_topk_config TopkConfig "
        "prepare_rotational_constants cleanup_rotational_constants",
        "2.30",
        also="sampling",
    ),
    CatalogueRow(
        HELPER,
        "core.attention.attention_bwd",
        "attention_bwd",
        "2.28",
        also="flash sdpa gradient training sliding-window sink",
    ),
    CatalogueRow(HELPER, "core.max.cascaded_max", "cascaded_max", "2.31", also="argmax greedy sampling"),
    CatalogueRow(HELPER, "core.subkernels.rmsnorm_tkg", "rmsnorm_tkg", "2.28", also="decode layernorm"),
    CatalogueRow(HELPER, "core.subkernels.layernorm_tkg", "layernorm_tkg", "2.28", also="decode"),
    CatalogueRow(
        HELPER,
        "experimental.benchmark.find_nonzero_indices_with_count",
        "find_nonzero_indices_with_count",
        "2.30",
    ),
    CatalogueRow(
        HELPER,
        "experimental.moe.forward.bwmm_shard_on_H",
        "blockwise_mm_baseline_shard_hidden",
        "2.29",
        backward="blockwise_mm_bwd",
        also="mixture of experts prefill training bwmm bwmm_shard_on_H blockwise",
    ),
    CatalogueRow(HELPER, "core.subkernels.indexed_flatten", "indexed_flatten", "2.32"),
]

EXTENSIONS = [
    CatalogueRow(EXTENSION, "experimental.misc", "gather_bwd scatter_add_bwd"),
    CatalogueRow(
        EXTENSION,
        "experimental.batch_norm",
        "batch_norm",
        backward="batch_norm_bwd",
        also="batchnorm normalization vision video training",
    ),
    CatalogueRow(
        EXTENSION,
        "experimental.norm",
        "rms_norm",
        backward="rms_norm_bwd",
        also="rmsnorm layernorm normalization",
    ),
    CatalogueRow(
        EXTENSION,
        "experimental.norm",
        "layer_norm",
        backward="layer_norm_bwd",
        also="layernorm normalization",
    ),
    CatalogueRow(EXTENSION, "experimental.norm", "rms_norm_bwd layer_norm_bwd", also="gradient training"),
    CatalogueRow(
        EXTENSION, "experimental.mlp_train", "mlp_bwd", also="feed-forward ffn swiglu gradient training"
    ),
    CatalogueRow(
        EXTENSION,
        "experimental.conv.conv_gradients",
        "conv1d_bwd conv3d_transpose_bwd",
        also="convolution gradient training",
    ),
    CatalogueRow(
        EXTENSION,
        "experimental.conv.depthwise_conv1d_bwd",
        "depthwise_conv1d_bwd",
        also="convolution gradient training",
    ),
    CatalogueRow(
        EXTENSION,
        "experimental.gdn",
        "gdn_conv1d_prefill_bwd",
        also="gated deltanet convolution gradient",
    ),
    CatalogueRow(EXTENSION, "experimental.gdn", "gdn_cte_bwd", also="gated deltanet gradient"),
]
