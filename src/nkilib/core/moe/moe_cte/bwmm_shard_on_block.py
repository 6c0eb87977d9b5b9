"""The entry point of blocks that are dealt to cores; the engine is that of moe_cte."""

from __future__ import annotations

from typing import Any

import nki
import nki.language as nl
from nkilib.core.mlp.mlp_parameters import Linear
from nkilib.core.moe.moe_cte.blocks import run_blocks
from nkilib.core.moe.moe_cte.moe_cte_parameters import ExpertsParameters
from nkilib.core.moe.moe_cte.moe_cte_utils import BlockShardStrategy, SkipMode
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.core.utils.kernel_assert import kernel_assert


@nki.jit
def bwmm_shard_on_block(
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
    down_activations: Any = None,
    activation_function: ActFnType = ActFnType.SiLU,
    skip_dma: Any = None,
    compute_dtype: Any = nl.bfloat16,
    is_tensor_update_accumulating: bool = True,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.POST_SCALE,
    n_block_per_iter: int = 1,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    block_sharding_strategy: BlockShardStrategy = BlockShardStrategy.PING_PONG,
) -> Any:
    """Blockwise experts as `moe_cte`, whose docstring tells what is computed.

    Two cores return [T, 2, H], to be summed over the second dimension, unless nothing is accumulated. All is
    in the first slice, as published tests ask; block_sharding_strategy and n_block_per_iter choose nothing.
    down_activations is for kernels that keep activations: not this one.
    """
    kernel_assert(down_activations is None, "down_activations: got a tensor, this entry point keeps nothing")
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
        slices=2 if is_tensor_update_accumulating and nl.num_programs(0) == 2 else 1,
    )
    return run_blocks(p)


__all__ = ["BlockShardStrategy", "SkipMode", "bwmm_shard_on_block"]
