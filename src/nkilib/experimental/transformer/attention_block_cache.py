"""Cache update: the new keys and values are written to the slots that their sequences give."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.qkv.qkv_outputs import int_tile, packed_places, runs
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_io import hardware_queue
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor
from nkilib.experimental.transformer.attention_block_parameters import BlockCaches, BlockSizes

OUT_OF_RANGE = 2**30  # a row that no cache has


class CacheSlots(nl.NKIObject):
    """For each new token b, s: the row b Smax + index[b] + s of a flat cache, or its slot in blocks.

    Tokens outside the cache, among them those of a negative index, are not written. Each of `parts`
    neighbouring partitions has the slot of one part of a token.
    """

    def __init__(self, n: BlockSizes, c: BlockCaches, first: int, tokens: int, parts: int = 1):
        self.parts = parts
        self.count = tokens * parts
        self.start = token_starts(n, c, first, tokens)  # index[b] + s
        if parts > 1:
            self.start = repeated_by_part(self.start, parts)
        self.out_of_range: Tensor = None
        self.batch: Tensor = None
        if n.block_len == 0:
            self.batch = quotients(first * parts, self.count, n.active * parts)
            self.out_of_range = outside_bit(self.start, n.room)

    def rows(self, n: BlockSizes) -> Tensor:
        """Return rows of [B Smax, d], or of [blocks block_len, d]."""
        if n.block_len > 0:
            return self.start
        return self.address(n.room, self.start)

    def elements(self, n: BlockSizes) -> Tensor:
        """Return the first element of each part of each token in keys [B, d, Smax]."""
        if self.parts == 1:
            return self.address(n.depth * n.room, self.start)
        number, place = int_tile(self.count), int_tile(self.count)
        nisa.iota(number, [[0, 1]], 0, 1)
        nisa.tensor_scalar(number, number, nl.bitwise_and, self.parts - 1)
        step = int_tile(self.count)
        nisa.memset(step, n.depth // self.parts * n.room)
        nisa.tensor_tensor(place, number, step, op=nl.multiply, engine=nisa.gpsimd_engine)
        nisa.tensor_tensor(place, place, self.start, op=nl.add, engine=nisa.gpsimd_engine)
        return self.address(n.depth * n.room, place)

    def address(self, stride: int, start: Tensor) -> Tensor:
        """Return batch * stride + start, OUT_OF_RANGE where the cache has no room; exact on GpSimdE."""
        step, base, place = int_tile(self.count), int_tile(self.count), int_tile(self.count)
        nisa.memset(step, stride)
        nisa.tensor_tensor(base, self.batch, step, op=nl.multiply, engine=nisa.gpsimd_engine)
        nisa.tensor_tensor(place, base, start, op=nl.add, engine=nisa.gpsimd_engine)
        nisa.tensor_tensor(place, place, self.out_of_range, op=nl.bitwise_or)
        return place


def token_starts(n: BlockSizes, c: BlockCaches, first: int, tokens: int) -> Tensor:
    """Return index[b] + s of tokens first ..., [tokens, 1] int32."""
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
    nisa.tensor_scalar(skipped, tile, nl.less, 0.0, op1=nl.multiply, operand1=-1.0 * OUT_OF_RANGE)
    nisa.tensor_tensor(start, tile, positions(n, first, tokens), op=nl.add, engine=nisa.gpsimd_engine)
    nisa.tensor_tensor(start, start, skipped, op=nl.add, engine=nisa.gpsimd_engine)
    return start


def repeated_by_part(start: Tensor, parts: int) -> Tensor:
    """Repeat [tokens, 1] as [tokens parts, 1] by a float32 matmul: values it rounds are out of range."""
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


def quotients(first: int, count: int, divisor: int) -> Tensor:
    """Return (first + p) // divisor in partition p; the middle of a group divides exactly."""
    number, quotient = int_tile(count), int_tile(count)
    nisa.iota(number, [[0, 1]], first, 1)
    middle = (divisor - 1) / 2
    nisa.tensor_scalar(quotient, number, nl.subtract, middle, op1=nl.multiply, operand1=1.0 / divisor)
    return quotient


def positions(n: BlockSizes, first: int, count: int) -> Tensor:
    """Return the position s of tokens first ... in their sequences."""
    number, within = int_tile(count), int_tile(count)
    nisa.iota(number, [[0, 1]], first, 1)
    nisa.scalar_tensor_tensor(
        within, quotients(first, count, n.active), nl.multiply, -1.0 * n.active, nl.add, number
    )
    return within


