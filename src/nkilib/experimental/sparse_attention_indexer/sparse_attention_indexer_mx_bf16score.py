"""Which keys each query attends to: DeepSeek's indexer with MX projections and bfloat16 scores."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import castable, layer_norm
from nkilib.core.qkv.qkv_heads import by_head, rotate_heads
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert, not_built
from nkilib.core.utils.kernel_helpers import (
    div_ceil,
    get_verified_program_sharding_info,
    interleave_copy,
    program_share,
)
from nkilib.core.utils.mx_blocks import project_all
from nkilib.core.utils.mx_layout import GROUP, LANES, TILE, as_words
from nkilib.core.utils.mx_projection import MxTokens, ones_tile
from nkilib.core.utils.mx_rows import check_mx, new_operand, quantize_into, rows_to_columns
from nkilib.core.utils.mx_weight_loads import MxWeights
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import transpose_rows
from nkilib.core.utils.types import Tensor
from nkilib.experimental.sparse_attention_indexer.index_results import PARTITIONS, IndexResults
from nkilib.experimental.topk.gpsimd_topk import MAX_COLUMNS, MAX_K

DEPTH = PMAX  # of a head
EPS = 1e-6  # of the LayerNorm of keys
LEFT_OUT = -1.0e38  # the least score, above that of places beyond the last key
CORES = (0, 1)
PHASES = ("all", "kproj", "score")
UNKNOWN = "the page does not say in which layout x comes quantised"


@nki.jit
def sparse_attention_indexer_mx_bf16score(
    x: Tensor,
    wq_b: Tensor,
    wk: Tensor,
    k_norm_gamma: Tensor,
    k_norm_beta: Tensor,
    weights_proj: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    mask: Tensor,
    n_heads: int,
    head_dim: int,
    rope_head_dim: int,
    index_topk: int,
    start_pos: int,
    use_hadamard: bool = False,
    batch_size: int = 1,
    wq_b_scale: Tensor | None = None,
    wk_scale: Tensor | None = None,
    k_scale_cache: Tensor | None = None,
    x_non_mx: Tensor | None = None,
    x_mx_data: Tensor | None = None,
    x_mx_scale: Tensor | None = None,
    qr_qtz_hbm: Tensor | None = None,
    qr_scale_hbm: Tensor | None = None,
    phase: str = "all",
    k_seq_out_hbm: Tensor | None = None,
    end_pos_arg: int | None = None,
    emit_flat_topk: bool = False,
    emit_tiled_topk: bool = False,
) -> tuple:
    """Return (scores float32 [B S, end], index_topk keys of each query); a score sums w relu(q k) over heads.

    The mask [B S, end] is added. k = LayerNorm(x Wk) with RoPE goes to k_cache [B, 128, keys] from start_pos
    on, end = start_pos + S; q = qr Wq_b by heads, with RoPE; w = x weights_proj^T / sqrt(128 n_heads). RoPE
    rotates halves of the first
    rope_head_dim elements by cos and sin [S, rope_head_dim / 2]. x is [B S, dim], bfloat16 or float32, or
    bfloat16 in x_non_mx for w. Weights are four-packed FP8 [K / 4, N], row r elements 4 r ..., with scales
    uint8 [K / 32, N], None: all 1. qr comes as MX from mla_qkv_cte_kernel: qr_qtz, qr_scale, tiles
    [ceil(S / 128), 128, rank / 512, 128] of each batch.

    phase "kproj" writes k to k_seq_out [S, 128] and returns (it, None); "score" skips k and scores all of
    end_pos_arg keys of k_cache. Scores are rounded to bfloat16 to find the largest, by GpSimdE, smallest
    first. The second result is uint32 [tiles, 16, 128, index_topk]: [i, t, 16 g + j % 16, j // 16] is
    place j of query 128 i + 8 t + g, columns from index_topk / 16 on are 0; with emit_tiled_topk int32
    without these columns; with emit_flat_topk int32 [B S, index_topk]. index_topk is a multiple of 16.

    use_hadamard and k_scale_cache have no effect, as the page says. x_mx_data is refused: its layout is not
    described. The page leaves open the factor of w, the epsilon 1e-6 and which part is rotated: these are
    DeepSeek's.

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> x, one = np.ones((16, 512), ml_dtypes.bfloat16), np.ones(128, np.float32)
    >>> words, table = np.zeros((128, 128), np.uint32), np.ones((16, 32), np.float32)
    >>> qr, scale = np.zeros((1, 128, 1, 128), np.uint32), np.zeros((1, 128, 1, 128), np.uint8)
    >>> cache, mask = np.zeros((1, 128, 16), ml_dtypes.bfloat16), np.tril(np.ones((16, 16), np.float32))
    >>> scores, places = sparse_attention_indexer_mx_bf16score(
    ...     x, words, words, one, one, x[:1], table, table, cache, mask, 1, 128, 64, 16, 0,
    ...     qr_qtz_hbm=qr, qr_scale_hbm=scale, emit_flat_topk=True)
    >>> scores[2, :4].tolist(), int(places[0, -1])
    ([1.0, 1.0, 1.0, 0.0], 0)
    """
    get_verified_program_sharding_info("sparse_attention_indexer_mx_bf16score", (0, 1), 2)
    check_mx("sparse_attention_indexer_mx_bf16score")
    if x_mx_data is not None or x_mx_scale is not None:
        not_built("x_mx_data", UNKNOWN)
    kernel_assert(phase in PHASES, f"phase: got {phase}, allowed are {PHASES}")
    kernel_assert(
        not (emit_flat_topk and emit_tiled_topk), "emit_tiled_topk: got True together with emit_flat_topk"
    )
    kernel_assert(head_dim == DEPTH, f"head_dim: got {head_dim}, allowed is {DEPTH}")
    job = Indexer(x, x_non_mx, batch_size, n_heads, rope_head_dim, cos, sin)
    if phase != "score":
        job.set_keys(wk, wk_scale, k_norm_gamma, k_norm_beta)
    if phase == "kproj":
        kernel_assert(batch_size == 1, f"batch_size: got {batch_size}, phase kproj takes 1")
        assert_tensors((("k_seq_out_hbm", k_seq_out_hbm),))
        assert_shape(k_seq_out_hbm, (job.length, DEPTH), "k_seq_out_hbm")
        for tile in job.own_tiles():
            job.prepare(tile, None, k_seq_out_hbm, 0)
        return k_seq_out_hbm, None
    end = start_pos + job.length
    if end_pos_arg is not None:
        kernel_assert(
            phase == "score" or end_pos_arg == end, f"end_pos_arg: got {end_pos_arg}, expected {end}"
        )
        end = end_pos_arg
    job.set_scores(wq_b, wq_b_scale, weights_proj, qr_qtz_hbm, qr_scale_hbm, index_topk)
    check_cache(k_cache, mask, batch_size, job.tokens, end)
    weights = []
    for tile in job.own_tiles():
        weights.append(job.prepare(tile, k_cache if phase == "all" else None, None, start_pos))
    if phase == "all" and nl.num_programs(0) > 1:
        nisa.core_barrier(k_cache, CORES)
    results = IndexResults(job.tokens, job.tiles, job.k, end, emit_flat_topk, emit_tiled_topk)
    for tile in job.own_tiles():
        job.score(tile, weights[tile - job.first], k_cache, mask, results)
    return results.scores, results.index


def check_cache(cache: Tensor, mask: Tensor, batches: int, tokens: int, end: int) -> None:
    kernel_assert(
        len(cache.shape) == 3 and tuple(cache.shape[0:2]) == (batches, DEPTH) and cache.shape[2] >= end,
        f"k_cache: got shape {tuple(cache.shape)}, expected ({batches}, 128, at least {end})",
    )
    kernel_assert(cache.dtype == nl.bfloat16, f"k_cache: got dtype {cache.dtype}, expected bfloat16")
    assert_shape(mask, (tokens, end), "mask")
    kernel_assert(end <= MAX_COLUMNS, f"mask: got {end} keys, allowed are at most {MAX_COLUMNS}")


def mx_weights(
    name: str, words: Tensor, scales: Tensor | None, size: int, columns: int, scale_name: str = ""
) -> MxWeights:
    """Weights [size / 4, columns] by tiles, with scales [size / 32, columns] or without."""
    packed = as_words(name, words)
    assert_shape(packed, (size // LANES, columns), name)
    tiles = size // TILE
    by_tile = packed.reshape_dim(0, (tiles, PMAX)).permute((1, 0, 2))
    if scales is None:
        return MxWeights(by_tile)
    assert_shape(scales, (size // LANES // GROUP, columns), scale_name or f"{name}_scale")
    return MxWeights(by_tile, scales.reshape_dim(0, (tiles, PMAX // GROUP)).permute((1, 0, 2)), True)


class Indexer(nl.NKIObject):
    """One call. Tokens come in tiles of up to 128 of one batch, which cores share."""

    def __init__(
        self,
        x: Tensor,
        x_non_mx: Tensor | None,
        batches: int,
        heads: int,
        rotated: int,
        cos: Tensor,
        sin: Tensor,
    ):
        assert_tensors((("x", x), ("cos", cos), ("sin", sin)), (("x_non_mx", x_non_mx),))
        shape = tuple(x.shape)
        kernel_assert(
            len(shape) == 2 and shape[0] % batches == 0 and shape[1] % TILE == 0,
            f"x: got shape {shape}, expected (B S, dim) with dim a multiple of {TILE}",
        )
        if x_non_mx is not None:
            assert_shape(x_non_mx, shape, "x_non_mx")
        kernel_assert(1 <= heads <= PMAX, f"n_heads: got {heads}, allowed are 1 to {PMAX}")
        self.x = x
        self.plain = x_non_mx
        self.tokens = shape[0]
        self.size = shape[1]
        self.length = shape[0] // batches
        self.heads = heads
        self.rotated = rotated
        kernel_assert(
            rotated % 2 == 0 and rotated <= DEPTH,
            f"rope_head_dim: got {rotated}, allowed are even numbers up to {DEPTH}",
        )
        assert_shape(cos, (self.length, rotated // 2), "cos")
        assert_shape(sin, (self.length, rotated // 2), "sin")
        self.cos = cos
        self.sin = sin
        self.per_batch = div_ceil(self.length, PMAX)
        self.tiles = batches * self.per_batch
        share = program_share(self.tiles)
        self.first = share[0]
        self.end = share[1]
        self.ones = ones_tile(BANK_COLUMNS)
        self.keys: Any = None
        self.projection: Any = None

    def own_tiles(self) -> Any:
        return range(self.first, self.end)

    def set_keys(self, wk: Tensor, scales: Tensor | None, gamma: Tensor, beta: Tensor) -> None:
        assert_tensors((("wk", wk), ("k_norm_gamma", gamma), ("k_norm_beta", beta)))
        assert_shape(gamma, (DEPTH,), "k_norm_gamma")
        assert_shape(beta, (DEPTH,), "k_norm_beta")
        self.keys = mx_weights("wk", wk, scales, self.size, DEPTH)
        self.gamma = broadcast_row(gamma.reshape((1, DEPTH)), 0, DEPTH, PMAX)
        self.beta = broadcast_row(beta.reshape((1, DEPTH)), 0, DEPTH, PMAX)

    def set_scores(
        self,
        wq: Tensor,
        scales: Tensor | None,
        projection: Tensor,
        words: Tensor,
        word_scales: Tensor,
        k: int,
    ) -> None:
        assert_tensors((("qr_qtz_hbm", words), ("qr_scale_hbm", word_scales), ("wq_b", wq)))
        tiles, shape = self.tiles, tuple(words.shape)
        kernel_assert(
            len(shape) == 4 and shape == (tiles, PMAX, shape[2], PMAX) and words.dtype == nl.uint32,
            f"qr_qtz_hbm: got {words.dtype} {shape}, expected uint32 ({tiles}, 128, rank / 512, 128)",
        )
        assert_shape(word_scales, shape, "qr_scale_hbm")
        kernel_assert(
            k % PARTITIONS == 0 and PARTITIONS <= k <= MAX_K,
            f"index_topk: got {k}, allowed are multiples of 16 up to {MAX_K}",
        )
        assert_shape(projection, (self.heads, self.size), "weights_proj")
        self.words = words
        self.word_scales = word_scales
        self.k = k
        self.queries = mx_weights("wq_b", wq, scales, shape[2] * TILE, self.heads * DEPTH)
        self.projection = rows_to_columns(castable(load(projection), nl.bfloat16))

    def place(self, tile: int) -> tuple[int, int, int]:
        """(batch, first position, positions) of a tile."""
        batch, start = tile // self.per_batch, tile % self.per_batch * PMAX
        return batch, start, min(PMAX, self.length - start)

    def angles(self, start: int, count: int) -> tuple:
        """cos and sin [tokens, rope_head_dim], in both halves."""
        tables = []
        for table in (self.cos, self.sin):
            tile = nl.ndarray((count, self.rotated), table.dtype, buffer=nl.sbuf)
            half = self.rotated // 2
            nisa.dma_copy(tile[:, 0:half], table[start : start + count])
            nisa.dma_copy(tile[:, half:], table[start : start + count])
            tables.append(tile)
        return tables[0], tables[1]

    def prepare(self, tile: int, cache: Tensor | None, rows_out: Tensor | None, offset: int) -> Any:
        """Keys of a tile to the cache or to rows; return its weights [tokens, heads], or None."""
        batch, start, count = self.place(tile)
        first = batch * self.length + start
        columns = self.columns(self.x, first, count)
        if rows_out is not None:
            nisa.dma_copy(rows_out[start : start + count], self.key_rows(columns, start, count))
        elif cache is not None:
            across = nl.ndarray((DEPTH, 1, count), nl.bfloat16, buffer=nl.sbuf)
            transpose_rows(across, 0, 0, self.key_rows(columns, start, count))
            nisa.dma_copy(cache[batch, :, offset + start : offset + start + count], across[:, 0, :])
        if self.projection is None:
            return None
        if self.plain is not None:
            columns = self.columns(self.plain, first, count)
        sums = nl.ndarray((count, self.heads), nl.float32, buffer=nl.psum)
        for step in range(columns.shape[1]):
            nisa.nc_matmul(sums, columns[:, step, 0:count], self.projection[:, step, :])
        weights = nl.ndarray((count, self.heads), nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(weights, sums, nl.multiply, (DEPTH * self.heads) ** -0.5)
        return weights

    def columns(self, x: Tensor, first: int, count: int) -> Tensor:
        rows = castable(load(x[first : first + count]), nl.bfloat16)
        return rows_to_columns(rows, count + count % 2)

    def key_rows(self, columns: Tensor, start: int, count: int) -> Tensor:
        """LayerNorm and RoPE of the keys of some tokens, [tokens, 128] in bfloat16."""
        x = new_operand(self.size, columns.shape[2], self.ones)
        quantize_into(x, 0, 0, columns)
        rows = project_all(x, count, self.keys)[0]
        normal = nl.ndarray(rows.shape, nl.float32, buffer=nl.sbuf)
        layer_norm(normal, rows, self.gamma, self.beta, EPS)
        out = nl.ndarray(rows.shape, nl.bfloat16, buffer=nl.sbuf)
        nisa.activation(out, nl.copy, normal)
        self.rotate(by_head(out, DEPTH), by_head(normal, DEPTH), start, count)
        return out

    def rotate(self, dst: Tensor, source: Tensor, start: int, count: int) -> None:
        if self.rotated > 0:
            cos, sin = self.angles(start, count)
            rotate_heads(dst[:, :, 0 : self.rotated], source[:, :, 0 : self.rotated], cos, sin)

    def query_columns(self, tile: int, start: int, count: int) -> Tensor:
        """Queries [128, heads, tokens] in bfloat16."""
        words = load(self.words[tile]).view(nl.float8_e4m3fn_x4)
        x = MxTokens(words, load(self.word_scales[tile]), self.ones)
        rows = project_all(x, count, self.queries, nl.bfloat16)[0]
        heads = by_head(rows, DEPTH)
        self.rotate(heads, heads, start, count)
        columns = nl.ndarray((DEPTH, self.heads, count), nl.bfloat16, buffer=nl.sbuf)
        transpose_rows(columns, 0, 0, rows)
        return columns

    def score(self, tile: int, weights: Tensor, cache: Tensor, mask: Tensor, results: IndexResults) -> None:
        batch, start, count = self.place(tile)
        queries, factors = self.query_columns(tile, start, count), self.diagonals(weights)
        first = batch * self.length + start
        rounded = nl.ndarray((count, results.end), nl.bfloat16, buffer=nl.private_hbm)
        for keys in TiledRange(results.end, BANK_COLUMNS):
            chunk = load(cache[batch, :, keys.start_offset : keys.end_offset])
            total = nl.ndarray((count, keys.size), nl.float32, buffer=nl.psum)
            for head in range(self.heads):
                product = nl.ndarray((count, keys.size), nl.float32, buffer=nl.psum)
                nisa.nc_matmul(product, queries[:, head, :], chunk)
                positive = nl.ndarray((count, keys.size), nl.bfloat16, buffer=nl.sbuf)
                if head % 2 == 0:
                    nisa.activation(positive, nl.relu, product)
                else:
                    nisa.tensor_scalar(positive, product, nl.maximum, 0.0)
                nisa.nc_matmul(total, factors[:, head, :], positive)
            some = (slice(first, first + count), slice(keys.start_offset, keys.end_offset))
            masked = nl.ndarray((count, keys.size), nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(masked, total, load(mask[some]), op=nl.add)
            nisa.dma_copy(results.scores[some], masked)
            nisa.tensor_scalar(masked, masked, nl.maximum, LEFT_OUT)
            store(rounded[:, keys.start_offset : keys.end_offset], masked)
        results.select(rounded, tile, first, count)

    def diagonals(self, weights: Tensor) -> Tensor:
        """[tokens, heads, tokens]: the weights of each head on a diagonal, by which TensorE adds up heads."""
        count = weights.shape[0]
        spread = weights.expand_dim(2).broadcast(2, count)
        out = nl.ndarray((count, self.heads, count), nl.bfloat16, buffer=nl.sbuf)
        wide = nl.ndarray((count, self.heads, count), nl.float32, buffer=nl.sbuf)
        interleave_copy(wide, spread, 0)
        nisa.affine_select(
            out,
            [[0, self.heads], [-1, count]],
            channel_multiplier=1,
            on_true_tile=wide,
            on_false_value=0.0,
            cmp_op=nl.equal,
        )
        return out


def sparse_attention_indexer_ref(
    q: np.ndarray, k: np.ndarray, weights: np.ndarray, mask: np.ndarray, index_topk: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (scores, keys of the largest) in float64 of q [S, heads, 128], k [keys, 128], w [S, heads]."""
    dots = np.einsum("shd,kd->shk", np.asarray(q, np.float64), np.asarray(k, np.float64))
    factors = np.asarray(weights, np.float64) / np.sqrt(q.shape[1] * q.shape[2])
    scores = np.einsum("shk,sh->sk", np.maximum(dots, 0), factors) + mask
    return scores, np.argsort(-scores, axis=1, kind="stable")[:, :index_topk]
