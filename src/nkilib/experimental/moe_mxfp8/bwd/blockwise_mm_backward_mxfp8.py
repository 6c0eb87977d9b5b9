"""The backward pass of blockwise experts in MXFP8.

First every unit's gradient of the middle, by features, which two cores share; then gradients of tokens and
of weights, of which each core has its columns of H. Each product quantises its operands along its own
contraction.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_cte.moe_cte_utils import SkipMode
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.kernel_assert import (
    assert_shape,
    assert_tensors,
    kernel_assert,
    not_built,
    warn_without_effect,
)
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRangeIterator
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.clamp_limits import ClampLimits
from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_config import MatmulMxfp8KernelConfig, check_config
from nkilib.experimental.moe.bwd.gradients import clear_vector
from nkilib.experimental.moe.bwd.moe_bwd_parameters import AffinityOption, ShardOption
from nkilib.experimental.moe_mxfp8.bwd.bias_gradients import BiasGradients
from nkilib.experimental.moe_mxfp8.bwd.gradient_passes import AddedMatrix, Middle, add_affinities
from nkilib.experimental.moe_mxfp8.expert_blocks import (
    AddedRows,
    ExpertWeights,
    Units,
    gather_tokens,
    of_expert,
    positions_of,
)
from nkilib.experimental.moe_mxfp8.fwd.blockwise_mm_forward_mxfp8 import check_choices, check_routing
from nkilib.experimental.mxfp_utils.mxfp8_utils.common_dataclasses import TensorDescriptor
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import describe, packed_dtype, part_of
from nkilib.experimental.mxfp_utils.mxfp8_utils.products import Stored, multiply
from nkilib.experimental.mxfp_utils.mxfp8_utils.sharding import core_share

BLOCK_SIZES = (128, 256, 512, 1024)
CORES = (0, 1)


@nki.jit
def blockwise_mm_bwd_mxfp8(
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    output_hidden_states_grad: Tensor,
    block_size: int,
    gate_up_proj_act_checkpoint_T: Tensor | None = None,
    gate_act_checkpoint_T: Tensor | None = None,
    intermediate_checkpoint_T: Tensor | None = None,
    scaled_intermediate_checkpoint_T: Tensor | None = None,
    down_proj_act_checkpoint: Tensor | None = None,
    gate_up_weight_scales: Tensor | None = None,
    gate_up_weight_is_swizzled: bool = False,
    down_weight_scales: Tensor | None = None,
    down_weight_is_swizzled: bool = False,
    phase1_config: MatmulMxfp8KernelConfig | None = None,
    phase2_config: MatmulMxfp8KernelConfig | None = None,
    phase3_config: MatmulMxfp8KernelConfig | None = None,
    phase4_config: MatmulMxfp8KernelConfig | None = None,
    fp8_x4_dtype: DTypeLike = nl.float8_e4m3fn_x4,
    spill_reload: bool = False,
    use_scale_packing: bool = True,
    run_with_lnc2: bool = True,
    shard_option: ShardOption = ShardOption.SHARD_ON_FREE,
    affinity_option: AffinityOption = AffinityOption.AFFINITY_ON_I,
    compute_dtype: DTypeLike = nl.bfloat16,
    skip_dma: SkipMode | None = None,
    skip_grad_initialization: bool = False,
    is_tensor_update_accumulating: bool = True,
    clamp_limits: ClampLimits | None = None,
    activation_type: ActFnType = ActFnType.SiLU,
    bias: bool = False,
) -> tuple[Tensor, ...]:
    """Return (dX [T, H], dAff [T E, 1], dWgu [E, H, 2, I], dWd [E, I, H]) of blockwise experts in MXFP8.

    Of each block, with tokens t, expert e, w = affinity[t, e], g and u from the checkpoint, m = silu(g) u:

        dm' = mx(dy) mx(Wd)^T       dAff[t, e] += sum over I of dm' m      dm = dm' w
        du = dm silu(g)             dg = dm u silu'(g)                     # 0 where u or g reached a limit
        dX[t] += mx([dg | du]) mx(Wgu)^T
        dWgu[e] += mx(X)^T mx([dg | du])                dWd[e] += mx(m w)^T mx(dy)

    mx() rounds blocks of 32 of the contraction to MXFP8; dg, du and m w are rounded to 16 bits before. With
    bias it also returns dbgu [E, 2, I], the sums of dg and du over the tokens of an expert, and dbd [E, H],
    that of dy w; dAff lacks what a bias of down adds, which is not among the arguments.

    Args:
        hidden_states, output_hidden_states_grad: [T, H] bfloat16 or float16.
        expert_affinities_masked: [T E, 1].
        gate_up_proj_weight: [E, H, 2, I]; with scales [E, I/2, 4 H], quantised along gate and up.
        down_proj_weight: [E, I, H]; with scales [E, H/4, 4 I].
        token_position_to_id, block_to_expert: as of blockwise_mm_fwd_mxfp8.
        gate_up_proj_act_checkpoint_T: [N, 2, I, B], needed.
        gate_up_weight_scales, down_weight_scales: [E, I/2, H] and [E, H/4, I], or packed.
        is_tensor_update_accumulating: a token may be in several blocks; else its one block stores dX.
        clamp_limits: linear ones of u, non-linear ones of g.
        run_with_lnc2: two cores share the work. fp8_x4_dtype: float8_e4m3fn_x4 or float8_e5m2_x4.
        skip_grad_initialization: without effect, with a warning: gradients are new tensors, zero at first.
        Refused by name, as the page reserves them: other checkpoints, swizzled weights, other shard_options,
        AFFINITY_ON_H and other activations. The rest are hints for the schedule, without effect, and so is
        skip_dma.

    >>> import ml_dtypes, os
    >>> import numpy as np
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> bf16 = lambda *shape: np.full(shape, 1 / 16, ml_dtypes.bfloat16)
    >>> x, weights = bf16(3, 128), (bf16(1, 128, 2, 128), bf16(1, 128, 128))
    >>> routing = np.full(128, -1, np.int32), np.zeros((1, 1), np.int32)
    >>> routing[0][0] = 2
    >>> arguments = x, np.ones((3, 1), np.float32), *weights, *routing, x, 128, bf16(1, 2, 128, 128)
    >>> dx, daff, dgate_up, ddown = blockwise_mm_bwd_mxfp8(*arguments)
    >>> dx.any(1).tolist(), dgate_up.shape
    ([False, False, True], (1, 128, 2, 128))
    """
    cores, core = get_verified_program_sharding_info("blockwise_mm_bwd_mxfp8", (0, 1), 2)[1:]
    for config in (
        ("phase1_config.", phase1_config),
        ("phase2_config.", phase2_config),
        ("phase3_config.", phase3_config),
        ("phase4_config.", phase4_config),
    ):
        check_config(config[0], config[1])
    check_choices(affinity_option, activation_type, compute_dtype)
    asked = True if skip_grad_initialization else None
    warn_without_effect(False, "gradients that callers pass", (("skip_grad_initialization", asked),))
    refuse_reserved(
        (
            ("gate_act_checkpoint_T", gate_act_checkpoint_T),
            ("intermediate_checkpoint_T", intermediate_checkpoint_T),
            ("scaled_intermediate_checkpoint_T", scaled_intermediate_checkpoint_T),
            ("down_proj_act_checkpoint", down_proj_act_checkpoint),
        ),
        (
            ("gate_up_weight_is_swizzled", gate_up_weight_is_swizzled),
            ("down_weight_is_swizzled", down_weight_is_swizzled),
            ("shard_option", shard_option.name != "SHARD_ON_FREE"),
        ),
    )
    fp8 = packed_dtype("fp8_x4_dtype", fp8_x4_dtype)
    checkpoint: Any = gate_up_proj_act_checkpoint_T
    experts = down_proj_weight.shape[0]
    check_sizes(
        hidden_states, expert_affinities_masked, output_hidden_states_grad, checkpoint, block_size, experts
    )
    check_routing(token_position_to_id, block_to_expert, block_size)
    tokens, size = hidden_states.shape
    inner = checkpoint.shape[2]
    gate_up = ExpertWeights("gate_up_proj_weight", gate_up_proj_weight, gate_up_weight_scales, False, fp8)
    if gate_up_weight_scales is None:
        assert_shape(gate_up_proj_weight, (experts, size, 2, inner), "gate_up_proj_weight")
        gate_up.tensor = gate_up_proj_weight.flatten_dims(2, 3)
    down = ExpertWeights("down_proj_weight", down_proj_weight, down_weight_scales, False, fp8)
    routed = Units(
        token_position_to_id, block_to_expert, expert_affinities_masked, (tokens, experts, block_size)
    )
    units = routed.all()
    xs, grads = gather_tokens(hidden_states, units), gather_tokens(output_hidden_states_grad, units)
    middle = Middle(checkpoint, cores)
    first, end = core_share(inner, PMAX, run_with_lnc2)
    own = TiledRangeIterator(end - first, 0, first, end)
    for i in range(len(units)):
        dy = describe("output_hidden_states_grad", TensorDescriptor(grads[i]), fp8)
        lhs = describe("down_proj_weight", down.of(units[i]), fp8)
        kernel_assert(
            lhs.features == inner and lhs.contraction == size,
            f"down_proj_weight: is [{lhs.features}, {lhs.contraction}], expected [{inner}, {size}]",
        )
        multiply(
            part_of(lhs, first, end - first), [dy], Stored(positions_of(middle.grad, units[i]), first, 0)
        )
        middle.split(units[i], own, clamp_limits, core)
    if cores == 2:
        for tensor in (middle.sides, middle.scaled, middle.by_token):
            nisa.core_barrier(tensor, CORES)

    dx = nl.ndarray(hidden_states.shape, hidden_states.dtype, buffer=nl.shared_hbm)
    daff = nl.ndarray(expert_affinities_masked.shape, expert_affinities_masked.dtype, buffer=nl.shared_hbm)
    dgate_up = nl.ndarray((experts, size, 2, inner), hidden_states.dtype, buffer=nl.shared_hbm)
    ddown = nl.ndarray((experts, inner, size), hidden_states.dtype, buffer=nl.shared_hbm)
    biases: tuple = ()
    if bias:
        biases = (
            nl.ndarray((experts, 2, inner), hidden_states.dtype, buffer=nl.shared_hbm),
            nl.ndarray((experts, size), hidden_states.dtype, buffer=nl.shared_hbm),
        )
    if core == 0:
        clear_vector(daff)
        for unit in units:
            add_affinities(daff, middle, unit, routed.repeats)
        if bias:
            sums = BiasGradients(experts, inner, size)
            for i in range(len(units)):
                sums.add(units[i], positions_of(middle.sides, units[i]), grads[i])
            sums.store(biases)
    first, end = core_share(size, 8, run_with_lnc2)
    if end > first:
        matrices = dgate_up.flatten_dims(2, 3)
        clear_own(dx, matrices, ddown, first, end)
        for i in range(len(units)):
            unit = units[i]
            sides = positions_of(middle.sides, unit)
            rows = AddedRows(
                dx[:, first:end], unit, routed.repeats, is_tensor_update_accumulating and i > 0, 0
            )
            wide = describe("gate_up_proj_weight", gate_up.of(unit), fp8)
            by_token = describe("sides", TensorDescriptor(sides, None, False), fp8)
            multiply(by_token, [part_of(wide, first, end - first)], rows)
            rows.store()
            x = part_of(describe("x", TensorDescriptor(xs[i], None, False), fp8), first, end - first)
            matrix = AddedMatrix(of_expert(matrices, unit), first, 0)
            multiply(x, [describe("sides", TensorDescriptor(sides), fp8)], matrix)
            matrix.store()
            dy = part_of(describe("dy", TensorDescriptor(grads[i], None, False), fp8), first, end - first)
            scaled = describe("middle", TensorDescriptor(positions_of(middle.scaled, unit)), fp8)
            matrix = AddedMatrix(of_expert(ddown, unit), 0, first)
            multiply(scaled, [dy], matrix)
            matrix.store()
    return (dx, daff, dgate_up, ddown) + biases


def clear_own(dx: Tensor, dgate_up: Tensor, ddown: Tensor, first: int, end: int) -> None:
    """Zeros in this core's part of the gradients."""
    clear(dx[:, first:end], zero_tile(end - first, dx.dtype))
    for e in range(ddown.shape[0]):
        clear(dgate_up[e][first:end], zero_tile(dgate_up.shape[2], dgate_up.dtype))
        clear(ddown[e][:, first:end], zero_tile(end - first, ddown.dtype))


