"""Blockwise experts with MX weights on one core."""

from __future__ import annotations

from typing import Any

import nki
import nki.language as nl
from nkilib.core.moe.moe_cte.bwmm import bwmm_shard_on_block_mx
from nkilib.core.moe.moe_cte.moe_cte import SkipMode
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.types import DTypeLike, Tensor


@nki.jit
def bwmm_block_mx(
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    gate_up_proj_scale: Tensor,
    down_proj_scale: Tensor,
    block_size: int,
    gate_and_up_proj_bias: Tensor | None = None,
    down_proj_bias: Tensor | None = None,
    activation_function: ActFnType = ActFnType.SiLU,
    compute_dtype: DTypeLike = nl.bfloat16,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.POST_SCALE,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
) -> Any:
    """Return [T, H]: blockwise experts with MXFP4 or MXFP8 weights as moe_cte, on one core alone.

    out[t] = sum over t's blocks of affinity[t, e] MLP_e(hidden[t]); places of a block without a token have
    the index -1. A launch on two cores is refused, as the page says: bwmm_shard_on_block_mx is for them.
    Read of the page: what is computed, that it is for one core, loops over all blocks and returns a plain
    [T, H]; its arguments could not be read, these are those of bwmm_shard_on_block_mx.

    >>> import ml_dtypes, numpy as np, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> x, affinities = np.ones((2, 512), ml_dtypes.bfloat16), np.ones((2, 1), np.float32)
    >>> gate_up, down = np.zeros((1, 128, 2, 1, 512), np.uint32), np.zeros((1, 128, 1, 512), np.uint32)
    >>> scale, other = np.zeros((1, 16, 2, 1, 512), np.uint8), np.zeros((1, 16, 1, 512), np.uint8)
    >>> places = np.full(256, -1, np.int32)
    >>> places[:2] = 0, 1
    >>> out = bwmm_block_mx(
    ...     x, affinities, gate_up, down, places, np.zeros((1, 1), np.int32), scale, other, 256)
    >>> out.shape, float(abs(out).max())
    ((2, 512), 0.0)
    """
    get_verified_program_sharding_info("bwmm_block_mx", (0, 1), 1)
    return bwmm_shard_on_block_mx(
        hidden_states=hidden_states,
        expert_affinities_masked=expert_affinities_masked,
        gate_up_proj_weight=gate_up_proj_weight,
        down_proj_weight=down_proj_weight,
        token_position_to_id=token_position_to_id,
        block_to_expert=block_to_expert,
        gate_and_up_proj_bias=gate_and_up_proj_bias,
        down_proj_bias=down_proj_bias,
        gate_up_proj_scale=gate_up_proj_scale,
        down_proj_scale=down_proj_scale,
        block_size=block_size,
        activation_function=activation_function,
        skip_dma=SkipMode(skip_token=True),
        compute_dtype=compute_dtype,
        expert_affinities_scaling_mode=expert_affinities_scaling_mode,
        gate_clamp_upper_limit=gate_clamp_upper_limit,
        gate_clamp_lower_limit=gate_clamp_lower_limit,
        up_clamp_upper_limit=up_clamp_upper_limit,
        up_clamp_lower_limit=up_clamp_lower_limit,
    )
