"""The one table of the library: which documented kernel has which import path and names.

The docstring of a kernel describes what it computes and takes. A kernel is built if its code exists.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

EXTENSION = "+"  # in place of a page: a kernel that the documented library lacks
HELPER = "-"  # in place of a page: a public function that callers import, without a page

DIFFERENTIABLE = (  # the names of nkilib.autograd, which imports PyTorch
    "RoPE",
    "attention_cte",
    "avg_pooling_3d",
    "conv3d",
    "cross_entropy_forward",
    "gather",
    "gdn_cte",
    "layer_norm",
    "max_pooling_3d",
    "mlp",
    "ms_deformable_attention",
    "rms_norm",
    "scatter_add",
)


class CatalogueRow(NamedTuple):
    """One page of the documentation, a helper without a page, or an extension."""

    page: str  # L01 to L46 of docs/spec/library, then the name of AWS's page
    module: str
    names: str
    release: str = ""  # of the Neuron SDK that introduced it
    backward: str = ""  # the kernel that computes the gradient of the first name
    also: str = ""  # other words that users search for
    meaning: str = ""  # while it is not built; afterwards its docstring has it


TABLE = [
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
    CatalogueRow("L21", "experimental.conv.conv1d", "conv1d", "2.29", also="convolution"),
    CatalogueRow(
        "L22",
        "experimental.conv.conv3d",
        "conv3d",
        "2.30",
        backward="conv3d_bwd",
        also="convolution video",
    ),
    CatalogueRow("L23", "experimental.conv.depthwise_conv1d", "depthwise_conv1d_implicit_gemm", "2.28"),
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
    CatalogueRow("L29", "experimental.matmul_mxfp8.matmul_mxfp8_generic_kernel", "matmul_mxfp8", "2.30"),
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
        "mla_sparse_attention_cte_kernel",
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
        HELPER,
        "core.subkernels.rmsnorm_mx_quantize_tkg",
        "rmsnorm_mx_quantize_tkg",
        "2.29",
        also="decode layernorm mxfp8",
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
        "conv3d-temporal-unroll",
        "experimental.conv.conv3d_temporal_unroll",
        "conv3d_temporal_unroll should_use_temporal_unroll",
        "2.32",
        also="convolution video",
    ),
    CatalogueRow(
        "conv3d-transpose",
        "experimental.conv.conv3d_transpose",
        "conv3d_transpose",
        "2.32",
        also="transposed convolution deconvolution video",
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
        "kda-tkg",
        "experimental.attention.kda_tkg",
        "kda_tkg",
        "2.33",
        also="kimi delta linear attention decode",
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
        HELPER,
        "core.topk",
        "rotational_topk create_rotational_topk_config RotationalTopkConfig",
        "2.30",
        also="sampling",
    ),
    CatalogueRow(
        HELPER,
        "core.attention.attention_bwd",
        "attention_bwd",
        "2.31",
        also="flash sdpa gradient training sliding-window sink",
    ),
    CatalogueRow(HELPER, "core.max", "cascaded_max", "2.31", also="argmax greedy sampling"),
    CatalogueRow(HELPER, "core.subkernels.rmsnorm_tkg", "rmsnorm_tkg", "2.28", also="decode layernorm"),
    CatalogueRow(HELPER, "core.subkernels.layernorm_tkg", "layernorm_tkg", "2.28", also="decode"),
    CatalogueRow(
        HELPER,
        "experimental.benchmark.find_nonzero_indices_with_count",
        "find_nonzero_indices_with_count",
        "2.30",
    ),
    CatalogueRow(HELPER, "core.subkernels.indexed_flatten", "indexed_flatten", "2.32"),
    CatalogueRow(EXTENSION, "experimental.misc", "gather_bwd scatter_add_bwd"),
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
    CatalogueRow(EXTENSION, "experimental.gdn", "gdn_cte_bwd", also="gated deltanet gradient"),
]


@dataclass(frozen=True)
class CatalogueEntry:
    """A public name of the library."""

    name: str
    module: str  # to import it from
    page: str
    meaning: str
    target: Any  # the function or class; None while it is not built
    release: str = ""
    backward: str = ""
    also: str = ""

    @property
    def differentiable(self) -> str:
        """The function of PyTorch that has its gradients; "" if there is none."""
        return f"nkilib.autograd.{self.name}" if self.name in DIFFERENTIABLE else ""

    @property
    def is_built(self) -> bool:
        return self.target is not None

    @property
    def is_documented(self) -> bool:
        """AWS has a page for it."""
        return self.page not in (EXTENSION, HELPER)

    @property
    def is_extension(self) -> bool:
        """The documented library has no such kernel."""
        return self.page == EXTENSION

    @property
    def status(self) -> str:
        return "built" if self.is_built else "not yet"


def register(row: CatalogueRow) -> None:
    """Let the catalogue know a kernel that the documented library lacks: `Row(EXTENSION, module, names)`."""
    TABLE.append(row)
    kernels.cache_clear()


@cache
def kernels() -> tuple[CatalogueEntry, ...]:
    """Every public name, in the order of the documentation. Imports what is built."""
    return tuple(_entry(row, name) for row in TABLE for name in row.names.split())


def _entry(row: CatalogueRow, name: str) -> CatalogueEntry:
    target = _target(row, name)
    meaning = row.meaning if target is None else _first_line(target)
    backward = row.backward if name == row.names.split()[0] else ""
    return CatalogueEntry(
        name, f"nkilib.{row.module}", row.page, meaning, target, row.release, backward, row.also
    )


def _target(row: CatalogueRow, name: str) -> Any:
    """The object of a public name; None if its module or the name in it is not there."""
    path = f"nkilib.{row.module}"
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as missing:
        if missing.name and f"{path}.".startswith(f"{missing.name}."):
            return None
        raise
    found = getattr(module, name, None)
    return found if callable(found) else None


def _first_line(target: Any) -> str:
    return (inspect.getdoc(target) or "").split("\n")[0]


def find(name: str) -> Any:
    """The kernel of this name; AttributeError if there is none, or it is not built."""
    for row in TABLE:
        if name in row.names.split():
            target = _target(row, name)
            if target is None:
                raise AttributeError(f"nkilib: {name} ({row.page}: {row.meaning}) is not built yet")
            return target
    raise AttributeError(f"nkilib has no kernel named {name!r}; `nki kernels` lists them")
