"""Mixture of experts for prefill: each block of tokens passes through the MLP of its expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import nki
import nki.language as nl
from nkilib.core.mlp.mlp_parameters import Linear
from nkilib.core.moe.moe_cte.blocks import run_blocks
from nkilib.core.moe.moe_cte.experts import BEFORE
from nkilib.core.moe.moe_cte.moe_cte_parameters import ExpertsParameters
from nkilib.core.moe.moe_cte.moe_cte_utils import BlockShardStrategy, SkipMode
from nkilib.core.moe.moe_cte.moe_ref import activation_ref, clamp_ref
from nkilib.core.moe.mx_weights import has_words
from nkilib.core.utils.common_types import ActFnType, Enum, ExpertAffinityScaleMode
from nkilib.core.utils.kernel_assert import kernel_assert, not_built


class MoECTEImplementation(Enum):
    """The documented ways to divide the work. All give the same result, and here are one engine."""

    shard_on_block = 0
    shard_on_i = 1
    shard_on_i_hybrid = 2
    shard_on_i_dropping = 3
    shard_on_block_mx = 4
    shard_on_i_mx = 5
    shard_on_i_mx_hybrid = 6


MX = (
    MoECTEImplementation.shard_on_block_mx,
    MoECTEImplementation.shard_on_i_mx,
    MoECTEImplementation.shard_on_i_mx_hybrid,
)


@dataclass
class ShardOnBlockConfig(nl.NKIObject):
    """How blocks are dealt to cores. Sizes decide here, so that the first two change nothing.

    slice_per_core (ours): two cores that accumulate return [T, 2, H], to be summed over the second dimension,
    as callers expect who give this configuration; the second slice is zeros. A spec without one returns
    [T, H], as the manual says.
    """

    block_sharding_strategy: BlockShardStrategy = BlockShardStrategy.PING_PONG
    n_block_per_iter: int = 1
    slice_per_core: bool = True


@dataclass
class ShardOnIConfig(nl.NKIObject):
    """What to keep for a backward pass, and how many blocks are unrolled (hybrid)."""

    checkpoint_activation: bool = False
    expert_affinity_multiply_on_I: bool = False
    num_static_block: int | None = None


@dataclass
class QuantizationConfig(nl.NKIObject):
    """Scales of FP8 weights, for those who pass them in one object."""

    gate_up_proj_scale: Any = None
    down_proj_scale: Any = None


@dataclass
class MoECTESpec(nl.NKIObject):
    """Which implementation, and its configuration; one that is not given has its defaults."""

    implementation: MoECTEImplementation
    shard_on_block: Any = None
    shard_on_I: Any = None

    def __post_init__(self):
        if self.shard_on_block is None:
            self.shard_on_block = ShardOnBlockConfig(slice_per_core=False)
        if self.shard_on_I is None:
            self.shard_on_I = ShardOnIConfig()


@nki.jit
def moe_cte(
    hidden_states: Any,
    expert_affinities_masked: Any,
    gate_up_proj_weight: Any,
    down_proj_weight: Any,
    token_position_to_id: Any,
    block_to_expert: Any,
    block_size: int,
    spec: MoECTESpec,
    conditions: Any = None,
    gate_and_up_proj_bias: Any = None,
    down_proj_bias: Any = None,
    quantization_config: Any = None,
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
    gate_up_in_scale: Any = None,
    down_in_scale: Any = None,
    accumulation_dtype: Any = None,
    skip_gate_proj: bool = False,
) -> Any:
    """Blockwise experts for prefill: out[t] = sum over t's blocks of affinity[t, e] * MLP_e(hidden[t]).

    Block n has the B positions token_position_to_id[n B ... n B + B - 1], and expert e = block_to_expert[n]:

        g, u = clamp(h Wgu[e] * scale + bias)        # h = hidden[ids], times its affinity with PRE_SCALE
        d = (act(g) * u) Wd[e] * scale + bias        # skip_gate_proj: act(u)
        out[ids] += d * affinity[ids, e]             # POST_SCALE; else d. Not accumulating: out[ids] = ...

    hidden [T + 1, H], whose last row is the padding token's (id T), or, with skip_dma.skip_token, [T, H] (id
    -1 or T); affinities [(T + 1) E, 1] or [T E, 1]; Wgu [E, H, 2, I], Wd [E, I, H]; biases [E, 2, I], [E, H].
    bfloat16, float16 or float32; float32 tensors are multiplied in compute_dtype, 16-bit ones in their own
    dtype unless compute_dtype is float32. FP8 weights have scales [E or 1, 1, 2 I] and [E or 1, 1, H], those
    of static quantisation one number each. out is like hidden; a row that no block names is zero.

    Ids and experts: int32; block_to_expert [N, 1] or [N]. An id that is no token's fails before anything is
    written. A token may stand in any number of blocks, and several times in one. Blocks of experts beyond
    the last are left out, and so are all blocks from the first on whose condition (conditions [N + 1]) is 0.

    spec.implementation is one of the documented ways to divide the work, which give one result. Here sizes
    decide: two cores share every block, each computes half of I and, with the halves exchanged, half of H;
    or, where tokens stand in many blocks, they take every other one and add at the end. The hybrid one
    unrolls spec.shard_on_I.num_static_block blocks (default N - E) and leaves the rest to a loop that ends
    with the conditions. skip_dma.skip_weight changes nothing: weights pass through SBUF, none stay.

    The MX implementations (trn3) take weights of moe_tkg's MX forms: words [E, 128, 2, H / 512, I] and [E,
    I_p, I / 512, H] with E8M0 scales for 8 rows each; biases [E, I_p, 2, I / 512, 4], or [E, 2, I] by columns
    of the words, and [E, H]. Tokens and the middle become MXFP8.

    With spec.shard_on_I.checkpoint_activation it returns (out, g and u [N, 2, I, B] as they go into the
    activation, d [N, B, H]), d not with expert_affinity_multiply_on_I; MX experts have g and u by columns of
    the words. Sums are float32 (accumulation_dtype).

    >>> rng = np.random.default_rng(0)
    >>> shapes = [(257, 512), (257 * 2, 1), (2, 512, 2, 32), (2, 32, 512)]
    >>> tensors = [rng.standard_normal(shape, np.float32) / 8 for shape in shapes]
    >>> ids = np.r_[0:256, 1:129, np.full(128, 256)].astype(np.int32)  # expert 1 has half a block
    >>> spec = MoECTESpec(MoECTEImplementation.shard_on_block)
    >>> out = moe_cte(*tensors, ids, np.array([[0], [1]], np.int32), 256, spec, compute_dtype=nl.float32)
    >>> bool(np.allclose(out[:256], moe_cte_ref(*tensors, ids, [0, 1], 256)[0][:256], atol=1e-4))
    True
    """
    kind = spec.implementation
    check_mx(kind, gate_up_proj_weight)
    refuse_undocumented(gate_up_in_scale, down_in_scale, accumulation_dtype)
    config = spec.shard_on_I
    scales = QuantizationConfig() if quantization_config is None else quantization_config
    hybrid = kind in (MoECTEImplementation.shard_on_i_hybrid, MoECTEImplementation.shard_on_i_mx_hybrid)
    kernel_assert(
        not hybrid or conditions is not None, f"conditions: got None, needed by implementation {kind.name}"
    )
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
        gate_up_scale=scales.gate_up_proj_scale if gate_up_proj_scale is None else gate_up_proj_scale,
        down_scale=scales.down_proj_scale if down_proj_scale is None else down_proj_scale,
        act_fn=activation_function,
        skip_token=skip_dma is not None and skip_dma.skip_token,
        compute_dtype=compute_dtype,
        accumulating=is_tensor_update_accumulating,
        scaling=expert_affinities_scaling_mode,
        skip_gate=skip_gate_proj,
        checkpoint=config.checkpoint_activation,
        checkpoint_down=not config.expert_affinity_multiply_on_I,
        gate_up_checkpoint=gate_up_activations_T,
        down_checkpoint=down_activations,
        static_blocks=static_blocks(config, block_to_expert, gate_up_proj_weight) if hybrid else None,
        slices=result_slices(spec, is_tensor_update_accumulating),
    )
    dropping = kind == MoECTEImplementation.shard_on_i_dropping
    return run_blocks(p, any_size=dropping)


def check_mx(kind: MoECTEImplementation, gate_up: Any) -> None:
    """MX implementations have MX weights, and no others have."""
    kernel_assert(
        (kind in MX) == has_words(gate_up),
        f"gate_up_proj_weight: got shape {tuple(gate_up.shape)} with implementation {kind.name}; those of MX "
        "take words (E, 128, 2, H / 512, I), the others (E, H, 2, I)",
    )


def result_slices(spec: MoECTESpec, accumulating: bool) -> int:
    """2 where the caller wants a slice for each of two cores."""
    dealt = spec.implementation == MoECTEImplementation.shard_on_block and spec.shard_on_block.slice_per_core
    return 2 if dealt and accumulating and nl.num_programs(0) == 2 else 1


def static_blocks(config: ShardOnIConfig, block_to_expert: Any, gate_up: Any) -> int:
    """How many blocks are unrolled: as asked for, or all but one for each expert."""
    if config.num_static_block is not None:
        return config.num_static_block
    return max(0, block_to_expert.size - gate_up.shape[0])


def refuse_undocumented(gate_up_in_scale: Any, down_in_scale: Any, accumulation_dtype: Any) -> None:
    """Arguments whose meaning no page tells."""
    if gate_up_in_scale is not None or down_in_scale is not None:
        not_built("gate_up_in_scale, down_in_scale", "FP8 activations are not documented for this kernel")
    kernel_assert(
        accumulation_dtype is None or accumulation_dtype == nl.float32,
        f"accumulation_dtype: got {accumulation_dtype}, allowed are None and float32: sums are float32",
    )


# ---- reference -----------------------------------------------------------------------------------


def moe_cte_ref(
    hidden: np.ndarray,
    affinities: np.ndarray,
    gate_up: np.ndarray,
    down: np.ndarray,
    position_to_id: np.ndarray,
    block_to_expert: np.ndarray,
    block_size: int,
    conditions: Any = None,
    gate_up_bias: Any = None,
    down_bias: Any = None,
    gate_up_scale: Any = None,
    down_scale: Any = None,
    act_fn: ActFnType = ActFnType.SiLU,
    skip_token: bool = False,
    accumulating: bool = True,
    scaling: ExpertAffinityScaleMode = ExpertAffinityScaleMode.POST_SCALE,
    gate_limits: tuple = (None, None),
    up_limits: tuple = (None, None),
    skip_gate: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(out, gate and up before the activation [N, 2, I, B], down before the affinity [N, B, H]).

    Limits are (upper, lower). The row of the padding token is zero in `out`.
    """
    experts, size, _, inner = gate_up.shape
    tokens = hidden.shape[0] - (not skip_token)
    blocks = position_to_id.reshape(-1, block_size)
    out = np.zeros(hidden.shape)
    kept_gate_up = np.zeros((len(blocks), 2, inner, block_size))
    kept_down = np.zeros((len(blocks), block_size, size))
    weights = np.asarray(affinities, np.float64).reshape(-1, experts)
    for n, (ids, e) in enumerate(zip(blocks, np.ravel(block_to_expert), strict=True)):
        if conditions is not None and np.ravel(conditions)[n] == 0:
            break
        if e >= experts:
            continue
        real = (ids >= 0) & (ids < tokens)
        x = np.zeros((block_size, size))
        x[real] = hidden[ids[real]]
        x[~real] = 0.0 if skip_token else hidden[tokens]
        w = np.zeros((block_size, 1))
        w[real, 0] = weights[ids[real], e]
        gu = np.einsum("th,hgi->tgi", x * w if scaling in BEFORE else x, np.asarray(gate_up[e], np.float64))
        if gate_up_scale is not None:
            scale = np.asarray(gate_up_scale, np.float64)[e % len(gate_up_scale)].ravel()
            gu *= np.broadcast_to(scale, 2 * inner).reshape(2, inner)
        if gate_up_bias is not None:
            gu += np.asarray(gate_up_bias[e], np.float64)
        g, u = clamp_ref(gu[:, 0], *gate_limits), clamp_ref(gu[:, 1], *up_limits)
        m = activation_ref(act_fn, u) if skip_gate else activation_ref(act_fn, g) * u
        d = m @ np.asarray(down[e], np.float64)
        d = d if down_scale is None else d * np.asarray(down_scale, np.float64)[e % len(down_scale)].ravel()
        d = d if down_bias is None else d + np.asarray(down_bias[e], np.float64)
        kept_gate_up[n], kept_down[n] = np.stack([g.T, u.T]), d
        o = d * w if scaling == ExpertAffinityScaleMode.POST_SCALE else d
        if accumulating:
            np.add.at(out, ids[real], o[real])
        else:
            out[ids[real]] = o[real]
    return out, kept_gate_up, kept_down


__all__ = [
    "BlockShardStrategy",
    "MoECTEImplementation",
    "MoECTESpec",
    "QuantizationConfig",
    "ShardOnBlockConfig",
    "ShardOnIConfig",
    "SkipMode",
    "moe_cte",
    "moe_cte_ref",
]
