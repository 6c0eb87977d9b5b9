"""Blockwise experts whose blocks are divided among cores: the second version of the entry points."""

from __future__ import annotations

import nki
import nki.language as nl
from nkilib.core.moe.moe_cte.blocks import run_blocks
from nkilib.core.moe.moe_cte.moe_cte_parameters import (
    Arithmetic,
    BlockRun,
    BlockTables,
    ExpertCheckpoints,
    ExpertsParameters,
    ExpertTensors,
    ExpertTerms,
    Limits,
    RowOptions,
    block_count,
    expert_count,
    experts_parameters,
    static_block_count,
)
from nkilib.core.moe.moe_cte.moe_cte_utils import BlockShardStrategy, SkipMode
from nkilib.core.utils.allocator import SbufManager
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.moe.moe_cte.block_steps import (
    Configs,
    DimensionSizes,
    InputTensors,
    bwmm_load_old_block,
    bwmm_output_initialization,
    check_manager,
    compute_block_output,
    compute_same_weights_block_parallel_hbm,
    load_and_broadcast_down_bias,
    load_and_transpose_gup_bias,
    load_down_bias_raw,
    load_down_proj_weight,
    load_gate_up_proj_weights,
    reduce_outputs,
    shard_strat2blk_idx,
    shard_strat2new_blk_idx_offset,
)


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
    sbm: SbufManager | None = None,
    num_static_block: int | None = None,
    total_n_blocks: int | None = None,
    down_bias_tp_degree: int | None = None,
    down_bias_tp_rank: int | None = None,
    non_overlapping_shards: bool = False,
) -> Tensor:
    """Return [T, 2, H + E]: blockwise experts as `moe_cte`, and the affinities of each token behind them.

    [:, 0, :H] is the sum over all blocks, [:, 1, :H] zeros, [:, :, H:] the affinities; without
    is_tensor_update_accumulating the result is [T, H]. Operands and arithmetic are those of `moe_cte`, blocks
    any multiple of 128, down_proj_bias [E, 1, H]. down_activations [N, B, H] receives the results of the
    experts before their affinity.

    num_static_block (default N): so many blocks are processed, the others left out. With HI_LO each of two
    cores takes half of them, from its half of total_n_blocks (default num_static_block); else they are the
    first. down_bias_tp_degree, down_bias_tp_rank: this rank adds the bias to its H / degree columns alone, so
    that the sum of all ranks has it once; down_proj_bias has all columns or these.

    Two cores share the work by sizes, as in `moe_cte`: block_sharding_strategy, n_block_per_iter and
    non_overlapping_shards, a promise about the routing, change nothing else.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shapes = [(129, 512), (129 * 2, 1), (2, 512, 2, 32), (2, 32, 512)]
    >>> tensors = [rng.standard_normal(shape, np.float32) / 8 for shape in shapes]
    >>> out = bwmm_shard_on_block(*tensors, 128, np.arange(128, dtype=np.int32), np.zeros((1, 1), np.int32))
    >>> out.shape, bool((out[:, 0, 512:] == tensors[1].reshape(129, 2)).all())
    ((129, 2, 514), True)
    """
    check_manager(sbm)
    p = experts_parameters(
        ExpertTensors(hidden_states, expert_affinities_masked, gate_up_proj_weight, down_proj_weight),
        BlockTables(token_position_to_id, block_to_expert, block_size),
        ExpertTerms(gate_and_up_proj_bias, down_proj_bias, gate_up_proj_scale, down_proj_scale),
        Arithmetic(activation_function, compute_dtype, expert_affinities_scaling_mode),
        Limits(gate_clamp_upper_limit, gate_clamp_lower_limit, up_clamp_upper_limit, up_clamp_lower_limit),
        RowOptions(skip_dma, is_tensor_update_accumulating),
        ExpertCheckpoints(down=down_activations),
        slices=2 if is_tensor_update_accumulating else 1,
    )
    blocks = block_count(p)
    unrolled = blocks if num_static_block is None else num_static_block
    total = unrolled if total_n_blocks is None else total_n_blocks
    kernel_assert(
        0 <= unrolled <= total <= blocks,
        f"num_static_block, total_n_blocks: got {unrolled}, {total}, expected at most N = {blocks}, in order",
    )
    p.runs = block_runs(unrolled, total, block_sharding_strategy, loops=False)
    share_bias(p, down_bias_tp_degree, down_bias_tp_rank)
    return run_sharded(p)


