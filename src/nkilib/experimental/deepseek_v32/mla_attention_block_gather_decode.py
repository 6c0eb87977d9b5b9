"""The attention block of DeepSeek V3.2 for one decode step: projections and attention in one kernel."""

from __future__ import annotations

import numpy as np

import nki
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.types import Tensor
from nkilib.experimental.deepseek_v32.mla_decode_attention import (
    mla_decode_attention,
    mla_decode_attention_ref,
)
from nkilib.experimental.deepseek_v32.mla_decode_qkv import mla_decode_qkv, mla_decode_qkv_ref


@nki.jit
def mla_attention_block_gather_decode(
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
    topk_indices: Tensor,
    w_uv: Tensor,
    w_o: Tensor,
    softmax_scale: float,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Return (bfloat16 [T, H], kv_cache): mla_decode_qkv, then mla_decode_attention; queries stay in SBUF.

    The row of each token is in the cache before any is read, so topk_indices may contain its own slot. The
    result is this rank's part: ranks that share the heads add theirs. Read of the page: what the block
    computes, that it composes the two kernels and that the query tiles stay in SBUF; the arguments are those
    of the two, ours beyond kv_norm_w.

    >>> import ml_dtypes
    >>> ones = lambda *shape: np.ones(shape, ml_dtypes.bfloat16)
    >>> cache, slots = np.zeros((1, 4, 130), ml_dtypes.bfloat16), np.array([3], np.int32)
    >>> chosen = np.full((1, 128), -1, np.int32)
    >>> chosen[0, 0] = 3
    >>> out, cache = mla_attention_block_gather_decode(
    ...     ones(1, 128), ones(128, 128), ones(128), ones(128, 20), ones(128, 130), ones(128), ones(1, 1),
    ...     0 * ones(1, 1), ones(2, 8, 128), cache, slots, chosen, ones(2, 128, 4), ones(8, 3), 0.1)
    >>> out.tolist()
    [[1024.0, 1024.0, 1024.0]]
    """
    get_verified_program_sharding_info("mla_attention_block_gather_decode", (0, 1), 2)
    lift, position, cache = mla_decode_qkv(
        hidden_states,
        wq_a,
        q_norm_w,
        wq_b,
        wkv_a,
        kv_norm_w,
        cos,
        sin,
        w_uk,
        kv_cache,
        slot_mapping,
        eps,
    )
    return mla_decode_attention(lift, position, cache, topk_indices, w_uv, w_o, softmax_scale), cache


def mla_attention_block_gather_decode_ref(
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
    topk_indices: np.ndarray,
    w_uv: np.ndarray,
    w_o: np.ndarray,
    softmax_scale: float,
    eps: float = 1e-6,
) -> tuple[np.ndarray, np.ndarray]:
    """Return ([T, H], the new cache) in float64, of the references of both kernels."""
    lift, position, cache = mla_decode_qkv_ref(
        hidden_states, wq_a, q_norm_w, wq_b, wkv_a, kv_norm_w, cos, sin, w_uk, kv_cache, slot_mapping, eps
    )
    out = mla_decode_attention_ref(lift, position, cache, topk_indices, w_uv, w_o, softmax_scale)
    return out, cache
