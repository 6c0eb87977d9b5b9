"""Scores of an indexer, and the places of the largest of each query, which GpSimdE finds."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor
from nkilib.experimental.topk.gpsimd_topk import ROWS, top_of_group, vocabulary

PARTITIONS = PMAX // ROWS  # that hold a query's scores for GpSimdE


class IndexResults(nl.NKIObject):
    """Scores in HBM and the largest of them in one of three layouts."""

    def __init__(self, tokens: int, tiles: int, k: int, end: int, flat: bool, tiled: bool):
        kernel_assert(k <= end, f"index_topk: got {k}, allowed are at most {end}, the keys")
        self.end = end
        self.k = k
        self.flat = flat
        self.scores = nl.ndarray((tokens, end), nl.float32, buffer=nl.shared_hbm)
        narrow = k // PARTITIONS
        shape = (tiles, PMAX // ROWS, PMAX, narrow if tiled else k)
        if flat:
            self.index: Any = nl.ndarray((tokens, k), nl.int32, buffer=nl.shared_hbm)
        else:
            self.index = nl.ndarray(shape, nl.int32 if tiled else nl.uint32, buffer=nl.shared_hbm)
        self.lanes = nl.ndarray((PMAX, PARTITIONS), nl.float32, buffer=nl.sbuf)  # 1 at p % 16
        column = nl.ndarray((PMAX, PARTITIONS), nl.int32, buffer=nl.sbuf)
        nisa.iota(column, [[-1, PARTITIONS]], offset=PMAX, channel_multiplier=1)
        nisa.tensor_scalar(column, column, nl.bitwise_and, PARTITIONS - 1)
        nisa.tensor_scalar(self.lanes, column, nl.equal, 0.0)

    def select(self, scores: Tensor, tile: int, first: int, count: int) -> None:
        """Find the largest scores of up to 128 queries, rows of bfloat16 in HBM."""
        each = div_ceil(self.end, PARTITIONS)
        for t in range(PMAX // ROWS):
            if t * ROWS < count:
                some = scores[t * ROWS : min(count, (t + 1) * ROWS)]
                places = vocabulary(top_of_group(some, each, self.k)[1], each)
                self.store(places, tile, t, first, some.shape[0])
            elif not self.flat:
                zeros = nl.ndarray((PMAX, self.index.shape[3]), self.index.dtype, buffer=nl.sbuf)
                nisa.memset(zeros, 0)
                nisa.dma_copy(self.index[tile, t], zeros)

    def store(self, places: Tensor, tile: int, t: int, first: int, rows: int) -> None:
        """places [128, k] float32, the same in the 16 partitions of each query."""
        if self.flat:
            whole = nl.ndarray(places.shape, nl.int32, buffer=nl.sbuf)
            nisa.tensor_copy(whole, places)
            for row in range(rows):
                at, partition = first + t * ROWS + row, row * PARTITIONS
                nisa.dma_copy(self.index[at : at + 1], whole[partition : partition + 1])
            return
        narrow = self.k // PARTITIONS
        picked = nl.ndarray((PMAX, narrow, PARTITIONS), nl.float32, buffer=nl.sbuf)
        lanes = self.lanes.expand_dim(1).broadcast(1, narrow)
        nisa.tensor_tensor(picked, places.reshape_dim(1, (narrow, PARTITIONS)), lanes, op=nl.multiply)
        own = nl.ndarray((PMAX, narrow), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(own, nl.add, picked, 2)
        out = nl.ndarray((PMAX, self.index.shape[3]), self.index.dtype, buffer=nl.sbuf)
        if out.shape[1] > narrow:
            nisa.memset(out, 0)
        nisa.tensor_copy(out[:, 0:narrow], own)
        nisa.dma_copy(self.index[tile, t], out)
