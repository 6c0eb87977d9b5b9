"""Mixture of experts for prefill: each block of tokens passes through the MLP of its expert."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.moe.moe_cte.blocks import run_blocks
from nkilib.core.moe.moe_cte.experts import BEFORE
from nkilib.core.moe.moe_cte.moe_cte_checks import check_accumulation
from nkilib.core.moe.moe_cte.moe_cte_parameters import (
    Arithmetic,
    BlockTables,
    ExpertCheckpoints,
    ExpertTensors,
    ExpertTerms,
    Limits,
    RowOptions,
    assert_given,
    experts_parameters,
    slices_of_cores,
    static_block_count,
)
from nkilib.core.moe.moe_cte.moe_cte_spec import (
    HYBRID,
    MX,
    MoECTEImplementation,
    MoECTESpec,
    QuantizationConfig,
    ShardOnBlockConfig,
    ShardOnIConfig,
)
from nkilib.core.moe.moe_cte.moe_cte_utils import BlockShardStrategy, SkipMode
from nkilib.core.moe.moe_cte.moe_ref import activation_ref, clamp_ref
from nkilib.core.moe.mx_weights import has_words
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.core.utils.kernel_assert import kernel_assert, not_built
from nkilib.core.utils.types import DTypeLike, Tensor


@nki.jit
def moe_cte(
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    block_size: int,
    spec: MoECTESpec,
    conditions: Tensor | None = None,
    gate_and_up_proj_bias: Tensor | None = None,
    down_proj_bias: Tensor | None = None,
    quantization_config: QuantizationConfig | None = None,
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
    gate_up_in_scale: Tensor | None = None,
    down_in_scale: Tensor | None = None,
    accumulation_dtype: DTypeLike | None = None,
    skip_gate_proj: bool = False,
) -> Tensor | tuple[Tensor, ...]:
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
    kernel_assert(
        isinstance(spec, MoECTESpec), f"spec: got {spec}, expected a MoECTESpec(implementation=...)"
    )
    tensors = ExpertTensors(hidden_states, expert_affinities_masked, gate_up_proj_weight, down_proj_weight)
    tables = BlockTables(token_position_to_id, block_to_expert, block_size, conditions)
    assert_given(tensors, tables)
    kind = spec.implementation
    check_mx(kind, gate_up_proj_weight)
    refuse_undocumented(gate_up_in_scale, down_in_scale)
    check_accumulation(accumulation_dtype)
    config = spec.shard_on_I
    hybrid = kind in HYBRID
    kernel_assert(
        not hybrid or conditions is not None, f"conditions: got None, needed by implementation {kind.name}"
    )
    static_blocks = None
    if hybrid:
        static_blocks = static_block_count(config.num_static_block, block_to_expert, gate_up_proj_weight)
    if quantization_config is not None:
        gate_up_proj_scale = (
            quantization_config.gate_up_proj_scale if gate_up_proj_scale is None else gate_up_proj_scale
        )
        down_proj_scale = quantization_config.down_proj_scale if down_proj_scale is None else down_proj_scale
    checkpoints = ExpertCheckpoints(
        config.checkpoint_activation,
        config.expert_affinity_multiply_on_I,
        gate_up_activations_T,
        down_activations,
    )
    p = experts_parameters(
        tensors,
        tables,
        ExpertTerms(gate_and_up_proj_bias, down_proj_bias, gate_up_proj_scale, down_proj_scale),
        Arithmetic(activation_function, compute_dtype, expert_affinities_scaling_mode),
        Limits(gate_clamp_upper_limit, gate_clamp_lower_limit, up_clamp_upper_limit, up_clamp_lower_limit),
        RowOptions(skip_dma, is_tensor_update_accumulating),
        checkpoints,
        static_blocks,
        slices=result_slices(spec, is_tensor_update_accumulating),
        skip_gate=skip_gate_proj,
    )
    return run_blocks(p, any_size=kind == MoECTEImplementation.shard_on_i_dropping)


def check_mx(kind: MoECTEImplementation, gate_up: Tensor) -> None:
    """MX implementations have MX weights, and no others have."""
    kernel_assert(
        (kind in MX) == has_words(gate_up),
        f"gate_up_proj_weight: got shape {tuple(gate_up.shape)} with implementation {kind.name}; those of MX "
        "take words (E, 128, 2, H / 512, I), the others (E, H, 2, I)",
    )


def result_slices(spec: MoECTESpec, accumulating: bool) -> int:
    """Return 2 where the caller wants a slice for each of two cores."""
    sliced = spec.implementation == MoECTEImplementation.shard_on_block and spec.shard_on_block.slice_per_core
    return slices_of_cores(accumulating) if sliced else 1


def refuse_undocumented(gate_up_in_scale: Tensor | None, down_in_scale: Tensor | None) -> None:
    """Raise for arguments whose meaning is not documented."""
    if gate_up_in_scale is not None or down_in_scale is not None:
        not_built("gate_up_in_scale, down_in_scale", "the page lists them without a shape or a meaning")


# ---- reference -----------------------------------------------------------------------------------


def moe_cte_ref(
    hidden: np.ndarray,
    affinities: np.ndarray,
    gate_up: np.ndarray,
    down: np.ndarray,
    position_to_id: np.ndarray,
    block_to_expert: np.ndarray,
    block_size: int,
    conditions: np.ndarray | None = None,
    gate_up_bias: np.ndarray | None = None,
    down_bias: np.ndarray | None = None,
    gate_up_scale: np.ndarray | None = None,
    down_scale: np.ndarray | None = None,
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
