"""The documented steps of `bwmm_shard_on_block` as functions for kernels of one's own, tile by tile.

The compiler places all tiles: `sbm` may be a manager whose allocation is automatic. What the page names
without a shape or a meaning is refused by name.

>>> [shard_strat2new_blk_idx_offset(core, BlockShardStrategy.HI_LO, 5) for core in range(2)]
[0, 5]
"""

from __future__ import annotations

from typing import Any, NoReturn

import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_cte.experts import combine, finish_down
from nkilib.core.moe.moe_cte.moe_cte_utils import BlockShardStrategy, SkipMode
from nkilib.core.moe.moe_cte.outputs import copy_affinities
from nkilib.core.utils.allocator import SbufManager
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.kernel_assert import kernel_assert, not_built, refuse_without_effect
from nkilib.core.utils.projection import BANK_COLUMNS, ProductBlock
from nkilib.core.utils.projection_results import new_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor


def check_manager(sbm: SbufManager | None) -> None:
    """Refuse a manager that wants to place tiles."""
    kernel_assert(
        sbm is None or sbm.is_auto_alloc(),
        "sbm: got manual allocation, allowed is a manager that is automatic",
    )


def shard_strat2new_blk_idx_offset(
    shard_id: int, shard_strat: BlockShardStrategy, n_blocks_per_shard: int
) -> int:
    """Return the first block of a core: its own number, or with HI_LO where its half begins."""
    return shard_id * n_blocks_per_shard if shard_strat == BlockShardStrategy.HI_LO else shard_id


# ---- weights -------------------------------------------------------------------------------------


def load_down_proj_weight(
    down_proj_weight: Tensor,
    block_expert: Tensor,
    compute_dtype: DTypeLike,
    skip_dma: SkipMode | None = None,
    load_dst: list | None = None,
    sbm: SbufManager | None = None,
) -> list:
    """Return Wd of an expert as tiles [128, H], the last one filled up with zeros; skip_dma skips nothing."""
    check_manager(sbm)
    return load_tiles(down_proj_weight.select(0, block_expert), compute_dtype, load_dst)


def load_gate_up_proj_weights(
    gate_up_proj_weight: Tensor,
    block_expert: Tensor,
    compute_dtype: DTypeLike,
    skip_dma: SkipMode | None = None,
    load_dst: list | None = None,
    sbm: SbufManager | None = None,
) -> list:
    """Return Wg and Wu of an expert as tiles [128, 2, I], the last one filled up with zeros."""
    check_manager(sbm)
    return load_tiles(gate_up_proj_weight.select(0, block_expert), compute_dtype, load_dst)


def load_tiles(rows: Tensor, dtype: DTypeLike, given: list | None) -> list:
    """Tiles of 128 rows in SBUF: the given ones, or new ones."""
    tiles: list = []
    for part in TiledRange(rows.shape[0], PMAX):
        shape = (PMAX, *rows.shape[1:])
        tile = nl.ndarray(shape, dtype, buffer=nl.sbuf) if given is None else given[len(tiles)]
        if part.size < PMAX:
            nisa.memset(tile, 0.0)
        nisa.dma_copy(tile[0 : part.size], rows[part.start_offset : part.end_offset])
        tiles.append(tile)
    return tiles


# ---- one block -----------------------------------------------------------------------------------


