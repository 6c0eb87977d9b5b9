"""What the blockwise expert kernels demand of their arguments."""

from __future__ import annotations

import nki.language as nl
from nkilib.core.moe.moe_cte.moe_cte_parameters import (
    FLOATS,
    MAX_INDEX,
    MAX_TOKENS,
    MX_NAMES,
    ExpertsParameters,
    block_count,
    expert_count,
    token_count,
)
from nkilib.core.moe.mx_weights import (
    check_words,
    hidden_size,
    intermediate_size,
    is_mx,
)
from nkilib.core.utils.clamping import check_limits
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.core.utils.kernel_assert import (
    assert_shape,
    kernel_assert,
    refuse_without_effect,
    warn_without_effect,
)
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor


def check(p: ExpertsParameters, any_block_size: bool) -> None:
    """Check shapes, dtypes and options. MX weights become words."""
    if is_mx(p):
        check_words(p, MX_NAMES)
    else:
        check_weights(p)
        check_scales(p)
    check_hidden_size(p)
    check_tokens(p)
    check_block_size(p, any_block_size)
    check_blocks(p)
    check_terms(p)
    check_checkpoints(p)
    check_limits((p.gate.upper, p.gate.lower), (p.up.upper, p.up.lower))


def check_hidden_size(p: ExpertsParameters) -> None:
    size = hidden_size(p)
    kernel_assert(
        size % 512 == 0 and 512 <= size <= 8192,
        f"hidden_states: got H = {size}, allowed are multiples of 512 from 512 to 8192",
    )


def check_weights(p: ExpertsParameters) -> None:
    kernel_assert(
        len(p.gate_up.shape) == 4 and p.gate_up.shape[2] == 2,
        f"gate_up_proj_weight: got shape {tuple(p.gate_up.shape)}, expected (E, H, 2, I)",
    )
    size, inner = hidden_size(p), intermediate_size(p)
    kernel_assert(
        inner % 16 == 0 and inner > 0, f"gate_up_proj_weight: got I = {inner}, allowed are multiples of 16"
    )
    assert_shape(p.down, (expert_count(p), inner, size), "down_proj_weight")
    kernel_assert(
        p.gate_up.dtype in FLOATS or p.gate_up.dtype in FP8,
        f"gate_up_proj_weight: got {p.gate_up.dtype}, allowed are {FLOATS} and FP8 {FP8}",
    )
    kernel_assert(
        p.down.dtype == p.gate_up.dtype,
        f"down_proj_weight: got {p.down.dtype}, expected {p.gate_up.dtype} like gate_up_proj_weight",
    )


def check_tokens(p: ExpertsParameters) -> None:
    kernel_assert(
        len(p.hidden.shape) == 2 and p.hidden.shape[1] == hidden_size(p),
        f"hidden_states: got shape {tuple(p.hidden.shape)}, expected (T + 1, {hidden_size(p)}), "
        "with skip_dma.skip_token (T, H)",
    )
    kernel_assert(p.hidden.dtype in FLOATS, f"hidden_states: got {p.hidden.dtype}, allowed are {FLOATS}")
    kernel_assert(p.compute_dtype in FLOATS, f"compute_dtype: got {p.compute_dtype}, allowed are {FLOATS}")
    tokens, experts = token_count(p), expert_count(p)
    kernel_assert(
        1 <= tokens <= MAX_TOKENS, f"hidden_states: got T = {tokens}, allowed are 1 to {MAX_TOKENS}"
    )
    kernel_assert(
        p.affinities.size in (tokens * experts, (tokens + 1) * experts),
        f"expert_affinities_masked: got {p.affinities.size} elements, expected ((T + 1) * E, 1) = "
        f"({(tokens + 1) * experts}, 1)",
    )
    kernel_assert(
        p.affinities.size < MAX_INDEX,
        f"expert_affinities_masked: got {p.affinities.size} elements, allowed are less than {MAX_INDEX}",
    )


def check_block_size(p: ExpertsParameters, any_block_size: bool) -> None:
    size = p.block_size
    if any_block_size:
        kernel_assert(size % PMAX == 0 and size > 0, f"block_size: got {size}, allowed are multiples of 128")
    else:
        kernel_assert(
            size % 256 == 0 and 256 <= size <= 1024,
            f"block_size: got {size}, allowed are multiples of 256 from 256 to 1024",
        )


