"""The problems, their sizes, and what NumPy answers. Every system uses the same sizes and the same tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray
ROWS, COLUMNS, DEPTH = 128, 512, 128  # tiles of a product; rows of a softmax; rows and keys of attention
M = K = N = 512
SOFTMAX = (512, 1024)
SEQUENCE, HEAD = 512, 128


class Problem(NamedTuple):
    title: str
    inputs: tuple[Array, ...]
    in_numpy: Callable[..., Array]

    def close(self, answer: Array) -> bool:
        """Whether an answer is right, against float64."""
        exact = self.in_numpy(*(x.astype(np.float64) for x in self.inputs))
        return bool(np.allclose(np.asarray(answer), exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max()))


def matmul(lhsT: Array, rhs: Array) -> Array:
    return lhsT.T @ rhs


def softmax(x: Array) -> Array:
    grown = np.exp(x - x.max(axis=1, keepdims=True))
    return grown / grown.sum(axis=1, keepdims=True)


def attention(q: Array, k: Array, v: Array) -> Array:
    return softmax(q @ k.T / np.sqrt(HEAD).astype(q.dtype)) @ v


def problems() -> dict[str, Problem]:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape, dtype=np.float32)

    return {
        "matmul": Problem(f"matmul {M} x {K} x {N}", (normal(K, M), normal(K, N)), matmul),
        "softmax": Problem(f"softmax of {SOFTMAX[0]} rows of {SOFTMAX[1]}", (normal(*SOFTMAX),), softmax),
        "attention": Problem(
            f"attention, {SEQUENCE} queries and keys of {HEAD}",
            (normal(SEQUENCE, HEAD), normal(SEQUENCE, HEAD), normal(SEQUENCE, HEAD)),
            attention,
        ),
    }
