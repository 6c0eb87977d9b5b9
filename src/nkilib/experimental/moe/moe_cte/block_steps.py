"""The documented steps of `bwmm_shard_on_block` as functions for kernels of one's own, tile by tile.

The compiler places all tiles: `sbm` may be a manager whose allocation is automatic. Where the page names
something without a shape or a meaning, it is ours, and the text of the function says so.

>>> [shard_strat2new_blk_idx_offset(core, BlockShardStrategy.HI_LO, 5) for core in range(2)]
[0, 5]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_cte.experts import combine, finish_down
from nkilib.core.moe.moe_cte.moe_cte_utils import BlockShardStrategy, SkipMode
from nkilib.core.moe.moe_cte.outputs import copy_affinities
from nkilib.core.utils.allocator import SbufManager
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert, refuse_without_effect
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.projection import BANK_COLUMNS, ProductBlock
from nkilib.core.utils.projection_results import new_rows
from nkilib.core.utils.stream_shuffle_broadcast import stream_shuffle_broadcast
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor

BLOCK_PARALLEL_FACTOR = 2  # blocks of a core in an outer iteration
CORES = 2


def check_manager(sbm: SbufManager | None) -> None:
    """Refuse a manager that wants to place tiles."""
    kernel_assert(
        sbm is None or sbm.is_auto_alloc(),
        "sbm: got manual allocation, allowed is a manager that is automatic",
    )


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
    dp_weights: list | None,
    expert_affinity: list | None,
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
    down_proj_weight_hbm: Any = None,
    block_expert: Any = None,
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

    The page does not describe these: down_bias_raw, the bias as a tile [1, its columns]; dp_weights None,
    which loads rows i_tp_offset to i_tp_offset + I_TP of block_expert from down_proj_weight_hbm [E, I, H];
    block_new_lst_pre, the tiles for the result.
    """
    check_manager(sbm)
    kernel_assert(
        (block_old is not None) or not is_tensor_update_accumulating,
        "block_old: got None, needed by is_tensor_update_accumulating",
    )
    weights = dp_weights
    if weights is None:
        assert_tensors((("down_proj_weight_hbm", down_proj_weight_hbm), ("block_expert", block_expert)))
        share = down_proj_weight_hbm.select(0, block_expert)[i_tp_offset : i_tp_offset + I_TP]
        weights = load_tiles(share, intermediate_states[0].dtype, None)
    given = down_bias_broadcasted if down_bias_raw is None else all_partitions(down_bias_raw)
    bias = wide_bias(given, H, down_bias_h_offset, down_bias_h_size)
    rows = new_rows(NUM_TILES * PMAX, H, output_dtype) if block_new_lst_pre is None else block_new_lst_pre
    for t in range(NUM_TILES):
        tokens = slice(t * PMAX, (t + 1) * PMAX)
        if is_tensor_update_accumulating and block_old is not None:
            nisa.tensor_copy(rows[t], block_old[t])
        kept = None if down_activations is None else new_rows(PMAX, H, down_activations.dtype)[0]
        for span in TiledRange(H, BANK_COLUMNS):
            columns = slice(span.start_offset, span.end_offset)
            sums = nl.ndarray((PMAX, span.size), nl.float32, buffer=nl.psum)
            block = ProductBlock(sums, 0, PMAX, 0, span.size)
            for k in range(len(weights)):
                nisa.nc_matmul(sums, intermediate_states[k][:, tokens], weights[k][:, columns])
            finish_down(block, down_scale, bias, span.start_offset)
            if kept is not None:
                nisa.tensor_copy(kept[:, columns], block.sums)
            factor = None if expert_affinity is None else expert_affinity[t]
            combine(rows[t][:, columns], block, factor, 0, is_tensor_update_accumulating)
        if kept is not None and down_activations is not None:
            nisa.dma_copy(down_activations[block_idx][tokens, :], kept)
    return rows


def all_partitions(row: Tensor) -> Tensor:
    """A tile [1, columns] in all partitions."""
    tile = nl.ndarray((PMAX, row.shape[1]), row.dtype, buffer=nl.sbuf)
    stream_shuffle_broadcast(row, tile)
    return tile


def wide_bias(bias: Tensor | None, columns: int, first: int, count: int | None) -> Tensor | None:
    """The bias of all columns: zeros where it has none."""
    refuse_without_effect(bias is not None, "a bias", (("down_bias_h_size", count),))
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


# ---- biases ----------------------------------------------------------------------------------------


@dataclass
class InputTensors(nl.NKIObject):
    """The tensors that steps read; the page names the class alone, and callers may pass any such object."""

    gate_and_up_proj_bias: Any = None  # [E, 2, I]
    down_proj_bias: Any = None  # [E, 1, H] or [E, H]


@dataclass
class DimensionSizes(nl.NKIObject):
    """The sizes that steps read, as InputTensors."""

    H: int
    I_TP: int


@dataclass
class Configs(nl.NKIObject):
    """The options that steps read, as InputTensors."""

    compute_dtype: DTypeLike = nl.bfloat16


