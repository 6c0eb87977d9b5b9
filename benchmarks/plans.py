"""Plans: whole kernels against numpy doing the same mathematics, on one BLAS thread unless noted."""

import gc
import os
import sys
import time
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import ml_dtypes
import numpy as np
import threadpoolctl

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.fused.cache import Content, plans
from nki.backends.fused.planner import make_plan
from nki.backends.lowered import Lowered
from nki.backends.reference.blas import one_blas_thread
from nki.backends.reference.collector import fewer_collections
from nki.kernel.cache import programs
from nkilib.core.attention.attention_cte import attention_cte
from nkilib.core.mlp.mlp import mlp

from .memory import alone, peak_bytes

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "matmul"))
from kernels import blocked_mnk, tiled  # noqa: E402

M, K, N = 2048, 4096, 4096
BF16 = ml_dtypes.bfloat16
CHANCE = np.random.default_rng(0)


def numbers(*shape, scale=1.0):
    return CHANCE.standard_normal(shape, dtype=np.float32) * np.float32(scale)


def cpu(call):
    start = time.process_time()
    call()
    return time.process_time() - start


def wall(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def first_and_warm(call):
    programs.clear()
    plans.clear()
    return cpu(call), min(cpu(call) for _ in range(2))


def ratios(bare, calls, rounds):
    """First and next calls over `bare`, by name: the medians of rounds, each measured beside its own `bare`.

    The clock of a server differs from second to second, so that the least of all would compare two clocks.
    """
    found = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            plain = min(cpu(bare) for _ in range(2))
            found[name].append([seconds / plain for seconds in first_and_warm(call)])
    return {name: [median(column) for column in zip(*pairs, strict=True)] for name, pairs in found.items()}


def on_two_threads(bare, call, rounds=5):
    """A warm call on two threads, and `bare` with BLAS's own two, over `bare` on one (wall)."""
    found = []
    with nki.options(threads=2):
        call()
        for _ in range(rounds):
            with one_blas_thread():
                plain = wall(bare)
            with threadpoolctl.threadpool_limits(2, "blas"):
                own = wall(bare)
            found.append((wall(call) / plain, own / plain))
    return [median(column) for column in zip(*found, strict=True)]


def rows_of(label, found, limits, two=None):
    """Rows of one kernel: first and warm calls, and those on two threads."""
    for when, ratio, limit in zip(("first", "warm"), found, limits, strict=False):
        yield f"{label}, {when} / numpy", f"{ratio:.2f}x", f"{limit:.2f}x"
    if two is not None:
        yield f"{label}, two threads, warm / numpy (wall)", f"{two[0]:.2f}x", f"{limits[-1]:.2f}x"
        yield f"{label}, numpy with BLAS's own two threads / one (wall)", f"{two[1]:.2f}x", ""


def one_thread(bare):
    def call():
        with one_blas_thread():
            bare()

    return call


def matmul_rows():
    left, right = numbers(K, M), numbers(K, N)
    narrow = left.astype(BF16), right.astype(BF16)

    def bare():
        left.T @ right

    calls = {
        "blocked matmul": lambda: blocked_mnk(left, right),
        "loads in the inner loop": lambda: tiled(left, right),
        "blocked matmul bf16": lambda: blocked_mnk(*narrow),
    }
    with nki.options(threads=1):
        found = ratios(one_thread(bare), calls, 3)
    wanted = {"blocked matmul": (1.12, 1.03, 0.53), "loads in the inner loop": (1.25, 1.05, 0.53)}
    for name, limits in wanted.items():
        two = on_two_threads(bare, calls[name])
        yield from rows_of(f"{name} {M}x{K}x{N} fp32", found[name], limits, two)
    ratio = found["blocked matmul bf16"][1] / found["blocked matmul"][1]
    yield "blocked matmul bf16, warm / fp32", f"{ratio:.2f}x", "1.15x"


def mlp_rows():
    hidden, inner, rows = 4096, 3584, 1024
    x, gate, up, down = (
        numbers(rows, hidden),
        *(numbers(*shape, scale=0.02) for shape in ((hidden, inner), (hidden, inner), (inner, hidden))),
    )

    def bare():
        left = x @ gate
        return (left / (1 + np.exp(-left)) * (x @ up)) @ down

    tensors = [a.astype(BF16) for a in (x[None], gate, up, down)]
    with nki.options(threads=1):
        found = ratios(one_thread(bare), {"mlp": lambda: mlp(*tensors)}, 3)
    yield from rows_of(f"mlp 1x{rows}x{hidden}, I {inner} bf16", found["mlp"], (1.25, 1.05))


def attention_rows():
    heads, length, width = 8, 2048, 128
    q, k, v = numbers(heads, length, width), numbers(1, width, length), numbers(1, length, width)
    seen = np.tri(length, dtype=np.bool_)

    def bare():
        for head in q:
            scores = np.where(seen, head @ k[0] * np.float32(width**-0.5), np.float32(-np.inf))
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            (scores / scores.sum(axis=1, keepdims=True)) @ v[0]

    tensors = [a.astype(BF16) for a in (q, k, v)]
    with nki.options(threads=1):
        found = ratios(one_thread(bare), {"attention": lambda: attention_cte(*tensors)}, 3)
    two = on_two_threads(bare, lambda: attention_cte(*tensors))
    label = f"attention_cte {heads} heads, {length}, causal"
    yield from rows_of(label, found["attention"], (0.9, 0.5, 0.3), two)


def planning_rows():
    arrays = {
        "loads in the inner loop": (tiled, ((2048, 1024), (2048, 2048)), np.float32),
        "attention_cte": (attention_cte, ((8, 2048, 128), (1, 128, 2048), (1, 2048, 128)), BF16),
    }
    for name, (kernel, shapes, dtype) in arrays.items():
        program = kernel.trace(*(np.empty(shape, dtype) for shape in shapes))
        count = len(program)
        with fewer_collections():  # each on a new Program: its columns are cached with it
            planning = min(cpu(partial(make_plan, Lowered(replace(program)))) for _ in range(5))
            key = min(cpu(partial(Content, Lowered(replace(program)))) for _ in range(5))
        gc.collect()
        tracemalloc.start()
        plan = make_plan(Lowered(replace(program)))
        gc.collect()
        size, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del plan
        rows = {"planning": planning, "its key": key}
        for what, seconds in rows.items():
            yield f"{what}, {name}, per instruction", f"{seconds / count * 1e6:.1f} us", "15 us"
        yield f"its plan in memory, {name}, per instruction", f"{size / count:.0f} B", "1024 B"
        yield f"memory while it is planned, {name}, per instruction", f"{peak / count:.0f} B", "1024 B"


# ---- what is not planned -------------------------------------------------------------------------


def ratio_of(kernel, arrays, fast="auto", rounds=5):
    """CPU seconds of the first and the next calls, over those of one instruction at a time."""
    found = {fast: [], "reference": []}
    for _ in range(rounds):
        for executor, times in found.items():
            with nki.options(executor=executor, threads=1):
                times.append(first_and_warm(lambda: kernel(*arrays)))
    best = {name: [min(column) for column in zip(*times, strict=True)] for name, times in found.items()}
    return [a / b for a, b in zip(best[fast], best["reference"], strict=True)]


def crossover_rows():
    """Where a plan begins to pay: matmuls of growing size, fused over reference."""
    for k, m, n in ((128, 128, 512), (256, 256, 512), (512, 512, 512), (1024, 512, 1024), (1024, 1024, 2048)):
        arrays = numbers(k, m), numbers(k, n)
        first, warm = ratio_of(tiled, arrays, "fused")
        size = f"{m}x{k}x{n}, {2 * k * m * n / 1e6:.0f} MFLOP"
        yield f"plan / one by one, {size}: first, warm", f"{first:.2f}x, {warm:.2f}x", ""


@nki.jit
def long_sequence(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    for _ in range(10_000):
        nisa.tensor_scalar(tile, tile, nl.multiply, 1.0)
    nisa.dma_copy(out, tile)
    return out


@nki.jit
def twenty(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    for i in range(9):
        nisa.tensor_scalar(tile, tile, nl.add, float(i))
        nisa.activation(tile, nl.relu, tile)
    nisa.dma_copy(out, tile)
    return out


def single_rows():
    _, warm = ratio_of(long_sequence, [numbers(128, 1)])
    yield "10,000 tensor_scalar on 128x1, warm / reference", f"{warm:.2f}x", "1.00x"
    times = {"auto": [], "reference": []}
    x = numbers(128, 512)
    for _ in range(24):
        for executor, found in times.items():
            with nki.options(executor=executor):
                twenty(x)
                found.append(cpu(lambda: [twenty(x) for _ in range(20)]))
    ratio = min(times["auto"]) / min(times["reference"])
    yield "20 instructions on 128x512, warm / reference", f"{ratio:.2f}x", "1.00x"


# ---- memory --------------------------------------------------------------------------------------

PEAK = """
from benchmarks.memory import peak_bytes
from benchmarks.plans import PEAKS, peak_before
kernel, arrays = PEAKS[{name!r}]()
before = peak_before(kernel, arrays)
out = kernel(*arrays)
results = sum(array.nbytes for array in (out if isinstance(out, list) else [out]))
print(peak_bytes() - before - results)
"""


def ones(*shapes, dtype=BF16):
    return [np.ones(shape, dtype) for shape in shapes]


PEAKS = {
    "loads in the inner loop, bf16": lambda: (tiled, ones((K, M), (K, N))),
    "blocked matmul, fp32": lambda: (blocked_mnk, ones((K, M), (K, N), dtype=np.float32)),
    "mlp": lambda: (mlp, ones((1, 1024, 4096), (4096, 3584), (4096, 3584), (3584, 4096))),
    "attention_cte": lambda: (attention_cte, ones((8, 2048, 128), (1, 128, 2048), (1, 2048, 128))),
}


def peak_before(kernel, arrays):
    """Bytes, once everything is imported and the arguments are there."""
    tiled(*ones((128, 128), (128, 512)))
    return peak_bytes()


def memory_rows():
    for name in PEAKS:
        mib = int(alone(PEAK.format(name=name))) / 2**20
        yield f"peak beyond arguments and results, {name}", f"{mib:.0f} MiB", "512 MiB"


def run():
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    return [
        *matmul_rows(),
        *mlp_rows(),
        *attention_rows(),
        *planning_rows(),
        *crossover_rows(),
        *single_rows(),
        *memory_rows(),
    ]
