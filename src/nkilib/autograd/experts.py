"""Experts and MXFP8 layers of training, with their gradients.

Weights, tokens and affinities have gradients; which token stands in which block has none.
"""

from __future__ import annotations

from typing import Any

import nki.language as nl
from nki.frameworks.torch import differentiable
from nkilib.autograd.first_result import with_gradients
from nkilib.core.moe.moe_cte.moe_cte import MoECTEImplementation, MoECTESpec, ShardOnIConfig
from nkilib.core.moe.moe_cte.moe_cte import moe_cte as forward_experts
from nkilib.core.moe.moe_cte.moe_cte_utils import SkipMode
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.types import DTypeLike
from nkilib.experimental.clamp_limits import ClampLimits
from nkilib.experimental.mlp_mxfp8.mlp_bwd_mxfp8.mlp_bwd_mxfp8_kernel import mlp_backward_mxfp8_nki
from nkilib.experimental.mlp_mxfp8.mlp_fwd_mxfp8.mlp_fwd_mxfp8_kernel import (
    mlp_forward_mxfp8_nki as forward_mlp_mxfp8,
)
from nkilib.experimental.moe.bwd.blockwise_mm_backward import blockwise_mm_bwd
from nkilib.experimental.moe_mxfp8.bwd import blockwise_mm_bwd_mxfp8
from nkilib.experimental.moe_mxfp8.fwd import blockwise_mm_fwd_mxfp8 as forward_experts_mxfp8

SAVING = MoECTESpec(MoECTEImplementation.shard_on_i, shard_on_I=ShardOnIConfig(checkpoint_activation=True))


def _experts_backward(
    dy: Any,
    _saved: Any,
    _results: Any,
    hidden: Any,
    affinities: Any,
    gate_up: Any,
    down: Any,
    ids: Any,
    owners: Any,
    block_size: int,
    gate_up_bias: Any,
    down_bias: Any,
    activation: ActFnType,
    skip_dma: SkipMode | None,
    compute_dtype: DTypeLike,
    gate_upper: float | None,
    gate_lower: float | None,
    up_upper: float | None,
    up_lower: float | None,
    skip_gate: bool,
    _y: Any,
    saved: Any,
    results: Any,
) -> tuple:
    limits = (up_upper, up_lower, gate_upper, gate_lower)
    found: Any = blockwise_mm_bwd(
        hidden,
        affinities,
        gate_up,
        down,
        saved,
        results,
        ids,
        owners,
        dy.contiguous(),
        block_size,
        skip_dma,
        compute_dtype,
        clamp_limits=ClampLimits(*limits) if any(limit is not None for limit in limits) else None,
        bias=gate_up_bias is not None or down_bias is not None,
        activation_type=activation,
        skip_gate_proj=skip_gate,
    )
    biases = [d for bias, d in zip((gate_up_bias, down_bias), found[4:], strict=False) if bias is not None]
    return *found[:4], None, None, *biases


@with_gradients(_experts_backward)
def moe_cte(
    hidden_states: Any,
    expert_affinities_masked: Any,
    gate_up_proj_weight: Any,
    down_proj_weight: Any,
    token_position_to_id: Any,
    block_to_expert: Any,
    block_size: int,
    gate_and_up_proj_bias: Any = None,
    down_proj_bias: Any = None,
    activation_function: ActFnType = ActFnType.SiLU,
    skip_dma: SkipMode | None = None,
    compute_dtype: DTypeLike = nl.bfloat16,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    skip_gate_proj: bool = False,
) -> Any:
    """moe_cte without quantization, whose affinities weigh the results (POST_SCALE)."""
    return forward_experts(
        hidden_states,
        expert_affinities_masked,
        gate_up_proj_weight,
        down_proj_weight,
        token_position_to_id,
        block_to_expert,
        block_size,
        SAVING,
        gate_and_up_proj_bias=gate_and_up_proj_bias,
        down_proj_bias=down_proj_bias,
        activation_function=activation_function,
        skip_dma=skip_dma,
        compute_dtype=compute_dtype,
        gate_clamp_upper_limit=gate_clamp_upper_limit,
        gate_clamp_lower_limit=gate_clamp_lower_limit,
        up_clamp_upper_limit=up_clamp_upper_limit,
        up_clamp_lower_limit=up_clamp_lower_limit,
        skip_gate_proj=skip_gate_proj,
    )


# ---- MXFP8 ---------------------------------------------------------------------------------------


def _experts_mxfp8_backward(
    dy: Any,
    _saved: Any,
    _middle: Any,
    hidden: Any,
    affinities: Any,
    gate_up: Any,
    down: Any,
    ids: Any,
    owners: Any,
    block_size: int,
    dtype: DTypeLike,
    limits: ClampLimits | None,
    _y: Any,
    saved: Any,
    _m: Any,
) -> tuple:
    found: Any = blockwise_mm_bwd_mxfp8(
        hidden,
        affinities,
        gate_up.permute(0, 3, 1, 2).contiguous(),  # the forward's is [E, 2, I, H]
        down.transpose(1, 2).contiguous(),
        ids,
        owners,
        dy.contiguous(),
        block_size,
        saved,
        fp8_x4_dtype=dtype,
        clamp_limits=limits,
    )
    return found[0], found[1], found[2].permute(0, 2, 3, 1), found[3].transpose(1, 2), None, None


@with_gradients(_experts_mxfp8_backward)
def blockwise_mm_fwd_mxfp8(
    hidden_states: Any,
    expert_affinities_masked: Any,
    gate_up_proj_weight: Any,
    down_proj_weight: Any,
    token_position_to_id: Any,
    block_to_expert: Any,
    block_size: int,
    fp8_x4_dtype: DTypeLike = nl.float8_e4m3fn_x4,
    clamp_limits: ClampLimits | None = None,
) -> Any:
    """blockwise_mm_fwd_mxfp8 of 16-bit weights, its result alone."""
    tensors = (hidden_states, expert_affinities_masked, gate_up_proj_weight, down_proj_weight)
    routing = (token_position_to_id, block_to_expert, block_size)
    return forward_experts_mxfp8(*tensors, *routing, fp8_x4_dtype=fp8_x4_dtype, clamp_limits=clamp_limits)


def _mlp_mxfp8(
    hidden: Any, gate_up_weights: Any, down_weights: Any, fp8_x4_dtype: DTypeLike = nl.float8_e4m3fn_x4
) -> Any:
    """mlp_forward_mxfp8_nki of 16-bit weights; the number of tokens is a multiple of 128."""
    middle = hidden.new_empty(hidden.shape[0], down_weights.shape[1])
    return forward_mlp_mxfp8(hidden, gate_up_weights, down_weights, middle, fp8_x4_dtype=fp8_x4_dtype)


def _mlp_mxfp8_backward(
    dy: Any, hidden: Any, gate_up: Any, down: Any, fp8_x4_dtype: DTypeLike = nl.float8_e4m3fn_x4
) -> Any:
    return mlp_backward_mxfp8_nki(dy, hidden, down.T.contiguous(), gate_up, fp8_x4_dtype=fp8_x4_dtype)


mlp_forward_mxfp8_nki = differentiable(_mlp_mxfp8, _mlp_mxfp8_backward)
