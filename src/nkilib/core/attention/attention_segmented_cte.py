"""Prefill attention over a paged cache with a prefix: new tokens attend to cached blocks and to themselves.

The units and stages are those of attention_cte; keys and values come from blocks (attention_pages.py), and
queries stand prior_tokens further on, a number that is known at run time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_intervals import broadcast_number
from nkilib.core.attention.attention_stages import run_stages
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

from ..utils.kernel_assert import (
    assert_shape,
    assert_tensors,
    kernel_assert,
    not_built,
    refuse_without_effect,
)
from .attention_checks import DTYPES, MAX_HEAD_DIM, MAX_HEADS, check_number, check_window, is_number
from .attention_pages import KeyChunk, KeyLayout, Pages, load_keys
from .attention_units import PrefillCall, PrefillMask, plan_units
from .attention_whole_numbers import RoundRobin, ceil_nisa_kernel, floor_nisa_kernel

CACHE_DTYPES = (*DTYPES, nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2)

__all__ = [
    "attention_segmented_cte",
    "attention_segmented_cte_ref",
    "ceil_nisa_kernel",
    "floor_nisa_kernel",
    "load_kv_cache",
]


@nki.jit
def attention_segmented_cte(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    prior_tokens: Tensor,
    block_size: int,
    prior_seg_size: int,
    scale: float = 1.0,
    tp_q: bool = True,
    tp_out: bool = False,
    sliding_window: int | None = None,
    sink: Tensor | None = None,
    num_q_heads: int = 1,
    k_pre_transposed: bool = False,
    fp8_packed: bool = False,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    kvp_q_offset: Tensor | None = None,
    kvp_rank_id: Tensor | None = None,
    kvp_group_size: int = 0,
    kvp_cp_offset_int: int = 0,
    kvp_seg_block_offset_int: int = 0,
    kvp_prior_load_blocks: int = 0,
    kvp_prior_fully_visible: bool = False,
) -> Any:
    """Prefill attention of new tokens over a paged cache that holds a prefix and the new tokens.

    Shapes (bs sequences, H = num_q_heads, N kv heads, H a multiple of N):

    | argument | shape |
    |---|---|
    | q | (bs H, Sq, d) if tp_q else (bs H, d, Sq) |
    | k_cache | (blocks, N, block_size, d); (blocks N, d, block_size) if k_pre_transposed |
    | k_cache if fp8_packed | (blocks, block_size / 2, N d, 2) or (blocks, N, block_size / 2, d, 2) |
    | v_cache | (blocks, N, block_size, d) |
    | block_tables | (bs, most blocks of a sequence) int32; -1 is no block, wherever it stands |
    | prior_tokens, kvp_q_offset, kvp_rank_id | one int32, read at run time |
    | sink | (bs H, 1): a logit that joins the maximum and the sum, but has no value |
    | k_scale, v_scale | (128, 1): factors of each dimension of keys and of values |
    | result | (bs H, d, Sq) if tp_out else (bs H, Sq, d), in the dtype of q |

    The keys of a sequence are those of its blocks in the order of the table, key j at position j; query i is
    at prior_tokens + i and sees positions up to its own, sliding_window of them with a window. Query head b
    is of sequence b // H and uses kv head (b % H) N // H. Caches are of the dtype of q or FP8.

    kvp_q_offset takes the place of prior_tokens for a rank that has a part of the keys; where kvp_group_size
    ranks hold blocks in turn, block j of this rank, kvp_rank_id, is block j kvp_group_size + kvp_rank_id.
    The result is then (out, max, sum), to be merged with other ranks': out unnormalised in float32, max and
    sum (bs H, 128, Sq / 128), element [b, p, g] for query 128 g + p (Sq a multiple of 128). The other kvp
    arguments and prior_seg_size are hints of the published kernel: all blocks of the table are worked
    through in sections of our own, and results do not depend on them. Two cores share the heads.

    >>> rng = np.random.default_rng(0)
    >>> q, k = rng.standard_normal((2, 128, 64)), rng.standard_normal((9, 1, 32, 64))
    >>> q, k, v = (x.astype(np.float32) for x in (q, k, rng.standard_normal((9, 1, 32, 64))))
    >>> tables, prior = np.array([[3, 1, 8, 2, 0, 5, -1, -1]], np.int32), np.array([[64]], np.int32)
    >>> out = attention_segmented_cte(q, k, v, tables, prior, 32, 128, scale=0.125, num_q_heads=2)
    >>> expected = attention_segmented_cte_ref(q, k, v, tables, prior, 32, scale=0.125, num_q_heads=2)
    >>> bool(np.allclose(out, expected, atol=1e-5))
    True
    """
    layout = check_cache(q, k_cache, v_cache, block_size, tp_q, k_pre_transposed, fp8_packed)
    check_tables(q, block_tables, prior_tokens, block_size, prior_seg_size, num_q_heads, layout.kv_heads)
    window = sliding_window if sliding_window is not None else 0
    check_options(q, sink, scale, window, k_scale, v_scale, kvp_q_offset, kvp_rank_id, kvp_group_size, tp_q)
    refuse_static_offsets(kvp_cp_offset_int, kvp_seg_block_offset_int)

    offset = prior_tokens if kvp_q_offset is None else kvp_q_offset
    mask = PrefillMask(True, window, 1, offset, False, None, None, None)
    if kvp_group_size > 0:
        mask.numbering = RoundRobin(broadcast_number(kvp_rank_id), kvp_group_size, block_size)
    call = PrefillCall(
        q, None, v_cache[:, 0], None, None, mask, scale, tp_q, False, tp_out, nl.float32, None, sink
    )
    call.heads_per_key_head = num_q_heads // layout.kv_heads
    call.pages = Pages(layout, v_cache, block_tables, block_size, q.dtype)
    load_scales(call, k_scale, v_scale)
    if kvp_q_offset is not None:
        return partial_results(call)
    shape = (call.heads, call.head_dim, call.queries) if tp_out else (call.heads, call.queries, call.head_dim)
    call.out = nl.ndarray(shape, q.dtype, buffer=nl.shared_hbm)
    run_stages(plan_units(call))
    return call.out


def load_scales(call: PrefillCall, k_scale: Tensor | None, v_scale: Tensor | None) -> None:
    """Factors of keys and values, of which either may be None."""
    if k_scale is not None:
        call.k_scale = nl.ndarray((call.head_dim, 1), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(call.k_scale, k_scale[0 : call.head_dim])
    if v_scale is not None:
        call.v_scale = nl.ndarray((PMAX, call.head_dim), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(call.v_scale, v_scale.ap([[0, PMAX], [1, call.head_dim]]))


def partial_results(call: PrefillCall) -> tuple:
    """(out, max, sum) for the keys of one rank; tensors have names, as other ranks may be sent them."""
    rows = (call.heads, call.queries, call.head_dim)
    shape = (call.heads, call.head_dim, call.queries) if call.tp_out else rows
    call.out = nl.ndarray(shape, nl.float32, buffer=nl.shared_hbm, name="partial_out")
    call.normalize = False
    call.max_sign = -1.0
    stats = (call.heads, PMAX, call.tiles)
    call.neg_max = nl.ndarray(stats, nl.float32, buffer=nl.shared_hbm, name="partial_max")
    call.sums = nl.ndarray(stats, nl.float32, buffer=nl.shared_hbm, name="partial_sum")
    run_stages(plan_units(call))
    return call.out, call.neg_max, call.sums


# ---- checks --------------------------------------------------------------------------------------


def check_cache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_size: int,
    tp_q: bool,
    pre_transposed: bool,
    packed: bool,
) -> KeyLayout:
    assert_tensors((("q", q), ("k_cache", k_cache), ("v_cache", v_cache)))
    kernel_assert(len(q.shape) == 3, f"q: got shape {tuple(q.shape)}, expected 3 dimensions")
    kernel_assert(q.dtype in DTYPES, f"q: got dtype {q.dtype}, allowed are bfloat16, float16 and float32")
    kernel_assert(
        len(v_cache.shape) == 4, f"v_cache: got shape {tuple(v_cache.shape)}, expected 4 dimensions"
    )
    blocks, kv_heads, head_dim = v_cache.shape[0], v_cache.shape[1], v_cache.shape[3]
    kernel_assert(
        head_dim <= MAX_HEAD_DIM, f"v_cache: got head dimension {head_dim}, allowed are 1 to {MAX_HEAD_DIM}"
    )
    kernel_assert(
        q.shape[2 if tp_q else 1] == head_dim,
        f"q: got shape {tuple(q.shape)}, expected the head dimension of v_cache, {head_dim}",
    )
    assert_shape(v_cache, (blocks, kv_heads, block_size, head_dim), "v_cache")
    for pair in (("k_cache", k_cache), ("v_cache", v_cache)):
        kernel_assert(
            pair[1].dtype in CACHE_DTYPES and (pair[1].dtype not in DTYPES or pair[1].dtype == q.dtype),
            f"{pair[0]}: got dtype {pair[1].dtype}, allowed are {q.dtype} like q and FP8",
        )
    kernel_assert(
        not (pre_transposed and packed), "fp8_packed: got True together with k_pre_transposed, allowed is one"
    )
    kernel_assert(
        not packed or block_size % 2 == 0,
        f"block_size: got {block_size}, allowed with fp8_packed are even ones",
    )
    if pre_transposed:
        shapes: tuple = ((blocks * kv_heads, head_dim, block_size),)
    elif packed:
        half = block_size // 2
        shapes = ((blocks, half, kv_heads * head_dim, 2), (blocks, kv_heads, half, head_dim, 2))
    else:
        shapes = ((blocks, kv_heads, block_size, head_dim),)
    kernel_assert(
        tuple(k_cache.shape) in shapes, f"k_cache: got shape {tuple(k_cache.shape)}, allowed are {shapes}"
    )
    return KeyLayout(k_cache, kv_heads, head_dim, pre_transposed, packed)


def check_tables(
    q: Tensor, tables: Tensor, prior: Tensor, block_size: int, segment: int, num_q_heads: int, kv_heads: int
) -> None:
    assert_tensors((("block_tables", tables),))
    heads = q.shape[0]
    kernel_assert(heads <= MAX_HEADS, f"q: got {heads} heads in all, allowed are at most {MAX_HEADS}")
    kernel_assert(
        num_q_heads > 0 and heads % num_q_heads == 0 and num_q_heads % kv_heads == 0,
        f"num_q_heads: got {num_q_heads}, allowed are divisors of the {heads} heads of q that are multiples "
        f"of the {kv_heads} kv heads",
    )
    kernel_assert(
        len(tables.shape) == 2 and tables.shape[0] == heads // num_q_heads,
        f"block_tables: got shape {tuple(tables.shape)}, expected ({heads // num_q_heads}, blocks)",
    )
    kernel_assert(
        tables.dtype in (nl.int32, nl.uint32), f"block_tables: got dtype {tables.dtype}, allowed is int32"
    )
    kernel_assert(
        segment > 0 and segment % block_size == 0,
        f"prior_seg_size: got {segment}, allowed are multiples of block_size = {block_size}",
    )
    check_number(prior, "prior_tokens")


def check_options(
    q: Tensor,
    sink: Tensor | None,
    scale: float,
    window: int,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    kvp_q_offset: Tensor | None,
    kvp_rank_id: Tensor | None,
    kvp_group_size: int,
    tp_q: bool,
) -> None:
    kernel_assert(is_number(scale) and scale > 0, f"scale: got {scale!r}, allowed are positive numbers")
    check_window(window)
    assert_tensors((), (("sink", sink), ("k_scale", k_scale), ("v_scale", v_scale)))
    refuse_without_effect(kvp_group_size > 0, "kvp_group_size", (("kvp_rank_id", kvp_rank_id),))
    if sink is not None:
        assert_shape(sink, (q.shape[0], 1), "sink")
    for pair in (("k_scale", k_scale), ("v_scale", v_scale)):
        if pair[1] is not None:
            assert_shape(pair[1], (PMAX, 1), pair[0])
    for pair in (("kvp_q_offset", kvp_q_offset), ("kvp_rank_id", kvp_rank_id)):
        if pair[1] is not None:
            check_number(pair[1], pair[0])
    kernel_assert(
        kvp_group_size == 0 or (kvp_q_offset is not None and kvp_rank_id is not None),
        f"kvp_group_size: got {kvp_group_size}, needs kvp_q_offset and kvp_rank_id",
    )
    queries = q.shape[1 if tp_q else 2]
    kernel_assert(
        kvp_q_offset is None or queries % PMAX == 0,
        f"kvp_q_offset: got a tensor with {queries} queries, allowed are multiples of {PMAX}",
    )


def refuse_static_offsets(context: int, segment: int) -> None:
    """Refuse offsets that would move positions: the page does not say which, or in which unit."""
    for pair in (("kvp_cp_offset_int", context), ("kvp_seg_block_offset_int", segment)):
        if pair[1] != 0:
            not_built(pair[0], "the page does not say what it moves; kvp_q_offset moves the queries")


# ---- loading blocks by themselves ----------------------------------------------------------------


def load_kv_cache(
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    k_sbuf: Tensor,
    v_sbuf: Tensor,
    b_i: int,
    h_i: int,
    block_table_offset: Tensor,
    num_blocks: int,
    allocator: Tensor | None,
    k_pre_transposed: bool = False,
    fp8_packed: bool = False,
) -> None:
    """Gather num_blocks blocks of one kv head, from a run-time place of the block table on, to SBUF.

    k_sbuf [d, num_blocks * block_size] has token j in column j; v_sbuf [num_blocks, block_size, d] has a
    block in each partition, so num_blocks is at most 128. block_table_offset is an int32 tile (1, 1). Blocks
    of number -1 are skipped: their keys are 0, their values stay what they were. `allocator`, which the
    published kernel takes temporary tiles from, may be None: they are left to the compiler.
    """
    kv_heads, block_size, head_dim = v_cache.shape[1], v_cache.shape[2], v_cache.shape[3]
    kernel_assert(num_blocks <= PMAX, f"num_blocks: got {num_blocks}, allowed are at most {PMAX}")
    assert_shape(k_sbuf, (head_dim, num_blocks * block_size), "k_sbuf")
    assert_shape(v_sbuf, (num_blocks, block_size, head_dim), "v_sbuf")
    layout = KeyLayout(k_cache, kv_heads, head_dim, k_pre_transposed, fp8_packed)
    row = block_tables.reinterpret_cast(nl.int32)[b_i : b_i + 1]
    entries = nl.ndarray((num_blocks, 1), nl.int32, buffer=nl.sbuf)
    view = row.ap([[1, num_blocks], [1, 1]], scalar_offset=block_table_offset, indirect_dim=1)
    nisa.dma_copy(entries, view)
    pieces = nl.ndarray((num_blocks, 1), nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(pieces, entries, nl.multiply, float(kv_heads), op1=nl.add, operand1=float(h_i))
    chunk = KeyChunk(0, 0, num_blocks, block_size)
    load_keys(k_sbuf, layout, entries if layout.heads_inside else pieces, h_i, chunk, True)
    values = v_cache.reshape((v_cache.shape[0] * kv_heads, block_size, head_dim))
    nisa.dma_copy(v_sbuf, values.vector_select(0, pieces), oob_mode=nisa.oob_mode.skip)


# ---- reference -----------------------------------------------------------------------------------


def attention_segmented_cte_ref(
    q: np.ndarray,
    k_cache: np.ndarray,
    v_cache: np.ndarray,
    block_tables: np.ndarray,
    prior_tokens: np.ndarray,
    block_size: int,
    prior_seg_size: int | None = None,
    scale: float = 1.0,
    tp_q: bool = True,
    tp_out: bool = False,
    sliding_window: int | None = None,
    sink: np.ndarray | None = None,
    num_q_heads: int = 1,
    k_pre_transposed: bool = False,
    fp8_packed: bool = False,
    k_scale: np.ndarray | None = None,
    v_scale: np.ndarray | None = None,
):
    """attention_segmented_cte in numpy: whole score matrices in float64, masked by comparing positions."""
    dtype, kv_heads, d = q.dtype, v_cache.shape[1], v_cache.shape[3]
    keys = _blocks(k_cache, kv_heads, block_size, d, k_pre_transposed, fp8_packed)
    values = v_cache.astype(np.float64)
    queries = q.astype(np.float64) if tp_q else q.astype(np.float64).swapaxes(1, 2)
    out = np.zeros((q.shape[0], queries.shape[1], d))
    at = int(np.ravel(prior_tokens)[0]) + np.arange(queries.shape[1])[:, None]
    for b in range(q.shape[0]):
        sequence, head = b // num_q_heads, b % num_q_heads * kv_heads // num_q_heads
        blocks = [int(n) for n in block_tables[sequence] if n >= 0]
        k, v = keys[blocks, head].reshape(-1, d), values[blocks, head].reshape(-1, d)
        if k_scale is not None:
            k = k * k_scale[:d, 0].astype(np.float64)
        if v_scale is not None:
            v = v * v_scale[:d, 0].astype(np.float64)
        place = np.arange(len(k))
        seen = place <= at
        if sliding_window:
            seen &= place > at - sliding_window
        scores = np.where(seen, scale * queries[b] @ k.T, -np.inf)
        logit = -np.inf if sink is None else float(sink[b, 0])
        largest = np.maximum(scores.max(-1, keepdims=True), logit)
        largest[np.isneginf(largest)] = 0.0
        weights = np.exp(scores - largest)
        sums = weights.sum(-1, keepdims=True) + np.exp(logit - largest)
        out[b] = weights / np.maximum(sums, 1e-300) @ v
    return (out.swapaxes(1, 2) if tp_out else out).astype(dtype)


def _blocks(
    k_cache: np.ndarray, kv_heads: int, block_size: int, d: int, transposed: bool, packed: bool
) -> Any:
    """Keys as [blocks, kv heads, block_size, d] in float64."""
    k = k_cache.astype(np.float64)
    if transposed:
        return k.reshape(-1, kv_heads, d, block_size).swapaxes(2, 3)
    if packed and k.ndim == 4:
        k = k.reshape(-1, block_size // 2, kv_heads, d, 2).transpose(0, 2, 1, 3, 4)
    if packed:
        k = k.transpose(0, 1, 2, 4, 3).reshape(-1, kv_heads, block_size, d)
    return k
