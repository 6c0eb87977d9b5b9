"""Flash attention for prefill ("context encoding").

Every mask here is an interval: a query sees key columns lower <= c < upper. So one instruction
(range_select) moves a block of scores out of PSUM, masks it and takes its row maximum, whatever the options.

A unit of work is a tile of 128 queries against a section of keys (attention_units.py). Units pass through
three stages (attention_stages.py), and three are under way at a time, one in each:

    scores   TensorE multiplies q k^T, VectorE masks and takes the maximum
    softmax  ScalarE computes e^(scale s - max)
    values   TensorE transposes the probabilities and multiplies by v, VectorE and ScalarE drain PSUM

v has a column of ones at its end, which makes the sums of the softmax a by-product of the last matmul.
Several sections are joined by the online softmax.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor

from .attention_bands import spread_band, spread_band_ref
from .attention_checks import (
    check_bias,
    check_context_parallel,
    check_mask,
    check_operands,
    check_prior,
    check_scale,
    check_softmax,
)
from .attention_stages import run_stages
from .attention_units import PrefillCall, PrefillMask, plan_units


@nki.jit
def attention_cte(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    causal_mask: bool = True,
    k_prior: Tensor | None = None,
    v_prior: Tensor | None = None,
    prior_used_len: Tensor | None = None,
    sink: Tensor | None = None,
    sliding_window: int | None = None,
    tp_q: bool = True,
    tp_k: bool = False,
    tp_out: bool = False,
    cache_softmax: bool = False,
    softmax_dtype: DTypeLike = nl.float32,
    mm_out_dtype: DTypeLike = nl.float32,
    cp_offset: Tensor | None = None,
    global_cp_deg: int | None = None,
    cp_strided_q_slicing: bool = False,
    bound_min: Tensor | None = None,
    bound_max: Tensor | None = None,
    cp_striped_input: bool = False,
    skip_output_normalization: bool = False,
    position_bias: Tensor | None = None,
    bias_layout: str = "dense",
    bias_band_params: dict | None = None,
):
    """out = softmax(scale q k^T + position_bias + mask) v for every head; the scores stay on the chip.

    Shapes (bs = batch x query heads; query head b uses key head b // (bs / bs_kv)):

    | argument | shape |
    |---|---|
    | q | (bs, Sq, d) if tp_q else (bs, d, Sq) |
    | k, k_prior | (bs_kv, Skv, d) if tp_k else (bs_kv, d, Skv) |
    | v, v_prior | (bs_kv, Skv, d) |
    | prior_used_len, cp_offset | one int32, read at run time |
    | sink | (bs, 1): a logit that joins the maximum and the sum, but has no value |
    | bound_min, bound_max | (bs, Sq), (1, Sq), (Sq,) or, as published tests pass them, (Sq, 1) |
    | position_bias | (bs or 1, Sq, Skv); banded: (bs or 1, Sq, lower + 1 + upper) |
    | result | (bs, d, Sq) if tp_out else (bs, Sq, d), in the dtype of q |

    Query i stands at position off + i (off + i * global_cp_deg with cp_strided_q_slicing), where off is
    cp_offset or 0; active key j stands at j; prior key j < prior_used_len at j - prior_used_len, and later
    ones do not count. Visible are keys at positions <= the query's (causal_mask), > the query's -
    sliding_window, and in columns bound_min <= c < bound_max of [used prior | active].
    cp_striped_input states that cp_offset is 0 or -1. A query that sees nothing gives 0.

    bias_layout "banded" with bias_band_params {"lower": n, "upper": m} is for a bias that ends n keys before
    and m keys after each query: element [b, i, c] is added to the score of query i and key i - n + c, and
    nothing to the others. Public documents name this layout without describing it: this description is ours.

    cache_softmax also returns -max and 1 / sum, both (bs, 128, Sq / 128) in softmax_dtype, element [b, p, g]
    for query 128 g + p; skip_output_normalization leaves the division out and returns the sum itself.
    mm_out_dtype is the dtype in which scores leave PSUM. On two cores the heads are split, and of an odd
    number of heads the last one by queries.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 256, 64), dtype=np.float32)
    >>> out = attention_cte(q, k, v, scale=0.125, tp_k=True)
    >>> bool(np.allclose(out, attention_cte_ref(q, k, v, scale=0.125, tp_k=True), atol=1e-5))
    True
    """
    check_operands(q, k, v, tp_q, tp_k)
    queries = q.shape[1] if tp_q else q.shape[2]
    window = sliding_window if sliding_window is not None else 0
    check_prior(v, k_prior, v_prior, prior_used_len, tp_k)
    parallel = cp_offset is not None or cp_strided_q_slicing or cp_striped_input
    check_scale(scale, window, parallel, k_prior)
    check_mask(causal_mask, window, q.shape[0], queries, bound_min, bound_max)
    check_context_parallel(
        parallel,
        causal_mask,
        window,
        k_prior,
        cp_offset,
        global_cp_deg,
        cp_strided_q_slicing,
        cp_striped_input,
    )
    check_softmax(
        q.shape[0], queries, sink, cache_softmax, softmax_dtype, mm_out_dtype, skip_output_normalization
    )
    check_bias(q.shape[0], queries, v.shape[1], k_prior, position_bias, bias_layout, bias_band_params)

    if bias_layout == "banded" and bias_band_params is not None:
        position_bias = spread_band(position_bias, bias_band_params["lower"], v.shape[1])
    query_step = global_cp_deg if cp_strided_q_slicing else 1
    mask = PrefillMask(
        causal_mask, window, query_step, cp_offset, cp_striped_input, prior_used_len, bound_min, bound_max
    )
    call = PrefillCall(
        q, k, v, k_prior, v_prior, mask, scale, tp_q, tp_k, tp_out, mm_out_dtype, position_bias, sink
    )
    call.normalize = not skip_output_normalization
    shape = (call.heads, call.head_dim, queries) if tp_out else (call.heads, queries, call.head_dim)
    call.out = nl.ndarray(shape, q.dtype, buffer=nl.shared_hbm)
    if cache_softmax:
        call.neg_max = nl.ndarray((call.heads, PMAX, call.tiles), softmax_dtype, buffer=nl.shared_hbm)
        call.sums = nl.ndarray((call.heads, PMAX, call.tiles), softmax_dtype, buffer=nl.shared_hbm)
    run_stages(plan_units(call))
    if cache_softmax:
        return call.out, call.neg_max, call.sums
    return call.out


def attention_cte_ref(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float = 1.0,
    causal_mask: bool = True,
    k_prior: np.ndarray | None = None,
    v_prior: Any = None,
    prior_used_len: Any = None,
    sink: np.ndarray | None = None,
    sliding_window: int | None = None,
    tp_q: bool = True,
    tp_k: bool = False,
    tp_out: bool = False,
    cache_softmax: bool = False,
    softmax_dtype: DTypeLike = np.float32,
    cp_offset: np.ndarray | int | None = None,
    global_cp_deg: Any = None,
    cp_strided_q_slicing: bool = False,
    bound_min: np.ndarray | None = None,
    bound_max: Any = None,
    skip_output_normalization: bool = False,
    position_bias: Any = None,
    bias_layout: str = "dense",
    bias_band_params: Any = None,
    **options_without_effect: Any,
):
    """attention_cte in numpy: whole score matrices in float64, masked by comparing positions."""
    dtype, heads_per_key_head = q.dtype, q.shape[0] // v.shape[0]
    q = _by_rows(q, tp_q)
    used = 0 if k_prior is None else int(np.ravel(prior_used_len)[0])
    keys, values = _by_rows(k, tp_k), v.astype(np.float64)
    if k_prior is not None:
        keys = np.concatenate([_by_rows(k_prior, tp_k)[:, :used], keys], axis=1)
        values = np.concatenate([v_prior.astype(np.float64)[:, :used], values], axis=1)
    keys, values = (np.repeat(x, heads_per_key_head, axis=0) for x in (keys, values))
    scores = scale * np.einsum("bqd,bkd->bqk", q, keys)
    if bias_layout == "banded":
        position_bias = spread_band_ref(position_bias, bias_band_params["lower"], v.shape[1])
    if position_bias is not None:
        scores = scores + position_bias.astype(np.float64)
    offset = 0 if cp_offset is None else int(np.ravel(cp_offset)[0])
    step = global_cp_deg if cp_strided_q_slicing else 1
    position = offset + step * np.arange(q.shape[1])[:, None]
    column = np.arange(keys.shape[1])
    seen = np.ones(scores.shape, bool)
    if causal_mask:
        seen &= (column < used) | (column - used <= position)
    if sliding_window:
        seen &= column - used > position - sliding_window
    if bound_min is not None:
        lower, upper = (np.reshape(x, (-1, q.shape[1], 1)).astype(np.float64) for x in (bound_min, bound_max))
        seen &= (lower <= column) & (column < upper)
    return _softmax_times_values(
        np.where(seen, scores, -np.inf), values, sink, dtype, tp_out, cache_softmax, softmax_dtype,
        skip_output_normalization,
    )  # fmt: skip


def _by_rows(x: np.ndarray, tp: bool) -> np.ndarray:
    return (x if tp else np.swapaxes(x, 1, 2)).astype(np.float64)


def _softmax_times_values(scores, values, sink, dtype, tp_out, cache_softmax, softmax_dtype, unnormalized):
    """The second half of the reference: what the masked scores make of the values."""
    highest = scores.max(axis=2, keepdims=True)
    if sink is not None:
        highest = np.maximum(highest, np.reshape(sink, (-1, 1, 1)).astype(np.float64))
    shift = np.where(np.isfinite(highest), highest, 0.0)
    weights = np.exp(scores - shift)
    total = weights.sum(axis=2, keepdims=True)
    if sink is not None:
        total = total + np.exp(np.reshape(sink, (-1, 1, 1)).astype(np.float64) - shift)
    out = weights @ values
    if not unnormalized:
        out = out / np.where(total > 0, total, 1.0)
    out = (np.swapaxes(out, 1, 2) if tp_out else out).astype(dtype)
    if not cache_softmax:
        return out
    with np.errstate(divide="ignore"):
        last = total if unnormalized else 1.0 / total
    statistics = [x.reshape(len(x), -1, 128).swapaxes(1, 2).astype(softmax_dtype) for x in (-highest, last)]
    return out, statistics[0], statistics[1]
