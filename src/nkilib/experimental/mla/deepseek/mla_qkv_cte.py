"""QKV projection of latent attention with absorbed queries, of packed MX rows."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.qkv.qkv_heads import rotate_heads
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, interleave_copy
from nkilib.core.utils.mx_blocks import add_features, block_weights, project_all
from nkilib.core.utils.mx_layout import LANES, TILE
from nkilib.core.utils.mx_projection import MxTokens, ones_tile, token_scales
from nkilib.core.utils.mx_rows import check_mx, quantize_rows_mx, scale_columns, unpack_rows
from nkilib.core.utils.mx_weight_loads import MxWeights, WeightStream
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor
from nkilib.experimental.mla.latents import (
    RopeTable,
    check_positive,
    gamma_row,
    load_tiles,
    new_heads,
    normalized,
    rotate_key,
    store_heads,
    token_groups,
)

HEADS_TOGETHER = 2  # whose weights are in SBUF at a time


@nki.jit
def mla_qkv_cte_kernel(
    x_hbm_mx: Tensor,
    wqkv_a_hbm: Tensor,
    wqkv_a_scale_hbm: Tensor,
    wq_b_hbm: Tensor,
    wq_b_scale_hbm: Tensor,
    q_norm_gamma_hbm: Tensor,
    kv_norm_gamma_hbm: Tensor,
    wuk_hbm: Tensor,
    cos_cache_hbm: Tensor,
    sin_cache_hbm: Tensor,
    n_heads: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    kv_lora_rank: int,
    qk_lora_rank: int,
    norm_eps: float = 1e-06,
    qr_qtz_hbm: Tensor | None = None,
    qr_scale_hbm: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (q_lift [B, S, n_heads, L], q_pe [B, S, n_heads, R], c_kv [B, S, L], k_pe [B, S, R]), bfloat16.

    qr, kv, pe = x Wqkv_a, L = kv_lora_rank and R = qk_rope_head_dim; a head of RMSNorm(qr) Wq_b is q_nope, of
    128 columns, and q_pe. q_lift = q_nope Wuk of its head, in bfloat16; c_kv = RMSNorm(kv). q_pe and k_pe =
    pe are rotated as by qkv_mla_mx, whose weights and tables these are. wuk is bfloat16 [128, n_heads L].

    x_hbm_mx is what rmsnorm_mx_prefill returns with pack_scales, [B, S, H + scale columns] of FP8 E4M3. With
    qr_qtz uint32 and qr_scale uint8 [ceil(B S / 128), 128, qk_lora_rank / 512, 128], the normalised qr is
    written there as MX: word [i, p, t, s] has elements 512 t + 4 p ... of token 128 i + s, and scales are
    in rows 0 to 3 of each 32, as instructions read them; the page leaves the layout of scales open.

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> x, table = np.zeros((1, 2, 640), ml_dtypes.float8_e4m3fn), np.ones((1, 2, 64), ml_dtypes.bfloat16)
    >>> a = np.zeros((128, 1088), np.uint32), np.zeros((4, 9), np.uint8)
    >>> b = np.zeros((128, 4 * 192), np.uint32), np.zeros((4, 6), np.uint8)
    >>> gamma, wuk = np.ones((1, 512), ml_dtypes.bfloat16), np.ones((128, 2048), ml_dtypes.bfloat16)
    >>> found = mla_qkv_cte_kernel(x, *a, *b, gamma, gamma, wuk, table, table, 4, 128, 64, 512, 512)
    >>> [result.shape for result in found]
    [(1, 2, 4, 512), (1, 2, 4, 64), (1, 2, 512), (1, 2, 64)]
    """
    get_verified_program_sharding_info("mla_qkv_cte_kernel", (0, 1), 2)
    check_mx("mla_qkv_cte_kernel")
    batch, length, size = check_packed(x_hbm_mx)
    check_positive((("n_heads", n_heads), ("qk_rope_head_dim", qk_rope_head_dim)))
    kernel_assert(
        qk_nope_head_dim == PMAX, f"qk_nope_head_dim: got {qk_nope_head_dim}, absorption takes 128 alone"
    )
    kernel_assert(
        kv_lora_rank <= BANK_COLUMNS, f"kv_lora_rank: got {kv_lora_rank}, allowed are at most {BANK_COLUMNS}"
    )
    tokens, rope_dim, latents = batch * length, qk_rope_head_dim, qk_lora_rank + kv_lora_rank
    first = block_weights("wqkv_a", wqkv_a_hbm, wqkv_a_scale_hbm, size, latents + rope_dim)
    second = block_weights("wq_b", wq_b_hbm, wq_b_scale_hbm, qk_lora_rank, n_heads * (PMAX + rope_dim))
    check_export(qr_qtz_hbm, qr_scale_hbm, tokens, qk_lora_rank)
    assert_shape(wuk_hbm, (PMAX, n_heads * kv_lora_rank), "wuk_hbm")
    q_gamma = gamma_row("q_norm_gamma_hbm", q_norm_gamma_hbm, qk_lora_rank)
    kv_gamma = gamma_row("kv_norm_gamma_hbm", kv_norm_gamma_hbm, kv_lora_rank)
    rope = RopeTable(cos_cache_hbm, sin_cache_hbm, batch, length, rope_dim)
    lifted = nl.ndarray((tokens, n_heads, kv_lora_rank), nl.bfloat16, buffer=nl.shared_hbm)
    q_pe = nl.ndarray((tokens, n_heads, rope_dim), nl.bfloat16, buffer=nl.shared_hbm)
    c_kv = nl.ndarray((tokens, 1, kv_lora_rank), nl.bfloat16, buffer=nl.shared_hbm)
    k_pe = nl.ndarray((tokens, 1, rope_dim), nl.bfloat16, buffer=nl.shared_hbm)
    ones = ones_tile(BANK_COLUMNS)
    for group in token_groups(tokens, qr_qtz_hbm is not None):
        start, count = group
        packed = load_tiles(x_hbm_mx.reshape((tokens, x_hbm_mx.shape[2])), start, count)
        rows, angles = project_all(unpack_rows(packed, size, ones), count, first), rope.angles(start, count)
        queries = quantize_rows_mx(normalized(rows, 0, q_gamma, norm_eps), ones, shared=False)
        if qr_qtz_hbm is not None:
            export(queries, qr_qtz_hbm, qr_scale_hbm, start, count)
        heads = AbsorbedHeads(second, wuk_hbm, lifted, q_pe, angles, start, count)
        for some in TiledRange(n_heads, HEADS_TOGETHER):
            heads.run(queries, some.start_offset, some.size)
        keys = []
        for tile in normalized(rows, qk_lora_rank, kv_gamma, norm_eps):
            keys.append(tile.expand_dim(1))
        store_heads(c_kv, start, 0, keys)
        shared = []
        for i in range(len(rows)):
            shared.append(rotate_key(rows[i][:, latents:], angles[i]).expand_dim(1))
        store_heads(k_pe, start, 0, shared)
    shape = (batch, length)
    return (
        lifted.reshape(shape + (n_heads, kv_lora_rank)),
        q_pe.reshape(shape + (n_heads, rope_dim)),
        c_kv.reshape(shape + (kv_lora_rank,)),
        k_pe.reshape(shape + (rope_dim,)),
    )


