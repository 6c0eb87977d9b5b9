"""The online softmax of attention_mxfp8_tkg: queries of one new token, their maxima, sums and results."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor
from nkilib.experimental.attention_mxfp8.kv_blocks import GROUPS, LANES, ROWS, ChunkTiles

SLOTS = GROUPS * LANES  # scores of a head in each partition
BANK_HEADS = 512 // SLOTS  # whose scores fill a PSUM bank


class DecodeConstants(nl.NKIObject):
    """Matrices that all units share."""

    def __init__(self, identity_hbm: Tensor | None):
        self.identity = nl.ndarray((PMAX, PMAX), nl.bfloat16, buffer=nl.sbuf)
        if identity_hbm is None:
            nisa.memset(self.identity, 1.0)
            nisa.affine_select(self.identity, [[-1, PMAX]], 1, self.identity, 0.0, cmp_op=nl.equal)
        else:
            nisa.dma_copy(self.identity, identity_hbm)
        self.ones = nl.ndarray((PMAX, PMAX), nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(self.ones, 1.0)
        wide = nl.ndarray((PMAX, 2 * LANES), nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(wide, 1.0)
        self.one_words = nl.ndarray((PMAX, 2), nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        self.one_scales = nl.ndarray((PMAX, 2), nl.uint8, buffer=nl.sbuf)
        nisa.quantize_mx(self.one_words, wide, self.one_scales)


class Queries(nl.NKIObject):
    """The query heads of one new token: [heads, d] in HBM, and what they have seen so far.

    `top` is a number near the largest score of each head, rounded to bfloat16, [heads, 1]; `sums` and `total`
    are those of e^(score - top) and of their products with values, `place` receives the result.
    """

    def __init__(self, shared: DecodeConstants, q: Tensor, new: tuple, step: int, place: Tensor):
        self.shared = shared
        self.place = place
        self.heads = q.shape[0]
        self.depth = q.shape[1]
        rows = nl.ndarray(q.shape, nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(rows, q)
        words, scales = quantized_queries(rows)
        self.words = words
        self.scales = scales
        self.start(rows, new, step)

    def start(self, rows: Tensor, new: tuple, step: int) -> None:
        """Attend to new tokens up to this one."""
        seen, heads = step + 1, self.heads
        columns = nl.ndarray((self.depth, heads), nl.bfloat16, buffer=nl.sbuf)
        bank = nl.ndarray((self.depth, heads), nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(bank, rows)
        nisa.tensor_copy(columns, bank)
        keys = nl.ndarray((self.depth, seen), nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(keys, new[0][0:seen].permute((1, 0)))
        scores = nl.ndarray((heads, seen), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(scores, columns, keys)
        self.top = nl.ndarray((heads, 1), nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_reduce(self.top, nl.maximum, scores, 1)
        self.negative = negated(self.top)
        weights = nl.ndarray((heads, seen), nl.bfloat16, buffer=nl.sbuf)
        self.sums = new_column(heads)
        nisa.activation_reduce(weights, nl.exp, scores, nl.add, self.sums, bias=self.negative)
        by_token = nl.ndarray((seen, heads), nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(by_token, weights)
        stationary = nl.ndarray((seen, heads), nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(stationary, by_token)
        values = nl.ndarray((seen, self.depth), nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(values, new[1][0:seen])
        product = nl.ndarray((heads, self.depth), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(product, stationary, values)
        self.total = nl.ndarray((heads, self.depth), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(self.total, product)

    def score(self, chunk: ChunkTiles, bias: Tensor) -> Any:
        """The first stage of a chunk: scores with the mask."""
        heads = self.heads
        scores = nl.ndarray((PMAX, heads, SLOTS), nl.float32, buffer=nl.psum)
        for part in TiledRange(heads, BANK_HEADS):
            spread = bias.expand_dim(1).broadcast(1, part.size)
            place = scores[:, part.start_offset : part.end_offset, :]
            nisa.nc_matmul(place, self.shared.identity, spread, accumulate=False)
        for g in range(GROUPS):
            for lane in range(LANES):
                nisa.nc_matmul_mx(
                    scores[:, :, g * LANES + lane],
                    chunk.key_words(g, lane),
                    self.words,
                    chunk.key_scales(g, lane),
                    self.scales,
                    accumulate=True,
                )
        return ScoredChunk(self, chunk, scores)

    def raise_top(self, scores: Tensor) -> None:
        """top = max(top, the largest score of each head), rounded."""
        heads = self.heads
        partial = nl.ndarray((PMAX, heads), nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_reduce(partial, nl.maximum, scores, 2)
        by_head = nl.ndarray((heads, PMAX), nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(by_head, partial)
        largest = new_column(heads)
        nisa.tensor_reduce(largest, nl.maximum, by_head, 1)
        top = like(self.top)
        nisa.tensor_tensor(top, self.top, largest, op=nl.maximum)
        self.top = top
        self.negative = negated(top)

    def store(self) -> None:
        """Divide by the sums and write the result."""
        inverse = new_column(self.heads)
        nisa.reciprocal(inverse, self.sums)
        result = nl.ndarray((self.heads, self.depth), nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_scalar(result, self.total, nl.multiply, inverse)
        nisa.dma_copy(self.place, result)


class ScoredChunk(nl.NKIObject):
    """A chunk between its two stages."""

    def __init__(self, queries: Queries, chunk: ChunkTiles, scores: Tensor):
        self.queries = queries
        self.chunk = chunk
        self.scores = scores  # in PSUM
        self.before: Any = None  # the top of the queries before this chunk
        self.negative: Any = None  # minus the top with it

    def find_top(self) -> None:
        """The new maximum of each head: between the stages, while TensorE works on another chunk."""
        self.before = self.queries.top
        self.queries.raise_top(self.scores)
        self.negative = self.queries.negative

    def add(self) -> None:
        """The second stage: add the exponentials and their products with values."""
        state, scores, shared = self.queries, self.scores, self.queries.shared
        heads = state.heads
        diagonal = nl.ndarray((heads, heads), nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_scalar(diagonal, shared.identity[0:heads, 0:heads], nl.multiply, self.negative)
        for part in TiledRange(heads, BANK_HEADS):
            own = slice(part.start_offset, part.end_offset)
            spread = diagonal[:, own].expand_dim(2).broadcast(2, SLOTS)
            nisa.nc_matmul(scores[:, own, :], shared.ones[0:heads], spread, accumulate=True)
        weights = nl.ndarray((PMAX, GROUPS, heads, LANES), nl.bfloat16, buffer=nl.sbuf)
        nisa.activation(weights.permute((0, 2, 1, 3)), nl.exp, scores.reshape_dim(2, (GROUPS, LANES)))
        words = nl.ndarray((PMAX, GROUPS * heads), nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        scales = nl.ndarray((PMAX, GROUPS * heads), nl.uint8, buffer=nl.sbuf)
        nisa.quantize_mx(words, weights.reshape((PMAX, GROUPS * heads * LANES)), scales)
        product = nl.ndarray((heads, state.depth), nl.float32, buffer=nl.psum)
        sums = nl.ndarray((heads, 2), nl.float32, buffer=nl.psum)
        for g in range(GROUPS):
            own = slice(g * heads, (g + 1) * heads)
            more = g > 0
            moving = (self.chunk.value_words(g), self.chunk.value_scales(g))
            nisa.nc_matmul_mx(product, words[:, own], moving[0], scales[:, own], moving[1], accumulate=more)
            nisa.nc_matmul_mx(
                sums, words[:, own], shared.one_words, scales[:, own], shared.one_scales, accumulate=more
            )
        self.join(product, sums[:, 0:1])

    def join(self, product: Tensor, sums: Tensor) -> None:
        """total = total e^(before - top) + product, and so the sums."""
        state = self.queries
        factor = new_column(state.heads)
        nisa.activation(factor, nl.exp, self.before, bias=self.negative)
        total, counted = like(state.total), new_column(state.heads)
        nisa.scalar_tensor_tensor(total, state.total, nl.multiply, factor, nl.add, product)
        nisa.scalar_tensor_tensor(counted, state.sums, nl.multiply, factor, nl.add, sums)
        state.total = total
        state.sums = counted


def quantized_queries(rows: Tensor) -> tuple:
    """Rows [heads, d] as words [128, heads] and scales: channel 32 q + p in lane q of partition 32 i + p."""
    heads = rows.shape[0]
    lanes = nl.ndarray((PMAX, heads, LANES), nl.bfloat16, buffer=nl.sbuf)
    for lane in range(LANES):
        part = rows[:, ROWS * lane : ROWS * (lane + 1)].expand_dim(1).broadcast(1, PMAX // ROWS)
        bank = nl.ndarray((PMAX, heads), nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(bank, part)
        nisa.tensor_copy(lanes[:, :, lane], bank)
    words = nl.ndarray((PMAX, heads), nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    scales = nl.ndarray((PMAX, heads), nl.uint8, buffer=nl.sbuf)
    nisa.quantize_mx(words, lanes.reshape((PMAX, heads * LANES)), scales)
    return words, scales


def negated(column: Tensor) -> Tensor:
    """-column, float32."""
    out = nl.ndarray(column.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(out, column, nl.multiply, -1.0)
    return out
