"""Routers of mixtures of experts."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.core.router_topk.router_topk import router_topk
from nkilib.core.utils.common_types import RouterActFnType

from . import Case


def tokens(count: int, hidden: int, experts: int, k: int, lnc: int = 1) -> Case:
    """Bound by memory, or by the logits' matmul for many tokens and experts."""
    logits = TensorSpec((count, experts), "bfloat16")
    return Case(
        "router_topk",
        f"{count} tokens x {hidden}, {k} of {experts} experts bf16",
        router_topk,
        {
            "x": TensorSpec((count, hidden), "bfloat16"),
            "w": TensorSpec((hidden, experts), "bfloat16"),
            "w_bias": None,
            "router_logits": logits,
            "expert_affinities": logits,
            "expert_index": TensorSpec((count, k), "int32"),
            "act_fn": RouterActFnType.SOFTMAX,
            "k": k,
            "x_hbm_layout": 1,
            "x_sb_layout": 2,
            "router_pre_norm": False,
            "shard_on_tokens": lnc > 1,
        },
        hbm_bytes=2 * (count * hidden + hidden * experts + 2 * count * experts) + 4 * count * k,
        flops={"bfloat16": 2.0 * count * hidden * experts},
        lnc=lnc,
    )


CASES = [
    tokens(2048, 7168, 256, 8),  # DeepSeek V3, prefill
    tokens(2048, 7168, 256, 8, lnc=2),
    tokens(64, 4096, 128, 8),  # decode
]
