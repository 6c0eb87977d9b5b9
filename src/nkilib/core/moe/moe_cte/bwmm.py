"""The documented entry points of blockwise experts beside `moe_cte`: other parameters, the same engine.

skip_gate_proj and accumulation_dtype are those of `moe_cte`. The release notes name a third option that the
intermediate-sharded ones got with them, use_block128_scales, without a shape or a meaning: it is left out.
"""

from __future__ import annotations

import nki
import nki.language as nl
from nkilib.core.moe.moe_cte.blocks import run_blocks
from nkilib.core.moe.moe_cte.moe_cte_checks import check_accumulation
from nkilib.core.moe.moe_cte.moe_cte_parameters import (
    Arithmetic,
    BlockTables,
    ExpertCheckpoints,
    ExpertTensors,
    ExpertTerms,
    Limits,
    RowOptions,
    experts_parameters,
    slices_of_cores,
    static_block_count,
)
from nkilib.core.moe.moe_cte.moe_cte_utils import BlockShardStrategy, SkipMode
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.types import DTypeLike, Tensor


@nki.jit
def blockwise_mm_baseline_shard_intermediate(
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    block_size: int,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    gate_and_up_proj_bias: Tensor | None = None,
    down_proj_bias: Tensor | None = None,
    gate_up_proj_scale: Tensor | None = None,
    down_proj_scale: Tensor | None = None,
    gate_up_activations_T: Tensor | None = None,
    down_activations: Tensor | None = None,
    activation_function: ActFnType = ActFnType.SiLU,
    skip_dma: SkipMode | None = None,
    compute_dtype: DTypeLike = nl.bfloat16,
    is_tensor_update_accumulating: bool = True,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.POST_SCALE,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    checkpoint_activation: bool = False,
    expert_affinity_multiply_on_I: bool = False,
    skip_gate_proj: bool = False,
    accumulation_dtype: DTypeLike | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Blockwise experts as `moe_cte`, whose docstring describes what is computed.

    Returns out, with checkpoint_activation (out, gate_up_activations_T, down_activations), the last one not
    with expert_affinity_multiply_on_I.
    """
    check_accumulation(accumulation_dtype)
    p = experts_parameters(
        ExpertTensors(hidden_states, expert_affinities_masked, gate_up_proj_weight, down_proj_weight),
        BlockTables(token_position_to_id, block_to_expert, block_size),
        ExpertTerms(gate_and_up_proj_bias, down_proj_bias, gate_up_proj_scale, down_proj_scale),
        Arithmetic(activation_function, compute_dtype, expert_affinities_scaling_mode),
        Limits(gate_clamp_upper_limit, gate_clamp_lower_limit, up_clamp_upper_limit, up_clamp_lower_limit),
        RowOptions(skip_dma, is_tensor_update_accumulating),
        ExpertCheckpoints(
            checkpoint_activation, expert_affinity_multiply_on_I, gate_up_activations_T, down_activations
        ),
        skip_gate=skip_gate_proj,
    )
    return run_blocks(p)


@nki.jit
def blockwise_mm_baseline_shard_intermediate_hybrid(
    conditions: Tensor,
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    block_size: int,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    gate_and_up_proj_bias: Tensor | None = None,
    down_proj_bias: Tensor | None = None,
    gate_up_proj_scale: Tensor | None = None,
    down_proj_scale: Tensor | None = None,
    gate_up_activations_T: Tensor | None = None,
    down_activations: Tensor | None = None,
    activation_function: ActFnType = ActFnType.SiLU,
    skip_dma: SkipMode | None = None,
    compute_dtype: DTypeLike = nl.bfloat16,
    is_tensor_update_accumulating: bool = True,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.POST_SCALE,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    checkpoint_activation: bool = False,
    expert_affinity_multiply_on_I: bool = False,
    num_static_block: int | None = None,
    skip_gate_proj: bool = False,
    accumulation_dtype: DTypeLike | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Blockwise experts as `moe_cte`: num_static_block blocks (default N - E) unrolled, then a dynamic loop.

    conditions [N + 1]: the loop ends at the first block whose condition is 0. Checkpoints as above.
    """
    check_accumulation(accumulation_dtype)
    p = experts_parameters(
        ExpertTensors(hidden_states, expert_affinities_masked, gate_up_proj_weight, down_proj_weight),
        BlockTables(token_position_to_id, block_to_expert, block_size, conditions),
        ExpertTerms(gate_and_up_proj_bias, down_proj_bias, gate_up_proj_scale, down_proj_scale),
        Arithmetic(activation_function, compute_dtype, expert_affinities_scaling_mode),
        Limits(gate_clamp_upper_limit, gate_clamp_lower_limit, up_clamp_upper_limit, up_clamp_lower_limit),
        RowOptions(skip_dma, is_tensor_update_accumulating),
        ExpertCheckpoints(
            checkpoint_activation, expert_affinity_multiply_on_I, gate_up_activations_T, down_activations
        ),
        static_blocks=static_block_count(num_static_block, block_to_expert, gate_up_proj_weight),
        skip_gate=skip_gate_proj,
    )
    return run_blocks(p)


@nki.jit
def blockwise_mm_shard_intermediate_dropping(
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    block_size: int,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    gate_and_up_proj_bias: Tensor | None = None,
    down_proj_bias: Tensor | None = None,
    gate_up_proj_scale: Tensor | None = None,
    down_proj_scale: Tensor | None = None,
    gate_up_activations_T: Tensor | None = None,
    down_activations: Tensor | None = None,
    activation_function: ActFnType = ActFnType.SiLU,
    skip_dma: SkipMode | None = None,
    compute_dtype: DTypeLike = nl.bfloat16,
    is_tensor_update_accumulating: bool = True,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.POST_SCALE,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    checkpoint_activation: bool = True,
    expert_affinity_multiply_on_I: bool = False,
    skip_gate_proj: bool = False,
    accumulation_dtype: DTypeLike | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Blockwise experts as `moe_cte` for layers that drop tokens: a block of any multiple of 128 per expert.

    Returns (out, gate_up_activations_T, down_activations), the last one not with
    expert_affinity_multiply_on_I; without checkpoint_activation (ours) out alone.
    """
    check_accumulation(accumulation_dtype)
    p = experts_parameters(
        ExpertTensors(hidden_states, expert_affinities_masked, gate_up_proj_weight, down_proj_weight),
        BlockTables(token_position_to_id, block_to_expert, block_size),
        ExpertTerms(gate_and_up_proj_bias, down_proj_bias, gate_up_proj_scale, down_proj_scale),
        Arithmetic(activation_function, compute_dtype, expert_affinities_scaling_mode),
        Limits(gate_clamp_upper_limit, gate_clamp_lower_limit, up_clamp_upper_limit, up_clamp_lower_limit),
        RowOptions(skip_dma, is_tensor_update_accumulating),
        ExpertCheckpoints(
            checkpoint_activation, expert_affinity_multiply_on_I, gate_up_activations_T, down_activations
        ),
        skip_gate=skip_gate_proj,
    )
    return run_blocks(p, any_size=True)


@nki.jit
def bwmm_shard_on_block(
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    block_size: int,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    gate_and_up_proj_bias: Tensor | None = None,
    down_proj_bias: Tensor | None = None,
    gate_up_proj_scale: Tensor | None = None,
    down_proj_scale: Tensor | None = None,
    down_activations: Tensor | None = None,
    activation_function: ActFnType = ActFnType.SiLU,
    skip_dma: SkipMode | None = None,
    compute_dtype: DTypeLike = nl.bfloat16,
    is_tensor_update_accumulating: bool = True,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.POST_SCALE,
    n_block_per_iter: int = 1,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    block_sharding_strategy: BlockShardStrategy = BlockShardStrategy.PING_PONG,
) -> Tensor | tuple[Tensor, ...]:
    """Blockwise experts as `moe_cte`, whose docstring describes what is computed.

    Two cores return [T, 2, H], to be summed over the second dimension, unless nothing is accumulated. All is
    in the first slice, as published tests ask; block_sharding_strategy and n_block_per_iter choose nothing.
    down_activations is for kernels that return activations: not this one.
    """
    kernel_assert(
        down_activations is None, "down_activations: got a tensor, this entry point returns no activations"
    )
    p = experts_parameters(
        ExpertTensors(hidden_states, expert_affinities_masked, gate_up_proj_weight, down_proj_weight),
        BlockTables(token_position_to_id, block_to_expert, block_size),
        ExpertTerms(gate_and_up_proj_bias, down_proj_bias, gate_up_proj_scale, down_proj_scale),
        Arithmetic(activation_function, compute_dtype, expert_affinities_scaling_mode),
        Limits(gate_clamp_upper_limit, gate_clamp_lower_limit, up_clamp_upper_limit, up_clamp_lower_limit),
        RowOptions(skip_dma, is_tensor_update_accumulating),
        slices=slices_of_cores(is_tensor_update_accumulating),
    )
    return run_blocks(p)


@nki.jit
def bwmm_shard_on_block_mx(
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    conditions: Tensor | None = None,
    gate_and_up_proj_bias: Tensor | None = None,
    down_proj_bias: Tensor | None = None,
    gate_up_proj_scale: Tensor | None = None,
    down_proj_scale: Tensor | None = None,
    block_size: int | None = None,
    gate_up_activations_T: Tensor | None = None,
    down_activations: Tensor | None = None,
    activation_function: ActFnType = ActFnType.SiLU,
    skip_dma: SkipMode | None = None,
    compute_dtype: DTypeLike = nl.bfloat16,
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
    skip_gate_proj: bool = False,
    accumulation_dtype: DTypeLike | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Blockwise experts with MX weights as `moe_cte`, whose docstring describes what is computed.

    Pass arguments by keyword: their order is not documented. Returns [T + 1, H] or, with skip_token, [T, H];
    sizes decide how two cores share the work, so that n_block_per_iter chooses nothing. With
    checkpoint_activation, or where gate_up_activations_T is given for it, (out, gate_up_activations_T,
    down_activations), the last one not with expert_affinity_multiply_on_I. num_static_block: so many blocks
    are unrolled, the others are left to a loop that ends at the first whose condition is 0.
    """
    kernel_assert(block_size is not None, "block_size: got None, expected a multiple of 256")
    check_accumulation(accumulation_dtype)
    p = experts_parameters(
        ExpertTensors(hidden_states, expert_affinities_masked, gate_up_proj_weight, down_proj_weight),
        BlockTables(token_position_to_id, block_to_expert, block_size or 0, conditions),
        ExpertTerms(gate_and_up_proj_bias, down_proj_bias, gate_up_proj_scale, down_proj_scale),
        Arithmetic(activation_function, compute_dtype, expert_affinities_scaling_mode),
        Limits(gate_clamp_upper_limit, gate_clamp_lower_limit, up_clamp_upper_limit, up_clamp_lower_limit),
        RowOptions(skip_dma, is_tensor_update_accumulating),
        ExpertCheckpoints(
            checkpoint_activation or gate_up_activations_T is not None,
            expert_affinity_multiply_on_I,
            gate_up_activations_T,
            down_activations,
        ),
        static_blocks=num_static_block,
        skip_gate=skip_gate_proj,
    )
    return run_blocks(p)


@nki.jit
def blockwise_mm_shard_intermediate_mx_hybrid(
    conditions: Tensor,
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    gate_and_up_proj_bias: Tensor | None = None,
    down_proj_bias: Tensor | None = None,
    gate_up_proj_scale: Tensor | None = None,
    down_proj_scale: Tensor | None = None,
    block_size: int | None = None,
    num_static_block: int | None = None,
    gate_up_activations_T: Tensor | None = None,
    down_activations: Tensor | None = None,
    activation_function: ActFnType = ActFnType.SiLU,
    skip_dma: SkipMode | None = None,
    compute_dtype: DTypeLike = nl.bfloat16,
    is_tensor_update_accumulating: bool = True,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.POST_SCALE,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    checkpoint_activation: bool = False,
    expert_affinity_multiply_on_I: bool = False,
    skip_gate_proj: bool = False,
    accumulation_dtype: DTypeLike | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """`bwmm_shard_on_block_mx` with num_static_block blocks (default N - E), then a loop. By keyword."""
    kernel_assert(block_size is not None, "block_size: got None, expected a multiple of 256")
    check_accumulation(accumulation_dtype)
    p = experts_parameters(
        ExpertTensors(hidden_states, expert_affinities_masked, gate_up_proj_weight, down_proj_weight),
        BlockTables(token_position_to_id, block_to_expert, block_size or 0, conditions),
        ExpertTerms(gate_and_up_proj_bias, down_proj_bias, gate_up_proj_scale, down_proj_scale),
        Arithmetic(activation_function, compute_dtype, expert_affinities_scaling_mode),
        Limits(gate_clamp_upper_limit, gate_clamp_lower_limit, up_clamp_upper_limit, up_clamp_lower_limit),
        RowOptions(skip_dma, is_tensor_update_accumulating),
        ExpertCheckpoints(
            checkpoint_activation or gate_up_activations_T is not None,
            expert_affinity_multiply_on_I,
            gate_up_activations_T,
            down_activations,
        ),
        static_blocks=static_block_count(num_static_block, block_to_expert, gate_up_proj_weight),
        skip_gate=skip_gate_proj,
    )
    return run_blocks(p)
