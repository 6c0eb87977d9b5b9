"""The entry point of experts with microscaling weights; the engine is that of moe_cte."""

from __future__ import annotations

from typing import Any

import nki
import nki.language as nl
from nkilib.core.mlp.mlp_parameters import Linear
from nkilib.core.moe.moe_cte.blocks import run_blocks
from nkilib.core.moe.moe_cte.moe_cte_parameters import ExpertsParameters
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.core.utils.kernel_assert import kernel_assert


@nki.jit
def bwmm_shard_on_block_mx(
    hidden_states: Any,
    expert_affinities_masked: Any,
    gate_up_proj_weight: Any,
    down_proj_weight: Any,
    token_position_to_id: Any,
    block_to_expert: Any,
    conditions: Any = None,
    gate_and_up_proj_bias: Any = None,
    down_proj_bias: Any = None,
    gate_up_proj_scale: Any = None,
    down_proj_scale: Any = None,
    block_size: Any = None,
    gate_up_activations_T: Any = None,
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
    checkpoint_activation: bool = False,
    expert_affinity_multiply_on_I: bool = False,
    num_static_block: int | None = None,
) -> Any:
    """Blockwise experts with MX weights as `moe_cte`, whose docstring tells what is computed.

    Arguments by keyword: no page tells their order. Returns [T + 1, H] or, with skip_token, [T, H]; sizes
    decide how two cores share the work, so that n_block_per_iter chooses nothing. With checkpoint_activation,
    or where gate_up_activations_T is given for it, (out, gate_up_activations_T, down_activations), the last
    one not with expert_affinity_multiply_on_I. num_static_block: so many blocks are unrolled, the others are
    left to a loop that ends at the first whose condition is 0.
    """
    kernel_assert(block_size is not None, "block_size: got None, expected a multiple of 256")
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
        checkpoint=checkpoint_activation or gate_up_activations_T is not None,
        checkpoint_down=not expert_affinity_multiply_on_I,
        gate_up_checkpoint=gate_up_activations_T,
        down_checkpoint=down_activations,
        static_blocks=num_static_block,
    )
    return run_blocks(p)


__all__ = ["bwmm_shard_on_block_mx"]
