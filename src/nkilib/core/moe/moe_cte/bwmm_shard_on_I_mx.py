"""The names of a shared intermediate dimension with microscaling weights: one kernel with its hybrid."""

from __future__ import annotations

from typing import Any

import nki
import nki.language as nl
from nkilib.core.moe.moe_cte.bwmm_shard_on_block_mx import bwmm_shard_on_block_mx
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode

blockwise_mm_shard_intermediate_mx = bwmm_shard_on_block_mx  # sizes decide how cores share the work


@nki.jit
def blockwise_mm_shard_intermediate_mx_hybrid(
    conditions: Any,
    hidden_states: Any,
    expert_affinities_masked: Any,
    gate_up_proj_weight: Any,
    down_proj_weight: Any,
    token_position_to_id: Any,
    block_to_expert: Any,
    gate_and_up_proj_bias: Any = None,
    down_proj_bias: Any = None,
    gate_up_proj_scale: Any = None,
    down_proj_scale: Any = None,
    block_size: int | None = None,
    num_static_block: int | None = None,
    gate_up_activations_T: Any = None,
    down_activations: Any = None,
    activation_function: ActFnType = ActFnType.SiLU,
    skip_dma: Any = None,
    compute_dtype: Any = nl.bfloat16,
    is_tensor_update_accumulating: bool = True,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.POST_SCALE,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    checkpoint_activation: bool = False,
    expert_affinity_multiply_on_I: bool = False,
) -> Any:
    """`bwmm_shard_on_block_mx` with num_static_block blocks (default N - E), then a loop. By keyword."""
    static = max(0, block_to_expert.size - gate_up_proj_weight.shape[0])
    return bwmm_shard_on_block_mx(
        hidden_states,
        expert_affinities_masked,
        gate_up_proj_weight,
        down_proj_weight,
        token_position_to_id,
        block_to_expert,
        conditions,
        gate_and_up_proj_bias,
        down_proj_bias,
        gate_up_proj_scale,
        down_proj_scale,
        block_size,
        gate_up_activations_T,
        down_activations,
        activation_function,
        skip_dma,
        compute_dtype,
        is_tensor_update_accumulating,
        expert_affinities_scaling_mode,
        1,
        gate_clamp_upper_limit,
        gate_clamp_lower_limit,
        up_clamp_upper_limit,
        up_clamp_lower_limit,
        checkpoint_activation,
        expert_affinity_multiply_on_I,
        static if num_static_block is None else num_static_block,
    )


__all__ = ["blockwise_mm_shard_intermediate_mx", "blockwise_mm_shard_intermediate_mx_hybrid"]
