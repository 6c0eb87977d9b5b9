"""Run by torchrun: random worlds of as many ranks as there are processes, and what happens when one fails.

`torchrun --nproc-per-node 2 attached_program.py [worlds|ring|fails|mismatch|late|cut] ...`
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from itertools import islice

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn2"

import numpy as np
import torch
import torch.distributed as dist

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.ranks import attach, run_ranks
from random_worlds import check_world, random_world


def say(text):
    """A line at once: the ranks write to one pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@nki.jit
def summed(x, group):
    src, dst = (nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name=n) for n in ("src", "dst"))
    nisa.dma_copy(src, x)
    ncc.all_reduce([src], [dst], group, nl.add)
    return dst


@nki.jit
def indexing(x, group):
    row = nl.ndarray((1, 3), x.dtype, buffer=nl.shared_hbm, name="row")
    table = nl.zeros((4, 3), x.dtype, buffer=nl.shared_hbm, name="table")
    at = nisa.register_alloc()
    nisa.register_load(at, x[0:1, 0:1])
    nisa.dma_copy(row, table[nl.ds(at, 1)])
    return summed(x, group)


def worlds(rank, size):
    """Every bit as in one process, and tensors of torch."""

    def attached(kernel, world, inputs):
        with attach(timeout=240):  # on a busy machine
            mine = kernel(*inputs[rank])
        everyone = [None] * world
        dist.all_gather_object(everyone, mine)
        local = run_ranks(kernel, world, inputs)
        for ours, theirs in zip(everyone, local, strict=True):
            assert all(a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True))
        return everyone

    seeds = list(islice((seed for seed in range(400) if random_world(seed)[0] == size), 12))
    for seed in seeds:
        check_world(seed, attached)
    with attach() as world:
        assert (world.rank, world.size, world.backend) == (rank, size, "gloo")
        x = torch.full((2, 3), rank + 1.0, dtype=torch.bfloat16)
        assert (summed[2](x, (tuple(range(size)),)) == size * (size + 1) / 2).all()
    say(f"rank {rank}: {len(seeds)} worlds")


def ring(rank, size):
    """Gradients of ring attention, whose backward exchanges too, against those of attention."""
    from nkilib.autograd import ring_attention_spmd_fwd

    torch.manual_seed(0)
    whole = [torch.randn(1, 2, 128 * size, 24, dtype=torch.float64).requires_grad_() for _ in range(4)]
    q, k, v, weight = whole
    later = torch.ones(128 * size, 128 * size, dtype=torch.bool).triu(1)
    out = (q @ k.mT).masked_fill(later, -torch.inf).softmax(-1) @ v
    wanted = torch.autograd.grad((out * weight).sum(), whole[:3])
    mine = [x.detach().float().chunk(size, 2)[rank].contiguous() for x in whole]
    leaves = [x.requires_grad_() for x in mine[:3]]
    with attach(timeout=240):
        y = ring_attention_spmd_fwd(*leaves, num_workers=size, softmax_scale=1.0, use_causal_mask=True)
        (y * mine[3]).sum().backward()
    errors = [(a.grad - b.chunk(size, 2)[rank]).abs().max() for a, b in zip(leaves, wanted, strict=True)]
    say(f"rank {rank}: ring {max(errors).item() < 1e-4}")


def fails(rank, size):
    """One rank fails; the others hear of it and name it."""
    begin = time.monotonic()
    x = np.full((2, 3), 9 if rank == size - 1 else 0, np.int32)
    try:
        with attach(timeout=30):
            indexing(x, (tuple(range(size)),))
    except nki.NkiError as problem:
        say(f"rank {rank}: {problem.kind} of rank {problem.rank} after {time.monotonic() - begin < 5}")


def mismatch(rank, size):
    """Ranks whose calls differ hear what each of them calls."""
    x = np.zeros((2, 3 + (rank == 0)), np.float32)
    try:
        with attach(timeout=30):
            summed(x, (tuple(range(size)),))
    except nki.NkiError as problem:
        rows = sum("float32[2, " in note for note in problem.notes)
        say(f"rank {rank}: {problem.kind} with {rows} rows")


def late(rank, size):
    """The last rank comes when the others have given up."""
    time.sleep(4 if rank == size - 1 else 0)
    try:
        with attach(timeout=1):
            summed(np.zeros((2, 3), np.float32), (tuple(range(size)),))
    except nki.NkiError as problem:
        say(f"rank {rank}: {problem.kind} of rank {problem.rank}: {problem.message}")


def cut(rank, size):
    """Sums without end, until the others cannot be reached any more."""
    group, x = (tuple(range(size)),), np.full((2, 3), rank, np.int32)
    begin = time.monotonic()
    try:
        with attach(timeout=5):
            summed(x, group)
            say(f"rank {rank}: connected")
            while True:
                begin = time.monotonic()
                summed(x, group)
    except nki.NkiError as problem:
        within = time.monotonic() - begin < 15
        say(f"rank {rank}: {problem.kind} in time {within}, {problem.message}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    for what in sys.argv[1:]:
        dist.barrier()
        globals()[what](dist.get_rank(), dist.get_world_size())
    if sys.argv[-1] != "worlds":  # no rank waits for a world that has failed
        sys.stdout.flush()
        time.sleep(2)
        os._exit(0)
    dist.barrier()
    dist.destroy_process_group()
