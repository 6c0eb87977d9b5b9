"""Matrix products: one blocked kernel body for gemm, batched gemm and syrk.

TensorE contracts over partitions, so both operands enter SBUF with K in their partitions: an operand stored
the other way round is transposed when it is loaded. Sizes are free; edges are tiles cut to their size. On two
cores (`gemm_kernel[2]`) each has half of the blocks of rows.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nki.typing import Tensor

Span: TypeAlias = tuple[int, int]  # (begin, end)
Cores: TypeAlias = tuple[int, int]  # (number of cores, index of this one)

TILE_K = nl.tile_size.pmax  # 128 partitions: rows contracted by one matmul
TILE_M = nl.tile_size.gemm_stationary_fmax  # 128 columns of the stationary operand
TILE_N = nl.tile_size.gemm_moving_fmax  # 512 columns of the moving operand
WAVE = 4  # PSUM tiles filled side by side, while the other four banks are drained
RESIDENT_BYTES = 128 * 1024  # per partition: A up to this size is loaded once
BLOCK_BYTES = 32 * 1024  # per partition: limits one block of an operand, by the depth of a block of K
NC_V3 = 3  # trn2: DMA transposes, hardware descriptor generation


@nki.jit
def gemm_kernel(
    a: Tensor,
    b: Tensor,
    a_transposed: bool = False,
    b_transposed: bool = False,
    block_m: int = 512,
    block_n: int = 512,
    out_dtype: nl.DType | None = None,
) -> Tensor:
    """a @ b, float32 sums, in the dtype of `a` or `out_dtype`.

    a is [M, K], or [K, M] with a_transposed; b is [K, N], or [N, K] with b_transposed. The tiles of a block
    of A (block_m columns of its transpose) are stationary one after the other, B streams past them in
    blocks of block_n columns.

    >>> gemm_kernel(np.eye(2, dtype=np.float32), np.ones((2, 3), np.float32))
    """
    check_operands("gemm_kernel", a, b, a_transposed, b_transposed, 2)
    m, n = a.shape[1 if a_transposed else 0], b.shape[0 if b_transposed else 1]
    result = nl.ndarray((m, n), out_dtype or a.dtype, buffer=nl.shared_hbm)
    multiply(result, a, b, a_transposed, b_transposed, block_m, block_n, False, all_cores())
    return result


def gemm_ref(
    a: np.ndarray, b: np.ndarray, a_transposed: bool = False, b_transposed: bool = False
) -> np.ndarray:
    """Compute gemm_kernel and batched_gemm_kernel in numpy, in float64."""
    left = np.swapaxes(a, -1, -2) if a_transposed else a
    right = np.swapaxes(b, -1, -2) if b_transposed else b
    return np.matmul(left.astype(np.float64), right.astype(np.float64))


@nki.jit
def batched_gemm_kernel(
    a: Tensor,
    b: Tensor,
    a_transposed: bool = False,
    b_transposed: bool = False,
    block_m: int = 512,
    block_n: int = 512,
    out_dtype: nl.DType | None = None,
) -> Tensor:
    """a[i] @ b[i] for every i of the leading dimension; otherwise as gemm_kernel.

    >>> batched_gemm_kernel(np.ones((5, 2, 3), np.float32), np.ones((5, 3, 4), np.float32))
    """
    check_operands("batched_gemm_kernel", a, b, a_transposed, b_transposed, 3)
    m, n = a.shape[2 if a_transposed else 1], b.shape[1 if b_transposed else 2]
    result = nl.ndarray((a.shape[0], m, n), out_dtype or a.dtype, buffer=nl.shared_hbm)
    cores = all_cores()
    is_divided = a.shape[0] >= cores[0]  # whole products for each core; else a part of each
    for i in range(a.shape[0]):
        if not is_divided or i % cores[0] == cores[1]:
            share = (1, 0) if is_divided else cores
            multiply(result[i], a[i], b[i], a_transposed, b_transposed, block_m, block_n, False, share)
    return result


@nki.jit
def syrk_kernel(
    a: Tensor,
    a_transposed: bool = False,
    block_m: int = 512,
    block_n: int = 512,
    out_dtype: nl.DType | None = None,
) -> Tensor:
    """Lower triangle of a @ a.T (of a.T @ a with a_transposed); the tiles above it are not to be read.

    Each row of tiles ends with the tile that holds its diagonal, and zeros follow: 53 % of the work of gemm
    for 16 rows of tiles, ever closer to one half for more.

    >>> syrk_kernel(np.ones((5, 3), np.float32))
    """
    check_operands("syrk_kernel", a, a, a_transposed, not a_transposed, 2)
    n, cores = a.shape[1 if a_transposed else 0], all_cores()
    result = nl.ndarray((n, n), out_dtype or a.dtype, buffer=nl.shared_hbm)
    block_m, block_n = per_core(n, block_m, cores), per_core(n, block_n, cores)
    multiply(result, a, a, a_transposed, not a_transposed, block_m, block_n, True, cores)
    m_blocks = pieces(n, block_m)
    for i in range(len(m_blocks)):
        if owner(i, cores) == cores[1]:
            for rows in pieces_of(m_blocks[i], TILE_M):
                fill_right(result, rows, block_n)
    return result


def fill_right(result: Tensor, rows: Span, limit: int) -> None:
    """Clear the columns right of a row of tiles of the triangle."""
    zeros = nl.ndarray((rows[1] - rows[0], limit), result.dtype, buffer=nl.sbuf)
    nisa.memset(zeros, 0.0)
    for columns in pieces_of((rows[1], result.shape[1]), limit):
        target = result[rows[0] : rows[1], columns[0] : columns[1]]
        nisa.dma_copy(target, zeros[:, 0 : columns[1] - columns[0]])


# ---- the body ------------------------------------------------------------------------------------


def multiply(
    result: Tensor,
    a: Tensor,
    b: Tensor,
    a_transposed: bool,
    b_transposed: bool,
    block_m: int,
    block_n: int,
    lower: bool,
    cores: Cores,
) -> None:
    """Set result = a @ b, or its lower triangle: the loops over blocks.

    cores is (count, index of this one).
    """
    m, n = result.shape
    block_m = per_core(m, block_m, cores)
    k = a.shape[0 if a_transposed else 1]
    k_blocks = pieces(k, depth(max(block_m, block_n), a.dtype))
    is_resident = len(k_blocks) == 1 and bytes_per_partition(k, m, a.dtype) <= RESIDENT_BYTES
    m_blocks, n_blocks = pieces(m, block_m), pieces(n, block_n)
    a_blocks: list[list[Tensor]] = [[]] * len(m_blocks)  # empty until loaded
    for j in range(len(n_blocks)):
        b_block: list[Tensor] = []
        for i in range(len(m_blocks)):
            if owner(i, cores) != cores[1] or (lower and m_blocks[i][1] <= n_blocks[j][0]):
                continue
            if len(k_blocks) > 1:
                deep_block(
                    result, a, b, a_transposed, b_transposed, m_blocks[i], n_blocks[j], k_blocks, lower
                )
                continue
            if len(a_blocks[i]) == 0 or not is_resident:
                a_blocks[i] = load(a, a_transposed, k_blocks[0], m_blocks[i])
            if lower and is_resident and block_m == block_n:  # the same columns of the same matrix
                if len(a_blocks[j]) == 0:
                    a_blocks[j] = load(a, a_transposed, k_blocks[0], m_blocks[j])
                b_block = a_blocks[j]
            elif len(b_block) == 0:
                b_block = load(b, not b_transposed, k_blocks[0], n_blocks[j])
            multiply_block(result, a_blocks[i], b_block, m_blocks[i], n_blocks[j], lower, [], True)


def deep_block(
    result: Tensor,
    a: Tensor,
    b: Tensor,
    a_transposed: bool,
    b_transposed: bool,
    m_block: Span,
    n_block: Span,
    k_blocks: list[Span],
    lower: bool,
) -> None:
    """Compute a block of the result whose K is too long for SBUF: partial sums stay in SBUF."""
    sums: list[Tensor] = []
    for i in range(len(k_blocks)):
        a_block = load(a, a_transposed, k_blocks[i], m_block)
        b_block = load(b, not b_transposed, k_blocks[i], n_block)
        is_last = i == len(k_blocks) - 1
        multiply_block(result, a_block, b_block, m_block, n_block, lower, sums, is_last)


def multiply_block(
    result: Tensor,
    a_block: list[Tensor],
    b_block: list[Tensor],
    m_block: Span,
    n_block: Span,
    lower: bool,
    sums: list[Tensor],
    is_last: bool,
) -> None:
    """Compute one block of the result, in waves of PSUM tiles that share the moving operand.

    Inside a wave K is the outer loop, so that the first matmuls need only the first tiles of K.
    """
    tile = 0
    m_tiles, n_tiles = pieces_of(m_block, TILE_M), pieces_of(n_block, TILE_N)
    for n in n_tiles:
        for first in range(0, len(m_tiles), WAVE):
            wave = []
            for i in range(first, min(first + WAVE, len(m_tiles))):
                m = m_tiles[i]
                end = min(n[1], m[1]) if lower else n[1]
                if end > n[0]:
                    psum = nl.ndarray((m[1] - m[0], end - n[0]), nl.float32, buffer=nl.psum)
                    wave.append((m, (n[0], end), psum))
            for k in range(len(a_block)):
                for target in wave:
                    multiply_tile(target, a_block[k], b_block[k], m_block[0], n_block[0])
            for target in wave:
                finish(result, target, sums, tile, is_last)
                tile += 1


def multiply_tile(
    target: tuple[Span, Span, Tensor], a_tile: Tensor, b_tile: Tensor, first_row: int, first_column: int
) -> None:
    """Add the product of one piece of K to a PSUM tile of the result, (rows, columns, psum)."""
    rows, columns, psum = target
    left = a_tile[:, rows[0] - first_row : rows[1] - first_row]
    nisa.nc_matmul(psum, left, b_tile[:, columns[0] - first_column : columns[1] - first_column])


def finish(
    result: Tensor, target: tuple[Span, Span, Tensor], sums: list[Tensor], tile: int, is_last: bool
) -> None:
    """Send a finished PSUM tile to HBM, or add it to the sums of earlier blocks of K."""
    rows, columns, psum = target
    if tile < len(sums):
        total = nl.ndarray(psum.shape, result.dtype if is_last else nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(total, sums[tile], psum, op=nl.add)
        sums[tile] = total
    else:
        total = drain(psum, result.dtype if is_last else nl.float32, tile)
        sums.append(total)
    if is_last:
        mode = fast_dge() if tile % 2 == 0 else nisa.dge_mode.unknown  # two queues: the last stores overlap
        nisa.dma_copy(result[rows[0] : rows[1], columns[0] : columns[1]], total, dge_mode=mode)


def drain(psum: Tensor, dtype: nl.DType, number: int) -> Tensor:
    """Copy a PSUM tile to SBUF, alternating between VectorE and ScalarE by number."""
    tile = nl.ndarray(psum.shape, dtype, buffer=nl.sbuf)
    if number % 2 == 0:
        nisa.tensor_copy(tile, psum, engine=nisa.engine.vector)
    else:
        nisa.activation(tile, nl.copy, psum)
    return tile


# ---- cores and tiles -----------------------------------------------------------------------------


def check_operands(
    kernel: str, a: Tensor, b: Tensor, a_transposed: bool, b_transposed: bool, rank: int
) -> None:
    """Reject operands that cannot be multiplied before anything is issued."""
    dtypes = (nl.float32, nl.bfloat16, nl.float16)
    assert a.dtype in dtypes, f"{kernel}: a is {a.dtype}; float32, bfloat16 and float16 are possible"
    assert a.dtype == b.dtype, f"{kernel}: a is {a.dtype}, b is {b.dtype}; they must be equal"
    assert len(a.shape) == rank, f"{kernel}: a has {len(a.shape)} dimensions, {rank} are needed"
    assert len(b.shape) == rank, f"{kernel}: b has {len(b.shape)} dimensions, {rank} are needed"
    k, inner = (
        a.shape[rank - 2 if a_transposed else rank - 1],
        b.shape[rank - 1 if b_transposed else rank - 2],
    )
    assert k == inner, f"{kernel}: a contracts {k} elements, b {inner}; they must be equal"
    assert rank == 2 or a.shape[0] == b.shape[0], (
        f"{kernel}: {a.shape[0]} matrices a, {b.shape[0]} matrices b"
    )


def all_cores() -> Cores:
    """Return (number of cores of the launch, index of this one)."""
    return nl.num_programs(0), nl.program_id(0)


def owner(block: int, cores: Cores) -> int:
    """Return the core of a block of rows, 0, 1, 1, 0, ...: the rows of a triangle are shared evenly."""
    core = block % cores[0]
    return core if block // cores[0] % 2 == 0 else cores[0] - 1 - core


def per_core(size: int, block: int, cores: Cores) -> int:
    """Return the block size, reduced where that gives every core a block."""
    share = -(-size // cores[0])
    return min(block, -(-share // TILE_M) * TILE_M)


def pieces(size: int, limit: int) -> list[Span]:
    """Return (begin, end) of equal pieces of at most `limit`. Equal ones fill the PE array evenly."""
    return pieces_of((0, size), limit)


def pieces_of(span: Span, limit: int) -> list[Span]:
    """Return the `pieces` of a span (begin, end)."""
    size = span[1] - span[0]
    step = max(1, -(-size // max(1, -(-size // limit))))
    found = []
    for begin in range(span[0], span[1], step):
        found.append((begin, min(begin + step, span[1])))
    return found


def itemsize(dtype: nl.DType) -> int:
    """Return the bytes of an element: float32 or one of the 16-bit floats."""
    return 4 if dtype == nl.float32 else 2


def bytes_per_partition(k: int, columns: int, dtype: nl.DType) -> int:
    """Return the bytes of an operand of k rows in each partition of SBUF."""
    return -(-k // TILE_K) * columns * itemsize(dtype)


def depth(columns: int, dtype: nl.DType) -> int:
    """Return how many rows of K a block of an operand may have."""
    return max(1, BLOCK_BYTES // (columns * itemsize(dtype))) * TILE_K


def load(matrix: Tensor, has_k_rows: bool, k_block: Span, columns: Span) -> list[Tensor]:
    """Load the tiles [K, columns] of a block of an operand, one for each piece of K."""
    tiles = []
    for k in pieces_of(k_block, TILE_K):
        tile = nl.ndarray((k[1] - k[0], columns[1] - columns[0]), matrix.dtype, buffer=nl.sbuf)
        if has_k_rows:
            nisa.dma_copy(tile, matrix[k[0] : k[1], columns[0] : columns[1]], dge_mode=fast_dge())
        else:
            load_transposed(tile, matrix, k, columns)
        tiles.append(tile)
    return tiles


def fast_dge() -> nisa.dge_mode:
    """Return hardware descriptor generation, where available: transposes need the software queue."""
    return nisa.dge_mode.hwdge if has_dma_transpose() else nisa.dge_mode.unknown


def has_dma_transpose() -> bool:
    """Return True from trn2 on: trn1 transposes single elements in DMA, and TensorE is faster."""
    return nisa.get_nc_version() >= NC_V3


def load_transposed(tile: Tensor, matrix: Tensor, k: Span, columns: Span) -> None:
    """Load tile [K, columns] = the transpose of rows `columns` of a [rows, K] matrix."""
    if has_dma_transpose():
        nisa.dma_transpose(tile, matrix[columns[0] : columns[1], k[0] : k[1]])
        return
    for rows in pieces_of(columns, TILE_M):
        straight = nl.ndarray((rows[1] - rows[0], k[1] - k[0]), matrix.dtype, buffer=nl.sbuf)
        nisa.dma_copy(straight, matrix[rows[0] : rows[1], k[0] : k[1]])
        transposed = nl.ndarray((k[1] - k[0], rows[1] - rows[0]), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(transposed, straight)
        nisa.tensor_copy(tile[:, rows[0] - columns[0] : rows[1] - columns[0]], transposed)
