"""Layers of inference with MXFP4 weights on trn3: QKV projection, experts in decode and prefill."""

from __future__ import annotations

from typing import Any

from nki import TensorSpec
from nkilib.core.mlp.mlp import mlp
from nkilib.core.moe.moe_cte.moe_cte import MoECTEImplementation, MoECTESpec, moe_cte
from nkilib.core.moe.moe_tkg.moe_tkg import moe_tkg
from nkilib.core.qkv.qkv import qkv
from nkilib.core.utils.common_types import ExpertAffinityScaleMode, QuantizationType
from nkilib.experimental.moe_block.mx_moe_block_tkg_wrapper import mx_moe_block_tkg_wrapper

from . import Case

FP4 = "float4_e2m1fn_x4"
BITS = 4.25  # of a weight, with its scale


def bf16(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "bfloat16")


def codes(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "uint8")


def projection(tokens: int, h: int, columns: int, lnc: int = 1) -> Case:
    return Case(
        "qkv",
        f"{tokens}x{h}x{columns} mxfp4",
        qkv,
        {
            "input": bf16(1, tokens, h),
            "fused_qkv_weights": TensorSpec((h // 4, columns), FP4),
            "quantization_type": QuantizationType.MX,
            "qkv_w_scale": codes(h // 32, columns),
        },
        hbm_bytes=int(h * columns * BITS / 8) + 2 * tokens * (h + columns),
        flops={"mxfp8": 2.0 * tokens * h * columns},
        lnc=lnc,
        platform="trn3",
    )


def layer(tokens: int, h: int, i: int, lnc: int = 1) -> Case:
    """Time a gated MLP."""
    w = expert_weights(1, h, i)
    half, down = TensorSpec((128, h // 512, i), FP4), TensorSpec(w["down"].shape[1:], FP4)
    return Case(
        "mlp",
        f"{tokens}x{h}, I {i} mxfp4",
        mlp,
        {
            "hidden_tensor": bf16(tokens, 1, h),
            "gate_proj_weights_tensor": half,
            "up_proj_weights_tensor": half,
            "down_proj_weights_tensor": down,
            "quantization_type": QuantizationType.MX,
            "gate_w_scale": codes(16, h // 512, i),
            "up_w_scale": codes(16, h // 512, i),
            "down_w_scale": codes(*w["down_scale"].shape[1:]),
        },
        hbm_bytes=int(3 * h * i * BITS / 8) + 2 * 2 * tokens * h,
        flops={"mxfp8": 6.0 * tokens * h * i},
        lnc=lnc,
        platform="trn3",
    )


def expert_weights(e: int, h: int, i: int) -> dict[str, TensorSpec]:
    rows, tiles = min(128, -(-i // 32) * 8), -(-i // 512)
    return {
        "gate_up": TensorSpec((e, 128, 2, h // 512, i), FP4),
        "down": TensorSpec((e, rows, tiles, h), FP4),
        "gate_up_scale": codes(e, 16, 2, h // 512, i),
        "down_scale": codes(e, rows // 8, tiles, h),
    }


def decode(t: int, h: int, i: int, e: int, k: int, all_experts: bool, lnc: int) -> Case:
    """T tokens of H, E local experts of I, K for each token; all choices differ."""
    w, used = expert_weights(e, h, i), e if all_experts else t * k
    return Case(
        "moe_tkg",
        f"{t}x{h}, I {i}, {'all' if all_experts else k} of {e} experts, mxfp4",
        moe_tkg,
        {
            "hidden_input": bf16(t, h),
            "expert_gate_up_weights": w["gate_up"],
            "expert_down_weights": w["down"],
            "expert_gate_up_weights_scale": w["gate_up_scale"],
            "expert_down_weights_scale": w["down_scale"],
            "expert_affinities": bf16(t, e),
            "expert_index": TensorSpec((t, k), "int32"),
            "is_all_expert": all_experts,
            "rank_id": TensorSpec((1, 1), "int32"),
            "expert_affinities_scaling_mode": ExpertAffinityScaleMode.POST_SCALE,
        },
        hbm_bytes=int(used * 3 * h * i * BITS / 8) + 2 * 2 * t * h,
        flops={"mxfp8": 2.0 * (e * t if all_experts else t * k) * 3 * h * i},
        lnc=lnc,
        platform="trn3",
    )


def block(t: int, h: int, i: int, e: int, k: int, lnc: int) -> Case:
    """Norm, router over E experts, K for each token."""
    w = expert_weights(e, h, i)
    return Case(
        "mx_moe_block_tkg_wrapper",
        f"{t}x{h}, I {i}, {k} of {e} experts, mxfp4",
        mx_moe_block_tkg_wrapper,
        {
            "inp": bf16(t, 1, h),
            "gamma": bf16(1, h),
            "router_weights": bf16(h, e),
            "expert_gate_up_weights": TensorSpec(w["gate_up"].shape, "uint16"),
            "expert_down_weights": TensorSpec(w["down"].shape, "uint16"),
            "expert_gate_up_weights_scale": w["gate_up_scale"],
            "expert_down_weights_scale": w["down_scale"],
            "top_k": k,
            "expert_affinities_scaling_mode": ExpertAffinityScaleMode.POST_SCALE,
        },
        hbm_bytes=int(t * k * 3 * h * i * BITS / 8) + 2 * (h * e + 2 * t * h + t * e),
        flops={"mxfp8": 2.0 * t * k * 3 * h * i},
        lnc=lnc,
        platform="trn3",
    )


def prefill(t: int, h: int, i: int, e: int, blocks: int, lnc: int) -> Case:
    """Time blocks of 512 positions."""
    w, b = expert_weights(e, h, i), 512
    arguments: dict[str, Any] = {
        "hidden_states": bf16(t + 1, h),
        "expert_affinities_masked": bf16((t + 1) * e, 1),
        "gate_up_proj_weight": w["gate_up"],
        "down_proj_weight": w["down"],
        "gate_up_proj_scale": w["gate_up_scale"],
        "down_proj_scale": w["down_scale"],
        "token_position_to_id": TensorSpec((blocks * b,), "int32"),
        "block_to_expert": TensorSpec((blocks, 1), "int32"),
        "block_size": b,
        "spec": MoECTESpec(MoECTEImplementation.shard_on_i_mx),
    }
    return Case(
        "moe_cte",
        f"{t}x{h}, I {i}, {blocks} blocks of {e} experts, mxfp4",
        moe_cte,
        arguments,
        hbm_bytes=int(blocks * 3 * h * i * BITS / 8) + 3 * 2 * blocks * b * h,
        flops={"mxfp8": 6.0 * blocks * b * h * i},
        lnc=lnc,
        platform="trn3",
    )


CASES = [
    projection(2048, 4096, 1536),
    projection(4, 4096, 1536),
    layer(4, 4096, 3584),
    layer(4, 4096, 3584, lnc=2),
    decode(4, 3072, 384, 128, 4, all_experts=False, lnc=1),  # GPT-OSS 120B, one rank of eight
    decode(4, 3072, 384, 128, 4, all_experts=False, lnc=2),
    decode(128, 3072, 384, 16, 4, all_experts=True, lnc=2),
    block(4, 3072, 384, 128, 4, lnc=1),
    block(4, 3072, 384, 128, 4, lnc=2),
    prefill(4096, 4096, 768, 8, 16, lnc=1),
]
