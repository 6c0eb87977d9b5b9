"""Bringing keys and values of a unit of attention_tkg to SBUF, the new tokens in their places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

from ..utils.allocator import sizeinbytes
from ..utils.kernel_helpers import div_ceil, interleave_copy
from ..utils.tiled_range import TiledRange
from .attention_tkg_plan import (
    DecodeCall,
    DecodeUnit,
    LoadChunk,
    Sizes,
    TokenRun,
    key_dtype,
    probability_dtype,
    spot,
)

if TYPE_CHECKING:
    from nkilib.core.attention.attention_tkg_new_values import NewValues

PSUM_BYTES = 2048  # of a bank
LAST_PARTS = 4
FEW_BATCHES = 4


class Slot(nl.NKIObject):
    """The tiles of one unit in SBUF; the unit that comes SLOTS units later finds them free again."""

    def __init__(self, call: DecodeCall, sizes: Sizes):
        rows, head_dim, columns = call.rows, call.cfg.d_head, call.columns
        batches, tiles = sizes.batches, sizes.tiles
        self.k = call.tile((head_dim, batches, tiles * rows), key_dtype(call))
        self.k_rows = None  # keys as they lie in the cache
        self.k_wide = None  # the same in the dtype of k
        if call.by_rows:
            self.k_rows = call.tile((rows, batches, tiles, head_dim), call.k_prior.dtype)
            self.k_wide = self.k_rows
            if key_dtype(call) != call.k_prior.dtype:
                self.k_wide = call.tile((rows, batches, tiles, head_dim), key_dtype(call))
        self.scores = call.tile((rows, batches, tiles, columns), nl.float32)
        self.probabilities = call.tile((rows, batches, tiles, columns), probability_dtype(call))
        self.visible = None
        if call.cfg.use_pos_id:
            self.visible = call.tile((rows, batches, tiles, columns), nl.uint8)
        self.column_max = call.tile((rows, batches * columns), nl.float32)
        self.largest = call.tile((PMAX, div_ceil(batches * columns, PMAX)), nl.float32)
        self.fresh = call.tile((PMAX, batches * columns), nl.float32)  # the maxima in every partition
        self.sums = call.tile((rows, batches * columns), nl.float32)
        self.rescale = call.tile((PMAX, batches * columns), nl.float32)


class BlockTable(nl.NKIObject):
    """Which piece of the cache each partition of each chunk reads: [128, batches, chunks] int32."""

    def __init__(self, call: DecodeCall):
        chunks, factor = call.tiles // call.block_len, call.factor
        step = max(1, PMAX // factor)  # blocks that a chunk reads from
        blocks = call.tile((step, call.batches, chunks), nl.int32)
        load_blocks(call, blocks, call.first_tile // call.block_len)
        self.pieces = call.tile((PMAX, call.batches, chunks), nl.int32)
        if factor == 1:
            nisa.tensor_scalar(self.pieces, blocks, nl.maximum, 0.0)
            return
        numbers = call.tile((step, call.batches, chunks), nl.float32)
        nisa.tensor_scalar(numbers, blocks, nl.maximum, 0.0, op1=nl.multiply, operand1=float(factor))
        parts = call.tile((PMAX, chunks), nl.int32)  # of its block, which a partition reads
        nisa.iota(
            parts, [[PMAX, chunks]], offset=call.first_tile // call.block_len * PMAX, channel_multiplier=1
        )
        nisa.tensor_scalar(parts, parts, nl.bitwise_and, factor - 1)
        spread = block_of_partition(call, step)
        for batch in range(call.batches):
            for part in TiledRange(chunks, nl.tile_size.gemm_moving_fmax):
                psum = nl.ndarray((PMAX, part.size), nl.float32, buffer=nl.psum)
                span = slice(part.start_offset, part.end_offset)
                nisa.nc_matmul(psum, spread, numbers[:, batch, span], is_stationary_onezero=True)
                nisa.tensor_tensor(self.pieces[:, batch, span], psum, parts[:, span], nl.add)


def load_blocks(call: DecodeCall, blocks: Tensor, first: int) -> None:
    """Block a of chunk c at [a, batch, c]; where blocks are longer than chunks, the block of chunk c."""
    # read bit by bit: a cast would turn the -1 of an unsigned table into a large number
    table = call.table.reinterpret_cast(nl.int32)[call.first_batch : call.first_batch + call.batches]
    step, chunks = blocks.shape[0], blocks.shape[2]
    if call.factor <= PMAX:
        span = table[:, first * step : (first + chunks) * step]
        nisa.dma_copy(blocks, span.reshape_dim(1, (chunks, step)).permute((2, 0, 1)))
        return
    for chunk in range(chunks):
        block = (first + chunk) * PMAX // call.factor
        nisa.dma_copy(blocks[0, :, chunk : chunk + 1], table[:, block : block + 1].expand_dim(0))


def block_of_partition(call: DecodeCall, step: int) -> Any:
    """[a, p] = 1 where partition p reads from block a of its chunk: p // (128 / step) == a."""
    each = PMAX // step
    tile = call.tile((step, PMAX), nl.float32)
    nisa.memset(tile, 1.0)
    nisa.affine_select(tile, [[1, PMAX]], -each, tile, 0.0, cmp_op=nl.greater_equal)
    nisa.affine_select(tile, [[-1, PMAX]], each, tile, 0.0, cmp_op=nl.greater_equal, offset=each - 1)
    return tile


