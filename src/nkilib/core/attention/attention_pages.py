"""Keys and values of a paged cache: blocks that a table lists, gathered into the sections of attention_cte.

Blocks are cut into pieces of `width` tokens so that every partition has one: token width p + j of a chunk of
128 pieces is in partition p. TensorE transposes rows of keys to columns, in the order of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor

from ..utils.allocator import sizeinbytes
from ..utils.kernel_helpers import interleave_copy
from ..utils.tiled_range import TiledRange
from .attention_units import PrefillSection

if TYPE_CHECKING:
    from nkilib.core.utils.tiled_range import TiledRangeIterator

CHUNK_KEYS = 2048  # of one gather, at most
BANK_BYTES = 2048


@dataclass
class KeyChunk(nl.NKIObject):
    """Keys `key` to `key + rows * width - 1`, `width` in each of `rows` partitions."""

    index: int
    key: int
    rows: int
    width: int

    def __post_init__(self) -> None:
        self.keys = self.rows * self.width


class KeyLayout(nl.NKIObject):
    """How the keys of a block lie in the cache."""

    def __init__(self, k_cache: Tensor, kv_heads: int, head_dim: int, pre_transposed: bool, packed: bool):
        self.cache = k_cache
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.pre_transposed = pre_transposed
        self.packed = packed
        self.heads_inside = packed and len(k_cache.shape) == 4  # tokens first, then heads

    def pieces(self, head: int, width: int) -> Any:
        """The cache as [pieces, ...]: a piece has `width` tokens of one head, or of all if heads_inside."""
        if self.pre_transposed:
            return self.cache
        if self.heads_inside:
            row = self.cache.shape[2] * 2  # of two tokens
            pieces = self.cache.reshape((self.cache.size // (row * width // 2), width // 2, row // 2, 2))
            return pieces[:, :, head * self.head_dim : (head + 1) * self.head_dim, :]
        count = self.cache.size // (width * self.head_dim)
        if self.packed:
            return self.cache.reshape((count, width // 2, self.head_dim, 2))
        return self.cache.reshape((count, width, self.head_dim))

    def token(self, rows: Tensor, number: int) -> Any:
        """[partitions, d] of one token of each piece, from what pieces() has given."""
        if self.pre_transposed:
            return rows[:, :, number]
        return rows[:, number // 2, :, number % 2] if self.packed else rows[:, number, :]


class Pages(nl.NKIObject):
    """A paged cache as sections of keys: sequence s, kv head h is key head s * kv_heads + h."""

    def __init__(
        self, layout: KeyLayout, v_cache: Tensor, block_tables: Tensor, block_size: int, dtype: DTypeLike
    ):
        self.layout = layout
        self.v_cache = v_cache
        self.v_dtype = v_cache.dtype  # next to float32 queries FP8 values are widened as they arrive
        if dtype == nl.float32:
            self.v_dtype = dtype
        self.block_size = block_size
        self.dtype = dtype  # of the matmuls: narrower keys are widened, TensorE transposes no bytes
        self.blocks = block_tables.shape[1]
        self.keys = self.blocks * block_size
        self.factor = cut(self.blocks, block_size, layout)
        self.width = block_size // self.factor
        self.table = compacted(block_tables, self.factor)

    def sections(self, key_head: int, most: int) -> list:
        """Of whole chunks; `most` keys at most, but one chunk at least."""
        sections: list = []
        chunks: list = []
        held = 0
        for part in TiledRange(self.blocks * self.factor, PMAX):
            chunk = KeyChunk(part.index, part.start_offset * self.width, part.size, self.width)
            if held > 0 and held + chunk.keys > most:
                sections.append(self.section(chunks, held, key_head))
                chunks, held = [], 0
            chunks.append(chunk)
            held += chunk.keys
        sections.append(self.section(chunks, held, key_head))
        return sections

    def section(self, chunks: list, size: int, key_head: int) -> PrefillSection:
        section = PrefillSection(None, self.v_cache[0, 0], chunks[0].key, size, False)
        section.total = self.keys
        section.chunks = chunks
        section.key_head = key_head
        return section

    def load(self, section: PrefillSection) -> None:
        """Keys as [d, keys]; values by tiles of keys, with the column of ones that makes the sums."""
        head_dim, tiles = self.layout.head_dim, 0
        for chunk in section.chunks:
            tiles += chunk.width
        section.k = nl.ndarray((head_dim, section.size), self.dtype, buffer=nl.sbuf)
        section.v = nl.ndarray((PMAX, tiles, head_dim + 1), self.v_dtype, buffer=nl.sbuf)
        nisa.memset(section.v[:, :, head_dim : head_dim + 1], 1.0, engine=nisa.gpsimd_engine)
        kv_heads = self.layout.kv_heads
        sequence, head = section.key_head // kv_heads, section.key_head % kv_heads
        tile = 0
        for chunk in section.chunks:
            index = self.indices(chunk, sequence)
            start = chunk.key - section.start
            keys = section.k[:, start : start + chunk.keys]
            load_keys(keys, self.layout, self.of_head(index, head, self.layout.heads_inside), head, chunk)
            values = self.v_cache.reshape(
                (self.v_cache.size // (self.width * head_dim), self.width, head_dim)
            )
            place = section.v[0 : chunk.rows, tile : tile + chunk.width, 0:head_dim]
            nisa.dma_copy(place, values.vector_select(0, self.of_head(index, head, False)))
            tile += chunk.width

    def indices(self, chunk: KeyChunk, sequence: int) -> Tensor:
        """block * factor + part for each partition of a chunk, [rows, 1] int32."""
        index = nl.ndarray((chunk.rows, 1), nl.int32, buffer=nl.sbuf)
        first = chunk.index * PMAX
        nisa.dma_copy(index, self.table[sequence, first : first + chunk.rows].expand_dim(1))
        return index

    def of_head(self, index: Tensor, head: int, heads_inside: bool) -> Any:
        """The piece of a kv head: (block * kv_heads + head) * factor + part."""
        kv_heads, factor = self.layout.kv_heads, self.factor
        if kv_heads == 1 or heads_inside:
            return index
        part = nl.ndarray(index.shape, nl.int32, buffer=nl.sbuf)
        block = nl.ndarray(index.shape, nl.int32, buffer=nl.sbuf)
        nisa.tensor_scalar(part, index, nl.bitwise_and, factor - 1)
        nisa.tensor_tensor(block, index, part, nl.subtract)  # block * factor
        result = nl.ndarray(index.shape, nl.int32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            block, block, nl.multiply, float(kv_heads), op1=nl.add, operand1=float(head * factor)
        )
        nisa.tensor_tensor(result, block, part, nl.add)
        return result


def cut(blocks: int, block_size: int, layout: KeyLayout) -> int:
    """Pieces of a block: a power of two that fills all partitions, in chunks of CHUNK_KEYS at most."""
    least = 2 if layout.packed else 1  # tokens of a piece
    factor = 1
    if layout.pre_transposed:  # the tokens of a block lie in d runs: it stays whole
        return factor
    while (
        block_size % (2 * factor) == 0
        and block_size // (2 * factor) >= least
        and (blocks * factor % PMAX != 0 or block_size // factor * PMAX > CHUNK_KEYS)
    ):
        factor *= 2
    return factor


def compacted(block_tables: Tensor, factor: int) -> Tensor:
    """block * factor + part for all parts of the blocks of each sequence, without the -1: HBM [sequences, n].

    What lies beyond the last block points to block 0: no query sees that far.
    """
    sequences, blocks = block_tables.shape
    table = nl.ndarray((sequences, blocks * factor), nl.int32, buffer=nl.private_hbm)
    for group in TiledRange(sequences, PMAX):
        compact_some(table, block_tables, group, factor)
    return table


def compact_some(table: Tensor, block_tables: Tensor, group: TiledRangeIterator, factor: int) -> None:
    sequences, blocks = group.size, block_tables.shape[1]
    span = slice(group.start_offset, group.end_offset)
    blank = nl.ndarray((sequences, blocks * factor), nl.int32, buffer=nl.sbuf)
    nisa.memset(blank, 0)
    nisa.dma_copy(table[span], blank)
    entries = nl.ndarray((sequences, blocks), nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(entries, block_tables.reinterpret_cast(nl.int32)[span])
    real = nl.ndarray((sequences, blocks), nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(real, entries, nl.greater_equal, 0.0)
    rank = nl.ndarray((sequences, blocks), nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar_cumulative(rank, real, nl.multiply, nl.add, 1.0)
    nisa.tensor_tensor(rank, rank, real, nl.multiply)  # 1, 2, ... for blocks, 0 for those to be left out
    wanted = nl.ndarray((sequences, blocks), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(wanted, entries)
    for part in TiledRange(blocks, PMAX):
        columns = slice(part.start_offset, part.end_offset)
        places, numbers = transposed(rank[:, columns], -1.0), transposed(wanted[:, columns], 0.0)
        for i in range(sequences):
            pieces = nl.ndarray((part.size, factor), nl.int32, buffer=nl.sbuf)
            nisa.iota(pieces, [[1, factor]])
            block = nl.ndarray((part.size, 1), nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(block, numbers[:, i : i + 1], nl.multiply, float(factor))
            nisa.tensor_scalar(pieces, pieces, nl.add, block)
            row = table[group.start_offset + i].reshape((blocks, factor))
            nisa.dma_copy(row.vector_select(0, places[:, i : i + 1]), pieces, oob_mode=nisa.oob_mode.skip)


def transposed(rows: Tensor, shift: float) -> Tensor:
    """rows + shift with its columns in the partitions, as int32."""
    psum = nl.ndarray((rows.shape[1], rows.shape[0]), nl.float32, buffer=nl.psum)
    nisa.nc_transpose(psum, rows, engine=nisa.tensor_engine)
    tile = nl.ndarray((rows.shape[1], rows.shape[0]), nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(tile, psum, nl.add, shift)
    return tile


def load_keys(
    keys: Tensor, layout: KeyLayout, index: Tensor, head: int, chunk: KeyChunk, skipped: bool = False
) -> None:
    """keys [d, rows * width]: the pieces that `index` names, token width p + j in column width p + j.

    With `skipped` an index below 0 leaves 0.
    """
    pieces = layout.pieces(head, chunk.width)
    rows = nl.ndarray((chunk.rows,) + tuple(pieces.shape[1:]), pieces.dtype, buffer=nl.sbuf)
    if skipped:
        nisa.memset(rows, 0.0)
    mode = nisa.oob_mode.skip if skipped else nisa.oob_mode.error
    nisa.dma_copy(rows, pieces.vector_select(0, index), oob_mode=mode)
    wide = rows
    if pieces.dtype != keys.dtype:
        wide = nl.ndarray(rows.shape, keys.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(wide, rows, engine=nisa.gpsimd_engine)
    by_token = keys.reshape_dim(1, (chunk.rows, chunk.width)).permute((0, 2, 1))
    several = BANK_BYTES // (PMAX * sizeinbytes(keys.dtype))
    for part in TiledRange(chunk.width, several):
        bank = nl.ndarray((layout.head_dim, part.size, chunk.rows), keys.dtype, buffer=nl.psum)
        for i in range(part.size):
            token = layout.token(wide, part.start_offset + i)
            nisa.nc_transpose(bank[:, i, :], token, engine=nisa.tensor_engine)
        interleave_copy(by_token[:, part.start_offset : part.end_offset, :], bank, part.index)