def compute_block_output(
    intermediate_states: list,
    dp_weights: list,
    expert_affinity: list,
    block_old: list | None,
    down_activations: Tensor | None,
    block_idx: Any,
    H: int,
    I_TP: int,
    NUM_TILES: int,
    output_dtype: DTypeLike,
    is_tensor_update_accumulating: bool,
    down_bias_broadcasted: Tensor | None = None,
    down_bias_raw: Tensor | None = None,
    down_scale: Tensor | None = None,
    sbm: SbufManager | None = None,
    down_proj_weight_hbm: Tensor | None = None,
    block_expert: Tensor | None = None,
    skip_dma: SkipMode | None = None,
    block_new_lst_pre: list | None = None,
    i_tp_offset: int = 0,
    down_bias_h_offset: int = 0,
    down_bias_h_size: int | None = None,
) -> list:
    """Return tiles [128, H] of (middle Wd * scale + bias) * affinity, plus block_old where blocks are added.

    Tiles of the middle are [128 of I, B], of Wd [128 of I, H], affinities [128, 1], the bias [128, its
    columns] from column down_bias_h_offset on, down_scale [128, H]. down_activations[block_idx] receives the
    sums before their affinity; expert_affinity None leaves it out.
    """
    check_manager(sbm)
    kernel_assert(
        (block_old is not None) or not is_tensor_update_accumulating,
        "block_old: got None, needed by is_tensor_update_accumulating",
    )
    if down_bias_raw is not None:
        not_built("down_bias_raw", "give down_bias_broadcasted, the bias in all partitions")
    if down_proj_weight_hbm is not None or block_new_lst_pre is not None or i_tp_offset != 0:
        not_built("down_proj_weight_hbm, block_new_lst_pre, i_tp_offset", "the page does not describe them")
    bias = wide_bias(down_bias_broadcasted, H, down_bias_h_offset, down_bias_h_size)
    rows = new_rows(NUM_TILES * PMAX, H, output_dtype)
    for t in range(NUM_TILES):
        tokens = slice(t * PMAX, (t + 1) * PMAX)
        if is_tensor_update_accumulating and block_old is not None:
            nisa.tensor_copy(rows[t], block_old[t])
        kept = None if down_activations is None else new_rows(PMAX, H, down_activations.dtype)[0]
        for span in TiledRange(H, BANK_COLUMNS):
            columns = slice(span.start_offset, span.end_offset)
            sums = nl.ndarray((PMAX, span.size), nl.float32, buffer=nl.psum)
            block = ProductBlock(sums, 0, PMAX, 0, span.size)
            for k in range(len(dp_weights)):
                nisa.nc_matmul(sums, intermediate_states[k][:, tokens], dp_weights[k][:, columns])
            finish_down(block, down_scale, bias, span.start_offset)
            if kept is not None:
                nisa.tensor_copy(kept[:, columns], block.sums)
            factor = None if expert_affinity is None else expert_affinity[t]
            combine(rows[t][:, columns], block, factor, 0, is_tensor_update_accumulating)
        if kept is not None and down_activations is not None:
            nisa.dma_copy(down_activations[block_idx][tokens, :], kept)
    return rows


def wide_bias(bias: Tensor | None, columns: int, first: int, count: int | None) -> Tensor | None:
    """The bias of all columns: zeros where it has none."""
    refuse_without_effect(bias is not None, "down_bias_broadcasted", (("down_bias_h_size", count),))
    if bias is None or (first == 0 and bias.shape[1] == columns and count in (None, columns)):
        return bias
    count = bias.shape[1] if count is None else count
    tile = nl.ndarray((PMAX, columns), bias.dtype, buffer=nl.sbuf)
    nisa.memset(tile, 0.0)
    nisa.tensor_copy(tile[:, first : first + count], bias[:, 0:count])
    return tile


# ---- the result ----------------------------------------------------------------------------------


def bwmm_output_initialization(
    output: Tensor,
    shard_id: int | None = None,
    sbm: SbufManager | None = None,
    expert_affinities_masked: Tensor | None = None,
    E: int = 0,
    H: int = 0,
    skip_zero_init: bool = False,
) -> None:
    """Store zeros in output [T, H], or in the H columns of slot shard_id of [T, 2, H + E], and affinities."""
    check_manager(sbm)
    slot = output if shard_id is None else output[:, shard_id, :]
    columns = slot.shape[1] - E if H == 0 else H
    if not skip_zero_init:
        clear(slot[:, 0:columns], zero_tile(columns, output.dtype))
    if expert_affinities_masked is not None:
        copy_affinities(slot[:, columns : columns + E], expert_affinities_masked)


