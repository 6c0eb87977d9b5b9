"""Gradients of ring attention: queries stay on their rank; keys, values and their gradients move around.

A rank adds its queries' part to the gradients of the keys it holds and sends them on; after num_workers
steps they are back at their owner. Tiles are those of core/attention/attention_gradients.py.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_gradients import (
    KEYS,
    UNBOUNDED,
    ScoreOptions,
    add_product,
    add_queries,
    pair_products,
    probabilities,
    score_gradient,
    transposed_tokens,
)
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups, named_tensor

from .ring import Ring, RingBounds, check_softmax_scale, copy_rows, visible_scores_ref


@nki.jit
def ring_attention_spmd_bwd(
    q_ref: Tensor,
    k_ref: Tensor,
    v_ref: Tensor,
    o_ref: Tensor,
    dy_ref: Tensor,
    lse_ref: Tensor,
    use_causal_mask: bool = False,
    mixed_precision: bool = True,
    softmax_scale: float | None = None,
    num_workers: int = 1,
    lnc_size: int = 1,
    replica_groups: ReplicaGroups | None = None,
    striped_attention: bool = False,
    bound_min: Tensor | None = None,
    bound_max: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (dq, dk, dv) of ring_attention_spmd_fwd, all [B, N, D, S] in float32.

    q_ref, k_ref, v_ref, o_ref, dy_ref are [B, N, D, S], lse_ref is [B, N, 128, S / 128] as the forward kernel
    returns it. Worker w holds tokens w S + i, or w + i num_workers with striped_attention, which needs
    use_causal_mask. softmax_scale defaults to 1 / sqrt(D). With mixed_precision matmuls use the dtype of the
    inputs, otherwise float32. bound_min and bound_max are as in the forward kernel. Two cores share the
    heads; lnc_size is the number of cores.

    >>> from nki.ranks import run_ranks, split
    >>> q, k, v, dy = np.random.default_rng(0).standard_normal((4, 1, 1, 16, 256), dtype=np.float32)
    >>> o, lse, _, _, _ = ring_attention_spmd_bwd_ref(q, k, v, dy)
    >>> x = [split(a, 2, axis=3) for a in (q, k, v, o.astype(np.float32), dy)]
    >>> stats = lse.astype(np.float32).reshape(1, 1, 2, 1, 128).transpose(2, 0, 1, 4, 3)
    >>> grads = run_ranks(
    ...     ring_attention_spmd_bwd, 2, lambda r: (*(a[r] for a in x), stats[r], False, True, None, 2))
    >>> want = ring_attention_spmd_bwd_ref(q, k, v, dy)[3]
    >>> bool(np.allclose(np.concatenate([g[1] for g in grads], axis=3), want, atol=1e-4))
    True
    """
    tensors = (("q_ref", q_ref), ("k_ref", k_ref), ("v_ref", v_ref), ("o_ref", o_ref), ("dy_ref", dy_ref))
    bounds_given = (("bound_min", bound_min), ("bound_max", bound_max))
    assert_tensors(tensors + (("lse_ref", lse_ref),), bounds_given)
    check_softmax_scale(softmax_scale)
    check(q_ref, (k_ref, v_ref, o_ref, dy_ref), lse_ref, use_causal_mask, striped_attention)
    batch, heads, head_dim, tokens = q_ref.shape
    bounds = None
    if bound_min is not None or bound_max is not None:
        bounds = RingBounds(bound_min, bound_max, batch, heads, tokens)
    kernel_assert(
        lnc_size in (1, nl.num_programs(0)),
        f"lnc_size: got {lnc_size}, allowed is the number of cores, {nl.num_programs(0)}",
    )
    ring = Ring(replica_groups, num_workers)
    work = LocalTensors(q_ref, o_ref, dy_ref, lse_ref, softmax_scale, mixed_precision)
    flat = (batch * heads, head_dim, tokens)
    keys = [k_ref.reshape(flat), v_ref.reshape(flat)]
    buffers, grads = [], []
    for i in range(2):
        if num_workers > 1:
            buffers.append(
                [named_tensor(flat, k_ref.dtype, f"ring_k{i}"), named_tensor(flat, v_ref.dtype, f"ring_v{i}")]
            )
        grads.append(
            [named_tensor(flat, nl.float32, f"ring_dk{i}"), named_tensor(flat, nl.float32, f"ring_dv{i}")]
        )
    if num_workers > 1:
        copy_rows(buffers[0][0], keys[0])
        copy_rows(buffers[0][1], keys[1])
    for step in range(num_workers):
        if step < num_workers - 1:
            ring.send_on(buffers, step)
        here = keys if step == 0 else buffers[step % 2]
        offset = None
        if use_causal_mask and num_workers > 1:
            offset = ring.offset_at(step, tokens, striped_attention)
        diagonal = use_causal_mask and (striped_attention or step == 0)
        limits = None if bounds is None else bounds.at(ring, step, tokens, striped_attention)
        first, end = program_share(batch * heads)
        for head in range(first, end):
            visit = Visit(head, step, use_causal_mask, diagonal, offset)
            visit.limits = limits
            add_head(work, visit, here, grads[step % 2])
        if num_workers > 1:
            ring.send_on(grads, step)
    home = grads[num_workers % 2 if num_workers > 1 else 0]
    if num_workers == 1 and nl.num_programs(0) > 1:  # else the last exchange has joined the cores
        nisa.core_barrier(home[0], (0, 1))
    dk, dv = named_tensor(k_ref.shape, nl.float32, "dk"), named_tensor(v_ref.shape, nl.float32, "dv")
    copy_rows(dk.reshape(flat), home[0])
    copy_rows(dv.reshape(flat), home[1])
    return work.dq.reshape(q_ref.shape), dk, dv


