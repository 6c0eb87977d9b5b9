"""Ring attention: queries stay on their rank, and the keys and values of all ranks move around the ring.

A rank attends to the keys it holds (attention_cte, without the division) while they are sent to the next
rank. The online softmax joins the partial results of all steps at the end:

    M = max m_i,  w_i = e^(m_i - M),  out = sum w_i o_i / sum w_i l_i

Which keys a query may see depends on their owner, which is known only at run time: a table of offsets has
an entry for each step and rank.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.attention.attention_cte import attention_cte
from nkilib.core.attention.attention_merge import join_parts
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups, named_tensor

from .ring import Ring, RingBounds, check_softmax_scale, copy_rows, visible_scores_ref


@nki.jit
def ring_attention_spmd_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    replica_groups: ReplicaGroups | None = None,
    num_workers: int = 1,
    softmax_scale: float | None = None,
    use_causal_mask: bool = False,
    striped_input: bool = False,
    training: bool = False,
    lse_dtype: DTypeLike = nl.float32,
    tp_q: bool = False,
    tp_k: bool = False,
    bound_min: Tensor | None = None,
    bound_max: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """out [b, h, S, d] = softmax(scale q k^T) v over the keys of all workers of a ring.

    Shapes: q is [b, h, S, d] if tp_q else [b, h, d, S], k likewise with tp_k, v is [b, h, S, d]; as many
    key heads as query heads. Worker w, its index in its replica group, holds tokens w S + i, or w + i
    num_workers with striped_input. With use_causal_mask a query sees tokens up to its own, the caller scales
    q, and softmax_scale must be 1.0; otherwise it defaults to 1 / sqrt(d).

    Packed sequences: bound_min and bound_max, [b, S], [b h, S] or [1, S] for this worker's queries, let a
    query see only keys bound_min <= c < bound_max. For contiguous tokens c counts from the start of the whole
    sequence. For striped tokens it counts among the keys of a worker, and sequences begin at multiples of
    num_workers. The published page names the arguments but not their units; these are our choice.

    training also returns lse [b, h, 128, S / 128], element [.., p, g] for query 128 g + p.

    >>> from nki.ranks import run_ranks, split
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 1, 1, 512, 64), dtype=np.float32)
    >>> part = lambda x, rank: split(x, 2, axis=2)[rank]
    >>> def inputs(rank):
    ...     return {"q": part(q, rank), "k": part(k, rank), "v": part(v, rank), "num_workers": 2,
    ...             "tp_q": True, "tp_k": True}
    >>> out = run_ranks(ring_attention_spmd_fwd, 2, inputs)
    >>> want = ring_attention_spmd_fwd_ref(q, k, v)
    >>> bool(np.allclose(np.concatenate(out, axis=2), want, atol=1e-5))
    True
    """
    assert_tensors((("q", q), ("k", k), ("v", v)), (("bound_min", bound_min), ("bound_max", bound_max)))
    kernel_assert(len(v.shape) == 4, f"v: got shape {tuple(v.shape)}, expected (b, h, S, d)")
    check_softmax_scale(softmax_scale)
    batch, heads, queries, head_dim = v.shape
    check(q, k, v, tp_q, tp_k, num_workers, softmax_scale, use_causal_mask, striped_input)
    bounds = None
    if bound_min is not None or bound_max is not None:
        bounds = RingBounds(bound_min, bound_max, batch, heads, queries)
    ring = Ring(replica_groups, num_workers)
    scale = softmax_scale if softmax_scale is not None else head_dim**-0.5
    both = batch * heads
    query = flat(q, both)
    keys, values = flat(k, both), flat(v, both)
    buffers = []
    if num_workers > 1:
        for i in range(2):
            buffers.append(
                [
                    named_tensor(keys.shape, k.dtype, f"ring_k{i}"),
                    named_tensor(values.shape, v.dtype, f"ring_v{i}"),
                ]
            )
        copy_rows(buffers[0][0], keys)
        copy_rows(buffers[0][1], values)
    found = []
    for step in range(num_workers):
        if step < num_workers - 1:
            ring.send_on(buffers, step)
        here = [keys, values] if step == 0 else buffers[step % 2]
        offset = None
        if use_causal_mask and num_workers > 1:
            offset = ring.offset_at(step, 1 if striped_input else queries, striped_input)
        low, high = None, None
        if bounds is not None:
            low, high = bounds.at(ring, step, queries, striped_input)
        part = attention_cte(
            query,
            here[0],
            here[1],
            scale=scale,
            causal_mask=use_causal_mask,
            tp_q=tp_q,
            tp_k=tp_k,
            cache_softmax=True,
            cp_offset=offset,
            bound_min=low,
            bound_max=high,
            cp_striped_input=striped_input and offset is not None,
            skip_output_normalization=True,
        )
        found.append(part)
    out = named_tensor(v.shape, q.dtype, "out")
    lse = named_tensor((batch, heads, PMAX, queries // PMAX), lse_dtype, "lse")
    join_parts(found, out.reshape((both, queries, head_dim)), lse.reshape((both, PMAX, queries // PMAX)))
    return (out, lse) if training else out


def flat(x: Tensor, both: int) -> Tensor:
    """Return x with batches and heads as one dimension."""
    return x.reshape((both, x.shape[2], x.shape[3]))


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tp_q: bool,
    tp_k: bool,
    workers: int,
    scale: float | None,
    causal: bool,
    striped: bool,
) -> None:
    kernel_assert(len(v.shape) == 4, f"v: got {len(v.shape)} dimensions, allowed are 4: [b, h, S, d]")
    batch, heads, queries, head_dim = v.shape
    rows, columns = (batch, heads, queries, head_dim), (batch, heads, head_dim, queries)
    assert_shape(q, rows if tp_q else columns, "q")
    assert_shape(k, rows if tp_k else columns, "k")
    kernel_assert(head_dim <= PMAX, f"v: got a head dimension of {head_dim}, allowed are at most {PMAX}")
    kernel_assert(
        queries % PMAX == 0, f"v: got {queries} tokens, allowed are multiples of {PMAX} for each worker"
    )
    kernel_assert(not striped or causal, "striped_input: got True without use_causal_mask, allowed is False")
    kernel_assert(
        not causal or scale == 1.0 or workers == 1,
        f"softmax_scale: got {scale}, allowed with use_causal_mask is 1.0, and q scaled by the caller",
    )


def ring_attention_spmd_fwd_ref(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    softmax_scale: float | None = None,
    use_causal_mask: bool = False,
    training: bool = False,
    bound_min: np.ndarray | None = None,
    bound_max: np.ndarray | None = None,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Compute the same for all workers at once: q, k, v [b, h, S, d] of the whole sequence, in order.

    bound_min and bound_max [b, S] are positions in the whole sequence.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scale = softmax_scale if softmax_scale is not None else q.shape[3] ** -0.5
    scores = visible_scores_ref(q, k, scale, use_causal_mask, bound_min, bound_max)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    out = weights / total @ v
    return (out, (largest + np.log(total))[..., 0]) if training else out