def refuse_reserved(tensors: tuple, choices: tuple) -> None:
    """Refuse what the page reserves, by name."""
    for named in tensors:
        if named[1] is not None:
            not_built(named[0], "the page reserves it")
    for named in choices:
        if named[1]:
            not_built(named[0], "the page reserves it")


def check_sizes(
    hidden: Tensor, affinities: Tensor, grad: Tensor, checkpoint: Tensor, block_size: int, experts: int
) -> None:
    kernel_assert(block_size in BLOCK_SIZES, f"block_size: got {block_size}, allowed are {BLOCK_SIZES}")
    assert_tensors(
        (
            ("hidden_states", hidden),
            ("expert_affinities_masked", affinities),
            ("output_hidden_states_grad", grad),
            ("gate_up_proj_act_checkpoint_T", checkpoint),
        )
    )
    assert_shape(grad, tuple(hidden.shape), "output_hidden_states_grad")
    kernel_assert(
        affinities.size == hidden.shape[0] * experts,
        f"expert_affinities_masked: got {affinities.size} elements, expected T E = "
        f"{hidden.shape[0] * experts}",
    )
    kernel_assert(
        len(checkpoint.shape) == 4 and checkpoint.shape[3] == block_size,
        f"gate_up_proj_act_checkpoint_T: expected shape (N, 2, I, {block_size})",
    )
