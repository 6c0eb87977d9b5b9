"""Triangular solves by blocks of 128 rows: all but the inversion of the diagonal blocks is matmuls."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nki.typing import Tensor
from trnblas.nki.gemm import TILE_K, TILE_N, Span, all_cores, drain, load, pieces

SOLVED_BYTES = 64 * 1024  # per partition: what the solved blocks of some columns may take of SBUF


@nki.jit
def trsm_kernel(
    a: Tensor, inverses: Tensor, b: Tensor, a_transposed: bool = False, backward: bool = False
) -> Tensor:
    """The x of op(a[i]) @ x[i] = b[i] for every i, where op(a) is a triangle, in float32.

    a is [batch, n, n] with n a multiple of 128, b is [batch, n, columns]. op transposes with a_transposed;
    op(a) is lower, or upper with backward: then the last rows come first. inverses[i, j] is the transposed
    inverse of block j of the diagonal of op(a[i]).

    >>> trsm_kernel(np.eye(128, dtype=np.float32)[None], np.eye(128, dtype=np.float32)[None, None], b)
    """
    batch, n, columns = b.shape
    assert n % TILE_K == 0, f"trsm_kernel: b has {n} rows; a multiple of {TILE_K} is needed"
    assert tuple(a.shape) == (batch, n, n), f"trsm_kernel: a is {a.shape}; {(batch, n, n)} is needed"
    shape = (batch, n // TILE_K, TILE_K, TILE_K)
    assert tuple(inverses.shape) == shape, f"trsm_kernel: inverses are {inverses.shape}; {shape} is needed"
    result = nl.ndarray(b.shape, b.dtype, buffer=nl.shared_hbm)
    cores, me = all_cores()
    width = min(TILE_N, max(1, SOLVED_BYTES // (4 * n // TILE_K)), -(-columns // cores))
    spans = pieces(columns, width)
    for unit in range(me, batch * len(spans), cores):  # systems and columns are distributed over the cores
        i, span = unit // len(spans), spans[unit % len(spans)]
        solve_columns(result[i], a[i], inverses[i], b[i], a_transposed, backward, span)
    return result


def trsm_ref(a: np.ndarray, b: np.ndarray, a_transposed: bool = False, backward: bool = False) -> np.ndarray:
    """Compute trsm_kernel in numpy, in float64."""
    full = np.swapaxes(a, -1, -2) if a_transposed else a
    triangle = np.triu(full) if backward else np.tril(full)
    return np.linalg.solve(triangle.astype(np.float64), b.astype(np.float64))


def solve_columns(
    result: Tensor, a: Tensor, inverses: Tensor, b: Tensor, a_transposed: bool, backward: bool, columns: Span
) -> None:
    """Solve block by block: subtract the solved rows' contribution, then multiply by the inverse."""
    blocks = pieces(b.shape[0], TILE_K)
    solved: list[tuple[Span, Tensor]] = []
    for step in range(len(blocks)):
        block = len(blocks) - 1 - step if backward else step
        rows = blocks[block]
        right = load(b, True, rows, columns)[0]
        if step > 0:
            right = subtract_known(right, a, a_transposed, rows, solved)
        inverse = load(inverses[block], True, (0, TILE_K), (0, TILE_K))[0]
        psum = nl.ndarray(right.shape, nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, inverse, right)
        x = drain(psum, result.dtype, step)
        solved.append((rows, x))
        nisa.dma_copy(result[rows[0] : rows[1], columns[0] : columns[1]], x)


def subtract_known(
    right: Tensor, a: Tensor, a_transposed: bool, rows: Span, solved: list[tuple[Span, Tensor]]
) -> Tensor:
    """Return right - sum of op(a)[rows, known] @ x[known], summed in PSUM."""
    psum = nl.ndarray(right.shape, nl.float32, buffer=nl.psum)
    for known in solved:
        nisa.nc_matmul(psum, load(a, a_transposed, known[0], rows)[0], known[1])
    rest = nl.ndarray(right.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(rest, right, psum, op=nl.subtract)
    return rest