def load_keys(call: DecodeCall, unit: DecodeUnit, table: BlockTable | None, k_active: Tensor) -> None:
    """Keys as [d, batches, tokens], the new ones in their places."""
    section = unit.section
    for chunk in section.chunks:
        at = chunk.tile - section.tile
        if not call.by_rows:
            place = unit.slot.k[:, 0 : unit.batches, at * call.rows : at * call.rows + chunk.tokens]
            nisa.dma_copy(
                place, by_batch(call.k_prior, call, unit)[:, :, token_range(chunk)].permute((1, 0, 2))
            )
        else:
            load_rows(call, unit, chunk, unit.slot.k_rows, call.k_prior, table, call.cfg.curr_sprior)
            transpose_keys(unit, at, chunk.width, call)
    for run in section.runs:
        new = k_active.reshape_dim(1, (call.cfg.bs, call.cfg.s_active))
        first = call.first_batch + unit.first
        new = new[:, first : first + unit.batches, run.active : run.active + run.count]
        nisa.tensor_copy(new_key_columns(call, unit, run), new)


def load_values(
    call: DecodeCall, unit: DecodeUnit, table: BlockTable | None, last: bool, new_values: NewValues | None
) -> None:
    """Values as [rows, batches, tiles, d], the new ones in their places: from `new_values`, or by DMA.

    The very last ones come in parts: the matmuls of a part need not wait for the next.
    """
    old = call.cfg.curr_sprior - (call.cfg.s_active if new_values is None else 0)
    for chunk in unit.section.chunks:
        cut = last and unit.batches == 1 and chunk.tile + chunk.width == call.tiles
        load_rows(call, unit, chunk, unit.values, call.v_prior, table, old, LAST_PARTS if cut else 1)
    if new_values is not None:
        if len(unit.section.runs) > 0:
            new_values.place(unit)
        return
    new = call.v_active.reshape((call.cfg.bs, call.cfg.s_active, call.cfg.d_head))
    for run in unit.section.runs:
        for group in batch_groups(unit):
            first = call.first_batch + unit.first + group.start_offset
            rows = new[first : first + group.size, run.active : run.active + run.count, :]
            place = unit.values[:, group.start_offset : group.end_offset].permute((0, 2, 1, 3))
            nisa.dma_copy(spot(place, run), rows.permute((1, 0, 2)).expand_dim(1 if run.down else 0))


def batch_groups(unit: DecodeUnit) -> Any:
    """Batches whose single partitions come together: a few one by one, as they then wait for no other."""
    return TiledRange(unit.batches, 1 if unit.batches <= FEW_BATCHES else unit.batches)


def token_range(chunk: LoadChunk) -> Any:
    return slice(chunk.token, chunk.token + chunk.tokens)


def by_batch(cache: Tensor, call: DecodeCall, unit: DecodeUnit) -> Any:
    """A flat cache without its dimension of kv heads: the batches of a unit."""
    first = call.first_batch + unit.first
    return cache[first : first + unit.batches, 0]


def load_rows(
    call: DecodeCall,
    unit: DecodeUnit,
    chunk: LoadChunk,
    tile: Tensor,
    cache: Tensor,
    table: BlockTable | None,
    tokens: int,
    parts: int = 1,
) -> None:
    """The first tokens of a chunk as [rows, batches, width, d]: whole partitions, and the one that is not."""
    at, width = chunk.tile - unit.section.tile, chunk.width
    old = max(0, min(chunk.tokens, tokens - chunk.token))
    whole, rest = old // width, old % width
    if rest > 0:
        for group in batch_groups(unit):
            part = tile[whole : whole + 1, group.start_offset : group.end_offset, at : at + rest, :]
            load_part(call, unit, chunk, part, cache, table, whole, 0, group.start_offset)
    if whole > 0:
        begin = 0
        for i in range(parts):  # each half as large as the one before
            end = width if i == parts - 1 else begin + div_ceil(width - begin, 2)
            if begin < end:
                part = tile[0:whole, 0 : unit.batches, at + begin : at + end, :]
                load_part(call, unit, chunk, part, cache, table, 0, begin)
            begin = end


