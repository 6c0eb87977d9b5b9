"""QKV projections of multi-head latent attention in MX: through low ranks with norms, and RoPE."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.qkv.qkv_heads import rotate_heads
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.mx_blocks import block_weights, project_all
from nkilib.core.utils.mx_projection import ones_tile
from nkilib.core.utils.mx_rows import check_mx, quantize_rows_mx
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.types import Tensor
from nkilib.experimental.mla.latents import (
    KeyValueRows,
    QueryRows,
    RopeTable,
    check_positive,
    gamma_row,
    load_tiles,
    normalized,
    project_heads,
    rotate_key,
    store_heads,
    token_groups,
)


@nki.jit
def qkv_mla_mx(
    x_hbm: Tensor,
    wqkv_a_hbm: Tensor,
    wqkv_a_scale_hbm: Tensor,
    wq_b_hbm: Tensor,
    wq_b_scale_hbm: Tensor,
    q_norm_gamma_hbm: Tensor,
    wkv_b_hbm: Tensor,
    wkv_b_scale_hbm: Tensor,
    kv_norm_gamma_hbm: Tensor,
    cos_cache_hbm: Tensor,
    sin_cache_hbm: Tensor,
    n_heads: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    v_head_dim: int,
    kv_lora_rank: int,
    qk_lora_rank: int,
    norm_eps: float = 1e-06,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (q, k [B, S, n_heads, nope + rope], v [B, S, n_heads, v_head_dim]) in bfloat16 of tokens x.

    qr, kv, pe = x Wqkv_a; q = RMSNorm(qr) Wq_b; each head of RMSNorm(kv) Wkv_b is its key without position,
    then its value. The last qk_rope_head_dim columns of q and the key part pe, which all heads share, are
    rotated: halves, lower cos - upper sin and upper cos + lower sin, of the tables [B, S, qk_rope_head_dim].

    x is bfloat16 [B, S, H]. Weights are four-packed FP8 [K / 4, N], row r elements 4 r ... 4 r + 3, with
    scales uint8 [K / 128, ceil(N / 128)], one for 128 x 128 elements; gammas are [1, rank]. H and both ranks
    are multiples of 512, a head of a projection has at most 512 columns. x and the normalised latents, in
    bfloat16, are quantised to MXFP8 in blocks of 32 neighbours. Cores share the tokens. The page does not
    define the order of lanes nor which elements RoPE pairs; these are our choice.

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> def weights(k, n):
    ...     return np.zeros((k // 4, n), np.uint32), np.zeros((k // 128, 9), np.uint8)
    >>> x, table = np.ones((1, 2, 512), ml_dtypes.bfloat16), np.ones((1, 2, 64), ml_dtypes.bfloat16)
    >>> a, b, gamma = weights(512, 1088), weights(512, 1088), np.ones((1, 512), ml_dtypes.bfloat16)
    >>> q, k, v = qkv_mla_mx(x, *a, *b, gamma, *b, gamma, table, table, 4, 208, 64, 64, 512, 512)
    >>> q.shape, k.shape, v.shape
    ((1, 2, 4, 272), (1, 2, 4, 272), (1, 2, 4, 64))
    """
    get_verified_program_sharding_info("qkv_mla_mx", (0, 1), 2)
    check_mx("qkv_mla_mx")
    check_tokens(x_hbm)
    check_positive((("n_heads", n_heads), ("qk_nope_head_dim", qk_nope_head_dim), ("v_head_dim", v_head_dim)))
    batch, length, size = x_hbm.shape
    q_width, kv_width = qk_nope_head_dim + qk_rope_head_dim, qk_nope_head_dim + v_head_dim
    latents = qk_lora_rank + kv_lora_rank
    first = block_weights("wqkv_a", wqkv_a_hbm, wqkv_a_scale_hbm, size, latents + qk_rope_head_dim)
    second = block_weights("wq_b", wq_b_hbm, wq_b_scale_hbm, qk_lora_rank, n_heads * q_width)
    third = block_weights("wkv_b", wkv_b_hbm, wkv_b_scale_hbm, kv_lora_rank, n_heads * kv_width)
    q_gamma = gamma_row("q_norm_gamma_hbm", q_norm_gamma_hbm, qk_lora_rank)
    kv_gamma = gamma_row("kv_norm_gamma_hbm", kv_norm_gamma_hbm, kv_lora_rank)
    rope = RopeTable(cos_cache_hbm, sin_cache_hbm, batch, length, qk_rope_head_dim)
    tokens = batch * length
    q = nl.ndarray((tokens, n_heads, q_width), nl.bfloat16, buffer=nl.shared_hbm)
    k = nl.ndarray((tokens, n_heads, q_width), nl.bfloat16, buffer=nl.shared_hbm)
    v = nl.ndarray((tokens, n_heads, v_head_dim), nl.bfloat16, buffer=nl.shared_hbm)
    ones = ones_tile(BANK_COLUMNS)
    for group in token_groups(tokens):
        start, count = group
        x = quantize_rows_mx(load_tiles(x_hbm.reshape((tokens, size)), start, count), ones)
        rows, angles = project_all(x, count, first), rope.angles(start, count)
        queries = quantize_rows_mx(normalized(rows, 0, q_gamma, norm_eps), ones)
        project_heads(
            queries, count, second, n_heads, q_width, QueryRows(q, qk_rope_head_dim, start, count, angles)
        )
        shared = []
        for i in range(len(rows)):
            shared.append(rotate_key(rows[i][:, latents:], angles[i]))
        keys = quantize_rows_mx(normalized(rows, qk_lora_rank, kv_gamma, norm_eps), ones)
        project_heads(keys, count, third, n_heads, kv_width, KeyValueRows(k, v, start, count, shared))
    shape = (batch, length, n_heads)
    return q.reshape(shape + (q_width,)), k.reshape(shape + (q_width,)), v.reshape(shape + (v_head_dim,))


