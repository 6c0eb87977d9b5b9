"""Mixtures of experts at the sizes of one rank: blocks that routing fills, forward and backward."""

from __future__ import annotations

from dataclasses import replace

from nki import TensorSpec
from nkilib.core.moe.moe_cte.moe_cte import MoECTEImplementation, MoECTESpec, moe_cte
from nkilib.experimental.moe.bwd.blockwise_mm_backward import blockwise_mm_bwd
from nkilib.experimental.moe.moe_cte.bwmm_shard_on_block_v2 import bwmm_shard_on_block

from . import Case


def forward(tokens: int, h: int, i: int, experts: int, k: int, block: int) -> Case:
    """T tokens go to k experts each and fill their blocks: all work is routed work."""
    blocks = tokens * k // block
    arguments = {
        "hidden_states": TensorSpec((tokens + 1, h), "bfloat16"),
        "expert_affinities_masked": TensorSpec(((tokens + 1) * experts, 1), "bfloat16"),
        "gate_up_proj_weight": TensorSpec((experts, h, 2, i), "bfloat16"),
        "down_proj_weight": TensorSpec((experts, i, h), "bfloat16"),
        "token_position_to_id": TensorSpec((blocks * block,), "int32"),
        "block_to_expert": TensorSpec((blocks, 1), "int32"),
        "block_size": block,
        "spec": MoECTESpec(MoECTEImplementation.shard_on_block),
    }
    return Case(
        "moe_cte",
        f"T {tokens}, H {h}, I {i}, E {experts}, K {k}, B {block} bf16",
        moe_cte,
        arguments,
        hbm_bytes=2 * (3 * experts * h * i + 2 * tokens * h),
        flops={"bfloat16": 6.0 * tokens * k * h * i},
        lnc=2,
    )


def sharded(tokens: int, h: int, i: int, experts: int, k: int, block: int) -> Case:
    """Time the same layer by the newer block-sharded kernel, which returns affinities too."""
    plain = forward(tokens, h, i, experts, k, block)
    arguments = {name: value for name, value in plain.arguments.items() if name != "spec"}  # type: ignore[union-attr]
    return replace(
        plain,
        kernel_name="bwmm_shard_on_block",
        kernel=bwmm_shard_on_block,
        arguments=arguments,
        hbm_bytes=plain.hbm_bytes + 2 * tokens * (h + 3 * experts),
    )


def backward(tokens: int, h: int, i: int, experts: int, k: int, block: int) -> Case:
    """Time the backward pass of the same layer: twice the work."""
    blocks = tokens * k // block
    arguments = {
        "hidden_states": TensorSpec((tokens + 1, h), "bfloat16"),
        "expert_affinities_masked": TensorSpec(((tokens + 1) * experts, 1), "bfloat16"),
        "gate_up_proj_weight": TensorSpec((experts, h, 2, i), "bfloat16"),
        "down_proj_weight": TensorSpec((experts, i, h), "bfloat16"),
        "gate_up_proj_act_checkpoint_T": TensorSpec((blocks, 2, i, block), "bfloat16"),
        "down_proj_act_checkpoint": TensorSpec((blocks, block, h), "bfloat16"),
        "token_position_to_id": TensorSpec((blocks * block,), "int32"),
        "block_to_expert": TensorSpec((blocks, 1), "int32"),
        "output_hidden_states_grad": TensorSpec((tokens + 1, h), "bfloat16"),
        "block_size": block,
    }
    saved = tokens * k * (2 * i + h)
    return Case(
        "blockwise_mm_bwd",
        f"T {tokens}, H {h}, I {i}, E {experts}, K {k}, B {block} bf16",
        blockwise_mm_bwd,
        arguments,
        hbm_bytes=2 * (2 * 3 * experts * h * i + 3 * tokens * h + saved),
        flops={"bfloat16": 12.0 * tokens * k * h * i},
        lnc=2,
    )


CASES = [
    forward(4096, 4096, 768, 8, 2, 512),
    forward(1024, 3072, 384, 32, 8, 256),
    sharded(4096, 4096, 768, 8, 2, 512),
    sharded(1024, 3072, 384, 32, 8, 256),
    backward(2048, 4096, 768, 8, 4, 512),
    backward(4096, 3072, 720, 8, 2, 256),
]
