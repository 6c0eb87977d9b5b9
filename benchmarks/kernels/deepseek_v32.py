"""Decode of DeepSeek V3.2: latent attention over chosen keys, the router of its experts."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.experimental.deepseek_v32.deepseek_v3_router import deepseek_v3_router
from nkilib.experimental.deepseek_v32.mla_attention_block_gather_decode import (
    mla_attention_block_gather_decode,
)
from nkilib.experimental.deepseek_v32.mla_decode_attention import mla_decode_attention
from nkilib.experimental.deepseek_v32.mla_decode_qkv import mla_decode_qkv
from nkilib.experimental.deepseek_v32.moe_cte import bwmm_block_mx
from nkilib.experimental.deepseek_v32.sparse_indexer import deepseek_v32_sparse_indexer
from nkilib.experimental.deepseekv32_mlp import mlp_deepseek_mx

from . import Case

HIDDEN = 7168


def bf16(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "bfloat16")


def router(tokens: int, experts: int, transposed: bool) -> Case:
    weight = bf16(HIDDEN, experts) if transposed else bf16(experts, HIDDEN)
    given = (bf16(tokens, HIDDEN), weight, TensorSpec((experts,), "float32"), 8, 4, 8, 2.5)
    return Case(
        "deepseek_v3_router",
        f"{tokens}x{HIDDEN}, 8 of {experts} experts" + (", transposed" if transposed else ""),
        deepseek_v3_router,
        given,
        hbm_bytes=2 * HIDDEN * (tokens + experts) + 4 * tokens * experts,
        lnc=2,
    )


def projections(tokens: int, heads: int) -> dict:
    """Arguments of mla_decode_qkv: ranks 1536 and 512, heads of 128 + 64."""
    return {
        "hidden_states": bf16(tokens, HIDDEN),
        "wq_a": bf16(HIDDEN, 1536),
        "q_norm_w": bf16(1536),
        "wq_b": bf16(1536, heads * 192),
        "wkv_a": bf16(HIDDEN, 576),
        "kv_norm_w": bf16(512),
        "cos": bf16(tokens, 32),
        "sin": bf16(tokens, 32),
        "w_uk": bf16(heads, 128, 512),
        "kv_cache": bf16(512, 64, 576),
        "slot_mapping": TensorSpec((tokens,), "int32"),
    }


def projected(tokens: int, heads: int) -> int:
    """Bytes of the weights and tokens of mla_decode_qkv."""
    return 2 * (HIDDEN * (2112 + tokens) + 1536 * heads * 192 + heads * 128 * 512 + tokens * 576)


def attention(tokens: int, heads: int, rows: int) -> dict:
    return {
        "topk_indices": TensorSpec((tokens, rows), "int32"),
        "w_uv": bf16(heads, 512, 128),
        "w_o": bf16(heads * 128, HIDDEN),
        "softmax_scale": 0.07,
    }


def descriptors(tokens: int, rows: int) -> tuple[str, float]:
    """Two cores make a descriptor for each row that is gathered, in 14 ns."""
    return "GpSimd", 0.014 * tokens * rows / 2


def attended(tokens: int, heads: int, rows: int) -> int:
    """Bytes of the rows, weights and results of mla_decode_attention."""
    return 2 * (tokens * rows * 578 + heads * 128 * (512 + HIDDEN) + tokens * HIDDEN)


def qkv(tokens: int, heads: int) -> Case:
    queries = 2 * tokens * heads * 576
    given = projections(tokens, heads) | {"queries_in_sbuf": False}
    moved = projected(tokens, heads) + queries
    return Case("mla_decode_qkv", f"{tokens} tokens, {heads} heads", mla_decode_qkv, given, moved, lnc=2)


def gather(tokens: int, heads: int, rows: int) -> Case:
    given = {
        "q_lift": bf16(512, tokens, heads),
        "q_pe": bf16(64, tokens, heads),
        "kv_cache": bf16(512, 64, 576),
    }
    moved = attended(tokens, heads, rows) + 2 * tokens * heads * 576
    label = f"{tokens} tokens, {heads} heads, {rows} rows"
    given |= attention(tokens, heads, rows)
    other = descriptors(tokens, rows)
    return Case("mla_decode_attention", label, mla_decode_attention, given, moved, other=other, lnc=2)


def block(tokens: int, heads: int, rows: int) -> Case:
    return Case(
        "mla_attention_block_gather_decode",
        f"{tokens} tokens, {heads} heads, {rows} rows",
        mla_attention_block_gather_decode,
        projections(tokens, heads) | attention(tokens, heads, rows),
        projected(tokens, heads) + attended(tokens, heads, rows),
        other=descriptors(tokens, rows),
        lnc=2,
    )


def indexer(tokens: int, slots: int, heads: int, k: int) -> Case:
    """GpSimdE finds the largest scores of eight tokens at a time."""
    rank = 1536
    return Case(
        "deepseek_v32_sparse_indexer",
        f"{tokens} tokens, {heads} heads, {k} of {slots} slots",
        deepseek_v32_sparse_indexer,
        {
            "hidden_states": bf16(tokens, HIDDEN),
            "qr": bf16(tokens, rank),
            "wq_b": TensorSpec((rank // 4, heads * 128), "uint32"),
            "wq_b_scale": TensorSpec((rank // 32, heads * 128), "uint8"),
            "wk": bf16(HIDDEN, 128),
            "k_norm_weight": bf16(128),
            "k_norm_bias": bf16(128),
            "weights_proj": bf16(HIDDEN, heads),
            "hadamard": bf16(128, 128),
            "cos": bf16(tokens, 32),
            "sin": bf16(tokens, 32),
            "key_cache": bf16(tokens, 128, slots),
            "positions": TensorSpec((tokens,), "int32"),
            "index_topk": k,
        },
        hbm_bytes=2 * tokens * slots * (128 + 2) + rank * heads * 132 + 2 * HIDDEN * (128 + heads + tokens),
        flops={"bfloat16": 2.0 * tokens * slots * heads * 128},
        other=("GpSimd", 4 * slots / 1.2e3 * -(-tokens // 16)),
        lnc=2,
        platform="trn3",
    )


def mlp(tokens: int, inner: int) -> Case:
    """The MLP for prefill: packed MX rows, weights with a scale for 128 x 128 elements."""

    def words(rows: int, columns: int) -> TensorSpec:
        return TensorSpec((rows // 4, columns), "float8_e4m3fn_x4")

    def scales(rows: int, columns: int) -> TensorSpec:
        return TensorSpec((rows // 128, columns // 128), "uint8")

    given = {
        "hidden_tensor": TensorSpec((1, tokens, HIDDEN + 512), "float8_e4m3fn"),
        "gate_proj_weights_tensor": words(HIDDEN, inner),
        "up_proj_weights_tensor": words(HIDDEN, inner),
        "down_proj_weights_tensor": words(inner, HIDDEN),
        "gate_w_scale": scales(HIDDEN, inner),
        "up_w_scale": scales(HIDDEN, inner),
        "down_w_scale": scales(inner, HIDDEN),
        "compact_scales": True,
    }
    return Case(
        "mlp_deepseek_mx",
        f"{tokens}x{HIDDEN}, {inner} inner",
        mlp_deepseek_mx,
        given,
        hbm_bytes=3 * HIDDEN * inner + 3 * tokens * HIDDEN,
        flops={"mxfp8": 6.0 * tokens * HIDDEN * inner},
        lnc=2,
        platform="trn3",
    )


def experts(tokens: int, inner: int, count: int, blocks: int) -> Case:
    """Blocks of 256 tokens, MXFP8 weights of each expert."""
    hidden, size = 2048, 256
    tiles = inner // 512
    return Case(
        "bwmm_block_mx",
        f"{blocks} blocks of {size} x {hidden}, {inner} inner, {count} experts",
        bwmm_block_mx,
        {
            "hidden_states": bf16(tokens, hidden),
            "expert_affinities_masked": TensorSpec((tokens * count, 1), "float32"),
            "gate_up_proj_weight": TensorSpec((count, 128, 2, hidden // 512, inner), "float8_e4m3fn_x4"),
            "down_proj_weight": TensorSpec((count, 128, tiles, hidden), "float8_e4m3fn_x4"),
            "token_position_to_id": TensorSpec((blocks * size,), "int32"),
            "block_to_expert": TensorSpec((blocks, 1), "int32"),
            "gate_up_proj_scale": TensorSpec((count, 16, 2, hidden // 512, inner), "uint8"),
            "down_proj_scale": TensorSpec((count, 16, tiles, hidden), "uint8"),
            "block_size": size,
        },
        hbm_bytes=3 * hidden * inner * blocks + 6 * blocks * size * hidden,
        flops={"mxfp8": 6.0 * blocks * size * hidden * inner},
        platform="trn3",
    )


CASES = [
    mlp(2048, 512),
    mlp(512, 2048),
    experts(1024, 512, 4, 6),
    experts(512, 1024, 4, 4),
    indexer(16, 8192, 64, 2048),
    indexer(4, 16384, 64, 2048),
    qkv(16, 16),
    qkv(4, 32),
    gather(16, 16, 2048),
    gather(4, 32, 2048),
]
CASES += [block(16, 16, 2048), block(4, 32, 2048)]
CASES += [router(16, 256, False), router(64, 256, True)]
