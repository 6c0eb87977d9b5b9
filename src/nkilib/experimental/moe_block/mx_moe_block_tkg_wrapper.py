"""The mixture-of-experts block with MX weights that come as untyped words."""

from __future__ import annotations

import nki
from nkilib.core.moe_block.moe_block_tkg import moe_block_tkg, moe_block_tkg_ref
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode, RouterActFnType
from nkilib.core.utils.mx_layout import as_words
from nkilib.core.utils.types import DTypeLike, Tensor

mx_moe_block_tkg_wrapper_ref = moe_block_tkg_ref  # takes unpacked weights


@nki.jit
def mx_moe_block_tkg_wrapper(
    inp: Tensor,
    gamma: Tensor,
    router_weights: Tensor,
    expert_gate_up_weights: Tensor,
    expert_down_weights: Tensor,
    shared_expert_gate_w: Tensor | None = None,
    shared_expert_up_w: Tensor | None = None,
    shared_expert_down_w: Tensor | None = None,
    expert_gate_up_weights_scale: Tensor | None = None,
    expert_down_weights_scale: Tensor | None = None,
    router_bias: Tensor | None = None,
    expert_gate_up_bias: Tensor | None = None,
    expert_down_bias: Tensor | None = None,
    shared_expert_gate_bias: Tensor | None = None,
    shared_expert_up_bias: Tensor | None = None,
    shared_expert_down_bias: Tensor | None = None,
    eps: float = 1e-6,
    top_k: int = 1,
    router_act_fn: RouterActFnType | None = None,
    router_pre_norm: bool = True,
    norm_topk_prob: bool = False,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode | None = None,
    hidden_act_fn: ActFnType | None = None,
    hidden_act_scale_factor: float | None = None,
    hidden_act_bias: float | None = None,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    router_mm_dtype: DTypeLike | None = None,
    hidden_actual: int | None = None,
    skip_router_logits: bool = False,
    is_all_expert: bool = False,
    rank_id: Tensor | None = None,
    residual: Tensor | None = None,
    expert_gate_up_input_scale: Tensor | None = None,
    expert_down_input_scale: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Norm, router and experts whose MX weights come as words: uint16 is MXFP4, uint32 MXFP8 (E4M3).

        out = sum of w[t, e] f_e(n_t) + shared(n_t),  n = RMSNorm(inp + residual) gamma

    Words and their scales have the shapes of `moe_tkg`: [E_L, 128, 2, H / 512, I] and [E_L, I_p, I / 512, H];
    typed ones (float4_e2m1fn_x4, float8_e4m3fn_x4) are taken as they are. All else is as in `moe_block_tkg`:
    returns (out [T, H], router_logits [T, E]), without the latter if skip_router_logits, with residual also
    inp + residual. None means SIGMOID, NO_SCALE, SiLU and bfloat16.

    >>> import ml_dtypes, os
    >>> import numpy as np
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> x = np.ones((1, 2, 512), ml_dtypes.bfloat16)
    >>> gate_up, down = np.zeros((4, 128, 2, 1, 64), np.uint16), np.zeros((4, 16, 1, 512), np.uint16)
    >>> scales = np.full((4, 16, 2, 1, 64), 127, np.uint8), np.full((4, 2, 1, 512), 127, np.uint8)
    >>> router = np.zeros((512, 4), ml_dtypes.bfloat16)
    >>> out, logits = mx_moe_block_tkg_wrapper(x, x[0, :1], router, gate_up, down,
    ...     expert_gate_up_weights_scale=scales[0], expert_down_weights_scale=scales[1])
    >>> out.shape, logits.shape, float(np.abs(out.astype(np.float32)).max())
    ((2, 512), (2, 4), 0.0)
    """
    return moe_block_tkg(
        inp,
        gamma,
        router_weights,
        as_words("expert_gate_up_weights", expert_gate_up_weights),
        as_words("expert_down_weights", expert_down_weights),
        shared_expert_gate_w=shared_expert_gate_w,
        shared_expert_up_w=shared_expert_up_w,
        shared_expert_down_w=shared_expert_down_w,
        expert_gate_up_weights_scale=expert_gate_up_weights_scale,
        expert_down_weights_scale=expert_down_weights_scale,
        router_bias=router_bias,
        expert_gate_up_bias=expert_gate_up_bias,
        expert_down_bias=expert_down_bias,
        shared_expert_gate_bias=shared_expert_gate_bias,
        shared_expert_up_bias=shared_expert_up_bias,
        shared_expert_down_bias=shared_expert_down_bias,
        eps=eps,
        top_k=top_k,
        router_act_fn=router_act_fn,
        router_pre_norm=router_pre_norm,
        norm_topk_prob=norm_topk_prob,
        expert_affinities_scaling_mode=expert_affinities_scaling_mode,
        hidden_act_fn=hidden_act_fn,
        hidden_act_scale_factor=hidden_act_scale_factor,
        hidden_act_bias=hidden_act_bias,
        gate_clamp_upper_limit=gate_clamp_upper_limit,
        gate_clamp_lower_limit=gate_clamp_lower_limit,
        up_clamp_upper_limit=up_clamp_upper_limit,
        up_clamp_lower_limit=up_clamp_lower_limit,
        router_mm_dtype=router_mm_dtype,
        hidden_actual=hidden_actual,
        skip_router_logits=skip_router_logits,
        is_all_expert=is_all_expert,
        rank_id=rank_id,
        residual=residual,
        expert_gate_up_input_scale=expert_gate_up_input_scale,
        expert_down_input_scale=expert_down_input_scale,
    )
