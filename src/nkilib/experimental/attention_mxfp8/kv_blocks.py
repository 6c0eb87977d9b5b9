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
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor

BLOCK, ROWS, WIDTH = 128, 32, 160  # tokens of a block, its rows, their words
LANES = 4
GROUPS, TOGETHER = 4, 4  # of a chunk, and blocks of a group
CHUNK = GROUPS * TOGETHER * BLOCK


@dataclass
class ChunkTiles(nl.NKIObject):
    """Words and scales of some chunks: keys [128, groups, 4, 160], values [128, groups, 160], float32."""

    keys: Tensor
    values: Tensor
    first: int = 0  # group of the chunk that is read

    def chunk(self, number: int) -> Any:
        return ChunkTiles(self.keys, self.values, number * GROUPS)

    def key_words(self, group: int, lane: int) -> Any:
        """[128, 128]: column 32 i + p is token 32 lane + p of block i, in the partitions of that block."""
        return self.keys[:, self.first + group, :, ROWS * lane : ROWS * (lane + 1)].view(nl.float8_e4m3fn_x4)

    def key_scales(self, group: int, lane: int) -> Any:
        scales = self.keys[:, self.first + group, :, BLOCK:WIDTH].view(nl.uint8)
        return scales[:, :, ROWS * lane : ROWS * (lane + 1)]

    def value_words(self, group: int) -> Any:
        return self.values[:, self.first + group, 0:BLOCK].view(nl.float8_e4m3fn_x4)

    def value_scales(self, group: int) -> Any:
        return self.values[:, self.first + group, BLOCK:WIDTH].view(nl.uint8)

    def load(self, keys: Tensor, values: Tensor) -> None:
        """Fill the tiles with blocks [n, 32, 160]; keys off the diagonal are 0 already."""
        groups = keys.shape[0] // TOGETHER
        some = keys.reshape_dim(0, (groups, TOGETHER))
        for i in range(TOGETHER):
            place = self.keys[ROWS * i : ROWS * (i + 1), 0:groups, i, :]
            nisa.dma_copy(place, some[:, i].permute((1, 0, 2)))
        some = values.reshape_dim(0, (groups, TOGETHER)).permute((1, 2, 0, 3))
        nisa.dma_copy(self.values[:, 0:groups, :], some.flatten_dims(0, 1))


def blocks_of(cache: Tensor, table: Tensor | None, batch: int, blocks: int) -> Tensor:
    """The blocks [n, 32, 160] of a sequence, one after the other in HBM.

    Those of a table are copied: a block to a descriptor, instead of a row of 640 bytes.
    """
    if table is None:
        return cache[batch * blocks : (batch + 1) * blocks]
    adjacent = nl.ndarray((blocks, ROWS, WIDTH), cache.dtype, buffer=nl.private_hbm)
    entries = table.reinterpret_cast(nl.int32)[batch].reshape((blocks, 1))
    rows = cache.reshape((cache.shape[0], ROWS * WIDTH))
    for part in TiledRange(blocks, PMAX):
        own = slice(part.start_offset, part.end_offset)
        index = nl.ndarray((part.size, 1), nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(index, entries[own])
        some = nl.ndarray((part.size, ROWS * WIDTH), cache.dtype, buffer=nl.sbuf)
        nisa.dma_copy(some, rows.vector_select(0, index))
        nisa.dma_copy(adjacent[own].flatten_dims(1, 2), some)
    return adjacent


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
