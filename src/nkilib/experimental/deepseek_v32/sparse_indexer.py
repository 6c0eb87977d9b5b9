"""The lightning indexer of DeepSeek V3.2 for one decode step: which cached keys each token attends to.

Two cores share the hidden dimension and the heads for the projections, then the tokens for the scores.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import castable, layer_norm
from nkilib.core.qkv.qkv_heads import by_head, rotate_heads
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, program_share
from nkilib.core.utils.mx_blocks import project_all
from nkilib.core.utils.mx_layout import LANES, TILE
from nkilib.core.utils.mx_projection import ones_tile
from nkilib.core.utils.mx_rows import check_mx, quantize_rows_mx
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.transposes import transpose_rows
from nkilib.core.utils.types import Tensor
from nkilib.experimental.deepseek_v32.shared_products import received, shared_sums
from nkilib.experimental.sparse_attention_indexer.sparse_attention_indexer_mx_bf16score import mx_weights
from nkilib.experimental.topk.gpsimd_topk import MAX_COLUMNS, MAX_K, top_of_block

DEPTH = PMAX  # of a head
EPS = 1e-6  # of the LayerNorm of keys
LEFT_OUT = -1.0e30  # added to the scores of slots behind the token
SLOTS_TOGETHER = 2048  # of a sequence that are loaded at once; their scores take half of PSUM


class DeepseekV32SparseIndexerOutput(NamedTuple):
    """What deepseek_v32_sparse_indexer returns."""

    topk_indices: Any  # int32 [n_tokens, index_topk]: slots in no order; -1 where too few exist
    scores: Any  # float32 [n_tokens, slots]; -1e30 behind the token
    key_cache: Any  # with the keys of this step


@nki.jit
def deepseek_v32_sparse_indexer(
    hidden_states: Tensor,
    qr: Tensor,
    wq_b: Tensor,
    wq_b_scale: Tensor,
    wk: Tensor,
    k_norm_weight: Tensor,
    k_norm_bias: Tensor,
    weights_proj: Tensor,
    hadamard: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    positions: Tensor,
    index_topk: int,
    valid_len: int | None = None,
) -> DeepseekV32SparseIndexerOutput:
    """Return (slots int32 [n_tokens, index_topk], scores float32 [n_tokens, slots], key_cache).

    k = LayerNorm(x wk), q = qr wq_b by heads; RoPE rotates halves of their first R elements, then both are
    multiplied by hadamard. k is written to its sequence's slot of the cache. The score of a slot is the sum
    over heads of w relu(q k), w = x weights_proj / sqrt(128 heads); slots behind the token's own count for
    nothing.

    Args:
        hidden_states: [n_tokens, hidden], n_tokens <= 128, hidden a multiple of 128.
        qr: [n_tokens, rank], normalised latents of the queries; they are quantised to MXFP8.
        wq_b: [rank / 4, heads 128] words of FP8, row r elements 4 r ...; rank a multiple of 512.
        wq_b_scale: [rank / 32, heads 128] bytes.
        wk: [hidden, 128] bfloat16.
        k_norm_weight, k_norm_bias: [128].
        weights_proj: [hidden, heads] bfloat16, heads <= 128.
        hadamard: [128, 128] bfloat16, with its factor.
        cos, sin: [n_tokens, R / 2], R <= 128.
        key_cache: [n_tokens, 128, slots] bfloat16, one sequence for each token, updated in place.
        positions: [n_tokens] int32, the slot of each token; a token with a negative one is padding.
        index_topk: slots for each token, at most 4096.
        valid_len: slots that are scored, from the first on; None: all.

    Scores are rounded to bfloat16 to find the largest; the slots come in no order, -1 where the sequence is
    shorter than index_topk. For trn3, as the page says. Read of the page: the
    signature, what is computed and the shape of hidden_states; the other shapes, the fields of the result,
    the factor of w, the epsilon 1e-6 and which elements are rotated are ours or DeepSeek's. The cache is
    laid out as that of sparse_attention_indexer_mx_bf16score.

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> ones = lambda *shape: np.ones(shape, ml_dtypes.bfloat16)
    >>> words, scale = np.full((128, 128), 0x38383838, np.uint32), np.full((16, 128), 127, np.uint8)
    >>> cache, eye = np.zeros((1, 128, 16), ml_dtypes.bfloat16), np.eye(128, dtype=ml_dtypes.bfloat16)
    >>> cache[0, 0, :4] = 1, 9, 3, 5
    >>> found = deepseek_v32_sparse_indexer(
    ...     ones(1, 128), ones(1, 512), words, scale, ones(128, 128), ones(128), 0 * ones(128), ones(128, 1),
    ...     eye, ones(1, 32), 0 * ones(1, 32), cache, np.array([4], np.int32), 8)
    >>> sorted(found.topk_indices[0].tolist())
    [-1, -1, -1, 0, 1, 2, 3, 4]
    """
    get_verified_program_sharding_info("deepseek_v32_sparse_indexer", (0, 1), 2)
    check_mx("deepseek_v32_sparse_indexer")
    job = DecodeIndexer(hidden_states, qr, weights_proj, hadamard, cos, sin, key_cache, positions, valid_len)
    job.check_weights(wq_b, wq_b_scale, wk, k_norm_weight, k_norm_bias, index_topk)
    sums = shared_sums(hidden_states, (wk, weights_proj))
    job.write_keys(sums[:, 0:DEPTH], k_norm_weight, k_norm_bias)
    queries = job.queries(wq_b, wq_b_scale)
    scores = nl.ndarray((job.tokens, job.slots), nl.float32, buffer=nl.shared_hbm)
    index = nl.ndarray((job.tokens, index_topk), nl.int32, buffer=nl.shared_hbm)
    if job.first < job.end:
        queries = job.multiply_hadamard(queries[:, :, job.first : job.end])
        rounded = job.score(queries, job.factors(sums[:, DEPTH:]), scores)
        job.select(rounded, index)
    return DeepseekV32SparseIndexerOutput(index, scores, key_cache)


class DecodeIndexer(nl.NKIObject):
    """One call: its sizes, what is read of HBM, and the tokens of this core."""

    def __init__(
        self,
        x: Tensor,
        qr: Tensor,
        weights: Tensor,
        hadamard: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache: Tensor,
        positions: Tensor,
        valid: int | None,
    ):
        named = (("hidden_states", x), ("qr", qr), ("weights_proj", weights), ("hadamard", hadamard))
        assert_tensors(named + (("cos", cos), ("sin", sin), ("key_cache", cache), ("positions", positions)))
        kernel_assert(
            len(x.shape) == 2 and 1 <= x.shape[0] <= PMAX and x.shape[1] % PMAX == 0,
            f"hidden_states: got shape {tuple(x.shape)}, expected [n_tokens <= 128, hidden], hidden a "
            "multiple of 128",
        )
        self.tokens = x.shape[0]
        self.hidden = x.shape[1]
        kernel_assert(
            len(qr.shape) == 2 and qr.shape[0] == self.tokens and qr.shape[1] % TILE == 0,
            f"qr: got shape {tuple(qr.shape)}, expected ({self.tokens}, rank), rank a multiple of {TILE}",
        )
        kernel_assert(
            len(weights.shape) == 2 and weights.shape[0] == self.hidden and weights.shape[1] <= PMAX,
            f"weights_proj: got shape {tuple(weights.shape)}, expected ({self.hidden}, heads <= 128)",
        )
        self.heads = weights.shape[1]
        assert_shape(hadamard, (DEPTH, DEPTH), "hadamard")
        kernel_assert(
            len(cos.shape) == 2 and cos.shape[0] == self.tokens and 1 <= cos.shape[1] <= DEPTH // 2,
            f"cos: got shape {tuple(cos.shape)}, expected ({self.tokens}, R / 2), R <= 128",
        )
        assert_shape(sin, tuple(cos.shape), "sin")
        kernel_assert(
            len(cache.shape) == 3 and tuple(cache.shape[0:2]) == (self.tokens, DEPTH),
            f"key_cache: got shape {tuple(cache.shape)}, expected ({self.tokens}, 128, slots)",
        )
        kernel_assert(cache.dtype == nl.bfloat16, f"key_cache: got {cache.dtype}, expected bfloat16")
        assert_shape(positions, (self.tokens,), "positions")
        kernel_assert(positions.dtype == nl.int32, f"positions: got {positions.dtype}, expected int32")
        kernel_assert(
            valid is None or 1 <= valid <= cache.shape[2],
            f"valid_len: got {valid}, allowed are 1 to {cache.shape[2]}, the slots",
        )
        self.slots = cache.shape[2] if valid is None else valid
        kernel_assert(
            8 <= self.slots <= MAX_COLUMNS,
            f"key_cache: got {self.slots} slots, allowed are 8 to {MAX_COLUMNS}",
        )
        self.qr = qr
        self.rank = qr.shape[1]
        self.cache = cache
        self.hadamard = castable(load(hadamard), nl.bfloat16)
        self.position = load(positions.expand_dim(1))
        self.angles = (self.both_halves(cos), self.both_halves(sin))
        share = program_share(self.tokens)
        self.first = share[0]
        self.end = share[1]

    def check_weights(
        self, wq: Tensor, scale: Tensor, wk: Tensor, weight: Tensor, bias: Tensor, k: int
    ) -> None:
        named = (("wq_b", wq), ("wq_b_scale", scale), ("wk", wk), ("k_norm_weight", weight))
        assert_tensors(named + (("k_norm_bias", bias),))
        assert_shape(wq, (self.rank // LANES, self.heads * DEPTH), "wq_b")
        assert_shape(scale, (self.rank // 32, self.heads * DEPTH), "wq_b_scale")
        assert_shape(wk, (self.hidden, DEPTH), "wk")
        assert_shape(weight, (DEPTH,), "k_norm_weight")
        assert_shape(bias, (DEPTH,), "k_norm_bias")
        most = min(MAX_K, self.slots)
        kernel_assert(1 <= k <= most, f"index_topk: got {k}, allowed are 1 to {most}")

    def both_halves(self, table: Tensor) -> Tensor:
        """cos or sin [n_tokens, R], the same in both halves."""
        half = table.shape[1]
        tile = nl.ndarray((self.tokens, 2 * half), table.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile[:, 0:half], table)
        nisa.dma_copy(tile[:, half:], table)
        return tile

    def rotate(self, dst: Tensor, x: Tensor) -> None:
        """RoPE of the first R elements of each head, [tokens, heads, 128]."""
        size = self.angles[0].shape[1]
        rotate_heads(dst[:, :, 0:size], x[:, :, 0:size], self.angles[0], self.angles[1])

    def write_keys(self, sums: Tensor, weight: Tensor, bias: Tensor) -> None:
        """LayerNorm, RoPE and hadamard of the keys, to the slots of this core's sequences."""
        gamma = broadcast_row(weight.reshape((1, DEPTH)), 0, DEPTH, self.tokens)
        beta = broadcast_row(bias.reshape((1, DEPTH)), 0, DEPTH, self.tokens)
        normal = like(sums)
        layer_norm(normal, sums, gamma, beta, EPS)
        rows = like(sums, nl.bfloat16)
        nisa.activation(rows, nl.copy, normal)
        self.rotate(by_head(rows, DEPTH), by_head(normal, DEPTH))
        columns = nl.ndarray((DEPTH, 1, self.tokens), nl.bfloat16, buffer=nl.sbuf)
        transpose_rows(columns, 0, 0, rows)
        product = nl.ndarray((self.tokens, DEPTH), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(product, columns[:, 0, :], self.hadamard)
        keys = like(rows)
        nisa.tensor_copy(keys, product)
        if self.first < self.end:
            nisa.dma_copy(self.places(), keys[self.first : self.end], oob_mode=nisa.oob_mode.skip)

    def places(self) -> Any:
        """The view of the slots of this core's tokens, [tokens, 128]; none for negative positions."""
        slots = self.cache.shape[2]
        start = nl.ndarray((self.tokens, 1), nl.int32, buffer=nl.sbuf)
        nisa.iota(start, [[0, 1]], channel_multiplier=DEPTH * slots)
        place, padding = like(start), like(start)
        nisa.tensor_tensor(place, start, self.position, nl.add)
        nisa.tensor_scalar(padding, self.position, nl.less, 0, op1=nl.multiply, operand1=-1)
        nisa.tensor_tensor(place, place, padding, nl.bitwise_or)  # -1, or as it is
        flat = self.cache.reshape((self.cache.size, 1))
        own = place[self.first : self.end]
        return flat.ap([[1, own.shape[0]], [slots, DEPTH]], vector_offset=own)

    def queries(self, words: Tensor, scale: Tensor) -> Tensor:
        """Rotated queries [128, heads, n_tokens] in bfloat16; cores share the heads."""
        cores, core = nl.num_programs(0), nl.program_id(0)
        share = div_ceil(self.heads, cores)
        rows = nl.ndarray((self.tokens, cores * share * DEPTH), nl.bfloat16, buffer=nl.sbuf)
        first, width = core * share * DEPTH, share * DEPTH
        end = min(self.heads * DEPTH, first + width)
        own = rows[:, first : first + width]
        if end < first + width:
            nisa.memset(own, 0.0)
        if first < end:
            x = quantize_rows_mx([castable(load(self.qr), nl.bfloat16)], ones_tile(BANK_COLUMNS))
            part = (slice(None), slice(first, end))
            weights = mx_weights("wq_b", words[part], scale[part], self.rank, end - first)
            product = project_all(x, self.tokens, weights, nl.bfloat16)[0]
            nisa.tensor_copy(own[:, 0 : end - first], product)
            heads = by_head(own[:, 0 : end - first], DEPTH)
            self.rotate(heads, by_head(product, DEPTH))
        if cores == 2:
            other = (1 - core) * width
            nisa.tensor_copy(rows[:, other : other + width], received(own))
        columns = nl.ndarray((DEPTH, self.heads, self.tokens), nl.bfloat16, buffer=nl.sbuf)
        transpose_rows(columns, 0, 0, rows[:, 0 : self.heads * DEPTH])
        return columns

    def multiply_hadamard(self, columns: Tensor) -> Tensor:
        """q hadamard, of columns [128, heads, tokens]."""
        heads, tokens = columns.shape[1], columns.shape[2]
        result = nl.ndarray(columns.shape, nl.bfloat16, buffer=nl.sbuf)
        for some in TiledRange(heads, BANK_COLUMNS // tokens):
            bank = nl.ndarray((DEPTH, some.size, tokens), nl.float32, buffer=nl.psum)
            part = columns[:, some.start_offset : some.end_offset, :]
            nisa.nc_matmul(bank, self.hadamard, part)
            nisa.tensor_copy(result[:, some.start_offset : some.end_offset, :], bank)
        return result

    def factors(self, sums: Tensor) -> Tensor:
        """[heads, tokens, tokens] of this core's tokens: token t has its weights in column t of [:, t]."""
        scaled = like(sums)
        nisa.tensor_scalar(scaled, sums, nl.multiply, (DEPTH * self.heads) ** -0.5)
        across = nl.ndarray((self.heads, self.tokens), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(across, scaled)
        own = like(across[:, self.first : self.end])
        nisa.tensor_copy(own, across[:, self.first : self.end])
        count = own.shape[1]
        result = nl.ndarray((self.heads, count, count), nl.bfloat16, buffer=nl.sbuf)
        spread = own.expand_dim(2).broadcast(2, count)
        nisa.affine_select(result, [[1, count], [-1, count]], 0, spread, 0.0, nl.equal)
        return result

    def score(self, queries: Tensor, factors: Tensor, scores: Tensor) -> Tensor:
        """Scores of this core's tokens to HBM; return them in bfloat16, in HBM too."""
        count = self.end - self.first
        rounded = nl.ndarray((count, self.slots), nl.bfloat16, buffer=nl.private_hbm)
        position = self.own_positions()
        for group in TiledRange(self.slots, SLOTS_TOGETHER):
            parts, totals = TiledRange(group, BANK_COLUMNS), []
            for part in parts:
                totals.append(nl.ndarray((count, part.size), nl.float32, buffer=nl.psum))
            for t in range(count):
                keys = load(self.cache[self.first + t, :, group.start_offset : group.end_offset])
                clipped = []  # before any is added up: TensorE does not wait for the other engines
                for part in parts:
                    start = part.start_offset - group.start_offset
                    clipped.append(
                        positive_part(queries[:, :, t], keys[:, start : start + part.size], part.index)
                    )
                for part in parts:
                    nisa.nc_matmul(totals[part.index], factors[:, t, :], clipped[part.index])
            for part in parts:
                some = (slice(self.first, self.end), slice(part.start_offset, part.end_offset))
                behind = nl.ndarray((count, part.size), nl.float32, buffer=nl.sbuf)
                nisa.iota(behind, [[1, part.size]], offset=part.start_offset)
                nisa.tensor_scalar(behind, behind, nl.greater, position, op1=nl.multiply, operand1=LEFT_OUT)
                nisa.tensor_tensor(behind, behind, totals[part.index], nl.add)
                nisa.dma_copy(scores[some], behind)
                store(rounded[:, part.start_offset : part.end_offset], behind)
        return rounded

    def own_positions(self) -> Tensor:
        """The positions of this core's tokens from partition 0 on, float32."""
        row = nl.ndarray((self.end - self.first, 1), nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(row, self.position[self.first : self.end])
        result = new_column(row.shape[0])
        nisa.tensor_copy(result, row)
        return result

    def select(self, rounded: Tensor, index: Tensor) -> None:
        """The slots of the largest scores, in GpSimd's order; -1 for those behind the token."""
        k = index.shape[1]
        values, places = top_of_block(rounded, k)
        hidden, chosen = like(places), nl.ndarray((places.shape[0], k), nl.int32, buffer=nl.sbuf)
        nisa.tensor_scalar(hidden, values, nl.greater, 0.5 * LEFT_OUT)
        nisa.tensor_scalar(places, places, nl.add, 1.0)
        nisa.tensor_tensor(places, places, hidden, nl.multiply)
        nisa.tensor_scalar(chosen, places[:, 0:k], nl.add, -1.0)
        nisa.dma_copy(index[self.first : self.end], chosen)


def positive_part(queries: Tensor, keys: Tensor, index: int) -> Tensor:
    """relu(q k) of each head in bfloat16, [heads, slots]."""
    product = nl.ndarray((queries.shape[1], keys.shape[1]), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(product, queries, keys)
    positive = like(product, nl.bfloat16)
    if index % 2 == 0:
        nisa.activation(positive, nl.relu, product)
    else:
        nisa.tensor_scalar(positive, product, nl.maximum, 0.0)
    return positive


def deepseek_v32_sparse_indexer_ref(
    x: np.ndarray,
    q: np.ndarray,
    wk: np.ndarray,
    k_norm: tuple[np.ndarray, np.ndarray],
    weights_proj: np.ndarray,
    hadamard: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    key_cache: np.ndarray,
    positions: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (scores, the new cache) in float64 of queries q [n_tokens, heads, 128] before RoPE."""

    def turned(v: np.ndarray) -> np.ndarray:
        half = cos.shape[1]
        z = (v[..., :half] + 1j * v[..., half : 2 * half]) * (cos + 1j * sin)[:, None]
        return np.concatenate([z.real, z.imag, v[..., 2 * half :]], -1) @ hadamard.astype(np.float64)

    x, cache = np.asarray(x, np.float64), key_cache.astype(np.float64)
    k = x @ wk.astype(np.float64)
    k = (k - k.mean(-1, keepdims=True)) / np.sqrt(k.var(-1, keepdims=True) + EPS)
    keys = turned((k * k_norm[0] + k_norm[1])[:, None])[:, 0]
    weights = x @ weights_proj.astype(np.float64) / np.sqrt(q.shape[1] * DEPTH)
    q, scores = turned(np.asarray(q, np.float64)), np.full((len(x), cache.shape[2]), LEFT_OUT)
    for t, position in enumerate(positions):
        if position >= 0:
            cache[t, :, position] = keys[t]
            dots = np.maximum(q[t] @ cache[t, :, : position + 1], 0)
            scores[t, : position + 1] = weights[t] @ dots
    return scores, cache
