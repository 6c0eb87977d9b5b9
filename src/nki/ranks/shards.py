"""Cutting arrays for the ranks, and putting their results together again: numpy and torch, no magic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import error


def split(x: Any, n: int, axis: int = 0) -> list[Any]:
    """`n` equal parts of an array along an axis, as views of it."""
    length = x.shape[axis]
    if length % n:
        raise error("shape", f"split: {length} along axis {axis} is not divisible by {n}")
    step = length // n
    before = (slice(None),) * (axis % x.ndim)
    keys = [(*before, slice(i * step, (i + 1) * step)) for i in range(n)]
    return [x[key] for key in keys]


def join(results: Sequence[Any], axis: int = 0) -> Any:
    """Return the arrays one after the other along an axis."""
    first = results[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(results, axis)
    if type(first).__module__.partition(".")[0] == "torch":
        import torch

        return torch.cat(list(results), axis)
    raise error("argument", f"join: arrays of numpy or torch, got {type(first).__name__}")
