"""The paged cache of swa_fused_cte: the window before the new tokens is read, new tokens are written.

Tokens are in the partitions. Position p of a sequence is row p % block_size of block table[p // block_size];
where the table has no such block, nothing is read or written. Keys in FP8 lie in pairs of neighbouring
tokens, so a pair is read, changed and written as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_intervals import broadcast_number
from nkilib.core.qkv.qkv_outputs import int_tile
from nkilib.core.utils.fp8 import quantize_static, reciprocal_of
from nkilib.core.utils.kernel_helpers import get_max_positive_value_for_dtype
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor


@dataclass
class PagedHeads(nl.NKIObject):
    """Keys or values [blocks, heads, block_size, d]; packed ones [blocks, heads, block_size / 2, d, 2]."""

    cache: Tensor
    block_size: int
    packed: bool
    scale: Any = None  # [128, 1] in SBUF: what FP8 elements are multiplied by
    inverse: Any = None

    def __post_init__(self) -> None:
        self.heads = self.cache.shape[1]
        self.depth = self.cache.shape[3]
        self.tokens = 2 if self.packed else 1  # of a row
        self.rows_of_head = self.block_size // self.tokens

    def rows(self, address: Tensor) -> Any:
        """The rows at these addresses, of all heads: [partitions, heads, d], or pairs [.., d, 2] flat."""
        width = self.depth * self.tokens
        flat = self.cache.reshape((self.cache.size // width, width))
        pattern = [[width, address.shape[0]], [self.rows_of_head * width, self.heads], [1, width]]
        return flat.ap(pattern, vector_offset=address)


def paged_heads(cache: Tensor, block_size: int, packed: bool, scale: Tensor | None) -> PagedHeads:
    """A cache with its scale; one that is None counts as 1."""
    heads = PagedHeads(cache, block_size, packed)
    if scale is not None:
        heads.scale = broadcast_number(scale.reshape((scale.size,))[0:1])
        heads.inverse = reciprocal_of(heads.scale)
    return heads


# ---- addresses -----------------------------------------------------------------------------------


@dataclass
class Slots(nl.NKIObject):
    """For each partition: a block, below 0 where there is none, and a position in it; int32 [n, 1]."""

    block: Tensor
    position: Tensor

    def address(self, heads: PagedHeads) -> Tensor:
        """The row of the first head; below 0 where there is no block. Exact on GpSimdE."""
        step, row, within = like(self.block), like(self.block), self.position
        nisa.memset(step, heads.heads * heads.rows_of_head)
        nisa.tensor_tensor(row, self.block, step, op=nl.multiply, engine=nisa.gpsimd_engine)
        if heads.packed:
            within = like(self.position)
            nisa.tensor_scalar(within, self.position, nl.right_shift, 1)
        nisa.tensor_tensor(row, row, within, op=nl.add, engine=nisa.gpsimd_engine)
        return row


def token_positions(start: Tensor, first: int, count: int, step: int = 1) -> Tensor:
    """start + first + step p in partition p, int32; start [128, 1] is a run-time number."""
    number, total = int_tile(count), int_tile(count)
    nisa.iota(number, [[0, 1]], first, step)
    nisa.tensor_tensor(total, number, start[0:count], op=nl.add, engine=nisa.gpsimd_engine)
    return total


def find_slots(table: Tensor, positions: Tensor, block_size: int) -> Slots:
    """Look positions up in the block table [1, blocks] of a sequence."""
    count, blocks = positions.shape[0], table.shape[1]
    number, within, block = int_tile(count), int_tile(count), int_tile(count)
    middle = (block_size - 1) / 2  # the quotient of the middle of a block is whole: rounding finds the block
    nisa.tensor_scalar(number, positions, nl.subtract, middle, op1=nl.multiply, operand1=1.0 / block_size)
    nisa.scalar_tensor_tensor(within, number, nl.multiply, -1.0 * block_size, nl.add, positions)
    nisa.memset(block, -1)
    entries = table.reshape((blocks, 1))
    nisa.dma_copy(block, entries.vector_select(0, number), oob_mode=nisa.oob_mode.skip)
    return Slots(block, within)


# ---- the window ----------------------------------------------------------------------------------


def gather_window(out: Tensor, heads: PagedHeads, table: Tensor, prior: Tensor) -> None:
    """out [heads, W, d] = the last W tokens before position `prior`; 0 where there are fewer."""
    window = out.shape[1]
    for part in TiledRange(window, PMAX):
        positions = token_positions(prior, part.start_offset - window, part.size)
        slots = find_slots(table, positions, heads.block_size)
        rows = read_rows(heads, slots.address(heads))
        tokens = rows if not heads.packed else of_parity(rows, heads, slots)
        wide = tokens
        if tokens.dtype != out.dtype:
            wide = nl.ndarray((part.size, heads.heads, heads.depth), out.dtype, buffer=nl.sbuf)
            dequantize(wide, tokens, heads)
        place = out[:, part.start_offset : part.end_offset, :].permute((1, 0, 2))
        nisa.dma_copy(place, wide)


def read_rows(heads: PagedHeads, address: Tensor) -> Tensor:
    """The rows at some addresses, 0 where there is none: [n, heads, d], packed [n, heads, 2 d]."""
    shape = (address.shape[0], heads.heads, heads.depth * heads.tokens)
    rows = nl.ndarray(shape, heads.cache.dtype, buffer=nl.sbuf)
    nisa.memset(rows, 0.0)
    nisa.dma_copy(rows, heads.rows(address), oob_mode=nisa.oob_mode.skip)
    return rows


def of_parity(rows: Tensor, heads: PagedHeads, slots: Slots) -> Tensor:
    """The token of each pair that the slots name: a copy, so that the other may be anything, even NaN."""
    count = rows.shape[0]
    pairs = rows.reshape_dim(2, (heads.depth, 2))
    odd = nl.ndarray((count, 1), nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(odd, slots.position, nl.bitwise_and, 1)
    is_odd = nl.ndarray((count, heads.heads, heads.depth), nl.uint8, buffer=nl.sbuf)
    nisa.memset(is_odd, 1)
    nisa.tensor_scalar(is_odd, is_odd, nl.multiply, as_float(odd))
    tokens = nl.ndarray((count, heads.heads, heads.depth), rows.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(tokens, pairs[:, :, :, 0])
    nisa.tensor_copy_predicated(tokens, pairs[:, :, :, 1], is_odd)
    return tokens


def as_float(column: Tensor) -> Tensor:
    wide = nl.ndarray(column.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(wide, column)
    return wide


def dequantize(dst: Tensor, x: Tensor, heads: PagedHeads) -> None:
    """dst = x * scale."""
    if heads.scale is None:
        nisa.tensor_copy(dst, x)
    else:
        nisa.activation(dst, nl.copy, x, scale=heads.scale[0 : x.shape[0]])


def quantize(dst: Tensor, x: Tensor, heads: PagedHeads) -> None:
    """dst = x / scale, clipped to the largest number of FP8."""
    largest = get_max_positive_value_for_dtype(dst.dtype)
    if heads.inverse is None:
        nisa.tensor_scalar(dst, x, nl.minimum, largest, op1=nl.maximum, operand1=-largest)
    else:
        quantize_static(dst, x, heads.inverse, largest)


# ---- new tokens ----------------------------------------------------------------------------------


def write_tokens(
    heads: PagedHeads, tokens: Tensor, table: Tensor, prior: Tensor, own: TiledRangeIterator
) -> None:
    """Write tokens `own` of [S, heads, d] in HBM to positions prior ..., a row each."""
    for part in TiledRange(own, PMAX):
        rows = nl.ndarray((part.size, heads.heads, heads.depth), tokens.dtype, buffer=nl.sbuf)
        nisa.dma_copy(rows, tokens[part.start_offset : part.end_offset])
        ready = rows
        if heads.cache.dtype != tokens.dtype:
            ready = nl.ndarray(rows.shape, heads.cache.dtype, buffer=nl.sbuf)
            quantize(ready, rows, heads)
        positions = token_positions(prior, part.start_offset, part.size)
        address = find_slots(table, positions, heads.block_size).address(heads)
        nisa.dma_copy(heads.rows(address), ready, oob_mode=nisa.oob_mode.skip)


def write_pairs(
    heads: PagedHeads, tokens: Tensor, table: Tensor, prior: Tensor, own: TiledRangeIterator
) -> None:
    """The same in pairs, own.start_offset ...: the pair of position 2 j keeps what is not new.

    Pairs begin at prior - prior % 2. An old token is quantised again, which gives the same bytes.
    """
    odd, even_start = like(prior), like(prior)
    nisa.tensor_scalar(odd, prior, nl.bitwise_and, 1)
    nisa.tensor_tensor(even_start, prior, odd, op=nl.subtract, engine=nisa.gpsimd_engine)
    for part in TiledRange(own, PMAX):
        positions = token_positions(even_start, 2 * part.start_offset, part.size, 2)
        address = find_slots(table, positions, heads.block_size).address(heads)
        pairs = read_rows(heads, address).reshape_dim(2, (heads.depth, 2))
        shape = (part.size, 2, heads.heads, heads.depth)
        rows = nl.ndarray(shape, tokens.dtype, buffer=nl.sbuf)
        dequantize(rows.permute((0, 2, 3, 1)), pairs, heads)
        for i in range(2):
            number = int_tile(part.size)
            nisa.iota(number, [[0, 1]], 2 * part.start_offset + i, 2)
            nisa.tensor_tensor(number, number, odd[0 : part.size], op=nl.subtract, engine=nisa.gpsimd_engine)
            nisa.dma_copy(rows[:, i], tokens.vector_select(0, number), oob_mode=nisa.oob_mode.skip)
        ready = nl.ndarray((part.size, heads.heads, heads.depth * 2), heads.cache.dtype, buffer=nl.sbuf)
        quantize(ready.reshape_dim(2, (heads.depth, 2)), rows.permute((0, 2, 3, 1)), heads)
        nisa.dma_copy(heads.rows(address), ready, oob_mode=nisa.oob_mode.skip)
