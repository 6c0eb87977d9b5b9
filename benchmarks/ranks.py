"""Worlds on this machine: ratios measured in one run.

python benchmarks/ranks.py [all_reduce] [ring] [processes]
"""

from __future__ import annotations

import os
import sys
import time
import warnings

import numpy as np

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.ranks import run_ranks, split
from nkilib.core.attention.attention_cte import attention_cte
from nkilib.core.mlp.mlp import mlp
from nkilib.experimental.attention.ring_attention_fwd import ring_attention_spmd_fwd


@nki.jit
def reduced(x, group):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    ncc.all_reduce([x], [out], group, nl.add)
    return out


def all_reduce(ranks: int = 8, nbytes: int = 16 << 20) -> None:
    """Every rank gets the sum: over numpy's own sum and a copy for each."""
    x = np.random.default_rng(0).standard_normal((ranks, nbytes // 4096, 1024), dtype=np.float32)
    group = (tuple(range(ranks)),)
    run_ranks(reduced, ranks, lambda rank: (x[rank], group))
    ours, theirs = [], []
    for _ in range(5):
        begin = time.process_time()
        total = x[0] + x[1]
        for part in x[2:]:
            np.add(total, part, out=total)
        copies = [total.copy() for _ in range(ranks)]
        theirs.append(time.process_time() - begin)
        begin = time.process_time()
        results = run_ranks(reduced, ranks, lambda rank: (x[rank], group))
        ours.append(time.process_time() - begin)
        assert all(np.array_equal(a, b) for a, b in zip(results, copies, strict=True))
    ratio = min(ours) / min(theirs)
    print(f"all_reduce, {ranks} ranks of {nbytes >> 20} MiB: {ratio:.2f}x numpy's sum and copies (at most 2)")


def ring(ranks: int = 64, tokens: int = 512, head_dim: int = 128) -> None:
    """CPU time of ring attention over that of the same attention on one rank."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, ranks * tokens, head_dim), dtype=np.float32)
    parts = [split(a, ranks, axis=2) for a in (q, k, v)]
    names = {"num_workers": ranks, "tp_q": True, "tp_k": True}
    begin = time.process_time()
    results = run_ranks(
        ring_attention_spmd_fwd,
        ranks,
        lambda rank: {"q": parts[0][rank], "k": parts[1][rank], "v": parts[2][rank], **names},
    )
    ours = time.process_time() - begin
    begin = time.process_time()
    one = attention_cte(q[0], k[0], v[0], scale=head_dim**-0.5, causal_mask=False, tp_k=True)
    theirs = time.process_time() - begin
    error = np.abs(np.concatenate(results, axis=2)[0] - one).max()
    print(
        f"ring attention, {ranks} ranks of {tokens} tokens: {ours:.1f} s of CPU, "
        f"{ours / theirs:.2f}x one rank (at most 1.5), difference {error:.1e}"
    )


@nki.jit
def parallel_mlp(x, gate, up, down, group):
    """A rank's columns of an MLP, and the sum over the ranks."""
    part = mlp(x, gate, up, down)[0]
    src = nl.ndarray(part.shape, part.dtype, buffer=nl.shared_hbm, name="src")
    dst = nl.ndarray(part.shape, part.dtype, buffer=nl.shared_hbm, name="dst")
    nisa.dma_copy(src, part)
    ncc.all_reduce([src], [dst], group, nl.add)
    return dst


def processes(tokens: int = 1024, hidden: int = 4096, inner: int = 3584) -> None:
    """Two ranks in two processes over two ranks in one: there on one core, and on all that it may use."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, tokens, hidden), dtype=np.float32)
    shape = (hidden, inner // 2)
    weights = [
        [rng.standard_normal(s, dtype=np.float32) * 0.02 for s in (shape, shape, shape[::-1])]
        for _ in range(2)
    ]

    def once(backend: str, threads: int) -> float:
        os.environ["OPEN_NKI_THREADS"] = str(threads)
        begin = time.monotonic()
        results = run_ranks(parallel_mlp, 2, lambda rank: (x, *weights[rank], ((0, 1),)), backend=backend)
        assert np.array_equal(results[0], results[1])
        return time.monotonic() - begin

    cores = len(os.sched_getaffinity(0))
    once("local", 1)  # traces and plans
    forms = {"one": ("local", 1), "all": ("local", cores), "processes": ("processes", max(1, cores // 2))}
    took = {name: min(once(*form) for _ in range(3)) for name, form in forms.items()}
    print(
        f"MLP of two ranks on {cores} cores: {took['processes']:.2f} s in processes, "
        f"{took['processes'] / took['one']:.2f}x local on one core (at most 0.65), "
        f"{took['processes'] / took['all']:.2f}x local on all, load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or ("all_reduce", "ring", "processes"):
        globals()[name]()
