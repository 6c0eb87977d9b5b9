"""Prefill attention over a cache that several ranks hold: queries travel to the keys, partial results back.

Every rank gathers the queries of its group, attends to its own keys for all of them, and sends each rank what
it found for that rank's heads; the parts are joined by the online softmax.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_intervals import broadcast_number
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor

from .attention_checks import check_number
from .attention_merge import join_parts
from .attention_pages import Pages
from .attention_segmented_cte import check_cache, check_options, check_tables, load_scales, partial_results
from .attention_units import PrefillCall, PrefillMask
from .attention_whole_numbers import RoundRobin


@nki.jit
def attention_kv_parallel_segmented_cte(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    kvp_q_offset: Tensor,
    replica_groups: tuple,
    group_size: int,
    block_size: int,
    seg_size: int,
    scale: float = 1.0,
    global_q_offset: int = 0,
    tp_out: bool = False,
    sliding_window: int = 0,
    kvp_rank_id: Tensor | None = None,
    kvp_group_size: int = 0,
    apc_mode: bool = False,
    valid_num_prior_tokens: Tensor | None = None,
    fp8_packed: bool = False,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
):
    """Causal attention of this rank's heads over the keys of all ranks of its group, bfloat16 [BS, S, D].

    q [BS, S, D] are this rank's heads, S a multiple of 128; k_cache and v_cache [blocks, Nkv, block_size, D]
    its part of the keys, of which head 0 is used; block_tables [1, most blocks]. Query i stands at
    global_q_offset + i. Keys are contiguous, rank r's from r L on: kvp_q_offset, one int32 read at run time,
    is global_q_offset - r L; or distributed in blocks, with kvp_group_size ranks and kvp_rank_id: then it is
    global_q_offset. sliding_window is how many keys a query sees, 0: all. tp_out gives [BS, D, S].

    apc_mode, whose prefix is known at run time: kvp_q_offset has it, global_q_offset is 0, and every query
    sees the first valid_num_prior_tokens, one int32, of this rank's keys regardless of kvp_q_offset.
    FP8 caches: fp8_packed keys are [blocks, block_size / 2, Nkv D, 2] or [blocks, Nkv, block_size / 2, D, 2];
    k_scale and v_scale [128, 1] multiply each dimension of keys and of values.

    >>> from nki.ranks import run_ranks
    >>> rng = np.random.default_rng(0)
    >>> q = rng.standard_normal((2, 1, 128, 32), dtype=np.float32)
    >>> k, v = rng.standard_normal((2, 2, 2, 1, 32, 32), dtype=np.float32)
    >>> table = np.array([[0, 1]], np.int32)
    >>> out = run_ranks(attention_kv_parallel_segmented_cte, 2, lambda rank: (
    ...     q[rank], k[rank], v[rank], table, np.array([[-64 * rank]], np.int32), ((0, 1),), 2, 32, 64))
    >>> want = attention_kv_parallel_segmented_cte_ref(q, k.reshape(128, 32), v.reshape(128, 32))
    >>> bool(np.allclose(out[1].astype(np.float32), want[1], atol=2e-2))
    True
    """
    check(q, group_size, replica_groups, block_size, seg_size, kvp_rank_id, kvp_group_size, global_q_offset)
    check_prefix(apc_mode, valid_num_prior_tokens, global_q_offset)
    layout = check_cache(q, k_cache, v_cache, block_size, True, False, fp8_packed)
    check_tables(q, block_tables, kvp_q_offset, block_size, seg_size, q.shape[0], 1)
    check_options(
        q, None, scale, sliding_window, k_scale, v_scale, kvp_q_offset, kvp_rank_id, kvp_group_size, True
    )
    heads, queries, head_dim = q.shape
    everyone = (group_size * heads, queries, head_dim)
    mine, gathered = named(q.shape, q.dtype, "queries"), named(everyone, q.dtype, "all_queries")
    first, end = program_share(heads)
    if first < end:
        nisa.dma_copy(mine[first:end], q[first:end])
    ncc.all_gather([mine], [gathered], replica_groups, 0)
    mask = PrefillMask(True, sliding_window, 1, kvp_q_offset, False, None, None, None)
    if kvp_group_size > 0:
        mask.numbering = RoundRobin(broadcast_number(kvp_rank_id), kvp_group_size, block_size)
    mask.always = valid_num_prior_tokens
    call = PrefillCall(
        gathered, None, v_cache[:, 0], None, None, mask, scale, True, False, False, nl.float32, None, None
    )
    call.heads_per_key_head = call.heads  # all use the first head of the keys
    call.pages = Pages(layout, v_cache, block_tables, block_size, q.dtype)
    load_scales(call, k_scale, v_scale)
    parts = partial_results(call)
    stats = (group_size * heads, PMAX, queries // PMAX)
    arrived = [
        named(everyone, nl.float32, "arrived_out"),
        named(stats, nl.float32, "arrived_max"),
        named(stats, nl.float32, "arrived_sum"),
    ]
    ncc.all_to_all([parts[0], parts[1], parts[2]], arrived, replica_groups, 0)
    found = []
    for member in range(group_size):
        rows = slice(member * heads, (member + 1) * heads)
        found.append((arrived[0][rows], arrived[1][rows], arrived[2][rows]))
    joined = named(q.shape, nl.bfloat16, "joined")
    join_parts(found, joined, negated=False)
    return transposed(joined) if tp_out else joined


def transposed(rows: Tensor) -> Any:
    """[BS, D, S] of [BS, S, D]; two cores share the heads."""
    out = named((rows.shape[0], rows.shape[2], rows.shape[1]), rows.dtype, "out")
    if nl.num_programs(0) > 1:
        nisa.core_barrier(rows, (0, 1))
    first, end = program_share(rows.shape[0])
    for head in range(first, end):
        nisa.dma_copy(out[head], rows[head].permute((1, 0)))
    return out


def named(shape: tuple, dtype: DTypeLike, name: str) -> Tensor:
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm, name=name)


def check(
    q: Tensor,
    size: int,
    groups: tuple,
    block: int,
    segment: int,
    rank: Tensor | None,
    ranks: int,
    offset: int,
) -> None:
    assert_tensors((("q", q),))
    kernel_assert(len(q.shape) == 3, f"q: got {len(q.shape)} dimensions, allowed are 3: [BS, S, D]")
    kernel_assert(q.shape[1] % PMAX == 0, f"q: got {q.shape[1]} queries, allowed are multiples of {PMAX}")
    kernel_assert(q.shape[2] <= PMAX, f"q: got a head dimension of {q.shape[2]}, allowed are at most {PMAX}")
    kernel_assert(groups is not None, "replica_groups: got None, expected groups of ranks")
    kernel_assert(
        size == len(groups[0]), f"group_size: got {size}, allowed is the size of the groups, {len(groups[0])}"
    )
    kernel_assert(segment % block == 0, f"seg_size: got {segment}, allowed are multiples of {block}")
    kernel_assert(
        ranks == 0 or rank is not None, f"kvp_group_size: got {ranks} without kvp_rank_id, allowed is 0"
    )
    kernel_assert(offset >= 0, f"global_q_offset: got {offset}, allowed are 0 and more")


def check_prefix(apc_mode: bool, prior: Tensor | None, offset: int) -> None:
    kernel_assert(
        apc_mode == (prior is not None),
        f"valid_num_prior_tokens: got {'None' if prior is None else 'a tensor'} with apc_mode={apc_mode}",
    )
    if prior is not None:
        check_number(prior, "valid_num_prior_tokens")
        kernel_assert(offset == 0, f"global_q_offset: got {offset}, allowed with apc_mode is 0")


def attention_kv_parallel_segmented_cte_ref(
    q: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    scale: float = 1.0,
    global_q_offset: int = 0,
    window: int = 0,
):
    """All ranks' heads q [.., S, D] over all keys [L, D], in their order, in float64."""
    q, keys, values = (x.astype(np.float64) for x in (q, keys, values))
    at = global_q_offset + np.arange(q.shape[-2])[:, None]
    key = np.arange(len(keys))[None]
    seen = (key <= at) & ((window == 0) | (key > at - window))
    scores = np.where(seen, scale * q @ keys.T, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values
