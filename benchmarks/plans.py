"""Plans: whole kernels against numpy doing the same mathematics, on one BLAS thread unless said."""

import os
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np

from nki.call.cache import programs
from nki.execute.blas import one_blas_thread
from nki.execute.collector import fewer_collections
from nki.plan import keeping
from nki.plan.planner import made
from nkilib.core.attention.attention_cte import attention_cte
from nkilib.core.mlp.mlp import mlp

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
    keeping.plans.clear()
    return cpu(call), min(cpu(call) for _ in range(2))


def fastest(bare, calls, rounds):
    """Seconds of `bare`, and of the first and the next calls of each; they take turns."""
    plain, found = [], {name: [] for name in calls}
    for _ in range(rounds):
        plain.append(cpu(bare))
        for name, call in calls.items():
            found[name].append(first_and_warm(call))
    return min(plain), {n: tuple(map(min, zip(*pairs, strict=True))) for n, pairs in found.items()}


def matmul_rows():
    left, right = numbers(K, M), numbers(K, N)
    narrow = left.astype(BF16), right.astype(BF16)

    def bare():
        with one_blas_thread():
            return left.T @ right

    os.environ["OPEN_NKI_THREADS"] = "1"
    calls = {
        "blocked matmul": lambda: blocked_mnk(left, right),
        "loads in the inner loop": lambda: tiled(left, right),
        "blocked matmul bf16": lambda: blocked_mnk(*narrow),
    }
    plain, found = fastest(bare, calls, 3)
    wanted = {"blocked matmul": (1.15, 1.05), "loads in the inner loop": (1.30, 1.05)}
    for name, limits in wanted.items():
        for when, seconds, limit in zip(("first", "warm"), found[name], limits, strict=True):
            yield f"{name} {M}x{K}x{N} fp32, {when} / numpy", f"{seconds / plain:.2f}x", f"{limit:.2f}x"
    ratio = found["blocked matmul bf16"][1] / found["blocked matmul"][1]
    yield "blocked matmul bf16, warm / fp32", f"{ratio:.2f}x", "1.15x"
    os.environ["OPEN_NKI_THREADS"] = "2"
    alone = min(wall(bare) for _ in range(3))
    for name in wanted:
        calls[name]()
        both = min(wall(calls[name]) for _ in range(4))
        yield f"{name}, two threads, warm / numpy (wall)", f"{both / alone:.2f}x", "0.60x"
    os.environ["OPEN_NKI_THREADS"] = "1"


def mlp_rows():
    hidden, inner, rows = 4096, 3584, 1024
    x, gate, up, down = (
        numbers(rows, hidden),
        *(numbers(*shape, scale=0.02) for shape in ((hidden, inner), (hidden, inner), (inner, hidden))),
    )

    def bare():
        with one_blas_thread():
            left = x @ gate
            return (left / (1 + np.exp(-left)) * (x @ up)) @ down

    tensors = [a.astype(BF16) for a in (x[None], gate, up, down)]
    plain, found = fastest(bare, {"mlp": lambda: mlp(*tensors)}, 2)
    yield f"mlp 1x{rows}x{hidden}, I {inner} bf16, first / numpy", f"{found['mlp'][0] / plain:.2f}x", "1.3x"


def attention_rows():
    heads, length, width = 8, 2048, 128
    q, k, v = numbers(heads, length, width), numbers(1, width, length), numbers(1, length, width)
    seen = np.tri(length, dtype=np.bool_)

    def bare():
        with one_blas_thread():
            for head in q:
                scores = np.where(seen, head @ k[0] * np.float32(width**-0.5), np.float32(-np.inf))
                scores = np.exp(scores - scores.max(axis=1, keepdims=True))
                (scores / scores.sum(axis=1, keepdims=True)) @ v[0]

    tensors = [a.astype(BF16) for a in (q, k, v)]
    plain, found = fastest(bare, {"attention": lambda: attention_cte(*tensors)}, 2)
    ratio = found["attention"][0] / plain
    yield f"attention_cte {heads} heads, {length}, causal, first / numpy", f"{ratio:.2f}x", "0.8x"


def planning_rows():
    program = tiled.trace(np.empty((2048, 1024), np.float32), np.empty((2048, 2048), np.float32))
    with fewer_collections():
        seconds = min(cpu(lambda: made(program)) for _ in range(5))
    yield "planning, per instruction", f"{seconds / len(program) * 1e6:.1f} us", "15 us"


def run():
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    return [*matmul_rows(), *mlp_rows(), *attention_rows(), *planning_rows()]
