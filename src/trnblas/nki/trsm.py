"""Triangular solves by blocks of 128 rows: all but the inversion of the diagonal blocks is matmuls."""

import nki
import nki.isa as nisa
import nki.language as nl
from trnblas.nki.gemm import TILE_K, TILE_N, drain, load, pieces

SOLVED_BYTES = 64 * 1024  # per partition: what the solved blocks of some columns may take of SBUF


@nki.jit
def trsm_kernel(a, inverses, b, a_transposed=False, backward=False):
    """The x of op(a[i]) @ x[i] = b[i] for every i, where op(a) is a triangle, in float32.

    a is [batch, n, n] with n a multiple of 128, b is [batch, n, columns]. op transposes with a_transposed;
    op(a) is lower, or upper with backward: then the last rows come first. inverses[i, j] is the transposed
    inverse of block j of the diagonal of op(a[i]).

    >>> trsm_kernel(np.eye(128, dtype=np.float32)[None], np.eye(128, dtype=np.float32)[None, None], b)
    """
    result = nl.ndarray(b.shape, b.dtype, buffer=nl.shared_hbm)
    blocks = b.shape[1] // TILE_K
    width = min(TILE_N, max(1, SOLVED_BYTES // (4 * blocks)))
    for i in range(b.shape[0]):
        for columns in pieces(b.shape[2], width):
            solve_columns(result[i], a[i], inverses[i], b[i], a_transposed, backward, columns)
    return result


def solve_columns(result, a, inverses, b, a_transposed, backward, columns):
    """Row by row of blocks: take what the solved rows contribute from the right side, times the inverse."""
    blocks = pieces(b.shape[0], TILE_K)
    solved = []
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


def subtract_known(right, a, a_transposed, rows, solved):
    """right - sum of op(a)[rows, known] @ x[known], summed in PSUM."""
    psum = nl.ndarray(right.shape, nl.float32, buffer=nl.psum)
    for known in solved:
        nisa.nc_matmul(psum, load(a, a_transposed, known[0], rows)[0], known[1])
    rest = nl.ndarray(right.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(rest, right, psum, op=nl.subtract)
    return rest