class LocalTensors(nl.NKIObject):
    """What stays with this rank, [heads, D, S]."""

    def __init__(
        self, q: Tensor, o: Tensor, dy: Tensor, lse: Tensor, scale: float | None, mixed_precision: bool
    ):
        batch, heads, head_dim, tokens = q.shape
        flat = (batch * heads, head_dim, tokens)
        self.q = q.reshape(flat)
        self.o = o.reshape(flat)
        self.dy = dy.reshape(flat)
        self.lse = lse.reshape((batch * heads, PMAX, tokens // PMAX))
        self.dq = named_tensor(flat, nl.float32, "dq")
        dtype = q.dtype if mixed_precision else nl.float32
        self.options = ScoreOptions(scale if scale is not None else head_dim**-0.5, dtype)


class Visit(nl.NKIObject):
    """One head of the queries, at the keys of one step."""

    def __init__(self, head: int, step: int, causal: bool, diagonal: bool, offset: Tensor | None):
        self.head = head
        self.step = step
        self.causal = causal
        self.diagonal = diagonal  # no query sees keys of a later column than its own
        self.offset = offset
        self.limits: tuple[Tensor, Tensor] | None = None  # bound_min and bound_max, [1 or heads, S]


def add_head(work: LocalTensors, visit: Visit, keys: list, grads: list) -> None:
    """Add the contribution of one head's queries to dq and to the gradients of the keys."""
    head, tokens, options = visit.head, work.q.shape[2], work.options
    q, dy = load(work.q[head], options.dtype), load(work.dy[head], options.dtype)
    k, v = load(keys[0][head], options.dtype), load(keys[1][head], options.dtype)
    by_query = [transposed_tokens(q), transposed_tokens(dy)]
    by_key = transposed_tokens(k)
    neg_lse, delta = statistics(work, head, dy)
    seen = visible_keys(visit, tokens // PMAX)
    begun = visit.step > 0
    dk, dv = start_sum(grads[0][head], begun), start_sum(grads[1][head], begun)
    dq = start_sum(work.dq[head], begun)
    for row in TiledRange(tokens, PMAX):
        queries, one = slice(row.start_offset, row.end_offset), slice(row.index, row.index + 1)
        limits = None if seen is None else (seen[0][:, one], seen[1][:, one])
        sums = nl.ndarray((q.shape[0], PMAX), nl.float32, buffer=nl.psum)
        for block in TiledRange(row.end_offset if visit.diagonal else tokens, KEYS):
            columns = slice(block.start_offset, block.end_offset)
            scores = pair_products([q], [k], queries, columns)
            p = probabilities(options, scores, neg_lse[:, one], limits, block)
            ds = score_gradient(options, pair_products([dy], [v], queries, columns), p, delta[:, one])
            add_product(dv[:, columns], by_query[1][:, row.index, :], p, 1.0)
            add_product(dk[:, columns], by_query[0][:, row.index, :], ds, options.scale)
            add_queries([sums], [by_key], ds, block)
        nisa.scalar_tensor_tensor(dq[:, queries], sums, nl.multiply, options.scale, nl.add, dq[:, queries])
    nisa.dma_copy(work.dq[head], dq)
    nisa.dma_copy(grads[0][head], dk)
    nisa.dma_copy(grads[1][head], dv)


def statistics(work: LocalTensors, head: int, dy: Tensor) -> tuple:
    """Return -lse and delta, both [128, S / 128], for query 128 g + p."""
    lse = load(work.lse[head], nl.float32)
    neg_lse = nl.ndarray(lse.shape, nl.float32)
    nisa.tensor_scalar(neg_lse, lse, nl.multiply, -1.0)
    product = nl.ndarray(dy.shape, nl.float32)
    nisa.tensor_tensor(product, load(work.o[head], nl.float32), dy, nl.multiply)
    ones = nl.ndarray((dy.shape[0], 1), nl.float32)
    nisa.memset(ones, 1.0)
    delta = nl.ndarray(lse.shape, nl.float32)
    for tile in TiledRange(dy.shape[1], PMAX):
        bank = nl.ndarray((PMAX, 1), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(bank, product[:, tile.start_offset : tile.end_offset], ones)
        nisa.tensor_copy(delta[:, tile.index : tile.index + 1], bank)
    return neg_lse, delta


def visible_keys(visit: Visit, tiles: int) -> tuple[Tensor, Tensor] | None:
    """Return (start, end) of the keys that query 128 g + p sees, each [128, tiles]; None if it sees all."""
    if not visit.causal and visit.limits is None:
        return None
    lower, upper = nl.ndarray((PMAX, tiles), nl.float32), nl.ndarray((PMAX, tiles), nl.float32)
    nisa.memset(lower, -1.0)
    if visit.causal:
        nisa.iota(upper, [[PMAX, tiles]], offset=1, channel_multiplier=1)
    else:
        nisa.memset(upper, UNBOUNDED)
    if visit.offset is not None:
        shift = nl.ndarray((PMAX, 1), nl.float32)
        nisa.dma_copy(shift, visit.offset.ap([[0, PMAX], [1, 1]]))
        nisa.tensor_scalar(upper, upper, nl.add, shift)
    if visit.limits is not None:
        nisa.tensor_tensor(lower, lower, of_queries(visit.limits[0], visit.head), nl.maximum)
        nisa.tensor_tensor(upper, upper, of_queries(visit.limits[1], visit.head), nl.minimum)
    return lower, upper


def of_queries(bound: Tensor, head: int) -> Tensor:
    """Return a head's row as [128, tiles]: query 128 g + p at [p, g]."""
    row = bound[head if bound.shape[0] > 1 else 0]
    tiles = bound.shape[1] // PMAX
    tile = nl.ndarray((PMAX, tiles), nl.float32)
    nisa.dma_copy(tile, row.reshape((tiles, PMAX)).permute((1, 0)))
    return tile


def start_sum(place: Tensor, begun: bool) -> Tensor:
    """Return a sum in SBUF: the previous partial sum, or 0."""
    if begun:
        return load(place)
    total = nl.ndarray(place.shape, nl.float32)
    nisa.memset(total, 0.0)
    return total


def check(q: Tensor, others: tuple, lse: Tensor, causal: bool, striped: bool) -> None:
    kernel_assert(len(q.shape) == 4, f"q_ref: got {len(q.shape)} dimensions, allowed are 4: [B, N, D, S]")
    batch, heads, head_dim, tokens = q.shape
    for i in range(4):
        assert_shape(others[i], q.shape, ("k_ref", "v_ref", "o_ref", "dy_ref")[i])
    kernel_assert(head_dim <= PMAX, f"q_ref: got a head dimension of {head_dim}, allowed are at most {PMAX}")
    kernel_assert(tokens % PMAX == 0, f"q_ref: got {tokens} tokens, allowed are multiples of {PMAX}")
    assert_shape(lse, (batch, heads, PMAX, tokens // PMAX), "lse_ref")
    kernel_assert(not striped or causal, "striped_attention: got True without use_causal_mask")


def ring_attention_spmd_bwd_ref(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    dy: np.ndarray,
    softmax_scale: float | None = None,
    use_causal_mask: bool = False,
    bound_min: np.ndarray | None = None,
    bound_max: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (o, lse, dq, dk, dv) of the whole sequence in float64; tensors [B, N, D, S], lse [B, N, S].

    bound_min and bound_max [B, S] are positions in the whole sequence.
    """
    q, k, v, dy = (x.astype(np.float64).swapaxes(2, 3) for x in (q, k, v, dy))
    scale = softmax_scale if softmax_scale is not None else q.shape[3] ** -0.5
    scores = visible_scores_ref(q, k, scale, use_causal_mask, bound_min, bound_max)
    lse = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)) + scores.max(-1)
    p = np.exp(scores - lse[..., None])
    o = p @ v
    ds = p * (dy @ v.swapaxes(2, 3) - (o * dy).sum(-1, keepdims=True))
    found = (o, scale * ds @ k, scale * ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dy)
    o, dq, dk, dv = (x.swapaxes(2, 3) for x in found)
    return o, lse, dq, dk, dv
