"""Mixtures of experts in decode: the experts, some for each token or all of a rank's; and the whole block."""

from __future__ import annotations

from typing import Any

from nki import TensorSpec
from nkilib.core.moe.moe_tkg.moe_tkg import moe_tkg
from nkilib.core.moe_block.moe_block_tkg import moe_block_tkg
from nkilib.core.utils.common_types import ExpertAffinityScaleMode, RouterActFnType

from . import Case


def decode(shape: tuple[int, int, int, int, int], label: str, all_experts: bool, fp8: bool = False) -> Case:
    """T tokens of H, E local experts of I, K for each token; all choices differ."""
    t, h, i, e, k = shape
    dtype, width = ("float8_e4m3", 1) if fp8 else ("bfloat16", 2)
    used, passes = (e, e * t) if all_experts else (t * k, t * k)
    arguments: dict[str, Any] = {
        "hidden_input": TensorSpec((t, h), "bfloat16"),
        "expert_gate_up_weights": TensorSpec((e, h, 2, i), dtype),
        "expert_down_weights": TensorSpec((e, i, h), dtype),
        "expert_affinities": TensorSpec((t, e), "bfloat16"),
        "expert_index": TensorSpec((t, k), "int32"),
        "is_all_expert": all_experts,
        "rank_id": TensorSpec((1, 1), "int32"),
        "expert_affinities_scaling_mode": ExpertAffinityScaleMode.POST_SCALE,
    }
    if fp8:
        arguments["expert_gate_up_weights_scale"] = TensorSpec((e, 2, i), "float32")
        arguments["expert_down_weights_scale"] = TensorSpec((e, h), "float32")
    return Case(
        "moe_tkg",
        f"{t}x{h}, I {i}, {label}",
        moe_tkg,
        arguments,
        hbm_bytes=width * used * 3 * h * i + 2 * 2 * t * h,
        flops={"bfloat16": 2.0 * passes * 3 * h * i},
        lnc=2,
    )


def block(t: int, h: int, i: int, e: int, k: int, shared: int = 0) -> Case:
    """Norm, router over E experts, K for each token, and shared experts of so many columns."""
    arguments: dict[str, Any] = {
        "inp": TensorSpec((t, 1, h), "bfloat16"),
        "gamma": TensorSpec((1, h), "bfloat16"),
        "router_weights": TensorSpec((h, e), "bfloat16"),
        "expert_gate_up_weights": TensorSpec((e, h, 2, i), "bfloat16"),
        "expert_down_weights": TensorSpec((e, i, h), "bfloat16"),
        "top_k": k,
        "router_act_fn": RouterActFnType.SOFTMAX,
        "norm_topk_prob": True,
        "expert_affinities_scaling_mode": ExpertAffinityScaleMode.POST_SCALE,
    }
    if shared:
        arguments["shared_expert_gate_w"] = TensorSpec((h, shared), "bfloat16")
        arguments["shared_expert_up_w"] = TensorSpec((h, shared), "bfloat16")
        arguments["shared_expert_down_w"] = TensorSpec((shared, h), "bfloat16")
    columns = t * k * i + shared
    return Case(
        "moe_block_tkg",
        f"{t}x{h}, I {i}, {k} of {e} experts{', shared' if shared else ''}, bf16",
        moe_block_tkg,
        arguments,
        hbm_bytes=2 * (3 * h * columns + h * e + 2 * t * h + t * e),
        flops={"bfloat16": 2.0 * (t * k * 3 * h * i + 3 * t * h * shared + t * h * e)},
        lnc=2,
    )


CASES = [
    decode((4, 4096, 768, 128, 8), "8 of 128 experts, bf16", all_experts=False),
    decode((4, 4096, 768, 128, 8), "8 of 128 experts, fp8 rows", all_experts=False, fp8=True),
    decode((128, 7168, 256, 8, 8), "all 8 experts, bf16", all_experts=True),
    block(4, 2048, 768, 128, 8),  # Qwen3-30B-A3B
    block(4, 4096, 384, 128, 8, shared=384),
]
