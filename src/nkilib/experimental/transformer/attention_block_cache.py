"""The new keys and values on their way into the caches, each to the place that its sequence asks for."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.qkv.qkv_outputs import runs
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.experimental.transformer.attention_block_parameters import BlockCaches, BlockSizes

FAR_AWAY = 2**30  # a row that no cache has


class Places(nl.NKIObject):
    """For each new token b, s: the row b Smax + index[b] + s of a flat cache, or its slot in blocks.

    One that its cache has no room for, a negative index among them, is not written.
    """

    def __init__(self, n: BlockSizes, c: BlockCaches, first: int, count: int):
        self.count = count
        self.start = token_starts(n, c, first, count)  # index[b] + s
        self.far = None
        self.batch = None
        if n.block_len == 0:
            self.batch = batch_numbers(n, first, count)
            self.far = beyond(self.start, n.room)

    def rows(self, n: BlockSizes) -> Any:
        """Rows of [B Smax, d], or of [blocks block_len, d]."""
        if n.block_len > 0:
            return self.start
        return self.placed(n, n.room)

    def elements(self, n: BlockSizes) -> Any:
        """The first element of each token in keys [B, d, Smax]."""
        return self.placed(n, n.depth * n.room)

    def placed(self, n: BlockSizes, stride: int) -> Any:
        """batch * stride + start, far away where there is no room; exactly, on GpSimdE."""
        step, base, place = int_tile(self.count), int_tile(self.count), int_tile(self.count)
        nisa.memset(step, stride)
        nisa.tensor_tensor(base, self.batch, step, op=nl.multiply, engine=nisa.gpsimd_engine)
        nisa.tensor_tensor(place, base, self.start, op=nl.add, engine=nisa.gpsimd_engine)
        nisa.tensor_tensor(place, place, self.far, op=nl.bitwise_or)
        return place


def int_tile(count: int) -> Any:
    return nl.ndarray((count, 1), nl.int32, buffer=nl.sbuf)


def token_starts(n: BlockSizes, c: BlockCaches, first: int, count: int) -> Any:
    """index[b] + s of tokens first ..., [tokens, 1] int32."""
    index = c.index.reshape((n.batch, 1))
    if index.dtype == nl.uint32:
        index = index.view(nl.int32)
    tile = int_tile(count)
    if n.active == 1:
        nisa.dma_copy(tile, index[first : first + count])
        return tile
    for run in runs(first, count, n.active):
        same = index[run.batch : run.batch + 1].broadcast(0, run.count)
        nisa.dma_copy(tile[run.row : run.row + run.count], same)
    skipped, start = int_tile(count), int_tile(count)
    nisa.tensor_scalar(skipped, tile, nl.less, 0.0, op1=nl.multiply, operand1=-1.0 * FAR_AWAY)
    nisa.tensor_tensor(start, tile, positions(n, first, count), op=nl.add, engine=nisa.gpsimd_engine)
    nisa.tensor_tensor(start, start, skipped, op=nl.add, engine=nisa.gpsimd_engine)
    return start


def batch_numbers(n: BlockSizes, first: int, count: int) -> Any:
    """b of tokens first ..., which is their number // S: the middle of a batch has a whole quotient."""
    number, batch = int_tile(count), int_tile(count)
    nisa.iota(number, [[0, 1]], first, 1)
    middle = (n.active - 1) / 2
    nisa.tensor_scalar(batch, number, nl.subtract, middle, op1=nl.multiply, operand1=1.0 / n.active)
    return batch


def positions(n: BlockSizes, first: int, count: int) -> Any:
    """s of tokens first ...."""
    number, within = int_tile(count), int_tile(count)
    nisa.iota(number, [[0, 1]], first, 1)
    nisa.scalar_tensor_tensor(
        within, batch_numbers(n, first, count), nl.multiply, -1.0 * n.active, nl.add, number
    )
    return within


def beyond(start: Any, room: int) -> Any:
    """A bit that takes a place out of the cache where start is not in 0 ... room - 1, else 0."""
    low = nl.ndarray(start.shape, nl.int32, buffer=nl.sbuf)
    high = nl.ndarray(start.shape, nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(low, start, nl.less, 0.0, op1=nl.multiply, operand1=1.0 * FAR_AWAY)
    nisa.tensor_scalar(high, start, nl.greater_equal, 1.0 * room, op1=nl.multiply, operand1=1.0 * FAR_AWAY)
    nisa.tensor_tensor(low, low, high, op=nl.bitwise_or)
    return low


# ---- writing -------------------------------------------------------------------------------------


def write_rows(cache: Any, rows: Any, n: BlockSizes, places: Places) -> None:
    """Rows [tokens, d] into a flat cache [B, (1,) Smax, d], or into blocks."""
    flat = cache.reshape((cache.size // n.depth, n.depth))
    target = flat.ap([[n.depth, places.count], [1, n.depth]], vector_offset=places.rows(n))
    nisa.dma_copy(target, rows, oob_mode=nisa.oob_mode.skip)


def write_columns(cache: Any, rows: Any, n: BlockSizes, places: Places) -> None:
    """Keys [tokens, d] into a flat cache [B, (1,) d, Smax]: their elements lie Smax apart."""
    flat = cache.reshape((cache.size, 1))
    target = flat.ap([[1, places.count], [n.room, n.depth]], vector_offset=places.elements(n))
    nisa.dma_copy(target, rows, oob_mode=nisa.oob_mode.skip)


def update_caches(keys: list, values: list, n: BlockSizes, c: BlockCaches, n_prgs: int, core: int) -> None:
    """The first core writes keys, the last one values; tiles of up to 128 tokens."""
    for i in range(len(keys)):
        places = Places(n, c, i * PMAX, keys[i].shape[0])
        if core == 0 and c.keys_transposed:
            write_columns(c.keys, keys[i], n, places)
        elif core == 0:
            write_rows(c.keys, keys[i], n, places)
        if core == n_prgs - 1:
            write_rows(c.values, values[i], n, places)
