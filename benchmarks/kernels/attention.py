"""Prefill attention at the sizes of language models."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.core.attention.attention_cte import attention_cte

from . import Case

TILE = 128  # queries or keys
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


CASES = [
    causal(1, 1, 4096, 128),
    causal(8, 1, 2048, 128),  # Llama 3 70B, 8 of 64 heads
    causal(8, 1, 2048, 128, lnc=2),
    causal(16, 2, 1024, 64, window=128),  # GPT-OSS
]