# ---- checks --------------------------------------------------------------------------------------


def check_packed(x: Tensor, name: str = "x_hbm_mx") -> tuple[int, int, int]:
    """(B, S, H) of packed rows; the scales of H columns take a sixteenth of them, in blocks of 128."""
    assert_tensors(((name, x),))
    shape = tuple(x.shape)
    kernel_assert(len(shape) == 3, f"{name}: got shape {shape}, expected (B, S, H + scale columns)")
    kernel_assert(x.dtype == nl.float8_e4m3fn, f"{name}: got dtype {x.dtype}, expected float8_e4m3fn")
    size = shape[2] // (TILE + PMAX // LANES) * TILE
    while size > 0 and size + scale_columns(size) > shape[2]:
        size = size - TILE
    kernel_assert(
        size > 0 and size + scale_columns(size) == shape[2],
        f"{name}: got rows of {shape[2]}, expected H + 128 ceil(H / 2048) with H a multiple of {TILE}",
    )
    return shape[0], shape[1], size


def check_export(words: Tensor | None, scales: Tensor | None, tokens: int, rank: int) -> None:
    kernel_assert(
        (words is None) == (scales is None),
        "qr_scale_hbm: expected together with qr_qtz_hbm, and not without",
    )
    if words is None or scales is None:
        return
    shape = (div_ceil(tokens, PMAX), PMAX, rank // TILE, PMAX)
    assert_shape(words, shape, "qr_qtz_hbm")
    assert_shape(scales, shape, "qr_scale_hbm")
    kernel_assert(words.dtype == nl.uint32, f"qr_qtz_hbm: got dtype {words.dtype}, expected uint32")
    kernel_assert(scales.dtype == nl.uint8, f"qr_scale_hbm: got dtype {scales.dtype}, expected uint8")


# ---- queries -------------------------------------------------------------------------------------


def export(x: MxTokens, words: Tensor, scales: Tensor, start: int, count: int) -> None:
    """Write tokens start ... of an operand, which start at a multiple of 128, tile by tile."""
    for part in TiledRange(count, PMAX):
        tile, first, last = start // PMAX + part.index, part.start_offset, part.end_offset
        nisa.dma_copy(words[tile, :, :, 0 : part.size], x.words.view(nl.uint32)[:, :, first:last])
        nisa.dma_copy(scales[tile, :, :, 0 : part.size], x.scales[:, :, first:last])


class AbsorbedHeads(nl.NKIObject):
    """Queries of some heads: their first part comes out of PSUM as columns, which Wuk is multiplied with."""

    def __init__(
        self,
        weights: MxWeights,
        wuk: Tensor,
        lifted: Tensor,
        q_pe: Tensor,
        angles: list,
        start: int,
        tokens: int,
    ):
        self.weights = weights
        self.wuk = wuk
        self.lifted = lifted
        self.q_pe = q_pe
        self.angles = angles
        self.first = start
        self.tokens = tokens
        self.count = 0

    def run(self, x: MxTokens, head: int, heads: int) -> None:
        rotated, rank = self.q_pe.shape[2], self.lifted.shape[2]
        width = PMAX + rotated
        even = self.tokens + self.tokens % 2
        stream = WeightStream(self.weights, head * width, heads * width, None)
        columns, sums = [], []
        for _ in range(heads):
            columns.append(nl.ndarray((PMAX, even), nl.float32, buffer=nl.psum))
        for part in TiledRange(even, PMAX):
            sums.append(nl.ndarray((part.size, heads, rotated), nl.float32, buffer=nl.psum))
        for tile in range(stream.count):
            stream.load(tile)
            for i in range(heads):
                start = i * width
                add_features(columns[i], x, stream, tile, start, start + PMAX)
                for part in TiledRange(even, PMAX):
                    self.add_rotated(sums[part.index][:, i, :], x, stream, tile, part, start + PMAX)
        self.finish_rotated(sums, head)
        weights = nl.ndarray((PMAX, heads * rank), self.wuk.dtype, buffer=nl.sbuf)
        nisa.dma_copy(weights, self.wuk[:, head * rank : (head + heads) * rank])
        tiles = new_heads(self.tokens, heads, rank)
        for i in range(heads):
            query = nl.ndarray((PMAX, even), nl.bfloat16, buffer=nl.sbuf)
            interleave_copy(query, columns[i], self.count)
            for part in TiledRange(self.tokens, PMAX):
                product = nl.ndarray((part.size, rank), nl.float32, buffer=nl.psum)
                lanes = query[:, part.start_offset : part.end_offset]
                nisa.nc_matmul(product, lanes, weights[:, i * rank : (i + 1) * rank])
                interleave_copy(tiles[part.index][:, i, :], product, self.count)
                self.count = self.count + 1
        store_heads(self.lifted, self.first, head, tiles)

    def add_rotated(
        self, sums: Tensor, x: MxTokens, stream: WeightStream, tile: int, part: Any, start: int
    ) -> None:
        """Token-major products of the columns of a head that RoPE rotates."""
        end = start + sums.shape[1]
        nisa.nc_matmul_mx(
            sums,
            x.words[:, tile, part.start_offset : part.end_offset],
            stream.words_of(tile, start, end),
            token_scales(x, tile, part.start_offset, part.end_offset),
            stream.scales_of(tile, start, end, x.ones),
        )

    def finish_rotated(self, sums: list, head: int) -> None:
        tiles = new_heads(self.tokens, sums[0].shape[1], sums[0].shape[2])
        for i in range(len(tiles)):
            angles = self.angles[i]
            rotate_heads(tiles[i], sums[i][0 : tiles[i].shape[0]], angles[0], angles[1])
        store_heads(self.q_pe, self.first, head, tiles)


def mla_qkv_cte_ref(
    x: np.ndarray,
    wqkv_a: np.ndarray,
    wq_b: np.ndarray,
    q_gamma: np.ndarray,
    kv_gamma: np.ndarray,
    wuk: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    n_heads: int,
    qk_rope_head_dim: int,
    norm_eps: float = 1e-6,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the four results in float64 of plain x [B, S, H] and matrices [K, N]; nothing is quantised."""
    from nkilib.experimental.qkv.qkv_cte_mla import rms, rope

    latents = np.asarray(x, np.float64) @ wqkv_a
    rank, rotated = wq_b.shape[0], qk_rope_head_dim
    qr, kv, pe = np.split(latents, [rank, latents.shape[-1] - rotated], axis=-1)
    q = (rms(qr, q_gamma, norm_eps) @ wq_b).reshape(*qr.shape[:2], n_heads, -1)
    by_head = np.asarray(wuk, np.float64).reshape(q.shape[-1] - rotated, n_heads, -1)
    lifted = np.einsum("bshd,dhl->bshl", q[..., :-rotated], by_head)
    return (
        lifted,
        rope(q[..., -rotated:], cos, sin),
        rms(kv, kv_gamma, norm_eps),
        rope(pe[:, :, None], cos, sin)[:, :, 0],
    )