def check_tokens(x: Tensor) -> None:
    assert_tensors((("x_hbm", x),))
    kernel_assert(len(x.shape) == 3, f"x_hbm: got shape {tuple(x.shape)}, expected (B, S, H)")
    kernel_assert(x.dtype == nl.bfloat16, f"x_hbm: got dtype {x.dtype}, expected bfloat16")


@nki.jit
def qkv_mla_mx_deepseek_v4(
    x_hbm: Tensor,
    wqkv_hbm: Tensor,
    wqkv_scale_hbm: Tensor,
    wq_b_hbm: Tensor,
    wq_b_scale_hbm: Tensor,
    q_norm_gamma_hbm: Tensor,
    kv_norm_gamma_hbm: Tensor,
    cos_cache_hbm: Tensor,
    sin_cache_hbm: Tensor,
    n_heads: int,
    head_dim: int,
    qk_rope_head_dim: int,
    kv_lora_rank: int,
    qk_lora_rank: int,
    norm_eps: float = 1e-06,
) -> tuple[Tensor, Tensor]:
    """Return (q [B, S, n_heads, head_dim], kv [B, S, kv_lora_rank + rope]) in bfloat16, DeepSeek V4.

    qr, kv = x Wqkv. q = RMSNorm(qr) Wq_b, each head divided by its root mean square; kv is RMSNorm(kv). The
    last qk_rope_head_dim columns of both are rotated, halves of them. Operands are those of qkv_mla_mx;
    kv_norm_gamma is [1, kv_lora_rank + qk_rope_head_dim].

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> def weights(k, n):
    ...     return np.zeros((k // 4, n), np.uint32), np.zeros((k // 128, 8), np.uint8)
    >>> x, table = np.ones((1, 2, 512), ml_dtypes.bfloat16), np.ones((1, 2, 64), ml_dtypes.bfloat16)
    >>> gammas = np.ones((1, 512), ml_dtypes.bfloat16), np.ones((1, 448 + 64), ml_dtypes.bfloat16)
    >>> w = weights(512, 1024)
    >>> q, kv = qkv_mla_mx_deepseek_v4(x, *w, *w, *gammas, table, table, 4, 256, 64, 448, 512)
    >>> q.shape, kv.shape
    ((1, 2, 4, 256), (1, 2, 512))
    """
    get_verified_program_sharding_info("qkv_mla_mx_deepseek_v4", (0, 1), 2)
    check_mx("qkv_mla_mx_deepseek_v4")
    check_tokens(x_hbm)
    check_positive((("n_heads", n_heads), ("head_dim", head_dim), ("kv_lora_rank", kv_lora_rank)))
    kernel_assert(
        qk_rope_head_dim <= head_dim, f"qk_rope_head_dim: got {qk_rope_head_dim}, at most head_dim {head_dim}"
    )
    batch, length, size = x_hbm.shape
    kv_dim, tokens = kv_lora_rank + qk_rope_head_dim, batch * length
    first = block_weights("wqkv", wqkv_hbm, wqkv_scale_hbm, size, qk_lora_rank + kv_dim)
    second = block_weights("wq_b", wq_b_hbm, wq_b_scale_hbm, qk_lora_rank, n_heads * head_dim)
    q_gamma = gamma_row("q_norm_gamma_hbm", q_norm_gamma_hbm, qk_lora_rank)
    kv_gamma = gamma_row("kv_norm_gamma_hbm", kv_norm_gamma_hbm, kv_dim)
    rope = RopeTable(cos_cache_hbm, sin_cache_hbm, batch, length, qk_rope_head_dim)
    q = nl.ndarray((tokens, n_heads, head_dim), nl.bfloat16, buffer=nl.shared_hbm)
    kv = nl.ndarray((tokens, 1, kv_dim), nl.bfloat16, buffer=nl.shared_hbm)
    ones = ones_tile(BANK_COLUMNS)
    for group in token_groups(tokens):
        start, count = group
        x = quantize_rows_mx(load_tiles(x_hbm.reshape((tokens, size)), start, count), ones)
        rows, angles = project_all(x, count, first), rope.angles(start, count)
        queries = quantize_rows_mx(normalized(rows, 0, q_gamma, norm_eps), ones)
        results = QueryRows(q, qk_rope_head_dim, start, count, angles, norm_eps)
        project_heads(queries, count, second, n_heads, head_dim, results)
        latents: list = []
        for tile in normalized(rows, qk_lora_rank, kv_gamma, norm_eps):
            by_head, pair = tile.expand_dim(1), angles[len(latents)]
            rotated = by_head[:, :, kv_lora_rank:]
            rotate_heads(rotated, rotated, pair[0], pair[1])
            latents.append(by_head)
        store_heads(kv, start, 0, latents)
    return q.reshape((batch, length, n_heads, head_dim)), kv.reshape((batch, length, kv_dim))


