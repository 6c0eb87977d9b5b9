"""Causal attention of every query over all earlier rows of a latent cache, which stays in SBUF.

The heads of a few queries fill the partitions: all heads share the rows of the cache, so each product takes
128 of them at once. Softmax is online, over blocks of the cache whose scores fit into SBUF.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, interleave_copy, program_share
from nkilib.core.utils.mx_layout import LANES, TILE
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor

MAX_CACHE = 8192  # rows: 18 bytes of each partition for each of them
BLOCK = 2048  # rows whose scores are exponentiated at once
LOWEST_TOP = 3.0e38  # above minus every scaled score


class DenseAttention(nl.NKIObject):
    """Rows of the cache, their transposes, and rows of queries one group after the other."""

    def __init__(self, c_kv: Tensor, k_pe: Tensor, scale: float):
        keys, rotated = k_pe.shape
        kernel_assert(keys <= MAX_CACHE, f"c_kv_hbm: got {keys} rows, allowed with dense are {MAX_CACHE}")
        tiles = div_ceil(keys, PMAX)
        self.scale = scale
        self.rows = nl.ndarray((PMAX, tiles, TILE), nl.bfloat16, buffer=nl.sbuf)
        self.columns = nl.ndarray((PMAX, LANES, keys), nl.bfloat16, buffer=nl.sbuf)
        self.positions = nl.ndarray((rotated, keys), nl.bfloat16, buffer=nl.sbuf)
        self.ones = nl.ndarray((PMAX, 1), nl.bfloat16, buffer=nl.sbuf)
        self.zeros = new_column(PMAX)
        nisa.memset(self.ones, 1.0)
        nisa.memset(self.zeros, 0.0)
        for tile in TiledRange(keys, PMAX):
            span = slice(tile.start_offset, tile.end_offset)
            own = self.rows[0 : tile.size, tile.index, :]
            turned = nl.ndarray((tile.size, rotated), nl.bfloat16, buffer=nl.sbuf)
            nisa.dma_copy(own, c_kv[span])
            nisa.dma_copy(turned, k_pe[span])
            turn_rows(self.columns[:, :, span], self.positions[:, span], own, turned, tile.index)

    def of(self, query: Tensor, query_pe: Tensor, end: Tensor, keys: int) -> tuple:
        """(total [n, 512], weight [n, 1]) of rows of queries over rows of the cache before `end` [n, 1].

        None of them reaches beyond `keys` rows.
        """
        count, columns = query.shape[0], query_columns(query, query_pe)
        state = OnlineSoftmax(count)
        for block in TiledRange(keys, BLOCK):
            scores, maximum = self.scores(columns, end, block)
            powers = state.exponentials(scores, maximum, self.scale)
            product = nl.ndarray((count, TILE), nl.float32, buffer=nl.psum)
            weight = nl.ndarray((count, 1), nl.float32, buffer=nl.psum)
            for tile in TiledRange(block.size, PMAX):
                across = nl.ndarray((tile.size, count), nl.bfloat16, buffer=nl.psum)
                nisa.nc_transpose(across, powers[:, tile.start_offset : tile.end_offset])
                stationary = nl.ndarray((tile.size, count), nl.bfloat16, buffer=nl.sbuf)
                interleave_copy(stationary, across, tile.index)
                at = block.start_offset // PMAX + tile.index
                nisa.nc_matmul(product, stationary, self.rows[0 : tile.size, at, :])
                nisa.nc_matmul(weight, stationary, self.ones[0 : tile.size])
            state.add(product, weight)
        return state.total, state.weight

    def scores(self, columns: tuple, end: Tensor, block: TiledRangeIterator) -> tuple:
        """Scores of a block [n, rows], those from `end` on as low as can be, and the maxima [n, 1]."""
        count = end.shape[0]
        scores = nl.ndarray((count, block.size), nl.float32, buffer=nl.sbuf)
        maximum = new_column(count)
        for part in TiledRange(block.size, BANK_COLUMNS):
            first = block.start_offset + part.start_offset
            bank = nl.ndarray((count, part.size), nl.float32, buffer=nl.psum)
            for lane in range(LANES):
                nisa.nc_matmul(bank, columns[0][:, lane, :], self.columns[:, lane, first : first + part.size])
            nisa.nc_matmul(bank, columns[1], self.positions[:, first : first + part.size])
            nisa.range_select(
                scores[:, part.start_offset : part.end_offset],
                bank,
                nl.greater_equal,
                nl.less,
                self.zeros[0:count],
                end,
                reduce_cmd=nisa.reduce_cmd.reset_reduce if part.index == 0 else nisa.reduce_cmd.reduce,
                reduce_res=maximum if part.end_offset == block.size else None,
                range_start=first,
            )
        return scores, maximum


class OnlineSoftmax(nl.NKIObject):
    """Sums of powers and of their products with rows, relative to the largest score so far."""

    def __init__(self, count: int):
        self.negative = new_column(count)  # minus the largest scaled score
        self.total = nl.ndarray((count, TILE), nl.float32, buffer=nl.sbuf)
        self.weight = new_column(count)
        self.factor: Any = None
        nisa.memset(self.negative, LOWEST_TOP)
        nisa.memset(self.total, 0.0)
        nisa.memset(self.weight, 0.0)

    def exponentials(self, scores: Tensor, maximum: Tensor, scale: float) -> Tensor:
        """exp(scores scale - the largest so far), bfloat16."""
        negative = like(self.negative)
        self.factor = like(self.negative)
        nisa.tensor_scalar(negative, maximum, nl.multiply, -scale, op1=nl.minimum, operand1=self.negative)
        nisa.activation(self.factor, nl.exp, self.negative, bias=negative, scale=-1.0)
        self.negative = negative
        powers = like(scores, nl.bfloat16)
        nisa.activation(powers, nl.exp, scores, bias=negative, scale=scale)
        return powers

    def add(self, product: Tensor, weight: Tensor) -> None:
        """Add the sums of a block."""
        total, counted = like(self.total), like(self.weight)
        nisa.scalar_tensor_tensor(total, self.total, nl.multiply, self.factor, nl.add, product)
        nisa.scalar_tensor_tensor(counted, self.weight, nl.multiply, self.factor, nl.add, weight)
        self.total = total
        self.weight = counted


def query_columns(query: Tensor, query_pe: Tensor) -> tuple:
    """Rows of queries in HBM with their columns in the partitions: [128, 4, n] and [R, n]."""
    count = query.shape[0]
    latent = nl.ndarray((PMAX, LANES, count), nl.bfloat16, buffer=nl.sbuf)
    position = nl.ndarray((query_pe.shape[1], count), nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_transpose(latent, query.reshape_dim(1, (LANES, PMAX)))
    nisa.dma_transpose(position, query_pe)
    return latent, position


def turn_rows(columns: Tensor, positions: Tensor, latents: Tensor, turned: Tensor, index: int) -> None:
    """Transpose rows of the cache, [n, 512] and [n, R], into [128, 4, n] and [R, n]."""
    count, rotated = turned.shape
    bank = nl.ndarray((PMAX, LANES, count), nl.bfloat16, buffer=nl.psum)
    for lane in range(LANES):
        nisa.nc_transpose(bank[:, lane, :], latents[:, lane * PMAX : (lane + 1) * PMAX])
    interleave_copy(columns, bank, index)
    across = nl.ndarray((rotated, count), nl.bfloat16, buffer=nl.psum)
    nisa.nc_transpose(across, turned)
    interleave_copy(positions, across, index + 1)


class QueryRows(nl.NKIObject):
    """Which rows of [S heads, ...] go together: the heads of as many queries as fill the partitions."""

    def __init__(self, queries: int, heads: int, keys: int, offset: Tensor | None):
        self.queries = queries
        self.heads = heads
        self.keys = keys
        self.known = offset is None
        self.together = PMAX // heads
        places = np.arange(PMAX).reshape(PMAX, 1) // heads + 1
        self.first = nl.ndarray((PMAX, 1), nl.float32, buffer=nl.sbuf)  # the end of a group at position 0
        nisa.dma_copy(self.first, nl.shared_constant(places.astype(np.float32)))
        if offset is not None:
            start = nl.ndarray((PMAX, 1), nl.int32, buffer=nl.sbuf)
            nisa.dma_copy(start, offset.reshape((1, 1)).broadcast(0, PMAX))
            nisa.tensor_tensor(self.first, self.first, start, nl.add)

    def groups(self) -> list:
        """(query, queries) of each group of this core."""
        first, end = program_share(self.queries)
        found = []
        for part in TiledRange(end - first, self.together):
            found.append((first + part.start_offset, part.size))
        return found

    def ends(self, query: int, count: int) -> tuple:
        """The rows of the cache that each row of a group sees, [n, 1], and how many any of them may see."""
        rows = count * self.heads
        end = new_column(rows)
        nisa.tensor_scalar(end, self.first[0:rows], nl.add, float(query))
        return end, min(self.keys, query + count) if self.known else self.keys