def bwmm_load_old_block(
    output: Tensor,
    token_indices: Tensor,
    NUM_TILES: int,
    dtype: DTypeLike,
    skip_dma: SkipMode | None = None,
    shard_id: int | None = None,
    token_indices_offset: int = 0,
    sbm: SbufManager | None = None,
) -> list:
    """Return the rows of a block's tokens as tiles [128, columns of output]: of slot shard_id, if given.

    token_indices: a tile [128, columns] int32, whose columns from token_indices_offset on have the tokens of
    a tile each; with skip_dma.skip_token an index -1 reads zeros.
    """
    check_manager(sbm)
    slot = output if shard_id is None else output[:, shard_id, :]
    skips = skip_dma is not None and skip_dma.skip_token
    tiles: list = []
    for t in range(NUM_TILES):
        tile = nl.ndarray((PMAX, slot.shape[1]), dtype, buffer=nl.sbuf)
        if skips:
            nisa.memset(tile, 0.0)
        at = token_indices_offset + t
        rows = slot.vector_select(0, token_indices[:, at : at + 1])
        nisa.dma_copy(tile, rows, oob_mode=nisa.oob_mode.skip if skips else nisa.oob_mode.error)
        tiles.append(tile)
    return tiles


def reduce_outputs(
    output: Tensor,
    num_tiles: int,
    reduce_tile_size: int,
    offset: int,
    dim_hidden: int,
    sbm: SbufManager | None = None,
) -> None:
    """Add slot 1 of output [T, 2, H + E] to slot 0: num_tiles tiles of rows from row `offset` on."""
    check_manager(sbm)
    for t in range(num_tiles):
        first = offset + t * reduce_tile_size
        parts: list = []
        for slot in range(2):
            part = nl.ndarray((reduce_tile_size, dim_hidden), output.dtype, buffer=nl.sbuf)
            nisa.dma_copy(part, output[first : first + reduce_tile_size, slot, 0:dim_hidden])
            parts.append(part)
        nisa.tensor_tensor(parts[0], parts[0], parts[1], op=nl.add)
        nisa.dma_copy(output[first : first + reduce_tile_size, 0, 0:dim_hidden], parts[0])


# ---- refused -------------------------------------------------------------------------------------


def shard_strat2blk_idx(
    shard_strat: BlockShardStrategy, outer_block_iter: int, inner_block_iter: int
) -> NoReturn:
    """Raise NotBuilt: the page does not say how many blocks an outer iteration has."""
    not_built("shard_strat2blk_idx", "the page gives no value of BLOCK_PARALLEL_FACTOR")


def compute_same_weights_block_parallel_hbm(
    N: int,
    block_to_expert: Tensor,
    num_shards: int,
    shard_id: int,
    shard_strat: BlockShardStrategy,
    sbm: SbufManager | None = None,
) -> NoReturn:
    """Raise NotBuilt: the page gives neither the shape of the mask nor what 1 means in it."""
    not_built("compute_same_weights_block_parallel_hbm", "the page gives the mask no shape")


def load_and_transpose_gup_bias(
    inps: Any, dims: Any, cfg: Any, block_expert: Tensor, skip_dma: SkipMode, sbm: SbufManager | None = None
) -> NoReturn:
    """Raise NotBuilt: the page does not describe InputTensors, DimensionSizes and Configs."""
    not_built("inps, dims, cfg", "the page does not describe these objects")


def load_and_broadcast_down_bias(
    inps: Any,
    dims: Any,
    cfg: Any,
    block_expert: Tensor,
    skip_dma: SkipMode,
    sbm: SbufManager | None = None,
    use_pe_broadcast: bool = False,
) -> NoReturn:
    """Raise NotBuilt: the page does not describe InputTensors, DimensionSizes and Configs."""
    not_built("inps, dims, cfg", "the page does not describe these objects")


def load_down_bias_raw(
    inps: Any,
    dims: Any,
    cfg: Any,
    block_expert: Tensor,
    skip_dma: SkipMode,
    sbm: SbufManager | None = None,
    bias_h_size: int | None = None,
) -> NoReturn:
    """Raise NotBuilt: the page does not describe InputTensors, DimensionSizes and Configs."""
    not_built("inps, dims, cfg", "the page does not describe these objects")
