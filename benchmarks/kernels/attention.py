"""Prefill attention at the sizes of language models."""

from __future__ import annotations

from typing import Any

from nki import TensorSpec
from nkilib.core.attention.attention_bwd import attention_bwd
from nkilib.core.attention.attention_cte import attention_cte
from nkilib.experimental.attention.attention_const_max import attention_const_max
from nkilib.experimental.attention.flash_attention2_trn3 import flash_attention_2
from nkilib.experimental.attention.swa_fused_cte import swa_fused_cte

from . import Case

TILE = 128  # queries or keys
SCALAR_GHZ = 1.2
TENSOR_GHZ = 2.4  # columns per nanosecond, trn2


def causal(heads: int, key_heads: int, sequence: int, head_dim: int, window: int = 0, lnc: int = 1) -> Case:
    """Bound by TensorE: scores, transposed probabilities and values of every visible pair of tiles.

    A matmul or transpose of two tiles streams 128 columns; the value product streams head_dim of them.
    """
    tiles = sequence // TILE
    seen = [min(tile + 1, -(-window // TILE) + 1 if window else tiles) for tile in range(tiles)]
    columns = heads * sum(seen) * (2 * TILE + head_dim)
    kv = key_heads * sequence * head_dim
    label = f"{heads} heads ({key_heads} kv), {sequence} x {head_dim}"
    return Case(
        "attention_cte",
        label + (f", window {window}" if window else ", causal") + " bf16",
        attention_cte,
        {
            "q": TensorSpec((heads, sequence, head_dim), "bfloat16"),
            "k": TensorSpec((key_heads, head_dim, sequence), "bfloat16"),
            "v": TensorSpec((key_heads, sequence, head_dim), "bfloat16"),
            "sliding_window": window,
        },
        hbm_bytes=2 * (2 * heads * sequence * head_dim + 2 * kv),
        other=("Tensor", columns / TENSOR_GHZ / 1e3 / lnc),
        lnc=lnc,
    )


def gradient(heads: int, key_heads: int, sequence: int, head_dim: int, window: int | None = None) -> Case:
    """Bound by TensorE: five products and a transpose of every visible pair of tiles."""
    tiles = sequence // TILE
    seen = [min(tile + 1, -(-window // TILE) + 1 if window else tiles) for tile in range(tiles)]
    q = TensorSpec((1, heads, head_dim, sequence), "bfloat16")
    k = TensorSpec((1, key_heads, head_dim, sequence), "bfloat16")
    label = f"{heads} heads ({key_heads} kv), {sequence} x {head_dim}"
    return Case(
        "attention_bwd",
        label + (f", window {window}" if window else ", causal") + " bf16",
        attention_bwd,
        {
            "q_ref": q,
            "k_ref": k,
            "v_ref": k,
            "o_ref": q,
            "dy_ref": q,
            "lse_ref": TensorSpec((1, heads, TILE, tiles), "float32"),
            "use_causal_mask": True,
            "sliding_window": window,
        },
        hbm_bytes=2 * sequence * head_dim * (4 * heads + 4 * key_heads),
        other=("Tensor", heads * sum(seen) * 6 * TILE / TENSOR_GHZ / 1e3 / 2),
        lnc=2,
    )


def unmasked(kernel: Any, heads: int, queries: int, keys: int, head_dim: int, platform: str = "trn2") -> Case:
    """Bound by ScalarE, which computes every exponential, one column of 128 keys or queries a cycle."""
    q = (heads, head_dim, queries) if kernel is attention_const_max else (heads, queries, head_dim)
    shapes = (q, (heads, head_dim, keys), (heads, keys, head_dim))
    last = 8.0 if kernel is attention_const_max else head_dim**-0.5
    return Case(
        kernel.__name__,
        f"{heads} heads, {queries} queries, {keys} keys x {head_dim} bf16",
        kernel,
        (*(TensorSpec(shape, "bfloat16") for shape in shapes), last),
        hbm_bytes=4 * heads * (queries + keys) * head_dim,
        flops={"bfloat16": 4.0 * heads * queries * keys * head_dim},
        other=("Scalar", heads * queries * keys / TILE / SCALAR_GHZ / 1e3 / 2),
        lnc=2,
        platform=platform,
    )


def gpt_oss(tokens: int, cache: str = "bfloat16", lnc: int = 1) -> Case:
    """An attention block of GPT-OSS on one of four ranks, bound by TensorE.

    Both projections stream 512 columns for each tile of the contraction; attention as in `causal`.
    """
    hidden, heads, kv_heads, depth, block = 2880, 16, 2, 64, 128
    columns = (heads + 2 * kv_heads) * depth
    tiles = tokens // TILE
    stream = tiles * (-(-hidden // TILE) * columns + heads * depth // TILE * hidden)
    stream += heads * (2 * tiles - 1) * (2 * TILE + depth)
    blocks = 2 * tiles
    packed = cache != "bfloat16"
    k_shape = (blocks, kv_heads, block // 2, depth, 2) if packed else (blocks, kv_heads, block, depth)
    one = TensorSpec((1, 1), "float32")
    return Case(
        "swa_fused_cte",
        f"GPT-OSS block, {tokens} tokens, {cache} cache",
        swa_fused_cte,
        {
            "hidden_states": TensorSpec((1, tokens, hidden), "bfloat16"),
            "qkv_weight": TensorSpec((hidden, columns), "bfloat16"),
            "op_weight": TensorSpec((heads * depth, hidden), "bfloat16"),
            "k_cache": TensorSpec(k_shape, cache),
            "v_cache": TensorSpec((blocks, kv_heads, block, depth), cache),
            "block_tables": TensorSpec((1, blocks), "int32"),
            "cos_cache": TensorSpec((1, tokens, depth), "bfloat16"),
            "sin_cache": TensorSpec((1, tokens, depth), "bfloat16"),
            "sink": TensorSpec((heads, 1), "float32"),
            "prior_tokens": TensorSpec((1, 1), "int32"),
            "qkv_bias": TensorSpec((1, columns), "bfloat16"),
            "op_bias": TensorSpec((1, hidden), "bfloat16"),
            "scale": depth**-0.5,
            **({"k_scale": one, "v_scale": one} if packed else {}),
        },
        hbm_bytes=2 * (2 * tokens * hidden + hidden * (columns + heads * depth)),
        other=("Tensor", stream / TENSOR_GHZ / 1e3 / lnc),
        lnc=lnc,
    )


CASES = [
    unmasked(attention_const_max, 2, 2048, 4096, 128),
    unmasked(attention_const_max, 4, 1024, 2048, 64),
    unmasked(flash_attention_2, 2, 2048, 4096, 128, "trn3"),
    unmasked(flash_attention_2, 4, 1024, 2048, 64, "trn3"),
    causal(1, 1, 4096, 128),
    causal(8, 1, 2048, 128),  # Llama 3 70B, 8 of 64 heads
    causal(8, 1, 2048, 128, lnc=2),
    causal(16, 2, 1024, 64, window=128),  # GPT-OSS
    gradient(8, 2, 2048, 128),
    gradient(16, 2, 1024, 64, window=128),
    gpt_oss(1024),
    gpt_oss(4096, lnc=2),
    gpt_oss(4096, "float8_e4m3", lnc=2),
]
