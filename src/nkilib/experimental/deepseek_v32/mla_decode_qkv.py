"""Queries, keys and values of latent attention for one decode step, from hidden states to the paged cache.

Two cores share the hidden dimension, then the heads: each loads half of the weights, and they exchange sums
and queries.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.decode import swap
from nkilib.core.mlp.rows import rms_norm
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import (
    div_ceil,
    get_verified_program_sharding_info,
    interleave_copy,
)
from nkilib.core.utils.projection import BANK_COLUMNS, Activations
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import bank_room, spread_rows
from nkilib.core.utils.types import Tensor
from nkilib.experimental.deepseek_v32.shared_products import project_columns, shared_sums
from nkilib.experimental.misc.indexed_rows import rows_at

HEADS_TOGETHER = 8  # whose part of w_uk is in SBUF at a time


@nki.jit
def mla_decode_qkv(
    hidden_states: Tensor,
    wq_a: Tensor,
    q_norm_w: Tensor,
    wq_b: Tensor,
    wkv_a: Tensor,
    kv_norm_w: Tensor,
    cos: Tensor,
    sin: Tensor,
    w_uk: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    eps: float = 1e-6,
    queries_in_sbuf: bool = True,
) -> tuple:
    """Return (q_lift, q_pe, kv_cache): tiles [128, L / 128, T, heads], [R, T, heads], and the cache.

    A head of RMSNorm(x wq_a) wq_b is q_nope, then q_pe; q_lift = q_nope w_uk of its head. x wkv_a is a latent
    of L elements, of which RMSNorm is taken, and a key of R elements: together they are the row of the
    token that is written to the cache. RoPE rotates pairs of neighbours of q_pe and of the key.

    Args:
        hidden_states: [T, H], T <= 128, normalised.
        wq_a: [H, Q]; H and Q multiples of 128.
        q_norm_w: [Q].
        wq_b: [Q, heads (N + R)].
        wkv_a: [H, L + R]; L a multiple of 128 up to 512, R even and at most 128.
        kv_norm_w: [L].
        cos, sin: [T, R / 2].
        w_uk: [heads, N, L], N <= 128.
        kv_cache: [blocks, block_size, L + R] bfloat16, updated in place.
        slot_mapping: [T] int32, rows of the cache; tokens with a negative one are not written.

    Latent 128 c + p is at [p, c] of q_lift. Products are in bfloat16, sums in float32. Both tiles are
    complete on each core. With queries_in_sbuf False, for a call by itself, the queries are
    [L, T, heads] and [R, T, heads] in HBM. Read of the page: the arguments up to kv_norm_w, that RoPE is
    interleaved, the query absorbed and the row scattered, and that the query tiles are feature-major in
    SBUF; the arguments from cos on and all layouts are ours.

    >>> import ml_dtypes
    >>> ones = lambda *shape: np.ones(shape, ml_dtypes.bfloat16)
    >>> x, cache = ones(2, 128), np.zeros((1, 4, 130), ml_dtypes.bfloat16)
    >>> slots = np.array([3, -1], np.int32)
    >>> lift, pe, cache = mla_decode_qkv(
    ...     x, ones(128, 128), ones(128), ones(128, 20), ones(128, 130), ones(128), ones(2, 1),
    ...     0 * ones(2, 1), ones(2, 8, 128), cache, slots, queries_in_sbuf=False)
    >>> lift.shape, pe.shape, cache[0, :, 0].tolist(), cache[0, :, 129].tolist()
    ((128, 2, 2), (2, 2, 2), [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 128.0])
    """
    get_verified_program_sharding_info("mla_decode_qkv", (0, 1), 2)
    job = DecodeQkv(hidden_states, wq_a, wq_b, wkv_a, w_uk, kv_cache, eps)
    job.check_vectors(q_norm_w, kv_norm_w, cos, sin, slot_mapping)
    sums = shared_sums(hidden_states, (wq_a, wkv_a))
    normal = nl.ndarray((job.tokens, job.rank), nl.bfloat16, buffer=nl.sbuf)
    rms_norm(normal, sums[:, 0 : job.rank], job.row(q_norm_w), eps)
    angles = (load(cos, nl.float32), load(sin, nl.float32))
    job.write_row(sums[:, job.rank :], job.row(kv_norm_w), angles, slot_mapping)
    lift, position = job.queries(normal, angles)
    if queries_in_sbuf:
        return lift, position, kv_cache
    return job.stored(lift, position) + (kv_cache,)


def rotate_pairs(dst: Tensor, x: Tensor, angles: tuple) -> None:
    """RoPE of neighbours, x [tokens, heads, R]: even cos - odd sin, even sin + odd cos; dst is not x."""
    tokens, heads, size = x.shape
    by_pair, out = x.reshape_dim(2, (size // 2, 2)), dst.reshape_dim(2, (size // 2, 2))
    first = nl.ndarray((tokens, heads, size // 2), nl.float32, buffer=nl.sbuf)
    second = nl.ndarray((tokens, heads, size // 2), nl.float32, buffer=nl.sbuf)
    cos = angles[0].expand_dim(1).broadcast(1, heads)
    sin = angles[1].expand_dim(1).broadcast(1, heads)
    for lane in range(2):
        nisa.tensor_tensor(first, by_pair[:, :, :, lane], cos, nl.multiply)
        nisa.tensor_tensor(second, by_pair[:, :, :, 1 - lane], sin, nl.multiply)
        op = nl.subtract if lane == 0 else nl.add
        nisa.tensor_tensor(out[:, :, :, lane], first, second, op)


class DecodeQkv(nl.NKIObject):
    """One call: its sizes and its matrices."""

    def __init__(
        self, x: Tensor, wq_a: Tensor, wq_b: Tensor, wkv_a: Tensor, w_uk: Tensor, cache: Tensor, eps: float
    ):
        named = (("hidden_states", x), ("wq_a", wq_a), ("wq_b", wq_b), ("wkv_a", wkv_a), ("w_uk", w_uk))
        assert_tensors(named + (("kv_cache", cache),))
        for pair in named[1:] + (("kv_cache", cache),):
            kernel_assert(pair[1].dtype == nl.bfloat16, f"{pair[0]}: got {pair[1].dtype}, expected bfloat16")
        kernel_assert(
            len(x.shape) == 2 and 1 <= x.shape[0] <= PMAX and x.shape[1] % PMAX == 0,
            f"hidden_states: got shape {tuple(x.shape)}, expected [T <= 128, H], H a multiple of 128",
        )
        kernel_assert(
            len(w_uk.shape) == 3
            and w_uk.shape[1] <= PMAX
            and w_uk.shape[2] % PMAX == 0
            and w_uk.shape[2] <= BANK_COLUMNS,
            f"w_uk: got shape {tuple(w_uk.shape)}, expected [heads, N <= 128, L], L = 128, 256, 384 or 512",
        )
        self.tokens = x.shape[0]
        self.hidden = x.shape[1]
        self.heads = w_uk.shape[0]
        self.plain = w_uk.shape[1]
        self.latent = w_uk.shape[2]
        kernel_assert(
            len(cache.shape) == 3 and self.latent < cache.shape[2] <= self.latent + PMAX,
            f"kv_cache: got shape {tuple(cache.shape)}, expected [blocks, size, {self.latent} + R], R <= 128",
        )
        self.rotated = cache.shape[2] - self.latent
        kernel_assert(self.rotated % 2 == 0, f"kv_cache: got R = {self.rotated}, expected an even number")
        kernel_assert(
            len(wq_a.shape) == 2 and wq_a.shape[0] == self.hidden and wq_a.shape[1] % PMAX == 0,
            f"wq_a: got shape {tuple(wq_a.shape)}, expected ({self.hidden}, Q), Q a multiple of 128",
        )
        self.rank = wq_a.shape[1]
        assert_shape(wq_b, (self.rank, self.heads * (self.plain + self.rotated)), "wq_b")
        assert_shape(wkv_a, (self.hidden, self.latent + self.rotated), "wkv_a")
        self.wq_b = wq_b
        self.w_uk = w_uk
        self.cache = cache
        self.eps = eps
        self.cores = nl.num_programs(0)
        self.core = nl.program_id(0)

    def check_vectors(self, q_norm: Tensor, kv_norm: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> None:
        named = (("q_norm_w", q_norm), ("kv_norm_w", kv_norm), ("cos", cos), ("sin", sin))
        assert_tensors(named + (("slot_mapping", slots),))
        assert_shape(q_norm, (self.rank,), "q_norm_w")
        assert_shape(kv_norm, (self.latent,), "kv_norm_w")
        assert_shape(cos, (self.tokens, self.rotated // 2), "cos")
        assert_shape(sin, (self.tokens, self.rotated // 2), "sin")
        assert_shape(slots, (self.tokens,), "slot_mapping")
        kernel_assert(slots.dtype == nl.int32, f"slot_mapping: got {slots.dtype}, expected int32")

    def row(self, vector: Tensor) -> Any:
        """Weights of a norm, in every partition."""
        return broadcast_row(vector.reshape((1, vector.size)), 0, vector.size, self.tokens)

    def write_row(self, sums: Tensor, weight: Tensor, angles: tuple, slots: Tensor) -> None:
        """The rows of the cache; one core writes them."""
        row = nl.ndarray((self.tokens, self.latent + self.rotated), nl.bfloat16, buffer=nl.sbuf)
        rms_norm(row[:, 0 : self.latent], sums[:, 0 : self.latent], weight, self.eps)
        rotate_pairs(row[:, self.latent :].expand_dim(1), sums[:, self.latent :].expand_dim(1), angles)
        if self.core == 0:
            places = load(slots.expand_dim(1))
            blocks, size, width = self.cache.shape
            target = rows_at(self.cache.reshape((blocks * size, width)), places)
            nisa.dma_copy(target, row, oob_mode=nisa.oob_mode.skip)
        if self.cores == 2:
            nisa.core_barrier(self.cache, (0, 1))

    def queries(self, normal: Tensor, angles: tuple) -> tuple:
        """(q_lift, q_pe) of all heads, of which each core computes half."""
        share = div_ceil(self.heads, self.cores)
        first = min(self.heads, self.core * share)
        count = min(share, self.heads - first)
        lift = nl.ndarray((PMAX, self.latent // PMAX, self.tokens, share), nl.bfloat16, buffer=nl.sbuf)
        position = nl.ndarray((self.rotated, self.tokens, share), nl.bfloat16, buffer=nl.sbuf)
        if count < share:
            nisa.memset(lift, 0.0)
            nisa.memset(position, 0.0)
        if count > 0:
            width = self.plain + self.rotated
            part = Activations(spread_rows([normal]), self.rank, 0, spread=self.rank // PMAX)
            rows = nl.ndarray((self.tokens, count * width), nl.bfloat16, buffer=nl.sbuf)
            project_columns(rows, 0, part, self.wq_b, first * width, count * width)
            by_head = rows.reshape_dim(1, (count, width))
            turned = nl.ndarray((self.tokens, count, self.rotated), nl.bfloat16, buffer=nl.sbuf)
            rotate_pairs(turned, by_head[:, :, self.plain :], angles)
            self.columns_of(position, turned)
            self.absorb(lift, by_head, first)
        if self.cores == 1:
            return lift, position
        return self.whole(lift, share), self.whole(position, share)

    def columns_of(self, dst: Tensor, heads: Tensor) -> None:
        """dst[d, t, h] = heads[t, h, d], by TensorE."""
        size = heads.shape[2]
        for group in TiledRange(heads.shape[1], bank_room(heads, self.tokens)):
            bank = nl.ndarray((size, group.size, self.tokens), heads.dtype, buffer=nl.psum)
            for i in range(group.size):
                nisa.nc_transpose(bank[:, i, :], heads[:, group.start_offset + i, :])
            place = dst[:, :, group.start_offset : group.end_offset].permute((0, 2, 1))
            interleave_copy(place, bank, group.index)

    def absorb(self, lift: Tensor, rows: Tensor, first: int) -> None:
        """lift[:, :, :, h] = q_nope w_uk of head first + h."""
        heads, chunks = rows.shape[1], self.latent // PMAX
        columns = nl.ndarray((self.plain, self.tokens, heads), nl.bfloat16, buffer=nl.sbuf)
        self.columns_of(columns, rows[:, :, 0 : self.plain])
        for some in TiledRange(heads, HEADS_TOGETHER):
            own = self.w_uk[first + some.start_offset : first + some.end_offset]
            weights = load(own.permute((1, 0, 2)))
            for i in range(some.size):
                head = some.start_offset + i
                bank = nl.ndarray((PMAX, chunks, self.tokens), nl.float32, buffer=nl.psum)
                for c in range(chunks):
                    nisa.nc_matmul(
                        bank[:, c, :], weights[:, i, c * PMAX : (c + 1) * PMAX], columns[:, :, head]
                    )
                interleave_copy(lift[:, :, :, head], bank, head)

    def whole(self, own: Tensor, share: int) -> Tensor:
        """Heads of both cores side by side."""
        shape = tuple(own.shape[0:-1]) + (self.heads,)
        result = nl.ndarray(shape, own.dtype, buffer=nl.sbuf)
        other = swap(own, self.core, 1)
        for core in range(2):
            source = own if core == self.core else other
            count = min(share, self.heads - core * share)
            if count > 0:
                flat, into = source.flatten_dims(1, len(shape) - 2), result.flatten_dims(1, len(shape) - 2)
                nisa.tensor_copy(into[:, :, core * share : core * share + count], flat[:, :, 0:count])
        return result

    def stored(self, lift: Tensor, position: Tensor) -> tuple:
        """The queries in HBM, [L, T, heads] and [R, T, heads]; core 0 writes them."""
        lifted = nl.ndarray((self.latent, self.tokens, self.heads), nl.bfloat16, buffer=nl.shared_hbm)
        rotated = nl.ndarray((self.rotated, self.tokens, self.heads), nl.bfloat16, buffer=nl.shared_hbm)
        if self.core == 0:
            by_chunk = lifted.reshape_dim(0, (self.latent // PMAX, PMAX))
            nisa.dma_copy(by_chunk.permute((1, 0, 2, 3)), lift)
            nisa.dma_copy(rotated, position)
        return lifted, rotated


def mla_decode_qkv_ref(
    hidden_states: np.ndarray,
    wq_a: np.ndarray,
    q_norm_w: np.ndarray,
    wq_b: np.ndarray,
    wkv_a: np.ndarray,
    kv_norm_w: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    w_uk: np.ndarray,
    kv_cache: np.ndarray,
    slot_mapping: np.ndarray,
    eps: float = 1e-6,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (q_lift [L, T, heads], q_pe [R, T, heads], the new cache) in float64."""

    def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * np.asarray(weight, np.float64)

    def rope(x: np.ndarray) -> np.ndarray:
        z = (x[..., 0::2] + 1j * x[..., 1::2]) * (cos.astype(np.float64) + 1j * sin.astype(np.float64))[
            :, None
        ]
        return np.stack([z.real, z.imag], -1).reshape(x.shape)

    x, heads, latent = hidden_states.astype(np.float64), len(w_uk), w_uk.shape[2]
    q = rms(x @ wq_a.astype(np.float64), q_norm_w) @ wq_b.astype(np.float64)
    plain, position = np.split(q.reshape(len(x), heads, -1), [w_uk.shape[1]], axis=2)
    kv = x @ wkv_a.astype(np.float64)
    cache = kv_cache.astype(np.float64).reshape(-1, kv_cache.shape[2])
    rows = np.concatenate([rms(kv[:, :latent], kv_norm_w), rope(kv[:, None, latent:])[:, 0]], 1)
    for slot, row in zip(slot_mapping, rows, strict=True):
        if slot >= 0:
            cache[slot] = row
    lift = np.einsum("thn,hnl->lth", plain, w_uk.astype(np.float64))
    return lift, rope(position).transpose(2, 0, 1), cache.reshape(kv_cache.shape)