def load_part(
    call: DecodeCall,
    unit: DecodeUnit,
    chunk: LoadChunk,
    place: Tensor,
    cache: Tensor,
    table: BlockTable | None,
    first: int,
    token: int,
    batch: int = 0,
) -> None:
    """place [rows, batches, width, d]: tokens from `token` on of partitions from `first` on of a chunk."""
    rows, batches, width, head_dim = place.shape[0], place.shape[1], place.shape[2], call.cfg.d_head
    if table is None:
        begin = chunk.token + first * chunk.width
        source = by_batch(cache, call, unit)[batch : batch + batches, begin : begin + rows * chunk.width, :]
        source = source.reshape_dim(1, (rows, chunk.width))[:, :, token : token + width, :]
        nisa.dma_copy(place, source.permute((1, 0, 2, 3)))
        return
    pieces = cache.reshape((cache.size // (chunk.width * head_dim), chunk.width, head_dim))
    number = chunk.tile // chunk.width
    for i in range(batches):
        index = table.pieces[first : first + rows, unit.first + batch + i, number : number + 1]
        nisa.dma_copy(place[:, i], pieces.vector_select(0, index)[:, token : token + width, :])


def transpose_keys(unit: DecodeUnit, at: int, width: int, call: DecodeCall) -> None:
    """Rows of keys to columns on TensorE, a bank of PSUM at a time."""
    slot, rows, head_dim = unit.slot, call.rows, call.cfg.d_head
    by_tile = slot.k.reshape_dim(2, (slot.k.shape[2] // rows, rows))
    several = PSUM_BYTES // (PMAX * sizeinbytes(slot.k.dtype))
    for batch in range(unit.batches):
        if slot.k_wide.dtype != slot.k_rows.dtype:
            widen_rows(
                slot.k_wide[:, batch, at : at + width, :], slot.k_rows[:, batch, at : at + width, :], call
            )
        for part in TiledRange(width, several):
            bank = nl.ndarray((head_dim, part.size, rows), slot.k.dtype, buffer=nl.psum)
            first = at + part.start_offset
            for i in range(part.size):
                nisa.nc_transpose(
                    bank[:, i, :], slot.k_wide[:, batch, first + i, :], engine=nisa.tensor_engine
                )
            interleave_copy(by_tile[:, batch, first : first + part.size, :], bank, part.index + batch)


def widen_rows(dst: Tensor, src: Tensor, call: DecodeCall) -> None:
    """Copy rows of keys, [rows, tokens, d], to a wider dtype; packed ones are pairs of tokens, d by d."""
    if call.cfg.fp8_packed:
        rows, width, head_dim = src.shape
        dst = dst.reshape_dim(1, (width // 2, 2))
        src = src.reshape((rows, width // 2, head_dim, 2)).permute((0, 1, 3, 2))
    nisa.tensor_copy(dst, src)


def key_tile(call: DecodeCall, unit: DecodeUnit, batch: int, tile: int) -> Any:
    """The keys of one tile, [d, rows]."""
    keys, rows = unit.slot.k[:, batch], call.rows
    if call.by_rows:
        return keys[:, tile * rows : (tile + 1) * rows]
    for chunk in unit.section.chunks:
        at = chunk.tile - unit.section.tile
        if at <= tile < at + chunk.width:
            step = chunk.width
            first = at * rows + tile - at
    return keys[:, first : first + (rows - 1) * step + 1 : step]


def new_key_columns(call: DecodeCall, unit: DecodeUnit, run: TokenRun) -> Any:
    """Where the keys of a run of new tokens stand: [d, batches, count]."""
    keys, rows = unit.slot.k[:, 0 : unit.batches], call.rows
    if run.down:
        first = run.tile * rows + run.partition
        return keys[:, :, first : first + run.count]
    if call.by_rows:
        first = run.tile * rows + run.partition
        return keys[:, :, first : first + (run.count - 1) * rows + 1 : rows]
    for chunk in unit.section.chunks:
        at = chunk.tile - unit.section.tile
        if at <= run.tile < at + chunk.width:
            first = at * rows + run.partition * chunk.width + run.tile - at
    return keys[:, :, first : first + run.count]
