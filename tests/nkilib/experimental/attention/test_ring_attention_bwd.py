"""Gradients of ring attention against those torch derives from plain attention in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_support import each_lnc, invalid, random

from nki.ranks import run_ranks, split
from nkilib.experimental.attention.ring_attention_bwd import ring_attention_spmd_bwd
from support import target

torch = pytest.importorskip("torch")
BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"):
        yield


def derived(q, k, v, dy, causal, documents=None):
    """Return o, lse and gradients for [B, N, D, S], by torch in float64; `documents` [B, S] see only
    themselves."""
    q, k, v, dy = (torch.tensor(x.astype(np.float64)).transpose(2, 3) for x in (q, k, v, dy))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    scores = leaves[0] @ leaves[1].transpose(2, 3) * q.shape[3] ** -0.5
    if causal:
        scores = scores + torch.full(scores.shape[2:], -torch.inf, dtype=torch.float64).triu(1)
    if documents is not None:
        apart = torch.tensor(documents[:, None, :, None] != documents[:, None, None])
        scores = scores.masked_fill(apart, -torch.inf)
    out = torch.softmax(scores, -1) @ leaves[2]
    out.backward(dy)
    grads = [x.grad.transpose(2, 3).numpy() for x in leaves]
    return out.detach().transpose(2, 3).numpy(), torch.logsumexp(scores, -1).detach().numpy(), grads


def shards(x, workers, striped):
    if striped:
        return [np.ascontiguousarray(x[..., w::workers]) for w in range(workers)]
    return split(x, workers, axis=x.ndim - 1)


def packed(lengths, batch, workers, striped):
    """Return the documents of all tokens, and the bounds of each worker's tokens."""
    ends = np.cumsum(lengths)
    documents, low, high = (np.repeat(x, lengths) for x in (np.arange(len(ends)), ends - lengths, ends))
    bounds = []
    for w in range(workers):
        mine = [shards(x, workers, striped)[w] // (workers if striped else 1) for x in (low, high)]
        rows = [np.tile(x.astype(np.int32), (batch, 1)) for x in mine]
        bounds.append(dict(zip(("bound_min", "bound_max"), rows, strict=True)))
    return np.tile(documents, (batch, 1)), bounds


def check(
    workers, b, n, d, tokens, causal, striped, lnc=1, dtype=np.float32, tolerance=1e-4, lengths=None, **more
):
    q, k, v, dy = (random((b, n, d, workers * tokens), dtype, seed=i) for i in range(4))
    documents, bounds = (None, [{}] * workers) if lengths is None else packed(lengths, b, workers, striped)
    o, lse, wanted = derived(q, k, v, dy, causal, documents)
    tensors = [shards(x, workers, striped) for x in (q, k, v, o.astype(dtype), dy)]
    stats = [
        s.astype(np.float32).reshape(b, n, tokens // 128, 128).swapaxes(2, 3)
        for s in shards(lse, workers, striped)
    ]
    names = {"use_causal_mask": causal, "striped_attention": striped, "num_workers": workers, **more}
    inputs = [
        dict(zip(("q_ref", "k_ref", "v_ref", "o_ref", "dy_ref"), (t[r] for t in tensors), strict=True))
        | {"lse_ref": np.ascontiguousarray(stats[r]), **names, **bounds[r]}
        for r in range(workers)
    ]
    results = run_ranks(ring_attention_spmd_bwd, workers, inputs, lnc=lnc)
    for which, want in enumerate(wanted):
        parts = shards(want, workers, striped)
        for rank, result in enumerate(results):
            assert result[which].dtype == np.float32
            limit = tolerance * np.abs(want).max()
            np.testing.assert_allclose(result[which], parts[rank], rtol=0, atol=limit)


@each_lnc
@pytest.mark.parametrize(
    "workers, b, n, d, tokens, causal, striped",
    [
        (1, 1, 1, 32, 256, True, False),
        (2, 1, 2, 32, 128, False, False),
        (2, 2, 1, 64, 128, True, False),
        (3, 1, 1, 16, 128, True, True),
    ],
)
def test_gradients_are_those_of_plain_attention(workers, b, n, d, tokens, causal, striped, lnc):
    check(workers, b, n, d, tokens, causal, striped, lnc)


def test_more_keys_than_a_psum_bank_holds():
    check(2, 1, 1, 16, 640, True, False)


@pytest.mark.parametrize("mixed", [True, False])
def test_bfloat16(mixed):
    check(2, 1, 1, 64, 128, True, False, dtype=BF16, tolerance=2e-2, mixed_precision=mixed)


@each_lnc
@pytest.mark.parametrize("b, n", [(1, 2), (2, 1)])
@pytest.mark.parametrize("causal, striped", [(False, False), (True, False), (True, True)])
def test_documents_packed_into_one_sequence(causal, striped, b, n, lnc):
    check(2, b, n, 32, 128, causal, striped, lnc, lengths=[50, 30, 16, 160])


def test_striped_attention_without_a_causal_mask_raises():
    with invalid("striped_attention"):
        check(2, 1, 1, 16, 128, False, True)
