"""Ring attention forward against plain attention in float64, and the way back from stripes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_support import each_lnc, invalid, random

from nki.ranks import run_ranks, split
from nkilib.experimental.attention.ring_attention_fwd import ring_attention_spmd_fwd
from nkilib.experimental.attention.ring_attention_unpermute import ring_attention_unpermute
from support import target

BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"):
        yield


def plain_attention(q, k, v, scale, causal, documents=None):
    """Return out and log-sum-exp of the whole sequence, [b, h, S, d], in float64.

    `documents` [b, S]: tokens see those of the same number.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = scale * np.einsum("bhqd,bhkd->bhqk", q, k)
    if causal:
        scores += np.triu(np.full(scores.shape[2:], -np.inf), 1)
    if documents is not None:
        scores = np.where((documents[:, :, None] == documents[:, None])[:, None], scores, -np.inf)
    lse = np.logaddexp.reduce(scores, axis=-1)
    return np.einsum("bhqk,bhkd->bhqd", np.exp(scores - lse[..., None]), v), lse


def shards(x, workers, striped):
    return [x[:, :, w::workers] for w in range(workers)] if striped else split(x, workers, axis=2)


def ring(q, k, v, workers, causal, striped=False, rows=True, lnc=1, groups=None, **more):
    """Return each worker's (out, lse) for its part of the sequence."""
    parts = [shards(x, workers, striped) for x in (q, k, v)]
    oriented = (lambda x: x) if rows else (lambda x: np.ascontiguousarray(x.swapaxes(2, 3)))

    def inputs(rank):
        worker = rank if groups is None else next(g for g in groups if rank in g).index(rank)
        return {
            "q": oriented(parts[0][worker]),
            "k": oriented(parts[1][worker]),
            "v": parts[2][worker],
            "num_workers": workers,
            "replica_groups": groups,
            "softmax_scale": 1.0 if causal else None,
            "use_causal_mask": causal,
            "striped_input": striped,
            "training": True,
            "tp_q": rows,
            "tp_k": rows,
            **more,
        }

    world = workers if groups is None else sum(map(len, groups))
    return run_ranks(ring_attention_spmd_fwd, world, inputs, lnc=lnc)


def check(results, q, k, v, causal, striped, tolerance, order=None):
    workers = len(results)
    out, lse = plain_attention(q, k, v, 1.0 if causal else q.shape[3] ** -0.5, causal)
    outs, lses = shards(out, workers, striped), shards(lse, workers, striped)
    for rank, (got, stats) in enumerate(results):
        worker = rank if order is None else order.index(rank)
        np.testing.assert_allclose(got.astype(np.float64), outs[worker], atol=tolerance)
        by_query = stats.swapaxes(2, 3).reshape(lses[worker].shape)
        np.testing.assert_allclose(by_query, lses[worker], atol=1e-2 if q.dtype == BF16 else 1e-4)


CASES = [
    (2, 1, 2, 128, 64, False, False),
    (4, 1, 1, 128, 32, True, False),
    (4, 1, 2, 128, 32, True, True),
    (2, 2, 1, 256, 128, True, True),
]


@each_lnc
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("workers, b, h, tokens, d, causal, striped", CASES)
def test_every_query_sees_the_keys_of_all_workers(workers, b, h, tokens, d, causal, striped, rows, lnc):
    q, k, v = (random((b, h, workers * tokens, d), seed=i) for i in range(3))
    q = q * np.float32(d**-0.5) if causal else q
    check(ring(q, k, v, workers, causal, striped, rows, lnc), q, k, v, causal, striped, 1e-5)


def test_eight_workers():
    q, k, v = (random((1, 1, 8 * 128, 16), seed=i, scale=0.5) for i in range(3))
    check(ring(q, k, v, 8, True), q, k, v, True, False, 1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16(causal):
    q, k, v = (random((1, 2, 512, 64), BF16, seed=i, scale=0.5) for i in range(3))
    check(ring(q, k, v, 2, causal, rows=False), q, k, v, causal, False, 1.5e-2)


def test_workers_are_places_in_their_group():
    q, k, v = (random((1, 1, 512, 32), seed=i, scale=0.4) for i in range(3))
    results = ring(q, k, v, 2, True, groups=((3, 0), (1, 2)))
    out, _ = plain_attention(q, k, v, 1.0, True)
    first, second = split(out, 2, axis=2)
    for rank, want in ((3, first), (0, second), (1, first), (2, second)):
        np.testing.assert_allclose(results[rank][0], want, atol=1e-5)


def test_one_worker_needs_no_other_rank():
    q, k, v = (random((1, 1, 128, 32), seed=i) for i in range(3))
    check(ring(q, k, v, 1, False), q, k, v, False, False, 1e-5)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"softmax_scale": 0.5}, "softmax_scale: got 0.5"),
        ({"use_causal_mask": False, "striped_input": True}, "striped_input"),
        ({"num_workers": 3}, "num_workers: got 3"),
    ],
)
def test_wrong_calls_are_refused(changes, text):
    q = random((1, 1, 256, 32))
    with invalid(text):
        ring(q, q, q, 2, True, groups=((0, 1),), **changes)