def check_blocks(p: ExpertsParameters) -> None:
    blocks = block_count(p)
    kernel_assert(
        p.position_to_id.size == blocks * p.block_size,
        f"token_position_to_id: got {p.position_to_id.size} elements, expected N * B = "
        f"{blocks} * {p.block_size}",
    )
    kernel_assert(
        p.position_to_id.dtype == nl.int32,
        f"token_position_to_id: got {p.position_to_id.dtype}, expected int32",
    )
    kernel_assert(
        p.block_to_expert.dtype == nl.int32, f"block_to_expert: got {p.block_to_expert.dtype}, expected int32"
    )
    if p.conditions is not None:
        steps = div_ceil(blocks, p.condition_blocks)
        kernel_assert(
            p.conditions.size in (steps, steps + 1),
            f"conditions: got {p.conditions.size} elements, expected "
            f"{'N' if p.condition_blocks == 1 else 'ceil(N / 2)'} + 1 = {steps + 1}",
        )


def check_terms(p: ExpertsParameters) -> None:
    if p.gate_up_bias is not None and not is_mx(p):
        assert_shape(p.gate_up_bias, (expert_count(p), 2, intermediate_size(p)), "gate_and_up_proj_bias")
    if p.down_bias is not None:
        assert_shape(p.down_bias, (expert_count(p), hidden_size(p) // p.bias_ranks), "down_proj_bias")
    kernel_assert(
        isinstance(p.act_fn, ActFnType), f"activation_function: got {p.act_fn}, expected an ActFnType"
    )
    kernel_assert(
        isinstance(p.scaling, ExpertAffinityScaleMode),
        f"expert_affinities_scaling_mode: got {p.scaling}, expected an ExpertAffinityScaleMode",
    )


def check_scales(p: ExpertsParameters) -> None:
    fp8 = p.gate_up.dtype in FP8
    kernel_assert(
        (p.gate_up_scale is not None) == fp8 and (p.down_scale is not None) == fp8,
        f"gate_up_proj_scale, down_proj_scale: both are needed by FP8 weights, and by no others; "
        f"the weights are {p.gate_up.dtype}",
    )
    if fp8:
        check_scale(p, p.gate_up_scale, 2 * intermediate_size(p), "gate_up_proj_scale")
        check_scale(p, p.down_scale, hidden_size(p), "down_proj_scale")


def check_scale(p: ExpertsParameters, scale: Tensor, columns: int, name: str) -> None:
    """[E or 1, 1, columns], of static quantisation one number instead of the columns."""
    kernel_assert(
        scale.shape[0] in (1, expert_count(p)) and scale.size in (scale.shape[0] * columns, scale.shape[0]),
        f"{name}: got shape {tuple(scale.shape)}, expected ({expert_count(p)} or 1, 1, {columns} or 1)",
    )


def check_checkpoints(p: ExpertsParameters) -> None:
    blocks = block_count(p)
    refuse_without_effect(
        p.checkpoint,
        "spec.shard_on_I.checkpoint_activation",
        (
            ("gate_up_activations_T", p.gate_up_checkpoint),
            ("down_activations", None if p.keeps_down else p.down_checkpoint),
        ),
    )
    refuse_without_effect(
        p.checkpoint_down,
        "expert_affinity_multiply_on_I=False",
        (("down_activations", p.down_checkpoint),),
    )
    warn_without_effect(
        not p.skip_gate,
        "skip_gate_proj=False",
        (("gate_clamp_upper_limit", p.gate.upper), ("gate_clamp_lower_limit", p.gate.lower)),
    )
    if p.gate_up_checkpoint is not None:
        shape = (blocks, 2, intermediate_size(p), p.block_size)
        assert_shape(p.gate_up_checkpoint, shape, "gate_up_activations_T")
    if p.down_checkpoint is not None:
        assert_shape(p.down_checkpoint, (blocks, p.block_size, hidden_size(p)), "down_activations")


def check_accumulation(dtype: DTypeLike | None) -> None:
    """Products are added in float32."""
    kernel_assert(
        dtype is None or dtype == nl.float32,
        f"accumulation_dtype: got {dtype}, allowed are None and float32: sums are float32",
    )
