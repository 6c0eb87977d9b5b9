"""Blocks of 128 keys or values in MXFP8, [32, 160] float32 each, and how a chunk of them stands in SBUF.

Row p of a block has 128 words and 128 bytes of scales, as quantize_block_mxfp8_kernel gives them with
unpacked scales. Keys: word t, lane q is channel 32 q + p of token t. Values: word c, lane q is channel c of
token 32 q + p. So of every 32 rows the first 4 hold scales.

A chunk has 16 blocks: block 4 g + i is in partitions 32 i ... of group g. Values contract the tokens of four
blocks at once. Keys stand in a diagonal of zeros, so that partition 32 i + p of a product belongs to block i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

BLOCK, ROWS, WIDTH = 128, 32, 160  # tokens of a block, its rows, their words
LANES = 4
GROUPS, TOGETHER = 4, 4  # of a chunk, and blocks of a group
CHUNK = GROUPS * TOGETHER * BLOCK


@dataclass
class ChunkTiles(nl.NKIObject):
    """Words and scales of a chunk: keys [128, groups, 4, 160], values [128, groups, 160], float32."""

    keys: Tensor
    values: Tensor

    def key_words(self, group: int, lane: int) -> Any:
        """[128, 128]: column 32 i + p is token 32 lane + p of block i, in the partitions of that block."""
        return self.keys[:, group, :, ROWS * lane : ROWS * (lane + 1)].view(nl.float8_e4m3fn_x4)

    def key_scales(self, group: int, lane: int) -> Any:
        scales = self.keys[:, group, :, BLOCK:WIDTH].view(nl.uint8)
        return scales[:, :, ROWS * lane : ROWS * (lane + 1)]

    def value_words(self, group: int) -> Any:
        return self.values[:, group, 0:BLOCK].view(nl.float8_e4m3fn_x4)

    def value_scales(self, group: int) -> Any:
        return self.values[:, group, BLOCK:WIDTH].view(nl.uint8)


class BlockCache(nl.NKIObject):
    """Keys and values in HBM, by a table of blocks or, without one, the blocks of each sequence in turn."""

    def __init__(self, keys: Tensor, values: Tensor, table: Tensor | None, blocks: int):
        self.keys = keys
        self.values = values
        self.table = table
        self.blocks = blocks  # of a sequence

    def rows(self, batch: int) -> Any:
        """The row in [blocks 32, 160] of each partition and group of a sequence; None without a table."""
        if self.table is None:
            return None
        groups = self.blocks // TOGETHER
        entries = self.table.reinterpret_cast(nl.int32)[batch].reshape((groups, TOGETHER))
        number = nl.ndarray((PMAX, groups), nl.int32, buffer=nl.sbuf)
        for i in range(TOGETHER):
            some = entries[:, i].expand_dim(0).broadcast(0, ROWS)
            nisa.dma_copy(number[ROWS * i : ROWS * (i + 1)], some)
        within = nl.ndarray((PMAX, groups), nl.int32, buffer=nl.sbuf)
        nisa.iota(within, [[0, groups]], 0, 1)
        nisa.tensor_scalar(within, within, nl.bitwise_and, ROWS - 1)
        nisa.tensor_scalar(number, number, nl.left_shift, 5)  # 32 rows of a block
        nisa.tensor_tensor(number, number, within, op=nl.add, engine=nisa.gpsimd_engine)
        return number

    def load(self, chunk: ChunkTiles, batch: int, number: int, rows: Any) -> None:
        """Fill the tiles with a chunk of a sequence; keys off the diagonal are 0 already."""
        if rows is not None:
            self.gather(chunk, number, rows)
            return
        first = batch * self.blocks + number * GROUPS * TOGETHER
        end = first + GROUPS * TOGETHER
        keys = self.keys[first:end].reshape_dim(0, (GROUPS, TOGETHER))
        for i in range(TOGETHER):
            nisa.dma_copy(chunk.keys[ROWS * i : ROWS * (i + 1), :, i, :], keys[:, i].permute((1, 0, 2)))
        values = self.values[first:end].reshape_dim(0, (GROUPS, TOGETHER))
        nisa.dma_copy(chunk.values, values.permute((1, 2, 0, 3)).flatten_dims(0, 1))

    def gather(self, chunk: ChunkTiles, number: int, rows: Tensor) -> None:
        keys = self.keys.reshape((self.keys.shape[0] * ROWS, WIDTH))
        values = self.values.reshape((self.values.shape[0] * ROWS, WIDTH))
        for g in range(GROUPS):
            index = rows[:, number * GROUPS + g : number * GROUPS + g + 1]
            nisa.dma_copy(chunk.values[:, g, :], values.vector_select(0, index))
            for i in range(TOGETHER):
                own = slice(ROWS * i, ROWS * (i + 1))
                nisa.dma_copy(chunk.keys[own, g, i, :], keys.vector_select(0, index[own]))


# ---- on the host ---------------------------------------------------------------------------------


def pack_keys(keys: np.ndarray) -> np.ndarray:
    """Quantise keys [tokens, 128], tokens a multiple of 128, to blocks [tokens / 128, 32, 160] float32."""
    return _packed(keys.reshape(-1, BLOCK, keys.shape[1]))


def pack_values(values: np.ndarray) -> np.ndarray:
    """Quantise values [tokens, 128] to blocks, in groups of 32 tokens."""
    return _packed(values.reshape(-1, BLOCK, values.shape[1]).swapaxes(1, 2))


def _packed(blocks: np.ndarray) -> np.ndarray:
    from nki import mx

    packed = []
    for block in blocks:
        data, scales = mx.quantize_operand(
            np.ascontiguousarray(block), "float8_e4m3fn", scale_layout="hardware"
        )
        rows = np.concatenate([data.view(np.uint8), np.asarray(scales).view(np.uint8)], axis=1)
        packed.append(rows.view(np.float32))
    return np.stack(packed)


def chunk_masks(lengths: np.ndarray, bucket: int) -> np.ndarray:
    """The mask [B bucket / 2048, 128, 16] uint8 of sequences whose first lengths[b] tokens count."""
    group, i, lane, row = np.ix_(*(np.arange(n) for n in (GROUPS, TOGETHER, LANES, ROWS)))
    token = BLOCK * (TOGETHER * group + i) + ROWS * lane + row  # [group, i, lane, row]
    by_tile = token.transpose(1, 3, 0, 2).reshape(PMAX, GROUPS * LANES)
    starts = CHUNK * np.arange(bucket // CHUNK)[:, None, None]
    seen = (starts + by_tile)[None] < np.reshape(lengths, (-1, 1, 1, 1))
    return seen.reshape(-1, PMAX, GROUPS * LANES).astype(np.uint8)
