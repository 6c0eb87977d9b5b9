"""Routers of mixtures of experts."""

from __future__ import annotations

from typing import Any

from nki import TensorSpec
from nkilib.core.router_topk.router_topk import router_topk
from nkilib.core.utils.common_types import RouterActFnType
from nkilib.experimental.moe_block.rmsnorm_router_topk_a2av import rmsnorm_router_topk_a2av
from nkilib.experimental.moe_block.rmsnorm_router_topk_tkg import rmsnorm_router_topk_tkg

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


def normalized(kernel: Any, count: int, hidden: int, experts: int, k: int) -> Case:
    """RMSNorm and router: tokens are read and written once."""
    return Case(
        kernel.__name__,
        f"{count} tokens x {hidden}, {k} of {experts} experts bf16",
        kernel,
        {
            "hidden_states": TensorSpec((1, count, hidden), "bfloat16"),
            "gamma": TensorSpec((1, hidden), "bfloat16"),
            "router_weights": TensorSpec((hidden, experts), "bfloat16"),
            "top_k": k,
        },
        hbm_bytes=2 * (2 * count * hidden + hidden * experts + count * experts) + 4 * count * k,
        flops={"bfloat16": 2.0 * count * hidden * experts},
        lnc=2,
    )


CASES = [
    normalized(rmsnorm_router_topk_tkg, 1024, 7168, 256, 8),
    normalized(rmsnorm_router_topk_tkg, 512, 4096, 128, 4),
    normalized(rmsnorm_router_topk_a2av, 128, 7168, 256, 8),
    normalized(rmsnorm_router_topk_a2av, 32, 3072, 32, 4),
    tokens(2048, 7168, 256, 8),  # DeepSeek V3, prefill
    tokens(2048, 7168, 256, 8, lnc=2),
    tokens(64, 4096, 128, 8),  # decode
]