# ---- references ----------------------------------------------------------------------------------


def rms(x: np.ndarray, gamma: np.ndarray | float, eps: float) -> np.ndarray:
    """RMSNorm along the last axis in float64."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * np.asarray(gamma, np.float64)


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotate halves of x [B, S, heads, d] by the tables [B, S, d]."""
    lower, upper = np.split(x, 2, axis=-1)
    c, s = (np.asarray(table, np.float64)[:, :, None, :] for table in (cos, sin))
    half = lower.shape[-1]
    turned = np.concatenate([-upper * s[..., :half], lower * s[..., :half]], axis=-1)
    return x * c + turned


def qkv_mla_mx_ref(
    x: np.ndarray,
    wqkv_a: np.ndarray,
    wq_b: np.ndarray,
    q_gamma: np.ndarray,
    wkv_b: np.ndarray,
    kv_gamma: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    n_heads: int,
    qk_rope_head_dim: int,
    v_head_dim: int,
    norm_eps: float = 1e-6,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (q, k, v) in float64 of plain matrices [K, N]; nothing is quantised or rounded."""
    rank = wq_b.shape[0]
    latents = np.asarray(x, np.float64) @ wqkv_a
    qr, kv, pe = np.split(latents, [rank, latents.shape[-1] - qk_rope_head_dim], axis=-1)
    shape = (*qr.shape[:2], n_heads, -1)
    q = (rms(qr, q_gamma, norm_eps) @ wq_b).reshape(shape)
    q = np.concatenate([q[..., :-qk_rope_head_dim], rope(q[..., -qk_rope_head_dim:], cos, sin)], axis=-1)
    both = (rms(kv, kv_gamma, norm_eps) @ wkv_b).reshape(shape)
    k, v = both[..., :-v_head_dim], both[..., -v_head_dim:]
    shared = rope(pe[:, :, None, :], cos, sin).repeat(n_heads, axis=2)
    return q, np.concatenate([k, shared], axis=-1), v


def qkv_mla_mx_deepseek_v4_ref(
    x: np.ndarray,
    wqkv: np.ndarray,
    wq_b: np.ndarray,
    q_gamma: np.ndarray,
    kv_gamma: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    n_heads: int,
    qk_rope_head_dim: int,
    norm_eps: float = 1e-6,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (q, kv) in float64 of plain matrices [K, N]; nothing is quantised or rounded."""
    latents = np.asarray(x, np.float64) @ wqkv
    qr, kv = np.split(latents, [wq_b.shape[0]], axis=-1)
    q = (rms(qr, q_gamma, norm_eps) @ wq_b).reshape(*qr.shape[:2], n_heads, -1)
    parts = []
    for part in (rms(q, 1.0, norm_eps), rms(kv, kv_gamma, norm_eps)[:, :, None, :]):
        parts.append(
            np.concatenate(
                [part[..., :-qk_rope_head_dim], rope(part[..., -qk_rope_head_dim:], cos, sin)], axis=-1
            )
        )
    return parts[0], parts[1][:, :, 0]
