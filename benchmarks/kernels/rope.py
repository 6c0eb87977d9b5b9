"""Rotary embeddings of queries and keys."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.core.embeddings.rope import RoPE

from . import Case


def tokens(
    head_dim: int, batch: int, heads: int, sequence: int, contiguous: bool = True, lnc: int = 1
) -> Case:
    """Bound by memory: x in, x out, cos and sin once."""
    angles = TensorSpec((head_dim // 2, batch, sequence), "bfloat16")
    layout = "" if contiguous else " interleaved"
    return Case(
        "RoPE",
        f"{head_dim}x{batch}x{heads}x{sequence}{layout} bf16",
        RoPE,
        {
            "x_in": TensorSpec((head_dim, batch, heads, sequence), "bfloat16"),
            "cos": angles,
            "sin": angles,
            "lnc_shard": lnc > 1,
            "contiguous_layout": contiguous,
        },
        hbm_bytes=2 * (2 * batch * heads * sequence * head_dim + head_dim * batch * sequence),
        lnc=lnc,
    )


CASES = [
    tokens(128, 16, 16, 512),  # 16M elements
    tokens(64, 32, 16, 512, contiguous=False),
    tokens(128, 16, 16, 512, lnc=2),
]