@nki.jit
def bwmm_shard_on_block_hybrid(
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
    down_bias_tp_degree: int | None = None,
    down_bias_tp_rank: int | None = None,
    non_overlapping_shards: bool = False,
) -> Tensor:
    """Return what bwmm_shard_on_block does: N - E blocks unrolled, then a loop that ends with the conditions.

    conditions [ceil(N / cores) + 1] int32: condition i stands for the i-th block of each core. Two cores'
    i-th blocks are 2 i and 2 i + 1 or, with HI_LO, i and ceil(N / 2) + i. Blocks from the first 0 on are left
    out, unrolled or not.
    """
    p = experts_parameters(
        ExpertTensors(hidden_states, expert_affinities_masked, gate_up_proj_weight, down_proj_weight),
        BlockTables(token_position_to_id, block_to_expert, block_size, conditions),
        ExpertTerms(gate_and_up_proj_bias, down_proj_bias, gate_up_proj_scale, down_proj_scale),
        Arithmetic(activation_function, compute_dtype, expert_affinities_scaling_mode),
        Limits(gate_clamp_upper_limit, gate_clamp_lower_limit, up_clamp_upper_limit, up_clamp_lower_limit),
        RowOptions(skip_dma, is_tensor_update_accumulating),
        ExpertCheckpoints(down=down_activations),
        slices=2 if is_tensor_update_accumulating else 1,
    )
    unrolled = static_block_count(None, block_to_expert, gate_up_proj_weight)
    p.runs = block_runs(unrolled, block_count(p), block_sharding_strategy, loops=True)
    p.condition_blocks = nl.num_programs(0)
    p.high_low = block_sharding_strategy == BlockShardStrategy.HI_LO
    share_bias(p, down_bias_tp_degree, down_bias_tp_rank)
    return run_sharded(p)


def block_runs(unrolled: int, total: int, strategy: BlockShardStrategy, loops: bool) -> list:
    """Return the runs of `total` blocks of which so many are unrolled: with HI_LO one for each core.

    `loops`: the others are left to a loop, else left out.
    """
    kernel_assert(
        isinstance(strategy, BlockShardStrategy),
        f"block_sharding_strategy: got {strategy}, expected a BlockShardStrategy",
    )
    if strategy != BlockShardStrategy.HI_LO or nl.num_programs(0) == 1:
        return [BlockRun(0, unrolled, total if loops else unrolled)]
    half, low = div_ceil(total, 2), div_ceil(unrolled, 2)
    high = half + unrolled - low
    return [BlockRun(0, low, half if loops else low), BlockRun(half, high, total if loops else high)]


def share_bias(p: ExpertsParameters, degree: int | None, rank: int | None) -> None:
    """The bias of down as [E, columns of this rank]."""
    kernel_assert(
        (degree is None) == (rank is None),
        f"down_bias_tp_degree, down_bias_tp_rank: got {degree}, {rank}, expected both or neither",
    )
    size = p.hidden.shape[1]
    degree, rank = degree or 1, rank or 0
    kernel_assert(
        degree >= 1 and size % degree == 0 and 0 <= rank < degree,
        f"down_bias_tp_degree, down_bias_tp_rank: got {degree}, {rank}, expected a divisor of H = {size}, "
        "and less",
    )
    p.bias_ranks = degree
    p.bias_rank = rank
    if p.down_bias is not None:
        bias = p.down_bias.reshape((p.down_bias.shape[0], p.down_bias.size // p.down_bias.shape[0]))
        width = size // degree
        p.down_bias = bias[:, rank * width : (rank + 1) * width] if bias.shape[1] == size else bias


def run_sharded(p: ExpertsParameters) -> Tensor:
    """All blocks, of any multiple of 128; the result of accumulated ones has the affinities behind it."""
    p.affinity_columns = expert_count(p) if p.accumulating else 0
    p.keeps_down = p.down_checkpoint is not None
    out: Tensor = run_blocks(p, any_size=True)
    return out


__all__ = [
    "BlockShardStrategy",
    "Configs",
    "DimensionSizes",
    "InputTensors",
    "SkipMode",
    "bwmm_load_old_block",
    "bwmm_output_initialization",
    "bwmm_shard_on_block",
    "bwmm_shard_on_block_hybrid",
    "compute_block_output",
    "compute_same_weights_block_parallel_hbm",
    "load_and_broadcast_down_bias",
    "load_and_transpose_gup_bias",
    "load_down_bias_raw",
    "load_down_proj_weight",
    "load_gate_up_proj_weights",
    "reduce_outputs",
    "shard_strat2blk_idx",
    "shard_strat2new_blk_idx_offset",
]
