"""Latent attention of one decode step over chosen rows of the cache, and its output projection.

Rows of the cache stand in the partitions; each is gathered once, as the descriptors of a gather take longest.
Scores come as [rows, heads] and the attention as [latents, heads], so that nothing but the rows is
transposed. Two cores share the tokens, then the columns of the output projection.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.decode import swap
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import (
    div_ceil,
    get_verified_program_sharding_info,
    interleave_copy,
    is_hbm_buffer,
    program_share,
)
from nkilib.core.utils.projection import BANK_COLUMNS, Activations, span_columns
from nkilib.core.utils.projection_results import ColumnTerms, new_rows, project_into, store_rows
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor
from nkilib.experimental.misc.indexed_rows import rows_at

MAX_ROWS = 2048  # of a token
LEFT_OUT = -1.0e30  # added to the scores of rows that are left out
HEADS_TOGETHER = 8  # whose part of w_uv is in SBUF at a time


@nki.jit
def mla_decode_attention(
    q_lift: Tensor,
    q_pe: Tensor,
    kv_cache: Tensor,
    topk_indices: Tensor,
    w_uv: Tensor,
    w_o: Tensor,
    softmax_scale: float,
) -> Tensor:
    """Return bfloat16 [T, H]: attention of each token over its rows of the cache, times w_uv and w_o.

    A row of the cache is a latent c of L elements and a key k of R elements. The probabilities of a head are
    softmax over the chosen rows of softmax_scale (q_lift c + q_pe k); they weigh the latents; w_uv of the
    head makes values of the result, and w_o multiplies the values of all heads.

    Args:
        q_lift, q_pe: tiles of mla_decode_qkv, or [L, T, heads] and [R, T, heads] in HBM; heads <= 128.
        kv_cache: [blocks, block_size, L + R] bfloat16.
        topk_indices: [T, K] int32, rows of the cache; K a multiple of 128 up to 2048. Negative ones are left
            out; each token has one that is not.
        w_uv: [heads, L, V], V <= 128.
        w_o: [heads V, H].
        softmax_scale: factor of the scores.

    All are bfloat16 but the indices; probabilities are rounded to bfloat16, sums are in float32. The page of
    this kernel is not to be had: its name, its place between the projections and the output, and that it
    gathers the rows that the indexer has chosen, are read of the pages of mla_decode_qkv and of
    mla_attention_block_gather_decode; arguments and layouts are ours.

    >>> import ml_dtypes
    >>> zeros = lambda *shape: np.zeros(shape, ml_dtypes.bfloat16)
    >>> cache = zeros(1, 200, 130) + np.arange(200)[:, None].astype(ml_dtypes.bfloat16)
    >>> chosen = np.full((1, 128), -1, np.int32)
    >>> chosen[0, :2] = 10, 20
    >>> w_uv = zeros(1, 128, 2)
    >>> w_uv[0, 0] = 1, 2
    >>> eye = np.eye(2, dtype=ml_dtypes.bfloat16)
    >>> mla_decode_attention(zeros(128, 1, 1), zeros(2, 1, 1), cache, chosen, w_uv, eye, 1.0).tolist()
    [[15.0, 30.0]]
    """
    get_verified_program_sharding_info("mla_decode_attention", (0, 1), 2)
    job = GatherAttention(q_lift, q_pe, kv_cache, topk_indices, w_uv, w_o, softmax_scale)
    share = div_ceil(job.tokens, nl.num_programs(0))
    first = min(job.tokens, nl.program_id(0) * share)
    count = min(share, job.tokens - first)
    latents = nl.ndarray((PMAX, job.chunks, job.heads, share), nl.bfloat16, buffer=nl.sbuf)
    if count < share:
        nisa.memset(latents, 0.0)
    for i in range(count):
        job.attend(latents[:, :, :, i], first + i)
    values = job.values(latents)
    return job.output(values, share)


def load_rows(cache: Tensor, places: Tensor) -> Tensor:
    """The rows of the cache at 128 places, in SBUF."""
    tile = nl.ndarray((PMAX, cache.shape[1]), cache.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, rows_at(cache, places))
    return tile


class GatherAttention(nl.NKIObject):
    """One call: its operands and sizes."""

    def __init__(
        self,
        q_lift: Tensor,
        q_pe: Tensor,
        cache: Tensor,
        chosen: Tensor,
        w_uv: Tensor,
        w_o: Tensor,
        scale: float,
    ):
        named = (("q_lift", q_lift), ("q_pe", q_pe), ("kv_cache", cache), ("w_uv", w_uv), ("w_o", w_o))
        assert_tensors(named + (("topk_indices", chosen),))
        for pair in named:
            kernel_assert(pair[1].dtype == nl.bfloat16, f"{pair[0]}: got {pair[1].dtype}, expected bfloat16")
        kernel_assert(scale > 0, f"softmax_scale: got {scale}, expected a positive number")
        kernel_assert(
            len(chosen.shape) == 2
            and chosen.dtype == nl.int32
            and chosen.shape[1] % PMAX == 0
            and 0 < chosen.shape[1] <= MAX_ROWS,
            f"topk_indices: got {chosen.dtype} {tuple(chosen.shape)}, expected int32 [T, K], K a multiple of "
            f"128 up to {MAX_ROWS}",
        )
        kernel_assert(
            len(w_uv.shape) == 3
            and w_uv.shape[0] <= PMAX
            and w_uv.shape[1] % PMAX == 0
            and w_uv.shape[1] <= BANK_COLUMNS
            and w_uv.shape[2] <= PMAX,
            f"w_uv: got shape {tuple(w_uv.shape)}, expected [heads, L, V], L = 128, 256, 384 or 512, V and "
            "heads <= 128",
        )
        self.tokens = chosen.shape[0]
        self.tiles = chosen.shape[1] // PMAX
        self.heads = w_uv.shape[0]
        self.latent = w_uv.shape[1]
        self.chunks = w_uv.shape[1] // PMAX
        self.depth = w_uv.shape[2]
        kernel_assert(self.tokens <= PMAX, f"topk_indices: got {self.tokens} tokens, allowed are 128")
        kernel_assert(
            len(cache.shape) == 3 and self.latent < cache.shape[2] <= self.latent + PMAX,
            f"kv_cache: got shape {tuple(cache.shape)}, expected [blocks, size, {self.latent} + R], R <= 128",
        )
        self.rotated = cache.shape[2] - self.latent
        kernel_assert(
            len(w_o.shape) == 2 and w_o.shape[0] == self.heads * self.depth,
            f"w_o: got shape {tuple(w_o.shape)}, expected ({self.heads * self.depth}, H)",
        )
        self.lift = self.query(q_lift, "q_lift", self.latent)
        self.position = self.query(q_pe, "q_pe", self.rotated)
        self.cache = cache.reshape((cache.shape[0] * cache.shape[1], cache.shape[2]))
        self.chosen = chosen
        self.w_uv = w_uv
        self.w_o = w_o
        self.scale = scale
        self.ones = nl.ndarray((PMAX, PMAX), nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(self.ones, 1.0)

    def query(self, q: Tensor, name: str, size: int) -> Any:
        """Queries as [128 or fewer, chunks, T, heads]."""
        chunks, width = div_ceil(size, PMAX), min(size, PMAX)
        if not is_hbm_buffer(q):
            shape = (width, chunks, self.tokens, self.heads)
            if len(q.shape) == 3:
                q = q.expand_dim(1)
            assert_shape(q, shape, name)
            return q
        assert_shape(q, (size, self.tokens, self.heads), name)
        return load(q.reshape_dim(0, (chunks, width)).permute((1, 0, 2, 3)))

    def attend(self, dst: Tensor, token: int) -> None:
        """dst [128, L / 128, heads] = the mean of the latents, weighed by probabilities."""
        places, penalty = self.places(token)
        rows, scores = [], nl.ndarray((PMAX, self.tiles, self.heads), nl.float32, buffer=nl.sbuf)
        for group in TiledRange(self.tiles, BANK_COLUMNS // self.heads):
            bank = nl.ndarray((PMAX, group.size, self.heads), nl.float32, buffer=nl.psum)
            for i in range(group.size):
                tile = group.start_offset + i
                rows.append(load_rows(self.cache, places[:, tile : tile + 1]))
                self.add_scores(bank[:, i, :], rows[tile], token)
            some = slice(group.start_offset, group.end_offset)
            excluded = penalty[:, some].expand_dim(2).broadcast(2, self.heads)
            nisa.tensor_tensor(scores[:, some, :], bank, excluded, nl.add)
        powers = self.exponentials(scores)
        total = nl.ndarray((PMAX, self.chunks, self.heads), nl.float32, buffer=nl.psum)
        weight = nl.ndarray((PMAX, self.heads), nl.float32, buffer=nl.psum)
        for tile in range(self.tiles):
            nisa.nc_matmul(weight, self.ones, powers[:, tile, :])
        for c in range(self.chunks):
            for tile in range(self.tiles):
                latents = rows[tile][:, c * PMAX : (c + 1) * PMAX]
                nisa.nc_matmul(total[:, c, :], latents, powers[:, tile, :])
        inverse = like(weight)
        nisa.reciprocal(inverse, weight)
        nisa.tensor_tensor(dst, total, inverse.expand_dim(1).broadcast(1, self.chunks), nl.multiply)

    def places(self, token: int) -> tuple:
        """(uint32 rows of the cache, what is added to their scores), [128, K / 128] both."""
        chosen = load(self.chosen[token].reshape((PMAX, self.tiles)))
        penalty = like(chosen, nl.float32)
        nisa.tensor_scalar(penalty, chosen, nl.less, 0.0, op1=nl.multiply, operand1=LEFT_OUT)
        places = like(chosen, nl.uint32)
        nisa.tensor_scalar(places, chosen, nl.maximum, 0.0)
        return places, penalty

    def add_scores(self, scores: Tensor, rows: Tensor, token: int) -> None:
        """scores [rows, heads] of 128 rows, which TensorE transposes."""
        bank = nl.ndarray((PMAX, self.chunks + 1, PMAX), nl.bfloat16, buffer=nl.psum)
        for c in range(self.chunks):
            nisa.nc_transpose(bank[:, c, :], rows[:, c * PMAX : (c + 1) * PMAX])
        nisa.nc_transpose(bank[0 : self.rotated, self.chunks, :], rows[:, self.latent :])
        columns = like(bank)
        interleave_copy(columns[:, 0 : self.chunks, :], bank[:, 0 : self.chunks, :], token)
        keys = columns[0 : self.rotated, self.chunks, :]
        interleave_copy(keys, bank[0 : self.rotated, self.chunks, :], token + 1)
        for c in range(self.chunks):
            nisa.nc_matmul(scores, columns[:, c, :], self.lift[:, c, token, :])
        nisa.nc_matmul(scores, keys, self.position[:, 0, token, :])

    def exponentials(self, scores: Tensor) -> Tensor:
        """exp(scale (scores - their largest)) in bfloat16, [rows, tiles, heads]; scores are overwritten."""
        own = nl.ndarray((PMAX, self.heads), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(own, nl.maximum, scores.permute((0, 2, 1)), 2)
        across = nl.ndarray((self.heads, PMAX), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(across, own)
        largest = new_column(self.heads)
        nisa.tensor_reduce(largest, nl.maximum, across, 1)
        spread = nl.ndarray((PMAX, self.heads), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(spread, largest.broadcast(1, PMAX))
        shift = like(spread)
        nisa.tensor_copy(shift, spread)
        nisa.tensor_tensor(scores, scores, shift.expand_dim(1).broadcast(1, self.tiles), nl.subtract)
        powers = like(scores, nl.bfloat16)
        nisa.activation(powers, nl.exp, scores, scale=self.scale)
        return powers

    def values(self, latents: Tensor) -> Tensor:
        """[V, heads, tokens] of latents [128, L / 128, heads, tokens]."""
        tokens = latents.shape[3]
        values = nl.ndarray((self.depth, self.heads, tokens), nl.bfloat16, buffer=nl.sbuf)
        for some in TiledRange(self.heads, HEADS_TOGETHER):
            own = self.w_uv[some.start_offset : some.end_offset].reshape_dim(1, (self.chunks, PMAX))
            weights = load(own.permute((2, 0, 1, 3)))
            bank = nl.ndarray((self.depth, some.size, tokens), nl.float32, buffer=nl.psum)
            for i in range(some.size):
                for c in range(self.chunks):
                    head = latents[:, c, some.start_offset + i, :]
                    nisa.nc_matmul(bank[:, i, :], weights[:, i, c, :], head)
            interleave_copy(values[:, some.start_offset : some.end_offset, :], bank, some.index)
        return values

    def output(self, values: Tensor, share: int) -> Tensor:
        """values w_o of all tokens; each core has those of its tokens, and computes some columns."""
        every = values
        if nl.num_programs(0) == 2:
            every = nl.ndarray((self.depth, self.heads, self.tokens), nl.bfloat16, buffer=nl.sbuf)
            core, other = nl.program_id(0), swap(values, nl.program_id(0), 0)
            for source in range(2):
                tile, start = values if source == core else other, source * share
                count = min(share, self.tokens - start)
                if count > 0:
                    nisa.tensor_copy(every[:, :, start : start + count], tile[:, :, 0:count])
        columns = self.w_o.shape[1]
        out = nl.ndarray((self.tokens, columns), nl.bfloat16, buffer=nl.shared_hbm)
        part = Activations(every, self.heads * self.depth, partitions=self.depth)
        first, end = program_share(columns)
        for span in TiledRange(end - first, span_columns(part, self.w_o)):
            rows, column = new_rows(self.tokens, span.size, nl.bfloat16), first + span.start_offset
            project_into(rows, 0, [part], self.w_o, ColumnTerms(), column, span.size)
            store_rows(out, rows, 0, 0, column, span.size)
        return out


def mla_decode_attention_ref(
    q_lift: np.ndarray,
    q_pe: np.ndarray,
    kv_cache: np.ndarray,
    topk_indices: np.ndarray,
    w_uv: np.ndarray,
    w_o: np.ndarray,
    softmax_scale: float,
) -> np.ndarray:
    """Return [T, H] in float64, of queries [L, T, heads] and [R, T, heads]."""
    latent = w_uv.shape[1]
    cache = kv_cache.astype(np.float64).reshape(-1, kv_cache.shape[2])
    values = []
    query = np.concatenate([q_lift, q_pe]).astype(np.float64).transpose(1, 2, 0)
    for q, chosen in zip(query, topk_indices, strict=True):
        rows = cache[chosen[chosen >= 0]]
        scores = softmax_scale * q @ rows.T
        powers = np.exp(scores - scores.max(1, keepdims=True))
        mean = powers / powers.sum(1, keepdims=True) @ rows[:, :latent]
        values.append(np.einsum("hl,hlv->hv", mean, w_uv.astype(np.float64)).reshape(-1))
    return np.array(values) @ w_o.astype(np.float64)
