"""The tasks of the puzzles, in their order: what each kernel computes, and the inputs that it is tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..sandbox import Limits
from ..task import Case, Samples, Task, integers, normal

RELEASE = "aws-0.6"
MASKED = -30000.0
EXPONENTS = 256  # terms of sums with the rounding of a score, a power and two products


def f64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(f64(x) - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def log_sum_exp(x: np.ndarray) -> np.ndarray:
    largest = f64(x).max(-1, keepdims=True)
    return np.log(np.exp(f64(x) - largest).sum(-1, keepdims=True)) + largest


def layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    centered = f64(x) - f64(x).mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta


def mask(x: np.ndarray) -> np.ndarray:
    return np.where(np.tri(*x.shape) > 0, x, MASKED)


def scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return f64(q) @ f64(k).T / np.sqrt(q.shape[1])


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return softmax(scores(q, k)) @ f64(v)


def flash_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    allowed = np.tri(len(q)) > 0
    return softmax(np.where(allowed, scores(q, k), -np.inf)) @ f64(v)


def transposed_matmul(aT: np.ndarray, b: np.ndarray) -> np.ndarray:
    return f64(aT).T @ f64(b)


def task(
    entry: str,
    reference: Callable[..., Any],
    *inputs: dict[str, Samples],
    limit_us: float | None = None,  # of the last inputs
    terms: int | None = None,
) -> Task:
    """Return a task with a case for each set of inputs, named by its shapes."""
    names = [", ".join(f"{a} of {' x '.join(map(str, s.shape))}" for a, s in i.items()) for i in inputs]
    cases = [Case(name, arguments) for name, arguments in zip(names, inputs, strict=True)]
    if limit_us is not None:
        cases[-1] = replace(cases[-1], limits_us=((limit_us, 1.0),))
    limits = Limits(seconds=30.0)
    folder = Path(__file__).parent
    return Task(entry, entry, reference, cases, terms=terms, release=RELEASE, limits=limits, folder=folder)


def matrices(rows: int, depth: int, columns: int, dtype: str = "float32") -> dict[str, Samples]:
    return {"aT": normal((depth, rows), dtype), "b": normal((depth, columns), dtype)}


def heads(tokens: int, size: int = 64) -> dict[str, Samples]:
    return {name: normal((tokens, size)) for name in ("q", "k", "v")}


def norms(rows: int, width: int) -> dict[str, Samples]:
    return {"x": normal((rows, width), mean=2.0), "gamma": normal((width,)), "beta": normal((width,))}


def x_of(*shape: int, std: float = 1.0) -> dict[str, Samples]:
    return {"x": normal(shape, std=std)}


PUZZLES = (
    task("copy", f64, x_of(128, 256)),
    task("scale", lambda x: 3 * f64(x) + 1, x_of(128, 256)),
    task("add", lambda x, y: f64(x) + y, {"x": normal((128, 256)), "y": normal((128, 256))}),
    task("rows", lambda x: f64(x) ** 2, x_of(128, 64), x_of(512, 64)),
    task("edges", lambda x: f64(x) ** 2, x_of(256, 64), x_of(300, 70), x_of(5, 3)),
    task("row_sums", lambda x: f64(x).sum(1, keepdims=True), x_of(128, 200), x_of(300, 70)),
    task("center", lambda x: f64(x) - f64(x).mean(1, keepdims=True), x_of(128, 256), x_of(100, 50)),
    task("bias", lambda x, b: f64(x) + b, {"x": normal((128, 256)), "b": normal((256,))}),
    task("transpose", lambda x: f64(x).T, x_of(128, 128), x_of(256, 384)),
    task("matmul", lambda a, b: f64(a) @ f64(b), {"a": normal((64, 128)), "b": normal((128, 512))}),
    task("accumulate", transposed_matmul, matrices(128, 128, 512), matrices(128, 512, 512)),
    task("tiled_matmul", transposed_matmul, matrices(128, 256, 512), matrices(256, 384, 1024)),
    task("blocked_matmul", transposed_matmul, matrices(128, 128, 512, "bfloat16"),
         matrices(512, 512, 2048, "bfloat16"), limit_us=50.0),
    task("softmax", softmax, x_of(128, 256), x_of(200, 100, std=100.0)),
    task("layer_norm", layer_norm, norms(128, 256), norms(300, 100)),
    task("mask", mask, x_of(128, 128), x_of(256, 256)),
    task("gather", lambda table, ids: f64(table)[ids[:, 0]],
         {"table": normal((1000, 64)), "ids": integers((256, 1), high=1000)}),
    task("log_sum_exp", log_sum_exp, x_of(16, 16384), x_of(4, 65536, std=50.0)),
    task("attention", attention, heads(128), heads(512), terms=EXPONENTS),
    task("flash_attention", flash_attention, heads(128), heads(1024), limit_us=85.0, terms=EXPONENTS),
)  # fmt: skip
TASKS = tuple(replace(task, name=f"puzzle-{number}") for number, task in enumerate(PUZZLES, 1))
