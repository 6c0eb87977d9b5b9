"""The new keys and values on their way into the caches, each to the place that its sequence asks for."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.qkv.qkv_outputs import runs
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_io import hardware_queue
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.experimental.transformer.attention_block_parameters import BlockCaches, BlockSizes

FAR_AWAY = 2**30  # a row that no cache has


class Places(nl.NKIObject):
    """For each new token b, s: the row b Smax + index[b] + s of a flat cache, or its slot in blocks.

    One that its cache has no room for, a negative index among them, is not written. `parts` neighbouring
    partitions have the place of a token each.
    """

    def __init__(self, n: BlockSizes, c: BlockCaches, first: int, tokens: int, parts: int = 1):
        self.parts = parts
        self.count = tokens * parts
        self.start = token_starts(n, c, first, tokens)  # index[b] + s
        if parts > 1:
            self.start = in_every_part(self.start, parts)
        self.far = None
        self.batch = None
        if n.block_len == 0:
            self.batch = divided(first * parts, self.count, n.active * parts)
            self.far = beyond(self.start, n.room)

    def rows(self, n: BlockSizes) -> Any:
        """Rows of [B Smax, d], or of [blocks block_len, d]."""
        if n.block_len > 0:
            return self.start
        return self.placed(n.room, self.start)

    def elements(self, n: BlockSizes) -> Any:
        """The first element of each part of each token in keys [B, d, Smax]."""
        if self.parts == 1:
            return self.placed(n.depth * n.room, self.start)
        number, place = int_tile(self.count), int_tile(self.count)
        nisa.iota(number, [[0, 1]], 0, 1)
        nisa.tensor_scalar(number, number, nl.bitwise_and, self.parts - 1)
        step = int_tile(self.count)
        nisa.memset(step, n.depth // self.parts * n.room)
        nisa.tensor_tensor(place, number, step, op=nl.multiply, engine=nisa.gpsimd_engine)
        nisa.tensor_tensor(place, place, self.start, op=nl.add, engine=nisa.gpsimd_engine)
        return self.placed(n.depth * n.room, place)

    def placed(self, stride: int, start: Any) -> Any:
        """batch * stride + start, far away where there is no room; exactly, on GpSimdE."""
        step, base, place = int_tile(self.count), int_tile(self.count), int_tile(self.count)
        nisa.memset(step, stride)
        nisa.tensor_tensor(base, self.batch, step, op=nl.multiply, engine=nisa.gpsimd_engine)
        nisa.tensor_tensor(place, base, start, op=nl.add, engine=nisa.gpsimd_engine)
        nisa.tensor_tensor(place, place, self.far, op=nl.bitwise_or)
        return place


def int_tile(count: int) -> Any:
    return nl.ndarray((count, 1), nl.int32, buffer=nl.sbuf)


def token_starts(n: BlockSizes, c: BlockCaches, first: int, tokens: int) -> Any:
    """index[b] + s of tokens first ..., [tokens, 1] int32."""
    index = c.index.reshape((n.batch, 1))
    if index.dtype == nl.uint32:
        index = index.view(nl.int32)
    tile = int_tile(tokens)
    if n.active == 1:
        nisa.dma_copy(tile, index[first : first + tokens], dge_mode=hardware_queue())
        return tile
    for run in runs(first, tokens, n.active):
        same = index[run.batch : run.batch + 1].broadcast(0, run.count)
        nisa.dma_copy(tile[run.row : run.row + run.count], same, dge_mode=hardware_queue())
    skipped, start = int_tile(tokens), int_tile(tokens)
    nisa.tensor_scalar(skipped, tile, nl.less, 0.0, op1=nl.multiply, operand1=-1.0 * FAR_AWAY)
    nisa.tensor_tensor(start, tile, positions(n, first, tokens), op=nl.add, engine=nisa.gpsimd_engine)
    nisa.tensor_tensor(start, start, skipped, op=nl.add, engine=nisa.gpsimd_engine)
    return start


def in_every_part(start: Any, parts: int) -> Any:
    """[tokens, 1] as [tokens parts, 1], by a float32 matmul: numbers that this rounds have no room anyway."""
    tokens = start.shape[0]
    number = nl.ndarray((tokens, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(number, start)
    chooser = nl.ndarray((tokens, tokens, parts), nl.float32, buffer=nl.sbuf)
    nisa.memset(chooser, 1.0)
    nisa.affine_select(chooser, [[-1, tokens], [0, parts]], 1, chooser, 0.0, cmp_op=nl.equal)
    bank = nl.ndarray((tokens * parts, 1), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(bank, chooser.reshape((tokens, tokens * parts)), number, is_stationary_onezero=True)
    spread = int_tile(tokens * parts)
    nisa.tensor_copy(spread, bank)
    return spread


def divided(first: int, count: int, divisor: int) -> Any:
    """(first + p) // divisor in partition p: the middle of a group has a whole quotient."""
    number, quotient = int_tile(count), int_tile(count)
    nisa.iota(number, [[0, 1]], first, 1)
    middle = (divisor - 1) / 2
    nisa.tensor_scalar(quotient, number, nl.subtract, middle, op1=nl.multiply, operand1=1.0 / divisor)
    return quotient


