"""The forward pass of blockwise experts in MXFP8, with the checkpoints of its backward.

Three passes over all units: gate and up by features, [2 I, tokens]; the middle, silu(g) u affinity; down.
Each pass contracts what the one before has left in HBM. Two cores share features, then columns of H.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_cte.experts import affinity_row
from nkilib.core.moe.moe_cte.moe_cte_utils import SkipMode
from nkilib.core.utils.clamping import clamp
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert, not_built
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.clamp_limits import ClampLimits, gate_bounds, up_bounds
from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_config import MatmulMxfp8KernelConfig, check_config
from nkilib.experimental.moe.bwd.moe_bwd_parameters import AffinityOption, ShardOption
from nkilib.experimental.moe_mxfp8.expert_blocks import (
    AddedRows,
    ExpertWeights,
    Units,
    direct_units,
    gather_tokens,
    positions_of,
)
from nkilib.experimental.mxfp_utils.mxfp8_utils.common_dataclasses import TensorDescriptor
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import describe, packed_dtype, part_of
from nkilib.experimental.mxfp_utils.mxfp8_utils.products import evict, multiply
from nkilib.experimental.mxfp_utils.mxfp8_utils.sharding import core_share

BLOCK_SIZES = (128, 256, 512, 1024, 2048, 4096)
CORES = (0, 1)


@dataclass
class MXFP8MOECheckpointConfig(nl.NKIObject):
    """Which checkpoints the forward returns."""

    save_gate_up_proj_act: bool = True  # gate and up before the activation, [N, 2, I, B]
    save_scaled_intermediate: bool = True  # silu(g) * u * affinity, [N, I, B]


@nki.jit
def blockwise_mm_fwd_mxfp8(
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    block_size: int,
    gate_up_weight_scales: Tensor | None = None,
    gate_up_weight_is_swizzled: bool = False,
    down_weight_scales: Tensor | None = None,
    down_weight_is_swizzled: bool = False,
    gate_up_config: MatmulMxfp8KernelConfig | None = None,
    down_config: MatmulMxfp8KernelConfig | None = None,
    fp8_x4_dtype: DTypeLike = nl.float8_e4m3fn_x4,
    spill_reload: bool = False,
    use_scale_packing: bool = True,
    run_with_lnc2: bool = True,
    shard_option: ShardOption = ShardOption.SHARD_ON_BLOCK,
    affinity_option: AffinityOption = AffinityOption.AFFINITY_ON_I,
    compute_dtype: DTypeLike = nl.bfloat16,
    skip_dma: SkipMode | None = None,
    is_tensor_update_accumulating: bool = True,
    no_indirect_load: bool = False,
    clamp_limits: ClampLimits | None = None,
    activation_type: ActFnType = ActFnType.SiLU,
    bias: bool = False,
    checkpoint_config: MXFP8MOECheckpointConfig | None = None,
) -> tuple:
    """Return (out [T, H], checkpoints) of blockwise experts: out[t] += (silu(g) u w) Wd^T of each block.

    g, u = clamp(mx(x[t]) mx(Wg)^T), clamp(mx(x[t]) mx(Wu)^T), w = affinity[t, e]; mx() rounds blocks of 32
    of the contraction to MXFP8, and the middle is rounded to compute_dtype before it.

    Args:
        hidden_states: [T, H] bfloat16 or float16.
        expert_affinities_masked: [T E, 1].
        gate_up_proj_weight: [E, 2, I, H]; swizzled or with scales [E, 2, H/4, 4 I].
        down_proj_weight: [E, H, I]; swizzled or with scales [E, I/4, 4 H].
        token_position_to_id: [N B] int32; ids -1 and T are padding. block_to_expert: [N, 1] int32.
        gate_up_weight_scales, down_weight_scales: [E, 2, H/4, I] and [E, I/4, H], or packed.
        is_tensor_update_accumulating: a token may be in several blocks; else its one block stores it.
        no_indirect_load: hidden_states are the tokens of one expert, E = 1, in order; T is a multiple of B.
        clamp_limits: linear ones of u, non-linear ones of g, before checkpoint and activation.
        checkpoint_config: which checkpoints to return: gate and up [N, 2, I, B], the middle [N, I, B].
        fp8_x4_dtype: float8_e4m3fn_x4 or float8_e5m2_x4. run_with_lnc2: two cores share the work.
        activation_type, affinity_option, bias: SiLU, AFFINITY_ON_I and False; others are refused.
        The rest are hints for the schedule. shard_option, tilings, spill_reload and use_scale_packing have no
        effect; skip_dma neither, as padding is skipped with and without it.

    H and I are multiples of 128 (best 512), B is 128, 256, ... 4096. The layout of quantised weights is ours:
    that of quantize_block_mxfp8_kernel for each expert and side.

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> bf16 = lambda *shape: np.full(shape, 1 / 16, ml_dtypes.bfloat16)
    >>> x, weights = bf16(3, 128), (bf16(1, 2, 128, 128), bf16(1, 128, 128))
    >>> ids = np.full(128, -1, np.int32)
    >>> ids[0] = 2
    >>> routing = ids, np.zeros((1, 1), np.int32)
    >>> out, gate_up, middle = blockwise_mm_fwd_mxfp8(x, np.ones((3, 1), np.float32), *weights, *routing, 128)
    >>> float(gate_up[0, 1, 0, 0]), out.any(1).tolist()
    (0.5, [False, False, True])
    """
    cores = get_verified_program_sharding_info("blockwise_mm_fwd_mxfp8", (0, 1), 2)[1]
    check_config("gate_up_config.", gate_up_config)
    check_config("down_config.", down_config)
    check_choices(affinity_option, activation_type, compute_dtype)
    if bias:
        not_built("bias", "the page reserves it, there are no arguments for biases")
    fp8 = packed_dtype("fp8_x4_dtype", fp8_x4_dtype)
    check_tensors(hidden_states, expert_affinities_masked, gate_up_proj_weight, down_proj_weight)
    tokens, size = hidden_states.shape
    experts = gate_up_proj_weight.shape[0]
    plain = gate_up_weight_scales is None and not gate_up_weight_is_swizzled
    inner = gate_up_proj_weight.shape[2] if plain else down_inner(down_proj_weight, size, down_weight_scales)
    kernel_assert(block_size in BLOCK_SIZES, f"block_size: got {block_size}, allowed are {BLOCK_SIZES}")
    gate_up = ExpertWeights(
        "gate_up_proj_weight", gate_up_proj_weight, gate_up_weight_scales, gate_up_weight_is_swizzled, fp8
    )
    down = ExpertWeights(
        "down_proj_weight", down_proj_weight, down_weight_scales, down_weight_is_swizzled, fp8
    )
    repeats = None
    if no_indirect_load:
        kernel_assert(experts == 1, f"gate_up_proj_weight: got {experts} experts, no_indirect_load takes one")
        kernel_assert(
            tokens % block_size == 0, f"hidden_states: got {tokens} rows, expected blocks of {block_size}"
        )
        units = direct_units(expert_affinities_masked, tokens, block_size)
    else:
        check_routing(token_position_to_id, block_to_expert, block_size)
        routed = Units(
            token_position_to_id, block_to_expert, expert_affinities_masked, (tokens, experts, block_size)
        )
        repeats, units = routed.repeats, routed.all()
    blocks = tokens // block_size if no_indirect_load else block_to_expert.size
    sides = nl.ndarray((blocks, 2 * inner, block_size), compute_dtype, buffer=nl.shared_hbm)
    middle = nl.ndarray((blocks, inner, block_size), compute_dtype, buffer=nl.shared_hbm)
    out = nl.ndarray((tokens, size), hidden_states.dtype, buffer=nl.shared_hbm)
    found = gather_tokens(hidden_states, units)
    first, end = core_share(inner, PMAX, run_with_lnc2)
    for i in range(len(units)):
        x = describe("hidden_states", TensorDescriptor(found[i]), fp8)
        for side in range(2):
            weight = gate_up.of(units[i])
            weight.tensor = weight.tensor[side]
            weight.scales = None if weight.scales is None else weight.scales[side]
            lhs = describe("gate_up_proj_weight", weight, fp8)
            kernel_assert(
                lhs.features == inner and lhs.contraction == size,
                f"gate_up_proj_weight: is [{lhs.features}, {lhs.contraction}], expected [{inner}, {size}]",
            )
            bounds = gate_bounds(clamp_limits) if side == 0 else up_bounds(clamp_limits)
            place = positions_of(sides, units[i])[side * inner + first : side * inner + end]
            multiply(part_of(lhs, first, end - first), [x], Clamped(place, bounds[1], bounds[0]))
        own = TiledRangeIterator(end - first, 0, first, end)
        middle_of(positions_of(middle, units[i]), positions_of(sides, units[i]), affinity_row(units[i]), own)
    if cores == 2 and run_with_lnc2:
        nisa.core_barrier(middle, CORES)
    first, end = core_share(size, 8, run_with_lnc2)
    if end > first:
        columns = out[:, first:end]
        if not no_indirect_load:
            clear(columns, zero_tile(end - first, out.dtype))
        for i in range(len(units)):
            lhs = describe("down", TensorDescriptor(positions_of(middle, units[i]), None, False), fp8)
            wide = describe("down_proj_weight", down.of(units[i]), fp8)
            rows = AddedRows(
                columns, units[i], repeats, is_tensor_update_accumulating and i > 0, i * units[i].size
            )
            multiply(lhs, [part_of(wide, first, end - first)], rows)
            rows.store()
    saved = MXFP8MOECheckpointConfig() if checkpoint_config is None else checkpoint_config
    results = [out]
    if saved.save_gate_up_proj_act:
        results.append(sides.reshape((blocks, 2, inner, block_size)))
    if saved.save_scaled_intermediate:
        results.append(middle)
    return tuple(results)


@dataclass
class Clamped(nl.NKIObject):
    """Stores sums to out, clamped and rounded."""

    out: Tensor
    upper: float | None
    lower: float | None
    count: int = 0

    def finish(self, sums: list, row: int, rows: int, column: int, columns: int) -> None:
        tile = nl.ndarray((rows, columns), self.out.dtype, buffer=nl.sbuf)
        if self.upper is None and self.lower is None:
            evict(tile, sums[0], self.count)
        else:
            clamp(tile, sums[0], self.upper, self.lower)
        self.count = self.count + 1
        nisa.dma_copy(self.out[row : row + rows, column : column + columns], tile)


def middle_of(out: Tensor, sides: Tensor, affinity: Tensor, own: TiledRangeIterator) -> None:
    """out [I, tokens] = silu(g) * u * affinity of some features; sides are [2 I, tokens]."""
    inner = out.shape[0]
    for part in TiledRange(own, PMAX):
        gate = nl.ndarray((part.size, out.shape[1]), sides.dtype, buffer=nl.sbuf)
        up = nl.ndarray(gate.shape, sides.dtype, buffer=nl.sbuf)
        nisa.dma_copy(gate, sides[part.start_offset : part.end_offset])
        nisa.dma_copy(up, sides[inner + part.start_offset : inner + part.end_offset])
        active = nl.ndarray(gate.shape, nl.float32, buffer=nl.sbuf)
        nisa.activation(active, nl.silu, gate)
        nisa.tensor_tensor(active, active, up, op=nl.multiply)
        ready = nl.ndarray(gate.shape, out.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(ready, active, affinity[0 : part.size], op=nl.multiply)
        nisa.dma_copy(out[part.start_offset : part.end_offset], ready)


# ---- checks --------------------------------------------------------------------------------------


def check_choices(
    affinity_option: AffinityOption, activation_type: ActFnType, compute_dtype: DTypeLike
) -> None:
    """Refuse what the page reserves, by name."""
    if affinity_option.name != "AFFINITY_ON_I":
        not_built("affinity_option", "affinities are multiplied in the middle, AFFINITY_ON_I")
    if activation_type.name != "SiLU":
        not_built("activation_type", "the activation is SiLU")
    kernel_assert(
        compute_dtype in (nl.bfloat16, nl.float16),
        f"compute_dtype: got {compute_dtype}, allowed are bfloat16 and float16",
    )


def check_tensors(hidden: Tensor, affinities: Tensor, gate_up: Tensor, down: Tensor) -> None:
    assert_tensors(
        (
            ("hidden_states", hidden),
            ("expert_affinities_masked", affinities),
            ("gate_up_proj_weight", gate_up),
            ("down_proj_weight", down),
        )
    )
    for named in (
        ("hidden_states", hidden, 2),
        ("gate_up_proj_weight", gate_up, 4),
        ("down_proj_weight", down, 3),
    ):
        kernel_assert(
            len(named[1].shape) == named[2],
            f"{named[0]}: got shape {tuple(named[1].shape)}, expected {named[2]} dimensions",
        )
    rows, experts = hidden.shape[0], gate_up.shape[0]
    kernel_assert(
        affinities.size == rows * experts,
        f"expert_affinities_masked: got {affinities.size} elements, expected T E = {rows * experts}",
    )
    kernel_assert(
        down.shape[0] == experts, f"down_proj_weight: got {down.shape[0]} experts, expected {experts}"
    )


def check_routing(position_to_id: Tensor, block_to_expert: Tensor, block_size: int) -> None:
    assert_tensors((("token_position_to_id", position_to_id), ("block_to_expert", block_to_expert)))
    assert_shape(position_to_id, (block_to_expert.size * block_size,), "token_position_to_id")
    for named in (("token_position_to_id", position_to_id), ("block_to_expert", block_to_expert)):
        kernel_assert(named[1].dtype == nl.int32, f"{named[0]}: got {named[1].dtype}, expected int32")


def down_inner(down: Tensor, size: int, scales: Tensor | None) -> int:
    """I of a down weight in any form."""
    if down.shape[1] == size and scales is None:
        return down.shape[2]
    return down.shape[1] * 4


# ---- reference -----------------------------------------------------------------------------------


def blockwise_mm_fwd_mxfp8_ref(
    hidden: np.ndarray,
    affinities: np.ndarray,
    gate_up: np.ndarray,
    down: np.ndarray,
    position_to_id: np.ndarray,
    block_to_expert: np.ndarray,
    block_size: int,
    fp8: str = "float8_e4m3fn",
    limits: ClampLimits | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(out, gate and up, middle) in float64, with the kernel's quantisation and rounding."""
    from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_generic_kernel import matmul_mxfp8_ref

    rounded = lambda x: np.asarray(x, np.float32).astype(hidden.dtype)  # noqa: E731
    experts, _, inner, size = gate_up.shape
    blocks = block_to_expert.size
    out, weights = np.zeros((len(hidden), size)), np.float64(affinities).reshape(-1, experts)
    sides = np.zeros((blocks, 2, inner, block_size), hidden.dtype)
    middle = np.zeros((blocks, inner, block_size), hidden.dtype)
    for n, ids in enumerate(position_to_id.reshape(blocks, block_size)):
        e = int(np.ravel(block_to_expert)[n])
        real = (ids >= 0) & (ids < len(hidden))
        t = np.where(real, ids, 0)
        for side, bounds in enumerate((gate_bounds(limits), up_bounds(limits))):
            sums = matmul_mxfp8_ref(gate_up[e, side], hidden[t], fp8)
            sides[n, side] = rounded(np.clip(sums, *(-np.inf, np.inf) if bounds == (None, None) else bounds))
        g, u = np.float64(sides[n])
        middle[n] = rounded(g / (1 + np.exp(-g)) * u * np.where(real, weights[t, e], 0))
        np.add.at(out, t[real], matmul_mxfp8_ref(middle[n].T, down[e], fp8)[real])
    return out, sides, middle
