"""Blocks: cuts a large product into parts that threads compute, so that its bits do not depend on them.

BLAS packs all of the left factor for every block of columns, and all of the right one for every block of
rows. Few blocks are therefore fast: one for each thread, where the sums of BLAS do not depend on the cut;
else the size of the product alone decides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from ..reference.blas import sums_are_independent
from .steps import BLOCK

MIN_BLOCK = 1 << 24  # multiplications; smaller blocks do not pay, and BLAS has other kernels for them
MIN_SIDE = 256  # rows and columns of a product that is cut for threads
ALIGNED = 16  # rows and columns; no kernel is wider


def blocks(left: np.ndarray, right: np.ndarray, out: np.ndarray, threads: int) -> list[Callable[[], None]]:
    """Return functions that compute left @ right block by block."""
    cuts = _for_threads(left, right, threads) or tuple(max(1, -(-size // BLOCK)) for size in out.shape)
    rows, columns = (_slices(size, count) for size, count in zip(out.shape, cuts, strict=True))
    return [partial(np.matmul, left[r], right[:, c], out=out[r, c]) for c in columns for r in rows]


def _for_threads(left: np.ndarray, right: np.ndarray, threads: int) -> tuple[int, int] | None:
    """Return how many blocks of rows and of columns threads compute; None: bits would depend on it."""
    rows, depth, columns = *left.shape, right.shape[1]
    is_symmetric = left.ctypes.data == right.ctypes.data  # numpy calls another function of BLAS for x.T @ x
    if min(rows, columns) < MIN_SIDE or is_symmetric or not sums_are_independent():
        return None
    count = max(1, min(threads, rows * columns * depth // MIN_BLOCK))
    grids = [(r, count // r) for r in range(1, count + 1) if count % r == 0]
    return min(grids, key=lambda grid: grid[0] * columns + grid[1] * rows)  # what BLAS packs


def _slices(size: int, count: int) -> list[slice]:
    """Return parts of about one size: of a narrow rest, numpy and BLAS would compute the sums otherwise."""
    cuts = [number * size // count // ALIGNED * ALIGNED for number in range(count)]
    return [slice(start, stop) for start, stop in pairwise([*cuts, size]) if start < stop]
