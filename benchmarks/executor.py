"""The executor against numpy doing the same arithmetic on one BLAS thread."""

import os
import sys
import time
from pathlib import Path

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.reference.blas import one_blas_thread
from nki.kernel.cache import programs

from .memory import alone

MATMUL = Path(__file__).parents[1] / "examples" / "matmul"
sys.path.insert(0, str(MATMUL))
from kernels import blocked_mnk, tiled  # noqa: E402

M, K, N = 2048, 4096, 4096


def fastest(*calls, rounds=5):
    """Return the fastest first call of each, in CPU seconds. They alternate: the machine may be busy."""
    times = [[] for _ in calls]
    for _ in range(rounds):
        for call, found in zip(calls, times, strict=True):
            programs.clear()
            start = time.process_time()
            call()
            found.append(time.process_time() - start)
    return [min(found) for found in times]


def in_numpy(lhsT, rhs):
    with one_blas_thread():
        return lhsT.T @ rhs


def matmul_rows():
    rng = np.random.default_rng(0)
    lhsT = rng.standard_normal((K, M), dtype=np.float32)
    rhs = rng.standard_normal((K, N), dtype=np.float32)
    low = nl.bfloat16
    narrow = lhsT.astype(np.dtype(low)), rhs.astype(np.dtype(low))
    bare, blocked, naive, bf16 = fastest(
        lambda: in_numpy(lhsT, rhs),
        lambda: blocked_mnk(lhsT, rhs),
        lambda: tiled(lhsT, rhs),
        lambda: blocked_mnk(*narrow),
    )
    yield f"blocked matmul fp32 {M}x{K}x{N} / numpy", f"{blocked / bare:.2f}x", "1.8x"
    yield "naive tiled matmul, same size / numpy", f"{naive / bare:.2f}x", "2.6x"
    yield "blocked matmul bf16 / fp32", f"{bf16 / blocked:.2f}x", "1.4x"


def per_call(issue, count=1000, rounds=20):
    """Return the seconds per call of a loop body, after the first calls."""
    issue()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(count):
            issue()
        times.append((time.process_time() - start) / count)
    return min(times)


def instruction_rows():
    found = {}

    @nki.jit
    def kernel(x):
        a, b, c = (nl.ndarray((128, 512), nl.float32) for _ in range(3))
        column, out = (nl.ndarray((128, 1), nl.float32) for _ in range(2))
        nisa.dma_copy(a, x)
        nisa.dma_copy(b, x)
        nisa.memset(column, 1.0)
        found["tensor_tensor"] = per_call(lambda: nisa.tensor_tensor(c, a, b, op=nl.add))
        found["tensor_scalar"] = per_call(lambda: nisa.tensor_scalar(out, column, nl.multiply, 2.0))

    x = np.ones((128, 512), np.float32)
    kernel(x)
    out = np.empty_like(x)
    y = x.copy()
    bare = per_call(lambda: np.add(x, y, out=out))
    yield "tensor_tensor 128x512 fp32 / np.add(out=)", f"{found['tensor_tensor'] / bare:.2f}x", "1.5x"
    yield "tensor_scalar 128x1, per call", f"{found['tensor_scalar'] * 1e6:.1f} us", "8 us"


PEAK = """
import sys
import numpy as np
sys.path.insert(0, {path!r})
from benchmarks.memory import peak_bytes
from kernels import tiled
lhsT, rhs = np.ones((8192, 4096), np.float32), np.ones((8192, 8192), np.float32)
tiled(lhsT[:128, :128].copy(), rhs[:128, :512].copy())
before = peak_bytes()
out = tiled(lhsT, rhs)
print(peak_bytes() - before - out.nbytes)
"""


def memory_rows():
    gib = int(alone(PEAK.format(path=str(MATMUL)))) / 2**30
    yield "naive matmul 4096x8192x8192: peak beyond inputs and output", f"{gib:.2f} GiB", "1 GiB"


def run():
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    return [*matmul_rows(), *instruction_rows(), *memory_rows()]
