"""Attention for decode ("token generation"): a few new tokens attend to a long cache of keys and values.

Bound by the cache, which streams from HBM once. Keys stand in the partitions: a tile of 128 keys is the
stationary operand, the queries of a batch stream through it; values are stationary in turn, so results come
as [d, queries], the layout of what follows.

    attention_tkg_plan.py        where tokens stand, in which steps they are worked through, who does which
    attention_tkg_queries.py     q and the new keys, RoPE, results to HBM
    attention_tkg_loads.py       cache and new tokens to SBUF
    attention_tkg_new_values.py  values of new tokens that are there already, to their partitions
    attention_tkg_masks.py       masks
    attention_tkg_stages.py      scores, softmax, values; two cores joined
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.types import Tensor

from ..utils.common_types import DtypeMode
from ..utils.kernel_assert import assert_tensors, not_built, warn_without_effect
from ..utils.kernel_helpers import get_verified_program_sharding_info
from ..utils.tiled_range import TiledRange
from .attention_tkg_checks import check_attention_tkg, check_config, check_packing
from .attention_tkg_plan import BANK, DecodeCall
from .attention_tkg_queries import FusedRope, new_keys_of, queries_of
from .attention_tkg_stages import DecodeState, Joined, find_factor, give, run_units, swap
from .attention_tkg_utils import AttnTKGConfig, resize_cache_block_len_for_attention_tkg_kernel

if TYPE_CHECKING:
    from nkilib.core.attention.attention_tkg_utils import AttnTKGConfig
    from nkilib.core.utils.allocator import BufferManager


@nki.jit
def attention_tkg(
    q: Tensor,
    k_active: Tensor,
    v_active: Tensor,
    k_prior: Tensor,
    v_prior: Tensor,
    mask: Tensor,
    out: Tensor,
    cfg: AttnTKGConfig,
    sbm: BufferManager | None,
    inv_freqs: Tensor | None = None,
    rope_pos_ids: Tensor | None = None,
    start_pos_ids: Tensor | None = None,
    sink: Tensor | None = None,
    active_blocks_table: Tensor | None = None,
    k_out: Tensor | None = None,
    cp_softmax_stats_out: dict | None = None,
    DBG_TENSORS: Tensor | None = None,
    max_context_len: Tensor | None = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
) -> Any:
    """Decode attention: out = softmax(masked q K^T) V over a cache, flat or of blocks, and some new tokens.

    Shapes (B, H, s, S, d: bs, q_head, s_active, curr_sprior, d_head of cfg; one kv head):

    | argument | shape |
    |---|---|
    | q | SBUF [d, B H s] if cfg.qk_in_sb, else HBM [B, d, H, s] or [B, H, s, d] |
    | k_active | SBUF [d, B s] if cfg.qk_in_sb, else HBM [B, d, s] or [B, 1, s, d] |
    | v_active | HBM [B, 1, s, d]; or SBUF [B s, d], B s <= 128, as a fused kernel has it |
    | k_prior | [B+, 1, full_sprior, d] if cfg.tp_k_prior else [B+, 1, d, full_sprior]; blocks like v_prior |
    | v_prior | [B+, 1, full_sprior, d], or [blocks, block_len, d] |
    | mask | [S, B, H, s] of 0 and 1, or [s, B, H, s], for the new tokens alone, if cfg.use_pos_id |
    | out | SBUF [d, B H s] if cfg.out_in_sb, else HBM [B, H, d, s] |
    | inv_freqs, rope_pos_ids, start_pos_ids | [d / 2, 1], [B, s], [B, s] |
    | sink | [H, 1]: a logit that joins the maximum and the sum, but has no value |
    | active_blocks_table | [B, S / block_len]: the blocks of each sequence; negative ones must be masked |
    | k_out | SBUF [d, B s] if cfg.k_out_in_sb, else HBM [B, 1, d, s] |
    | max_context_len | one int32, read at run time: keys of the cache from there on do not count |

    Where the two HBM layouts of q or k_active have equal shapes, the first is meant. Of the first S keys of
    the cache the last s are k_active and v_active, whatever the cache holds there. With use_pos_id key j is
    seen if j < rope_pos_ids[b, 0]; with start_pos_ids, by new token i, if start <= j < end =
    rope_pos_ids[b, i], and if start > end, if j >= start or j < end. No scale is applied, but fuse_rope first
    rotates q and k_active (pairs i, i + d/2) by rope_pos_ids * inv_freqs, scales q by 1 / sqrt(d), and writes
    the new keys to k_out. A query that sees nothing gives 0.

    A mask over blocks comes in the order of gen_mask_tkg: row 128 f + p is token (f // l) 128 l + p l + f % l
    with l from resize_cache_block_len_for_attention_tkg_kernel. use_pos_id works with blocks and with every
    way of sharing, as published tests ask, though the page denies it. Dtypes: bfloat16, float16, float32;
    caches, q and k_active also FP8, which is used as it is (dtype_mode does not matter). New tokens are not
    rounded to the dtype of the cache. DBG_TENSORS is refused: the page defines no contents of its tensors.
    cp_softmax_stats_out, a dict, receives "neg_max" and "sum", SBUF tiles [d, columns of this core's batches]
    with equal partitions, and out is then not normalised.

    Two cores share the batch where it is even and S < 256 or B H s > 128, else the keys from S = 256 on.
    Results in SBUF are whole on both. sbm places the temporary tiles; None leaves that to the compiler.
    Returns (out, k_out).

    >>> cfg = AttnTKGConfig(bs=2, q_head=4, s_active=1, curr_sprior=256, full_sprior=256, d_head=64,
    ...                     tp_k_prior=True, fuse_rope=True, use_pos_id=True)
    >>> rng = np.random.default_rng(0)
    >>> q, k, v, cache_k, cache_v = (rng.standard_normal(s, dtype=np.float32) for s in
    ...     [(2, 4, 1, 64), (2, 1, 1, 64), (2, 1, 1, 64), (2, 1, 256, 64), (2, 1, 256, 64)])
    >>> mask, out, k_out = np.ones((1, 2, 4, 1), np.uint8), np.empty((2, 4, 64, 1), np.float32), None
    >>> more = dict(inv_freqs=np.ones((32, 1), np.float32), rope_pos_ids=np.full((2, 1), 100.0, np.float32))
    >>> out, k_out = attention_tkg(q, k, v, cache_k, cache_v, mask, out, cfg, None, **more)
    >>> expected, _ = attention_tkg_ref(q, k, v, cache_k, cache_v, mask, cfg, **more)
    >>> bool(np.allclose(out, expected, atol=1e-4))
    True
    """
    sharding = get_verified_program_sharding_info("attention_tkg", (0, 1), 2)
    check_config(cfg)
    assert_tensors(
        (
            ("q", q),
            ("k_active", k_active),
            ("v_active", v_active),
            ("k_prior", k_prior),
            ("v_prior", v_prior),
            ("mask", mask),
            ("out", out),
        ),
        (
            ("inv_freqs", inv_freqs),
            ("rope_pos_ids", rope_pos_ids),
            ("start_pos_ids", start_pos_ids),
            ("sink", sink),
            ("active_blocks_table", active_blocks_table),
            ("k_out", k_out),
            ("max_context_len", max_context_len),
        ),
    )
    check_packing(cfg, k_prior)
    warn_without_effect(cfg.use_pos_id, "cfg.use_pos_id", (("start_pos_ids", start_pos_ids),))
    call = DecodeCall(q, k_active, v_active, k_prior, v_prior, mask, out, cfg, sbm, sharding[1], sharding[2])
    call.inv_freqs = inv_freqs
    call.rope_pos_ids = rope_pos_ids
    call.start_pos_ids = start_pos_ids if cfg.use_pos_id else None
    call.sink = sink
    call.table = active_blocks_table
    call.max_context_len = max_context_len
    call.statistics = cp_softmax_stats_out
    check_attention_tkg(call, k_out, DBG_TENSORS)
    if DBG_TENSORS is not None:
        not_built("DBG_TENSORS", "the documentation defines neither their contents nor their shapes")
    scoped = sbm is not None and not sbm.is_auto_alloc()
    if sbm is not None and scoped:
        sbm.open_scope(name="attention_tkg")
    rope = FusedRope(call) if cfg.fuse_rope else None
    queries = queries_of(call, rope)
    state = run_units(call, queries, new_keys_of(call, rope, k_out))
    if call.splits_keys or call.statistics is not None:
        give_all(call, state)
    if cfg.out_in_sb and call.splits_batch:
        exchange_results(call)
    if sbm is not None and scoped:
        sbm.close_scope()
    return out, k_out


def give_all(call: DecodeCall, state: DecodeState) -> None:
    """What could not be given as it became ready, some batches at a time."""
    joined = Joined(call) if call.splits_keys else None
    for group in TiledRange(call.batches, max(1, BANK // call.columns)):
        if joined is not None:
            joined.join(call, state, group.start_offset, group.size)
        factor = find_factor(call, state, group.start_offset, group.size, group.index)
        columns = state.out[:, group.start_offset * call.columns : group.end_offset * call.columns]
        give(call, state, group.start_offset, group.size, columns, factor)
    if call.statistics is not None:
        give_statistics(call, state)


def give_statistics(call: DecodeCall, state: DecodeState) -> None:
    """-maximum and sum of every query, in every partition of the result."""
    rows, columns = state.out.shape
    neg_max = nl.ndarray((rows, columns), nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((rows, columns), nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(neg_max, state.maximum[0:rows], nl.multiply, -1.0)
    nisa.tensor_copy(total, state.sums[0:rows])
    call.statistics["neg_max"] = neg_max
    call.statistics["sum"] = total


def exchange_results(call: DecodeCall) -> None:
    """Results in SBUF: each core gets the batches of the other."""
    columns = call.batches * call.columns
    first, theirs = call.core * columns, (1 - call.core) * columns
    swap(call, call.out[:, first : first + columns], call.out[:, theirs : theirs + columns])


# ---- reference -----------------------------------------------------------------------------------


def attention_tkg_ref(
    q: np.ndarray,
    k_active: np.ndarray,
    v_active: np.ndarray,
    k_prior: np.ndarray,
    v_prior: np.ndarray,
    mask: np.ndarray,
    cfg: AttnTKGConfig,
    inv_freqs: Any = None,
    rope_pos_ids: Any = None,
    start_pos_ids: np.ndarray | None = None,
    sink: np.ndarray | None = None,
    active_blocks_table: np.ndarray | None = None,
    max_context_len: np.ndarray | None = None,
    n_prgs: int = 1,
):
    """(out [B, H, d, s], new keys [B, 1, d, s]) in float64, from q [B, H, s, d] and k_active [B, 1, s, d]."""
    b, s, total = cfg.bs, cfg.s_active, cfg.curr_sprior
    q, new = q.astype(np.float64), k_active.astype(np.float64)[:, 0]
    if cfg.fuse_rope:
        angles = rope_pos_ids.astype(np.float64)[..., None] * inv_freqs.astype(np.float64)[:, 0]
        q = _rotated(q, angles[:, None]) / np.sqrt(cfg.d_head)
        new = _rotated(new, angles)
    keys, values = _window(k_prior, v_prior, cfg, active_blocks_table)
    keys[:, total - s :], values[:, total - s :] = new, v_active.astype(np.float64)[:, 0]
    visible = _visible(mask, cfg, rope_pos_ids, start_pos_ids, max_context_len, n_prgs)
    scores = np.where(visible, np.einsum("bhid,bkd->bhik", q, keys), -np.inf)
    sinks = np.full(cfg.q_head, -np.inf) if sink is None else sink.astype(np.float64)[:, 0]
    largest = np.maximum(scores.max(-1), sinks[:, None])[..., None]
    largest[np.isneginf(largest)] = 0.0
    weights = np.exp(scores - largest)
    sums = weights.sum(-1, keepdims=True) + np.exp(sinks[:, None, None] - largest)
    out = np.einsum("bhik,bkd->bhdi", weights / np.maximum(sums, 1e-300), values)
    return out, new.transpose(0, 2, 1).reshape(b, 1, cfg.d_head, s)


def _rotated(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    lower, upper = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([lower * cos - upper * sin, upper * cos + lower * sin], axis=-1)


def _window(
    k_prior: np.ndarray, v_prior: np.ndarray, cfg: AttnTKGConfig, table: np.ndarray | None
) -> tuple[np.ndarray, ...]:
    """The keys and values [B, curr_sprior, d] of a cache."""
    if cfg.block_len > 0:
        blocks = np.maximum(np.asarray(table).astype(np.int64), 0)
        shape = (cfg.bs, cfg.curr_sprior, cfg.d_head)
        return tuple(cache.astype(np.float64)[blocks].reshape(shape) for cache in (k_prior, v_prior))
    keys = k_prior[: cfg.bs, 0] if cfg.tp_k_prior else k_prior[: cfg.bs, 0].swapaxes(1, 2)
    keys, values = keys[:, : cfg.curr_sprior], v_prior[: cfg.bs, 0, : cfg.curr_sprior]
    return keys.astype(np.float64), values.astype(np.float64)


def _visible(
    mask: np.ndarray,
    cfg: AttnTKGConfig,
    end: Any,
    start: np.ndarray | None,
    limit: np.ndarray | None,
    n_prgs: int,
) -> np.ndarray:
    """[B, H, s, keys]"""
    key, total, s = np.arange(cfg.curr_sprior), cfg.curr_sprior, cfg.s_active
    visible = np.ones((cfg.bs, cfg.q_head, s, total), bool)
    if cfg.use_pos_id:
        end = end[:, None, :, None] if start is not None else end[:, None, :1, None]
        visible &= key < end
        if start is not None:
            start = start[:, None, :, None]
            visible = np.where(start <= end, (key >= start) & (key < end), (key >= start) | (key < end))
        visible = visible & np.ones((1, cfg.q_head, s, 1), bool)
    elif cfg.block_len > 0:
        length, _ = resize_cache_block_len_for_attention_tkg_kernel(
            total // cfg.block_len, cfg.block_len, n_prgs, 128, cfg.bs, cfg.q_head, s
        )
        f, p = key // 128, key % 128
        visible[..., f // length * 128 * length + p * length + f % length] = mask.transpose(1, 2, 3, 0) != 0
    else:
        visible = mask.transpose(1, 2, 3, 0) != 0
    if limit is not None:
        visible &= key < int(np.ravel(limit)[0])
        if not cfg.use_pos_id:
            visible[..., total - s :] = (mask.transpose(1, 2, 3, 0) != 0)[..., total - s :]
    if cfg.use_pos_id:
        visible[..., total - s :] = mask.transpose(1, 2, 3, 0) != 0
    return visible