def packed(lengths, batch):
    """Return (documents, start and end of each token's document), [b, S] each; batches differ."""
    found = []
    for b in range(batch):
        mine = lengths[b:] + lengths[:b]
        ends = np.cumsum(mine)
        starts = ends - mine
        found.append([np.repeat(x, mine) for x in (np.arange(len(mine)), starts, ends)])
    return (np.stack([rows[i] for rows in found]) for i in range(3))


@each_lnc
@pytest.mark.parametrize("batch, heads", [(1, 2), (2, 2)])
@pytest.mark.parametrize("causal, striped", [(False, False), (True, False), (True, True)])
def test_tokens_see_those_of_their_own_document(causal, striped, batch, heads, lnc):
    workers, tokens = 2, 256
    q, k, v = (random((batch, heads, workers * tokens, 32), seed=i, scale=0.4) for i in range(3))
    documents, low, high = packed([100, 60, 32, 320], batch)
    scale = 1.0 if causal else 32**-0.5
    out, lse = plain_attention(q, k, v, scale, causal, documents)
    # of striped tokens, bounds count the keys of a worker
    counted = [(x // workers if striped else x).astype(np.int32) for x in (low, high)]
    bounds = [shards(x[:, None], workers, striped) for x in counted]
    parts = [shards(x, workers, striped) for x in (q, k, v)]

    def inputs(rank):
        return dict(zip("qkv", (x[rank] for x in parts), strict=True)) | {
            "bound_min": np.ascontiguousarray(bounds[0][rank][:, 0]),
            "bound_max": np.ascontiguousarray(bounds[1][rank][:, 0]),
            "num_workers": workers,
            "softmax_scale": scale,
            "use_causal_mask": causal,
            "striped_input": striped,
            "training": True,
            "tp_q": True,
            "tp_k": True,
        }

    results = run_ranks(ring_attention_spmd_fwd, workers, inputs, lnc=lnc)
    outs, lses = shards(out, workers, striped), shards(lse, workers, striped)
    for rank, (got, stats) in enumerate(results):
        np.testing.assert_allclose(got, outs[rank], atol=1e-5)
        np.testing.assert_allclose(stats.swapaxes(2, 3).reshape(lses[rank].shape), lses[rank], atol=1e-4)


@pytest.mark.parametrize("form", [(128,), (128, 1), (1, 128), (2, 128)])
def test_all_shapes_of_bounds_and_queries_that_see_no_key(form):
    q, k, v = (random((1, 2, 256, 32), seed=i, scale=0.4) for i in range(3))
    wide = np.full(form, 256, np.float32)
    wide.reshape(-1, 128)[:, 96:] = 0  # the last 32 of each worker see nothing
    results = ring(q, k, v, 2, False, bound_min=np.zeros(form, np.float32), bound_max=wide)
    out, _ = plain_attention(q, k, v, 32**-0.5, False)
    for rank, want in enumerate(split(out, 2, axis=2)):
        np.testing.assert_allclose(results[rank][0][:, :, :96], want[:, :, :96], atol=1e-5)
        assert not results[rank][0][:, :, 96:].any()


@pytest.mark.parametrize(
    "bounds, text",
    [
        ({"bound_min": np.zeros((1, 128), np.int32)}, "got one of them"),
        ({name: np.zeros((3, 128), np.int32) for name in ("bound_min", "bound_max")}, "bound_min: got shape"),
    ],
)
def test_wrong_bounds_are_refused(bounds, text):
    q = random((1, 1, 256, 32))
    with invalid(text):
        ring(q, q, q, 2, True, **bounds)


@each_lnc
@pytest.mark.parametrize("workers, shape", [(2, (1, 4, 8)), (3, (2, 6, 5)), (4, (3, 8, 16))])
def test_striped_tokens_become_contiguous(workers, shape, lnc):
    whole = random((shape[0], workers * shape[1], shape[2]), BF16)
    results = run_ranks(
        ring_attention_unpermute, workers, lambda r: (whole[:, r::workers], None, workers), lnc=lnc
    )
    np.testing.assert_array_equal(np.concatenate(results, axis=1), whole)
