"""The entry point of blocks with microscaling weights; the engine is that of moe_cte."""

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
    block_size: int | None = None,
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
) -> Any:
    """Blockwise experts with MX weights as `moe_cte`, whose docstring tells what is computed.

    Arguments by keyword: no page tells their order. Returns [T + 1, H] or, with skip_token, [T, H]; sizes
    decide how two cores share the work, so that n_block_per_iter chooses nothing.
    """
    return run_mx_blocks(
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
        (gate_up_activations_T, down_activations),
        activation_function,
        skip_dma,
        compute_dtype,
        is_tensor_update_accumulating,
        expert_affinities_scaling_mode,
        Linear(None, None, None, gate_clamp_upper_limit, gate_clamp_lower_limit),
        Linear(None, None, None, up_clamp_upper_limit, up_clamp_lower_limit),
        None,
    )


def run_mx_blocks(
    hidden: Any,
    affinities: Any,
    gate_up: Any,
    down: Any,
    position_to_id: Any,
    block_to_expert: Any,
    conditions: Any,
    gate_up_bias: Any,
    down_bias: Any,
    gate_up_scale: Any,
    down_scale: Any,
    block_size: Any,
    kept: tuple,
    act_fn: ActFnType,
    skip_dma: Any,
    compute_dtype: Any,
    accumulating: bool,
    scaling: ExpertAffinityScaleMode,
    gate: Linear,
    up: Linear,
    static_blocks: Any,
) -> Any:
    """What the MX entry points have in common."""
    kernel_assert(
        kept[0] is None and kept[1] is None,
        "gate_up_activations_T, down_activations: got a tensor, MX experts keep nothing",
    )
    kernel_assert(block_size is not None, "block_size: got None, expected a multiple of 256")
    p = ExpertsParameters(
        hidden=hidden,
        affinities=affinities,
        gate_up=gate_up,
        down=down,
        position_to_id=position_to_id,
        block_to_expert=block_to_expert,
        block_size=block_size,
        conditions=conditions,
        gate=gate,
        up=up,
        gate_up_bias=gate_up_bias,
        down_bias=down_bias,
        gate_up_scale=gate_up_scale,
        down_scale=down_scale,
        act_fn=act_fn,
        skip_token=skip_dma is not None and skip_dma.skip_token,
        compute_dtype=compute_dtype,
        accumulating=accumulating,
        scaling=scaling,
        skip_gate=False,
        static_blocks=static_blocks,
    )
    return run_blocks(p)


__all__ = ["bwmm_shard_on_block_mx"]