def load_and_transpose_gup_bias(
    inps: InputTensors,
    dims: DimensionSizes,
    cfg: Configs,
    block_expert: Tensor,
    skip_dma: SkipMode | None,
    sbm: SbufManager | None = None,
) -> list:
    """Return the biases of gate and up of an expert as tiles [128 of I, 2], the last one padded with zeros.

    Objects and tiles are ours: the page describes neither. The tiles have cfg.compute_dtype.
    """
    check_manager(sbm)
    assert_tensors((("inps.gate_and_up_proj_bias", inps.gate_and_up_proj_bias),))
    columns = inps.gate_and_up_proj_bias.select(0, block_expert).permute((1, 0))
    return load_tiles(columns[0 : dims.I_TP], cfg.compute_dtype, None)


def load_down_bias_raw(
    inps: InputTensors,
    dims: DimensionSizes,
    cfg: Configs,
    block_expert: Tensor,
    skip_dma: SkipMode | None,
    sbm: SbufManager | None = None,
    bias_h_size: int | None = None,
) -> Tensor:
    """Return the bias of down of an expert as a tile [1, bias_h_size] of cfg.compute_dtype; default is H."""
    check_manager(sbm)
    row = down_bias_row(inps, block_expert, dims.H if bias_h_size is None else bias_h_size)
    tile = nl.ndarray(row.shape, cfg.compute_dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, row)
    return tile


def load_and_broadcast_down_bias(
    inps: InputTensors,
    dims: DimensionSizes,
    cfg: Configs,
    block_expert: Tensor,
    skip_dma: SkipMode | None,
    sbm: SbufManager | None = None,
    use_pe_broadcast: bool = False,
) -> Tensor:
    """Return the bias of down of an expert in all partitions, a tile [128, H] of cfg.compute_dtype.

    DMA repeats the row; use_pe_broadcast, another way to do so, changes nothing.
    """
    check_manager(sbm)
    tile = nl.ndarray((PMAX, dims.H), cfg.compute_dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, down_bias_row(inps, block_expert, dims.H).broadcast(0, PMAX))
    return tile


def down_bias_row(inps: InputTensors, block_expert: Tensor, columns: int) -> Any:
    """The first columns of an expert's bias of down, [1, columns] in HBM."""
    assert_tensors((("inps.down_proj_bias", inps.down_proj_bias),))
    experts = inps.down_proj_bias.shape[0]
    rows = inps.down_proj_bias.reshape((experts, 1, inps.down_proj_bias.size // experts))
    return rows.select(0, block_expert)[:, 0:columns]


# ---- which blocks ----------------------------------------------------------------------------------


def shard_strat2new_blk_idx_offset(
    shard_id: int, shard_strat: BlockShardStrategy, n_blocks_per_shard: int
) -> int:
    """Return the first block of a core: its own number, or with HI_LO where its half begins."""
    return shard_id * n_blocks_per_shard if shard_strat == BlockShardStrategy.HI_LO else shard_id


def shard_strat2blk_idx(shard_strat: BlockShardStrategy, outer_block_iter: int, inner_block_iter: int) -> int:
    """Return how far behind the first block of its core the block of an iteration is.

    An outer iteration has BLOCK_PARALLEL_FACTOR blocks, 2 here: the page gives no value. With PING_PONG a
    core takes every other block, with HI_LO neighbours.
    """
    number = outer_block_iter * BLOCK_PARALLEL_FACTOR + inner_block_iter
    return number if shard_strat == BlockShardStrategy.HI_LO else CORES * number


def compute_same_weights_block_parallel_hbm(
    N: int,
    block_to_expert: Tensor,
    num_shards: int,
    shard_id: int,
    shard_strat: BlockShardStrategy,
    sbm: SbufManager | None = None,
) -> Tensor:
    """Return int32 [blocks of this core, 1] in HBM: 1 where one has the expert of the core's block before it.

    Shape and values are ours: the page gives the mask neither.
    """
    check_manager(sbm)
    each = div_ceil(N, num_shards)
    first = shard_strat2new_blk_idx_offset(shard_id, shard_strat, each)
    last, step = (min(N, first + each), 1) if shard_strat == BlockShardStrategy.HI_LO else (N, num_shards)
    kernel_assert(first < last, f"N: got {N}, expected at least a block for core {shard_id}")
    own = block_to_expert.reshape((1, block_to_expert.size))[:, first:last:step]
    experts = nl.ndarray(own.shape, nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(experts, own)
    same = nl.ndarray(own.shape, nl.int32, buffer=nl.sbuf)
    nisa.memset(same, 0)
    if own.shape[1] > 1:
        nisa.tensor_tensor(same[:, 1:], experts[:, 1:], experts[:, :-1], op=nl.equal)
    mask = nl.ndarray((own.shape[1], 1), nl.int32, buffer=nl.private_hbm)
    nisa.dma_copy(mask.reshape(own.shape), same)
    return mask
