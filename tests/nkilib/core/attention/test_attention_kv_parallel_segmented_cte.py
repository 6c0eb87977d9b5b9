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


def test_turned_over_and_bfloat16():
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
