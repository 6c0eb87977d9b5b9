"""The mixture of experts in numpy."""

from __future__ import annotations

import numpy as np

from nkilib.core.mlp.mlp import act_ref
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode


def moe_tkg_ref(
    hidden_input: np.ndarray,
    expert_gate_up_weights: np.ndarray,
    expert_down_weights: np.ndarray,
    expert_affinities: np.ndarray,
    expert_index: np.ndarray,
    is_all_expert: bool,
    rank_id: np.ndarray | None = None,
    expert_gate_up_bias: np.ndarray | None = None,
    expert_down_bias: np.ndarray | None = None,
    expert_gate_up_weights_scale: np.ndarray | None = None,
    expert_down_weights_scale: np.ndarray | None = None,
    mask_unselected_experts: bool = False,
    expert_affinities_eager: np.ndarray | None = None,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.NO_SCALE,
    activation_fn: ActFnType = ActFnType.SiLU,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
):
    """In numpy, in float64; [T, H], not rounded."""
    x = np.asarray(hidden_input, np.float64)
    wide = [np.asarray(w, np.float64) for w in (expert_gate_up_weights, expert_down_weights)]
    gate_up, down = wide
    if expert_gate_up_weights_scale is not None:
        gate_up = gate_up * np.asarray(expert_gate_up_weights_scale, np.float64)[:, None]
        down = down * np.asarray(expert_down_weights_scale, np.float64)[:, None]
    limits = [
        (gate_clamp_lower_limit, gate_clamp_upper_limit),
        (up_clamp_lower_limit, up_clamp_upper_limit),
    ]

    def f(e):
        halves = []
        for half in range(2):
            value = x @ gate_up[e][:, half]
            if expert_gate_up_bias is not None:
                value = value + np.asarray(expert_gate_up_bias[e, half], np.float64)
            low, high = limits[half]
            value = value if high is None else np.minimum(value, high)
            halves.append(value if low is None else np.maximum(value, low))
        result = (act_ref(halves[0], activation_fn) * halves[1]) @ down[e]
        return result if expert_down_bias is None else result + np.asarray(expert_down_bias[e], np.float64)

    post = expert_affinities_scaling_mode == ExpertAffinityScaleMode.POST_SCALE
    local, tokens = len(gate_up), np.arange(len(x))
    weight = np.zeros((len(x), local))
    if is_all_expert:
        first = 0 if rank_id is None else int(np.ravel(rank_id)[0]) * local
        weight[:] = 1.0
        if post:
            weight = np.asarray(expert_affinities, np.float64)[:, first : first + local]
            if mask_unselected_experts:
                numbers = first + np.arange(local)
                weight = weight * (np.asarray(expert_index)[:, :, None] == numbers).any(axis=1)
    else:
        for k in range(expert_index.shape[1]):
            chosen = np.asarray(expert_index)[:, k].astype(int)
            value = np.ones(len(x))
            if post and expert_affinities_eager is not None:
                value = np.asarray(expert_affinities_eager, np.float64)[:, k]
            elif post:
                value = np.asarray(expert_affinities, np.float64)[tokens, chosen]
            np.add.at(weight, (tokens, chosen), value)
    return sum(weight[:, e : e + 1] * f(e) for e in range(local))