def outside_bit(start: Tensor, room: int) -> Tensor:
    """Return a bit that moves an address out of the cache where start is not in 0 ... room - 1, else 0."""
    low = nl.ndarray(start.shape, nl.int32, buffer=nl.sbuf)
    high = nl.ndarray(start.shape, nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(low, start, nl.less, 0.0, op1=nl.multiply, operand1=1.0 * OUT_OF_RANGE)
    nisa.tensor_scalar(
        high, start, nl.greater_equal, 1.0 * room, op1=nl.multiply, operand1=1.0 * OUT_OF_RANGE
    )
    nisa.tensor_tensor(low, low, high, op=nl.bitwise_or)
    return low


# ---- writing -------------------------------------------------------------------------------------


class Store(nl.NKIObject):
    """A prepared transfer, issued by `start`."""

    def __init__(self, target: Tensor, rows: Tensor):
        self.target = target
        self.rows = rows

    def start(self) -> None:
        nisa.dma_copy(self.target, self.rows, oob_mode=nisa.oob_mode.skip)


def row_store(cache: Tensor, rows: Tensor, n: BlockSizes, places: CacheSlots) -> Store:
    """Prepare the store of rows [tokens, d] to a flat cache [B, (1,) Smax, d], or to blocks."""
    flat = cache.reshape((cache.size // n.depth, n.depth))
    return Store(flat.ap([[n.depth, places.count], [1, n.depth]], vector_offset=places.rows(n)), rows)


def packed_stores(cache: Tensor, rows: Tensor, places: CacheSlots, n: BlockSizes) -> list:
    """Prepare the stores of rows [tokens, d] to blocks [n, block_len / 2, d, 2]: even slots, and odd ones."""
    stores = []
    for place in packed_places(cache, places.rows(n), 0, n.depth):
        stores.append(Store(place, rows))
    return stores


def column_store(c: BlockCaches, keys: Tensor, columns: Tensor, n: BlockSizes, first: int) -> Store:
    """Prepare the store of keys [tokens, d], also given as columns [d, tokens], to a cache [B, (1,) d, Smax].

    Their elements are Smax apart, with a descriptor each. DMA engines divide them by partitions, so each
    token is split into as many parts as there are partitions for.
    """
    tokens = keys.shape[0]
    parts = 1
    while 2 * parts * tokens <= PMAX and n.depth % (2 * parts) == 0:
        parts = 2 * parts
    places = CacheSlots(n, c, first, tokens, parts)
    rows = keys if parts == 1 else rows_by_part(columns, parts)
    flat = c.keys.reshape((c.keys.size, 1))
    pattern = [[1, places.count], [n.room, n.depth // parts]]
    return Store(flat.ap(pattern, vector_offset=places.elements(n)), rows)


def rows_by_part(columns: Tensor, parts: int) -> Tensor:
    """Return [d, tokens] as [tokens parts, d / parts]: part j of token t in partition parts t + j.

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
    """Stores of new keys and values, tiles of 128 tokens each, to the caches; `columns`: keys [d, tokens].

    A store waits in its queue behind all earlier loads, and so does the next user of its tile's memory. It is
    therefore prepared at once, but issued after these loads.
    """

    def __init__(
        self, keys: list, values: list, columns: Tensor, n: BlockSizes, c: BlockCaches, n_prgs: int, core: int
    ):
        self.stores: list = []  # the first core writes keys, the last one values
        for i in range(len(keys)):
            first, tokens = i * PMAX, keys[i].shape[0]
            if core == 0 and c.keys_transposed:
                own = columns[:, first : first + tokens]
                self.stores.append(column_store(c, keys[i], own, n, first))
            elif core == 0 and c.packed:
                self.stores.extend(packed_stores(c.keys, keys[i], CacheSlots(n, c, first, tokens), n))
            elif core == 0:
                self.stores.append(row_store(c.keys, keys[i], n, CacheSlots(n, c, first, tokens)))
            if core == n_prgs - 1:
                self.stores.append(row_store(c.values, values[i], n, CacheSlots(n, c, first, tokens)))

    def write(self) -> None:
        for store in self.stores:
            store.start()
