"""Where the columns of a QKV projection go: the three layouts in HBM, and KV caches, flat or in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.qkv.qkv_parameters import Cache, K, QKVParameters, batch_shape
from nkilib.core.utils.common_types import QKVOutputLayout
from nkilib.core.utils.fp8 import reciprocal_of
from nkilib.core.utils.kernel_helpers import interleave_copy
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

FAR_AWAY = 2**30  # a row that no cache has


@dataclass
class SequenceRun(nl.NKIObject):
    """Tokens of one batch that stand in adjacent rows of a tile."""

    batch: int
    position: int
    row: int
    count: int


def runs(first: int, count: int, sequence: int) -> list:
    """Tokens first ... first + count, cut where a batch ends."""
    found = []
    token = first
    while token < first + count:
        batch = token // sequence
        end = min(first + count, (batch + 1) * sequence)
        found.append(SequenceRun(batch, token - batch * sequence, token - first, end - token))
        token = end
    return found


@dataclass
class HeadRun(nl.NKIObject):
    """Columns by head: `heads` heads from `head` on, of each the elements offset ... offset + width."""

    head: int
    heads: int
    offset: int
    width: int


def head_runs(column: int, columns: int, depth: int) -> list:
    """Columns column ... column + columns: a part of a head, whole heads, a part of a head."""
    found = []
    at, end = column, column + columns
    if at % depth != 0:
        width = min(end - at, depth - at % depth)
        found.append(HeadRun(at // depth, 1, at % depth, width))
        at += width
    if end - at >= depth:
        heads = (end - at) // depth
        found.append(HeadRun(at // depth, heads, 0, depth))
        at += heads * depth
    if at < end:
        found.append(HeadRun(at // depth, 1, 0, end - at))
    return found


# ---- results -------------------------------------------------------------------------------------


def store_result(p: QKVParameters, out: Tensor, rows: Tensor, first: int, column: int) -> None:
    """Rows of tokens first ..., [tokens, columns], into columns column ... of the result."""
    count, columns = rows.shape
    batches, sequence = batch_shape(p)
    if p.layout == QKVOutputLayout.BSD:
        width = out.shape[2]
        flat = out.reshape((batches * sequence, width))
        nisa.dma_copy(flat[first : first + count, column : column + columns], rows)
        return
    for part in head_runs(column, columns, p.d_head):
        start = part.head * p.d_head + part.offset - column
        heads = rows[:, start : start + part.heads * part.width].reshape_dim(1, (part.heads, part.width))
        if p.layout == QKVOutputLayout.NBSd:
            flat = out.reshape((out.shape[0], batches * sequence, p.d_head))
            place = flat[part.head : part.head + part.heads, first : first + count]
            place = place[:, :, part.offset : part.offset + part.width]
            nisa.dma_copy(place.permute((1, 0, 2)), heads)
        else:
            transposed = transpose_heads(heads)
            for run in runs(first, count, sequence):
                place = out[part.head : part.head + part.heads, run.batch]
                place = place[:, part.offset : part.offset + part.width]
                place = place[:, :, run.position : run.position + run.count]
                nisa.dma_copy(place.permute((1, 0, 2)), transposed[:, :, run.row : run.row + run.count])


def transpose_heads(heads: Tensor, transposed: Tensor | None = None) -> Tensor:
    """[tokens, heads, d] as [d, heads, tokens], through PSUM; into `transposed` if that is given."""
    tokens, count, depth = heads.shape
    source = heads
    if heads.dtype in FP8:  # TensorE transposes 16 bits at least
        source = nl.ndarray(heads.shape, nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(source, heads)
    if transposed is None:
        transposed = nl.ndarray((depth, count, tokens), heads.dtype, buffer=nl.sbuf)
    for head in range(count):
        bank = nl.ndarray((depth, tokens), source.dtype, buffer=nl.psum)
        nisa.nc_transpose(bank, source[:, head, :])
        interleave_copy(transposed[:, head, :], bank, head)
    return transposed


# ---- caches --------------------------------------------------------------------------------------


class CacheWriter(nl.NKIObject):
    """Scales of keys and values, and where their tokens go."""

    def __init__(self, p: QKVParameters):
        cache = p.cache
        self.inverse = (inverse_scale(cache.scales[0]), inverse_scale(cache.scales[1]))

    def write(self, p: QKVParameters, values: Tensor, section: int, first: int, column: int) -> None:
        """Keys or values of tokens first ..., float32 [tokens, columns], of columns column ... of theirs."""
        cache = p.cache
        index = section - K
        ready = nl.ndarray(values.shape, cache.tensors[index].dtype, buffer=nl.sbuf)
        if self.inverse[index] is None:
            nisa.tensor_copy(ready, values)
        else:
            self.quantize(cache, ready, values, self.inverse[index])
        transposed = section == K and cache.transposed
        if cache.block_size == 0:
            write_rows(p, ready, cache.tensors[index], first, column, transposed)
        elif transposed:
            write_transposed_slots(p, ready, cache.tensors[index], first, column)
        elif section == K and cache.packed:
            write_packed_slots(p, ready, cache.tensors[index], first, column)
        else:
            write_slots(p, ready, cache.tensors[index], first, column)

    def quantize(self, cache: Cache, dst: Tensor, values: Tensor, inverse: Tensor) -> None:
        """dst = fp8(clip(values / scale))"""
        scaled = nl.ndarray(values.shape, nl.float32, buffer=nl.sbuf)
        factor, largest = inverse[0 : values.shape[0]], cache.largest
        nisa.tensor_scalar(scaled, values, nl.multiply, factor, op1=nl.minimum, operand1=largest)
        nisa.tensor_scalar(dst, scaled, nl.maximum, cache.smallest)


def inverse_scale(scale: Tensor) -> Any:
    """1 / element 0 of a scale, in every partition; None stays None."""
    if scale is None:
        return None
    flat = scale.reshape((1, scale.size))
    tile = broadcast_row(flat, 0, 1, PMAX)
    if tile.dtype != nl.float32:
        wide = nl.ndarray(tile.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(wide, tile)
        tile = wide
    return reciprocal_of(tile)


def write_rows(
    p: QKVParameters, rows: Tensor, cache: Tensor, first: int, column: int, transposed: bool
) -> None:
    """Flat: position s of batch b at [b, s, :], or [b, :, s]."""
    count, columns = rows.shape
    batches, sequence = batch_shape(p)
    if sequence == 1 and not transposed:
        nisa.dma_copy(cache[first : first + count, 0, column : column + columns], rows)
        return
    columns_first: Any = None
    if transposed:
        depth = p.d_head
        columns_first = transpose_heads(rows.reshape_dim(1, (columns // depth, depth)))
    for run in runs(first, count, sequence):
        if transposed:
            place = cache[run.batch, column : column + columns, run.position : run.position + run.count]
            place = place.reshape_dim(0, (columns // p.d_head, p.d_head)).permute((1, 0, 2))
            nisa.dma_copy(place, columns_first[:, :, run.row : run.row + run.count])
        else:
            place = cache[run.batch, run.position : run.position + run.count, column : column + columns]
            nisa.dma_copy(place, rows[run.row : run.row + run.count])


# ---- blocks: slot = block * block_size + position ------------------------------------------------


def load_slots(p: QKVParameters, first: int, count: int) -> Tensor:
    """The slots of tokens first ..., [tokens, 1] int32. One outside the cache is not written."""
    tokens = p.cache.slots.size
    tile = nl.ndarray((count, 1), nl.int32, buffer=nl.sbuf)
    slots = p.cache.slots.reshape((tokens, 1))[first : first + count]
    if slots.dtype == nl.uint32:
        slots = slots.view(nl.int32)
    nisa.dma_copy(tile, slots)
    return tile


def write_slots(p: QKVParameters, rows: Tensor, cache: Tensor, first: int, column: int) -> None:
    """[n_blocks, block_size, Nkv d]: a row for each slot."""
    count, columns = rows.shape
    width = cache.shape[2]
    flat = cache.reshape((cache.shape[0] * cache.shape[1], width))
    place = flat.ap([[width, count], [1, columns]], offset=column, vector_offset=load_slots(p, first, count))
    nisa.dma_copy(place, rows, oob_mode=nisa.oob_mode.skip)


def write_packed_slots(p: QKVParameters, rows: Tensor, cache: Tensor, first: int, column: int) -> None:
    """[n_blocks, block_size / 2, Nkv d, 2]: even slots first, then odd ones."""
    count, columns = rows.shape
    for place in packed_places(cache, load_slots(p, first, count), column, columns):
        nisa.dma_copy(place, rows, oob_mode=nisa.oob_mode.skip)


def packed_places(cache: Tensor, slots: Tensor, column: int, columns: int) -> list:
    """The even, then the odd slots of [tokens, 1] in [n, block_size / 2, width, 2]; others are far away."""
    count, width = slots.shape[0], cache.shape[2]
    pairs = cache.reshape((cache.shape[0] * cache.shape[1], width * 2))
    places = []
    pair, odd = int_tile(count), int_tile(count)
    nisa.tensor_scalar(pair, slots, nl.right_shift, 1)
    nisa.tensor_scalar(odd, slots, nl.bitwise_and, 1)
    for parity in (0, 1):
        row, skip = int_tile(count), int_tile(count)
        nisa.tensor_scalar(skip, odd, nl.not_equal, float(parity), op1=nl.multiply, operand1=float(FAR_AWAY))
        nisa.tensor_tensor(row, pair, skip, op=nl.bitwise_or)
        pattern = [[2 * width, count], [2, columns]]
        places.append(pairs.ap(pattern, offset=2 * column + parity, vector_offset=row))
    return places


def write_transposed_slots(p: QKVParameters, rows: Tensor, cache: Tensor, first: int, column: int) -> None:
    """[n_blocks Nkv, d, block_size] at [block Nkv + head, :, position]: elements far apart, one by one."""
    count, columns = rows.shape
    depth, size = cache.shape[1], cache.shape[2]
    heads = p.kv_heads
    slots = load_slots(p, first, count)
    place = transposed_places(slots, size, heads * depth * size)
    flat = cache.reshape((cache.size, 1))
    for head in range(columns // depth):
        offset = (column // depth + head) * depth * size
        target = flat.ap([[1, count], [size, depth]], offset=offset, vector_offset=place)
        source = rows[:, head * depth : (head + 1) * depth]
        nisa.dma_copy(target, source, oob_mode=nisa.oob_mode.skip)


def transposed_places(slots: Tensor, block_size: int, block_elements: int) -> Any:
    """slot // block_size * block_elements + slot % block_size, exactly; negative where the slot is."""
    count = slots.shape[0]
    block, start, step, place = int_tile(count), int_tile(count), int_tile(count), int_tile(count)
    middle = (block_size - 1) / 2  # the quotient of the middle of a block is whole: rounding finds the block
    nisa.tensor_scalar(block, slots, nl.subtract, middle, op1=nl.multiply, operand1=1.0 / block_size)
    nisa.memset(step, block_elements - block_size)
    nisa.tensor_tensor(start, block, step, op=nl.multiply, engine=nisa.gpsimd_engine)
    nisa.tensor_tensor(place, start, slots, op=nl.add, engine=nisa.gpsimd_engine)
    return place


def int_tile(count: int) -> Tensor:
    return nl.ndarray((count, 1), nl.int32, buffer=nl.sbuf)
