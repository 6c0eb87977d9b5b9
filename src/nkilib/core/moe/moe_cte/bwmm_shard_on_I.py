"""The entry points of a shared intermediate dimension; the engine is that of moe_cte."""

from __future__ import annotations

from typing import Any

import nki
import nki.language as nl
from nkilib.core.mlp.mlp_parameters import Linear
from nkilib.core.moe.moe_cte.blocks import run_blocks
from nkilib.core.moe.moe_cte.moe_cte_parameters import ExpertsParameters
from nkilib.core.moe.moe_cte.moe_cte_utils import SkipMode
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode


@nki.jit
def blockwise_mm_baseline_shard_intermediate(
    hidden_states: Any,
    expert_affinities_masked: Any,
    gate_up_proj_weight: Any,
    down_proj_weight: Any,
    block_size: int,
    token_position_to_id: Any,
    block_to_expert: Any,
    gate_and_up_proj_bias: Any = None,
    down_proj_bias: Any = None,
    gate_up_proj_scale: Any = None,
    down_proj_scale: Any = None,
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
    """Blockwise experts as `moe_cte`, whose docstring tells what is computed.

    Returns out, with checkpoint_activation (out, gate_up_activations_T, down_activations), the last one not
    with expert_affinity_multiply_on_I.
    """
    p = ExpertsParameters(
        hidden=hidden_states,
        affinities=expert_affinities_masked,
        gate_up=gate_up_proj_weight,
        down=down_proj_weight,
        position_to_id=token_position_to_id,
        block_to_expert=block_to_expert,
        block_size=block_size,
        conditions=None,
        gate=Linear(None, None, None, gate_clamp_upper_limit, gate_clamp_lower_limit),
        up=Linear(None, None, None, up_clamp_upper_limit, up_clamp_lower_limit),
        gate_up_bias=gate_and_up_proj_bias,
        down_bias=down_proj_bias,
        gate_up_scale=gate_up_proj_scale,
        down_scale=down_proj_scale,
        act_fn=activation_function,
        skip_token=skip_dma is not None and skip_dma.skip_token,
        compute_dtype=compute_dtype,
        accumulating=is_tensor_update_accumulating,
        scaling=expert_affinities_scaling_mode,
        skip_gate=False,
        checkpoint=checkpoint_activation,
        checkpoint_down=not expert_affinity_multiply_on_I,
        gate_up_checkpoint=gate_up_activations_T,
        down_checkpoint=down_activations,
    )
    return run_blocks(p)


@nki.jit
def blockwise_mm_baseline_shard_intermediate_hybrid(
    conditions: Any,
    hidden_states: Any,
    expert_affinities_masked: Any,
    gate_up_proj_weight: Any,
    down_proj_weight: Any,
    block_size: int,
    token_position_to_id: Any,
    block_to_expert: Any,
    gate_and_up_proj_bias: Any = None,
    down_proj_bias: Any = None,
    gate_up_proj_scale: Any = None,
    down_proj_scale: Any = None,
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
    num_static_block: int | None = None,
) -> Any:
    """Blockwise experts as `moe_cte`: num_static_block blocks (default N - E) unrolled, then a dynamic loop.

    conditions [N + 1]: the loop ends at the first block whose condition is 0. Checkpoints as above.
    """
    default = max(0, block_to_expert.size - gate_up_proj_weight.shape[0])
    p = ExpertsParameters(
        hidden=hidden_states,
        affinities=expert_affinities_masked,
        gate_up=gate_up_proj_weight,
        down=down_proj_weight,
        position_to_id=token_position_to_id,
        block_to_expert=block_to_expert,
        block_size=block_size,
        conditions=conditions,
        gate=Linear(None, None, None, gate_clamp_upper_limit, gate_clamp_lower_limit),
        up=Linear(None, None, None, up_clamp_upper_limit, up_clamp_lower_limit),
        gate_up_bias=gate_and_up_proj_bias,
        down_bias=down_proj_bias,
        gate_up_scale=gate_up_proj_scale,
        down_scale=down_proj_scale,
        act_fn=activation_function,
        skip_token=skip_dma is not None and skip_dma.skip_token,
        compute_dtype=compute_dtype,
        accumulating=is_tensor_update_accumulating,
        scaling=expert_affinities_scaling_mode,
        skip_gate=False,
        checkpoint=checkpoint_activation,
        checkpoint_down=not expert_affinity_multiply_on_I,
        gate_up_checkpoint=gate_up_activations_T,
        down_checkpoint=down_activations,
        static_blocks=default if num_static_block is None else num_static_block,
    )
    return run_blocks(p)


@nki.jit
def blockwise_mm_shard_intermediate_dropping(
    hidden_states: Any,
    expert_affinities_masked: Any,
    gate_up_proj_weight: Any,
    down_proj_weight: Any,
    block_size: int,
    token_position_to_id: Any,
    block_to_expert: Any,
    gate_and_up_proj_bias: Any = None,
    down_proj_bias: Any = None,
    gate_up_proj_scale: Any = None,
    down_proj_scale: Any = None,
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
    checkpoint_activation: bool = True,
    expert_affinity_multiply_on_I: bool = False,
) -> Any:
    """Blockwise experts as `moe_cte` for layers that drop tokens: a block of any multiple of 128 per expert.

    Returns (out, gate_up_activations_T, down_activations), the last one not with
    expert_affinity_multiply_on_I; without checkpoint_activation (ours) out alone.
    """
    p = ExpertsParameters(
        hidden=hidden_states,
        affinities=expert_affinities_masked,
        gate_up=gate_up_proj_weight,
        down=down_proj_weight,
        position_to_id=token_position_to_id,
        block_to_expert=block_to_expert,
        block_size=block_size,
        conditions=None,
        gate=Linear(None, None, None, gate_clamp_upper_limit, gate_clamp_lower_limit),
        up=Linear(None, None, None, up_clamp_upper_limit, up_clamp_lower_limit),
        gate_up_bias=gate_and_up_proj_bias,
        down_bias=down_proj_bias,
        gate_up_scale=gate_up_proj_scale,
        down_scale=down_proj_scale,
        act_fn=activation_function,
        skip_token=skip_dma is not None and skip_dma.skip_token,
        compute_dtype=compute_dtype,
        accumulating=is_tensor_update_accumulating,
        scaling=expert_affinities_scaling_mode,
        skip_gate=False,
        checkpoint=checkpoint_activation,
        checkpoint_down=not expert_affinity_multiply_on_I,
        gate_up_checkpoint=gate_up_activations_T,
        down_checkpoint=down_activations,
    )
    return run_blocks(p, any_size=True)


__all__ = [
    "SkipMode",
    "blockwise_mm_baseline_shard_intermediate",
    "blockwise_mm_baseline_shard_intermediate_hybrid",
    "blockwise_mm_shard_intermediate_dropping",
]
