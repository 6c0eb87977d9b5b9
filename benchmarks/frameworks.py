"""Calls from PyTorch and JAX against the same call from numpy, and what the program cache saves."""

import importlib.util
import os
import time

import numpy as np

import nki
import nki.isa as nisa
import nki.kernel.cache
import nki.language as nl

from .memory import alone

ROUNDS, CALLS = 300, 5


@nki.jit
def double(x):
    """The trivial kernel: in, one instruction, out."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_tensor(tile, tile, tile, nl.add)
    nisa.dma_copy(out, tile)
    return out


@nki.jit
def thousand(x):
    """1,000 instructions on small tiles."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in range(200):
        column = 16 * (i % 8)
        tile, total = nl.ndarray((128, 16), x.dtype), nl.ndarray((128, 1), nl.float32)
        nisa.dma_copy(tile, x[:, column : column + 16])
        nisa.tensor_reduce(total, nl.maximum, tile, axis=1)
        nisa.tensor_scalar(tile, tile, nl.subtract, total)
        nisa.tensor_tensor(tile, tile, tile, nl.add)
        nisa.dma_copy(out[:, column : column + 16], tile)
    return out


def seconds(call, count=CALLS):
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def side_by_side(*calls):
    """The best time of each call; they take short turns, so that a busy machine slows all of them."""
    for call in calls:
        call()
    rounds = [[seconds(call) for call in calls] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def torch_rows():
    import torch

    x = np.ones((128, 128), np.float32)
    tensor = torch.from_numpy(x)
    ours, theirs = side_by_side(lambda: double(x), lambda: double(tensor))
    yield "trivial 128x128 kernel, warm, from torch over numpy", f"{(theirs - ours) * 1e6:+.0f} us", "+30 us"


def jax_rows():
    import jax

    x = np.ones((128, 128), np.float32)
    array = jax.numpy.asarray(x)
    function = jax.jit(lambda x: double(x))
    ours, theirs = side_by_side(lambda: double(x), lambda: function(array).block_until_ready())
    yield "the same from jax.jit over numpy", f"{(theirs - ours) * 1e6:+.0f} us", "+60 us"


def cache_rows():
    x = np.ones((128, 128), np.float32)

    def first():
        nki.kernel.cache.clear()
        thousand(x)

    thousand(x)
    colds, warms = [], []
    for _ in range(20):
        colds.append(seconds(first, 1))
        warms.append(seconds(lambda: thousand(x), 1))
    yield "1,000 instructions on small tiles, warm over first call", f"{min(warms) / min(colds):.2f}x", "0.5x"


COPIES = """
import torch
from benchmarks.memory import peak_bytes
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def corner(x):
    out = nl.ndarray((128, 128), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x[0:128, 0:128])
    return out

x = torch.ones(4096, 4096)
corner(torch.ones(128, 128))
before = peak_bytes()
corner(x)
print((peak_bytes() - before) / x.nbytes)
"""


def copy_rows():
    yield "extra copies of a 64 MiB input from torch", f"{round(float(alone(COPIES)))}", "0"


def run():
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    rows = [*cache_rows()]
    if importlib.util.find_spec("torch"):
        rows += [*torch_rows(), *copy_rows()]
    if importlib.util.find_spec("jax"):
        rows += jax_rows()
    return rows
