"""Layers of DeepSeek V3.2 on trn3: RMSNorm to MX, multi-head latent attention, its sparse indexer."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.core.rmsnorm.rmsnorm_mx_prefill import rmsnorm_mx_prefill
from nkilib.core.subkernels.rmsnorm_mx_quantize_tkg import rmsnorm_mx_quantize_tkg
from nkilib.core.utils.common_types import RouterActFnType
from nkilib.experimental.mla.deepseek.mla_qkv_cte import mla_qkv_cte_kernel
from nkilib.experimental.mla.deepseek.mla_sparse_attention_cte import mla_sparse_attention_cte_kernel
from nkilib.experimental.mla.deepseek.mla_vup_oproj_cte import mla_vupmx_oproj_cte_kernel
from nkilib.experimental.qkv.qkv_cte_mla import qkv_mla_mx, qkv_mla_mx_deepseek_v4
from nkilib.experimental.sparse_attention_indexer.sparse_attention_indexer_mx_bf16score import (
    sparse_attention_indexer_mx_bf16score,
)

from . import Case

HIDDEN = 7168
PMAX = 128


def bf16(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "bfloat16")


def codes(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "uint8")


def fp8x4(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "float8_e4m3fn_x4")


def passes(tokens: int, columns: int, count: float) -> float:
    """Return the microseconds in which VectorE reads rows of tokens `count` times, at 1.2 GHz."""
    return -(-tokens // 128) * columns * count / 1.2e3


def norm_prefill(tokens: int, experts: int = 0, lnc: int = 2) -> Case:
    """VectorE and ScalarE share 3.5 passes: squares, norm, out of PSUM, MX, out of PSUM again."""
    arguments = {"hidden_states": bf16(1, tokens, HIDDEN), "gamma": bf16(1, HIDDEN)}
    routed = {
        "router_weights": bf16(HIDDEN, experts),
        "router_bias": bf16(1, experts),
        "top_k": 8,
        "router_act_fn": RouterActFnType.NOAUX_TC,
        "n_group": 8,
        "topk_group": 4,
    }
    return Case(
        "rmsnorm_mx_prefill",
        f"{tokens}x{HIDDEN}" + (f", 8 of {experts} experts" if experts else ""),
        rmsnorm_mx_prefill,
        arguments | (routed if experts else {}),
        hbm_bytes=tokens * (3 * HIDDEN + 512 + 2 * experts) + 2 * HIDDEN * (1 + experts),
        flops={"bfloat16": 2.0 * tokens * HIDDEN * experts},
        other=("Vector", passes(tokens, HIDDEN, 1.75) / lnc),
        lnc=lnc,
        platform="trn3",
    )


def norm_decode(tokens: int, hidden: int) -> Case:
    words = (128, hidden // 512, tokens)
    return Case(
        "rmsnorm_mx_quantize_tkg",
        f"{tokens}x{hidden}",
        rmsnorm_mx_quantize_tkg,
        {
            "input": bf16(tokens, 1, hidden),
            "gamma": bf16(1, hidden),
            "output": bf16(128, tokens, hidden // 128),
            "output_quant": fp8x4(*words),
            "output_scale": codes(*words),
        },
        hbm_bytes=tokens * hidden * 5 + tokens * hidden // 32,
        other=("Vector", passes(tokens, hidden, 1.625)),
        platform="trn3",
    )


def weights(name: str, rows: int, columns: int) -> dict[str, TensorSpec]:
    """Return MX weights with a scale for 128 x 128 elements."""
    return {
        f"{name}_hbm": fp8x4(rows // 4, columns),
        f"{name}_scale_hbm": codes(rows // 128, -(-columns // 128)),
    }


def projections(tokens: int, heads: int) -> Case:
    """QKV of DeepSeek V3: ranks 1536 and 512, heads of 128 + 64, values of 128."""
    first, q, kv = 1536 + 512 + 64, heads * 192, heads * 256
    arguments = {
        "x_hbm": bf16(1, tokens, HIDDEN),
        "q_norm_gamma_hbm": bf16(1, 1536),
        "kv_norm_gamma_hbm": bf16(1, 512),
        "cos_cache_hbm": bf16(1, tokens, 64),
        "sin_cache_hbm": bf16(1, tokens, 64),
        "n_heads": heads,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "kv_lora_rank": 512,
        "qk_lora_rank": 1536,
    }
    macs = HIDDEN * first + 1536 * q + 512 * kv
    return Case(
        "qkv_mla_mx",
        f"{tokens}x{HIDDEN}, {heads} heads",
        qkv_mla_mx,
        arguments | weights("wqkv_a", HIDDEN, first) | weights("wq_b", 1536, q) | weights("wkv_b", 512, kv),
        hbm_bytes=macs + 2 * tokens * (HIDDEN + heads * (192 + 192 + 128)),
        flops={"mxfp8": 2.0 * tokens * macs},
        lnc=2,
        platform="trn3",
    )


def projections_v4(tokens: int, heads: int) -> Case:
    """QKV of DeepSeek V4: rank 1024, heads and the shared latent of 512, 64 of them rotated."""
    first, q = 1024 + 512, heads * 512
    arguments = {
        "x_hbm": bf16(1, tokens, 4096),
        "q_norm_gamma_hbm": bf16(1, 1024),
        "kv_norm_gamma_hbm": bf16(1, 512),
        "cos_cache_hbm": bf16(1, tokens, 64),
        "sin_cache_hbm": bf16(1, tokens, 64),
        "n_heads": heads,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "kv_lora_rank": 448,
        "qk_lora_rank": 1024,
    }
    macs = 4096 * first + 1024 * q
    return Case(
        "qkv_mla_mx_deepseek_v4",
        f"{tokens}x4096, {heads} heads",
        qkv_mla_mx_deepseek_v4,
        arguments | weights("wqkv", 4096, first) | weights("wq_b", 1024, q),
        hbm_bytes=macs + 2 * tokens * (4096 + q + 512),
        flops={"mxfp8": 2.0 * tokens * macs},
        lnc=2,
        platform="trn3",
    )


def absorbed(tokens: int, heads: int) -> Case:
    """QKV of packed rows, with queries lifted to the latents."""
    first, q = 1536 + 512 + 64, heads * 192
    arguments = {
        "x_hbm_mx": TensorSpec((1, tokens, HIDDEN + 512), "float8_e4m3fn"),
        "q_norm_gamma_hbm": bf16(1, 1536),
        "kv_norm_gamma_hbm": bf16(1, 512),
        "wuk_hbm": bf16(128, heads * 512),
        "cos_cache_hbm": bf16(1, tokens, 64),
        "sin_cache_hbm": bf16(1, tokens, 64),
        "n_heads": heads,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "kv_lora_rank": 512,
        "qk_lora_rank": 1536,
    }
    macs = HIDDEN * first + 1536 * q
    return Case(
        "mla_qkv_cte_kernel",
        f"{tokens}x{HIDDEN}, {heads} heads",
        mla_qkv_cte_kernel,
        arguments | weights("wqkv_a", HIDDEN, first) | weights("wq_b", 1536, q),
        hbm_bytes=macs + 2 * heads * 128 * 512 + tokens * (HIDDEN + 2 * heads * 576 + 2 * 576),
        flops={"mxfp8": 2.0 * tokens * macs, "bfloat16": 2.0 * tokens * heads * 128 * 512},
        lnc=2,
        platform="trn3",
    )


def values_and_output(tokens: int, heads: int) -> Case:
    macs = heads * (512 * 128 + 128 * HIDDEN)
    return Case(
        "mla_vupmx_oproj_cte_kernel",
        f"{tokens} tokens, {heads} heads to {HIDDEN}",
        mla_vupmx_oproj_cte_kernel,
        {
            "out_attn_hbm": bf16(1, tokens, heads * 512),
            "wuv_qtz_hbm": fp8x4(heads * 128, 128),
            "wuv_scale_hbm": codes(heads * 4, 1),
            "wo_qtz_hbm": fp8x4(heads * 32, HIDDEN),
            "wo_scale_hbm": codes(heads, HIDDEN // 128),
        },
        hbm_bytes=macs + 2 * tokens * (heads * 512 + HIDDEN),
        flops={"mxfp8": 2.0 * tokens * macs},
        lnc=2,
        platform="trn3",
    )


def latent_operands(queries: int, heads: int, keys: int) -> dict[str, TensorSpec]:
    """The queries of latent attention and its cache, each in a latent and a rotated part."""
    return {
        "q_lift_hbm": bf16(1, queries, heads, 512),
        "q_pe_hbm": bf16(1, queries, heads, 64),
        "c_kv_hbm": bf16(1, keys, 512),
        "k_pe_hbm": bf16(1, keys, 64),
    }


def sparse_attention(queries: int, heads: int, rows: int, keys: int) -> Case:
    """Each query gathers its own rows of the cache, 1152 bytes each; a descriptor takes 14 ns."""
    width = 512 + 64
    return Case(
        "mla_sparse_attention_cte_kernel",
        f"{queries} queries, {heads} heads, {rows} of {keys} keys",
        mla_sparse_attention_cte_kernel,
        {
            **latent_operands(queries, heads, keys),
            "topk_indices_hbm": TensorSpec((1, queries, rows), "int32"),
            "softmax_scale": 0.07,
        },
        hbm_bytes=2 * queries * (heads * (width + 512) + rows * (width + 2)),
        flops={"bfloat16": 2.0 * queries * rows * PMAX * (width + 512)},  # heads fill 128 columns or not
        other=("GpSimd", 0.014 * queries * rows / 2),
        lnc=2,
        platform="trn3",
    )


def dense_attention(queries: int, heads: int, keys: int) -> Case:
    """The heads of all queries with all rows of the cache, of which the last query sees the last."""
    width = 512 + 64
    return Case(
        "mla_sparse_attention_cte_kernel",
        f"dense, {queries} queries, {heads} heads, {keys} keys",
        mla_sparse_attention_cte_kernel,
        {
            **latent_operands(queries, heads, keys),
            "softmax_scale": 0.07,
            "dense": True,
            "q_pos_offset_hbm": TensorSpec((1,), "int32"),
        },
        hbm_bytes=2 * (queries * heads * (width + 512) + keys * width),
        flops={"bfloat16": 2.0 * queries * heads * keys * (width + 512)},
        lnc=2,
        platform="trn3",
    )


def indexer(tokens: int, keys: int, heads: int, k: int) -> Case:
    """TensorE multiplies queries with keys, and adds up the heads by a second product."""
    rank, tiles = 1536, -(-tokens // 128)
    macs = tokens * (HIDDEN * (128 + heads) + rank * heads * 128)
    return Case(
        "sparse_attention_indexer_mx_bf16score",
        f"{tokens} queries, {heads} heads, {k} of {keys} keys",
        sparse_attention_indexer_mx_bf16score,
        {
            "x": bf16(tokens, HIDDEN),
            "wq_b": fp8x4(rank // 4, heads * 128),
            "wk": fp8x4(HIDDEN // 4, 128),
            "k_norm_gamma": bf16(128),
            "k_norm_beta": bf16(128),
            "weights_proj": bf16(heads, HIDDEN),
            "cos": bf16(tokens, 32),
            "sin": bf16(tokens, 32),
            "k_cache": bf16(1, 128, keys),
            "mask": bf16(tokens, keys),
            "n_heads": heads,
            "head_dim": 128,
            "rope_head_dim": 64,
            "index_topk": k,
            "start_pos": keys - tokens,
            "wq_b_scale": codes(rank // 32, heads * 128),
            "wk_scale": codes(HIDDEN // 32, 128),
            "qr_qtz_hbm": TensorSpec((tiles, 128, rank // 512, 128), "uint32"),
            "qr_scale_hbm": codes(tiles, 128, rank // 512, 128),
            "emit_tiled_topk": True,
        },
        hbm_bytes=2 * tokens * (HIDDEN + 3 * keys) + rank * heads * 128,
        flops={"mxfp8": 2.0 * macs, "bfloat16": 2.0 * tokens * keys * heads * 128},
        other=("GpSimd", 4 * keys / 1.2e3 * tokens / 8 / 2),
        lnc=2,
        platform="trn3",
    )


CASES = [
    sparse_attention(32, 16, 2048, 8192),
    sparse_attention(16, 128, 2048, 8192),
    dense_attention(64, 128, 2048),
    indexer(256, 4096, 64, 2048),
    indexer(512, 2048, 64, 512),
    absorbed(2048, 16),
    absorbed(1024, 128),
    values_and_output(2048, 16),
    values_and_output(1024, 128),
    projections(2048, 16),
    projections(1024, 128),
    projections_v4(2048, 16),
    projections_v4(1024, 64),
    norm_prefill(2048),
    norm_prefill(2048, 256),
    norm_decode(128, HIDDEN),
    norm_decode(32, 3072),
]