def positions(n: BlockSizes, first: int, count: int) -> Any:
    """s of tokens first ...."""
    number, within = int_tile(count), int_tile(count)
    nisa.iota(number, [[0, 1]], first, 1)
    nisa.scalar_tensor_tensor(
        within, divided(first, count, n.active), nl.multiply, -1.0 * n.active, nl.add, number
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


class Store(nl.NKIObject):
    """A transfer that is ready but for the asking."""

    def __init__(self, target: Any, rows: Any):
        self.target = target
        self.rows = rows

    def start(self) -> None:
        nisa.dma_copy(self.target, self.rows, oob_mode=nisa.oob_mode.skip)


def store_of_rows(cache: Any, rows: Any, n: BlockSizes, places: Places) -> Store:
    """Rows [tokens, d] into a flat cache [B, (1,) Smax, d], or into blocks."""
    flat = cache.reshape((cache.size // n.depth, n.depth))
    return Store(flat.ap([[n.depth, places.count], [1, n.depth]], vector_offset=places.rows(n)), rows)


def store_of_columns(c: BlockCaches, keys: Any, columns: Any, n: BlockSizes, first: int) -> Store:
    """Keys [tokens, d], and as columns [d, tokens], into a flat cache [B, (1,) d, Smax].

    Their elements lie Smax apart, a descriptor each: DMA engines share them by partitions, so each token is
    cut into as many parts as there are partitions for.
    """
    tokens = keys.shape[0]
    parts = 1
    while 2 * parts * tokens <= PMAX and n.depth % (2 * parts) == 0:
        parts = 2 * parts
    places = Places(n, c, first, tokens, parts)
    rows = keys if parts == 1 else rows_by_part(columns, parts)
    flat = c.keys.reshape((c.keys.size, 1))
    pattern = [[1, places.count], [n.room, n.depth // parts]]
    return Store(flat.ap(pattern, vector_offset=places.elements(n)), rows)


def rows_by_part(columns: Any, parts: int) -> Any:
    """[d, tokens] as [tokens parts, d / parts]: part j of token t in partition parts t + j.

    With w = d / parts: the sum over i of (columns[i, t] where i // w == j) * (1 where i % w == e).
    """
    depth, tokens = columns.shape
    width = depth // parts
    dtype = nl.bfloat16 if columns.dtype in FP8 else columns.dtype
    identity = nl.ndarray((depth, depth), nl.float32, buffer=nl.sbuf)
    nisa.memset(identity, 1.0)
    nisa.affine_select(identity, [[-1, depth]], 1, identity, 0.0, cmp_op=nl.equal)
    by_part = identity.reshape_dim(1, (parts, width))
    in_part = nl.ndarray((depth, parts), dtype, buffer=nl.sbuf)
    element = nl.ndarray((depth, width), dtype, buffer=nl.sbuf)
    nisa.tensor_reduce(in_part, nl.add, by_part, 2)
    nisa.tensor_reduce(element, nl.add, by_part.permute((0, 2, 1)), 2)
    cut = nl.ndarray((depth, tokens, parts), dtype, buffer=nl.sbuf)
    spread = columns.expand_dim(2).broadcast(2, parts)
    nisa.tensor_tensor(cut, spread, in_part.expand_dim(1).broadcast(1, tokens), op=nl.multiply)
    bank = nl.ndarray((tokens * parts, width), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(bank, cut.reshape((depth, tokens * parts)), element, is_moving_onezero=True)
    rows = nl.ndarray((tokens * parts, width), columns.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(rows, bank)
    return rows


class CacheUpdate(nl.NKIObject):
    """New keys and values, tiles of 128 tokens each, on their way to the caches; `columns`: keys [d, tokens].

    A store waits in its queue behind all loads that run ahead, and so does whoever gets its tile's space.
    It is therefore made ready at once, but asked for when these loads are past.
    """

    def __init__(
        self, keys: list, values: list, columns: Any, n: BlockSizes, c: BlockCaches, n_prgs: int, core: int
    ):
        self.stores: list = []  # the first core writes keys, the last one values
        for i in range(len(keys)):
            first, tokens = i * PMAX, keys[i].shape[0]
            if core == 0 and c.keys_transposed:
                own = columns[:, first : first + tokens]
                self.stores.append(store_of_columns(c, keys[i], own, n, first))
            elif core == 0:
                self.stores.append(store_of_rows(c.keys, keys[i], n, Places(n, c, first, tokens)))
            if core == n_prgs - 1:
                self.stores.append(store_of_rows(c.values, values[i], n, Places(n, c, first, tokens)))

    def write(self) -> None:
        for store in self.stores:
            store.start()
