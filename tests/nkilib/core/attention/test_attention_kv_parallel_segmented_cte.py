"""Prefill over keys that several ranks hold, against plain attention over all keys in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_support import each_lnc, invalid, random

from nki.ranks import run_ranks
from nkilib.core.attention.attention_kv_parallel_segmented_cte import attention_kv_parallel_segmented_cte
from nkilib.core.attention.kv_parallel_segmented_prefill import kv_parallel_segmented_prefill
from support import target

BLOCK = 32


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"):
        yield


def plain(q, keys, values, scale, offset, window):
    q, keys, values = (x.astype(np.float64) for x in (q, keys, values))
    scores = scale * np.einsum("hqd,kd->hqk", q, keys)
    behind = offset + np.arange(q.shape[1])[:, None] - np.arange(len(keys))[None]
    scores[:, (behind < 0) | ((window > 0) & (behind >= window))] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,kd->hqd", weights / weights.sum(-1, keepdims=True), values)


def check(ranks, heads, queries, prior, d=32, dealt=False, window=0, tp_out=False, lnc=1, dtype=np.float32):
    total = prior + queries
    blocks = total // BLOCK // ranks  # of each rank
    keys, values = random((total, d), dtype, 1), random((total, d), dtype, 2)
    q = random((ranks, heads, queries, d), dtype, 3)
    paged = [x.reshape(total // BLOCK, 1, BLOCK, d) for x in (keys, values)]
    order = np.random.default_rng(0).permutation(blocks)
    table = np.argsort(order).astype(np.int32)[None]

    def inputs(rank):
        mine = [x[rank::ranks] if dealt else x[rank * blocks : (rank + 1) * blocks] for x in paged]
        at = prior if dealt else prior - rank * blocks * BLOCK
        more = {"kvp_group_size": ranks, "kvp_rank_id": np.array([[rank]], np.int32)} if dealt else {}
        return {
            "q": q[rank],
            "k_cache": np.ascontiguousarray(mine[0][order]),
            "v_cache": np.ascontiguousarray(mine[1][order]),
            "block_tables": table,
            "kvp_q_offset": np.array([[at]], np.int32),
            "replica_groups": (tuple(range(ranks)),),
            "group_size": ranks,
            "block_size": BLOCK,
            "seg_size": 4 * BLOCK,
            "scale": d**-0.5 if window == 0 else 1.0,
            "global_q_offset": prior,
            "tp_out": tp_out,
            "sliding_window": window,
            **more,
        }

    results = run_ranks(attention_kv_parallel_segmented_cte, ranks, inputs, lnc=lnc)
    for rank, result in enumerate(results):
        assert result.dtype == ml_dtypes.bfloat16
        want = plain(q[rank], keys, values, d**-0.5 if window == 0 else 1.0, prior, window)
        got = result.astype(np.float64)
        np.testing.assert_allclose(got.swapaxes(1, 2) if tp_out else got, want, atol=1.5e-2)


@each_lnc
@pytest.mark.parametrize("dealt", [False, True])
def test_all_ranks_keys_count(dealt, lnc):
    check(2, lnc, 128, 256, dealt=dealt, lnc=lnc)


def test_ranks_that_see_nothing_add_nothing():
    check(4, 1, 256, 0)


@pytest.mark.parametrize("dealt", [False, True])
def test_a_window(dealt):
    check(2, 1, 256, 256, window=96, dealt=dealt)


def cached(keys, values, kv_heads, form):
    """Blocks with other heads behind the first; keys also in one of the forms of packed FP8."""
    blocks, d = len(keys) // BLOCK, keys.shape[1]
    found = []
    for i, x in enumerate((keys, values)):
        cache = random((blocks, kv_heads, BLOCK, d), x.dtype, 50 + i)
        cache[:, 0] = x.reshape(blocks, BLOCK, d)
        found.append(cache)
    if form is not None:
        pairs = found[0].reshape(blocks, kv_heads, BLOCK // 2, 2, d).swapaxes(3, 4)
        if form == "tokens first":
            pairs = pairs.transpose(0, 2, 1, 3, 4).reshape(blocks, BLOCK // 2, kv_heads * d, 2)
        found[0] = np.ascontiguousarray(pairs)
    return found


def prefixed(form=None, kv_heads=1, cache=np.float32, scales=False, apc=False, dealt=False, lnc=1):
    """Two ranks, 128 queries behind 192 tokens."""
    ranks, d, prior, total = 2, 32, 192, 320
    blocks = total // BLOCK // ranks
    keys, values = random((total, d), cache, 1), random((total, d), cache, 2)
    q = random((ranks, lnc, 128, d), ml_dtypes.bfloat16, 3)
    factors = [np.linspace(0.5, 1.5, 128, dtype=np.float32)[:, None], np.full((128, 1), 0.75, np.float32)]
    names = dict(zip(("k_scale", "v_scale"), factors, strict=True)) if scales else {}

    def inputs(rank):
        mine = [x.reshape(-1, BLOCK, d) for x in (keys, values)]
        mine = [x[rank::ranks] if dealt else x[rank * blocks : (rank + 1) * blocks] for x in mine]
        k_cache, v_cache = cached(*(x.reshape(-1, d) for x in mine), kv_heads, form)
        more = {"kvp_group_size": ranks, "kvp_rank_id": np.array([[rank]], np.int32)} if dealt else {}
        if apc:
            before = prior // ranks if dealt else np.clip(prior - rank * blocks * BLOCK, 0, blocks * BLOCK)
            more |= {"apc_mode": True, "valid_num_prior_tokens": np.array([[before]], np.int32)}
        at = prior if dealt else prior - rank * blocks * BLOCK
        return {
            "q": q[rank],
            "k_cache": k_cache,
            "v_cache": v_cache,
            "block_tables": np.arange(blocks, dtype=np.int32)[None],
            "kvp_q_offset": np.array([[at]], np.int32),
            "replica_groups": ((0, 1),),
            "group_size": ranks,
            "block_size": BLOCK,
            "seg_size": 2 * BLOCK,
            "scale": 0.2,
            "global_q_offset": 0 if apc else prior,
            "fp8_packed": form is not None,
            **names,
            **more,
        }

    k, v = keys.astype(np.float64), values.astype(np.float64)
    if scales:
        k, v = k * factors[0][:d, 0], v * factors[1][:d, 0]
    for rank, got in enumerate(run_ranks(attention_kv_parallel_segmented_cte, ranks, inputs, lnc=lnc)):
        want = plain(q[rank], k, v, 0.2, prior, 0)
        np.testing.assert_allclose(got.astype(np.float64), want, atol=1.5e-2)


@each_lnc
@pytest.mark.parametrize("form", [None, "tokens first", "heads first"])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_fp8_caches_of_every_layout(form, kv_heads, lnc):
    prefixed(form, kv_heads, ml_dtypes.float8_e4m3, scales=True, lnc=lnc)


@pytest.mark.parametrize("dealt", [False, True])
def test_a_prefix_whose_length_is_known_at_run_time(dealt):
    prefixed(cache=ml_dtypes.bfloat16, apc=True, dealt=dealt)


def test_all_queries_see_the_valid_prior_tokens():
    """Also where kvp_q_offset would hide them: here it stands far before the first key."""
    q, k, v = (
        random((1, 128, 32), seed=3),
        random((2, 1, BLOCK, 32), seed=1),
        random((2, 1, BLOCK, 32), seed=2),
    )
    given = (q, k, v, np.array([[0, 1]], np.int32), np.array([[-1000]], np.int32), ((0,),), 1, BLOCK, BLOCK)
    prior = np.array([[50]], np.int32)
    out = attention_kv_parallel_segmented_cte(*given, apc_mode=True, valid_num_prior_tokens=prior)
    scores = q[0].astype(np.float64) @ k.reshape(64, 32)[:50].T
    weights = np.exp(scores - scores.max(1, keepdims=True))
    want = weights / weights.sum(1, keepdims=True) @ v.reshape(64, 32)[:50]
    np.testing.assert_allclose(out[0].astype(np.float64), want, atol=1.5e-2)


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"apc_mode": True}, "valid_num_prior_tokens: got None"),
        ({"valid_num_prior_tokens": np.zeros((1, 1), np.int32)}, "apc_mode=False"),
        (
            {"apc_mode": True, "valid_num_prior_tokens": np.zeros((1, 1), np.int32), "global_q_offset": 64},
            "global_q_offset: got 64",
        ),
        ({"fp8_packed": True}, "k_cache: got shape"),
        ({"k_scale": np.ones((64, 1), np.float32)}, "k_scale"),
    ],
)
def test_mismatched_arguments_raise(changed, text):
    q, cache = random((1, 128, 32)), random((4, 1, BLOCK, 32))
    table, at = np.arange(4, dtype=np.int32)[None], np.zeros((1, 1), np.int32)
    with invalid(text):
        attention_kv_parallel_segmented_cte(q, cache, cache, table, at, ((0,),), 1, BLOCK, BLOCK, **changed)


def test_transposed_output_in_bfloat16():
    check(2, 2, 128, 128, tp_out=True, lnc=2, dtype=ml_dtypes.bfloat16)


def test_the_older_name_is_the_same():
    assert kv_parallel_segmented_prefill is attention_kv_parallel_segmented_cte


def test_groups_must_have_the_size_that_is_said():
    q, cache = random((1, 128, 32)), random((4, 1, BLOCK, 32))
    table, at = np.arange(4, dtype=np.int32)[None], np.zeros((1, 1), np.int32)
    with invalid("group_size: got 3"):
        run_ranks(
            attention_kv_parallel_segmented_cte,
            2,
            lambda r: (q, cache, cache, table, at, ((0, 1),), 3, 32, 64),
        )
