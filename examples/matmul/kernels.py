"""C = A @ B in five steps, from one tile to a kernel that keeps the tensor engine busy.

Every kernel takes A transposed (lhsT, [K, M]) and B (rhs, [K, N]): both then hold the contraction
dimension K in their partitions, as the tensor engine requires. The edges of the matrices
need not be multiples of the tile sizes.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_K = nl.tile_size.pmax  # 128 partitions: rows contracted by one matmul
TILE_M = nl.tile_size.gemm_stationary_fmax  # 128 columns of the stationary operand
TILE_N = nl.tile_size.gemm_moving_fmax  # 512 columns of the moving operand


def load(matrix, row, rows, column, columns):
    """Load a tile of an HBM matrix into SBUF, smaller at the edges of the matrix."""
    rows = min(rows, matrix.shape[0] - row)
    columns = min(columns, matrix.shape[1] - column)
    tile = nl.ndarray((rows, columns), matrix.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, matrix[row : row + rows, column : column + columns])
    return tile


def store(result, row, column, tile):
    """Write an SBUF tile to its place in the result."""
    nisa.dma_copy(result[row : row + tile.shape[0], column : column + tile.shape[1]], tile)


def drain(psum, dtype):
    """DMA cannot read PSUM: copy the finished sums to SBUF, in the dtype of the result."""
    tile = nl.ndarray(psum.shape, dtype, buffer=nl.sbuf)
    nisa.tensor_copy(tile, psum)
    return tile


@nki.jit
def single_tile(lhsT, rhs):
    """Step 1: one nc_matmul. K and M are at most 128, N at most 512.

    Data takes the shortest path through the machine: HBM to SBUF by DMA, SBUF to PSUM by the tensor engine,
    PSUM to SBUF by the vector engine, SBUF to HBM by DMA.
    """
    result = nl.ndarray((lhsT.shape[1], rhs.shape[1]), lhsT.dtype, buffer=nl.shared_hbm)
    stationary = load(lhsT, 0, TILE_K, 0, TILE_M)
    moving = load(rhs, 0, TILE_K, 0, TILE_N)
    psum = nl.ndarray((stationary.shape[1], moving.shape[1]), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, stationary, moving)
    store(result, 0, 0, drain(psum, result.dtype))
    return result


@nki.jit
def tiled(lhsT, rhs):
    """Step 2: three loops over tiles; the products of one output tile add up in PSUM.

    Correct for any size, and slow: both operands are loaded again for every matmul. Each tile of lhsT
    is loaded N/512 times, each tile of rhs M/128 times, and the tensor engine waits for them.
    """
    (K, M), N = lhsT.shape, rhs.shape[1]
    result = nl.ndarray((M, N), lhsT.dtype, buffer=nl.shared_hbm)
    for m in range(0, M, TILE_M):
        for n in range(0, N, TILE_N):
            psum = nl.ndarray((min(TILE_M, M - m), min(TILE_N, N - n)), nl.float32, buffer=nl.psum)
            for k in range(0, K, TILE_K):
                stationary = load(lhsT, k, TILE_K, m, TILE_M)
                moving = load(rhs, k, TILE_K, n, TILE_N)
                nisa.nc_matmul(psum, stationary, moving)
            store(result, m, n, drain(psum, result.dtype))
    return result


@nki.jit
def hoisted(lhsT, rhs):
    """Step 3: loads leave the inner loop. A column of lhsT tiles stays in SBUF while rhs is loaded.

    lhsT is now loaded once. rhs is still loaded M/128 times, so the kernel remains bound by DMA, but
    loads run ahead of the matmuls instead of between them.
    """
    (K, M), N = lhsT.shape, rhs.shape[1]
    result = nl.ndarray((M, N), lhsT.dtype, buffer=nl.shared_hbm)
    for m in range(0, M, TILE_M):
        stationary = []
        for k in range(0, K, TILE_K):
            stationary.append(load(lhsT, k, TILE_K, m, TILE_M))
        for n in range(0, N, TILE_N):
            moving = []
            for k in range(0, K, TILE_K):
                moving.append(load(rhs, k, TILE_K, n, TILE_N))
            psum = nl.ndarray((min(TILE_M, M - m), min(TILE_N, N - n)), nl.float32, buffer=nl.psum)
            for k in range(len(moving)):
                nisa.nc_matmul(psum, stationary[k], moving[k])
            store(result, m, n, drain(psum, result.dtype))
    return result


@nki.jit
def blocked_mn(lhsT, rhs, tiles_m=2, tiles_n=2):
    """Step 4: blocks of tiles in M and N. Each loaded tile is used for several output tiles.

    With 2 x 2 tiles rhs is loaded half as often. The cost is SBUF: a block holds all of K for both
    operands, so it cannot grow much further.
    """
    (K, M), N = lhsT.shape, rhs.shape[1]
    result = nl.ndarray((M, N), lhsT.dtype, buffer=nl.shared_hbm)
    for block_m in range(0, M, tiles_m * TILE_M):
        columns = []
        for m in range(block_m, min(M, block_m + tiles_m * TILE_M), TILE_M):
            tiles = []
            for k in range(0, K, TILE_K):
                tiles.append(load(lhsT, k, TILE_K, m, TILE_M))
            columns.append(tiles)
        for block_n in range(0, N, tiles_n * TILE_N):
            rows = []
            for n in range(block_n, min(N, block_n + tiles_n * TILE_N), TILE_N):
                tiles = []
                for k in range(0, K, TILE_K):
                    tiles.append(load(rhs, k, TILE_K, n, TILE_N))
                rows.append(tiles)
            for i in range(len(columns)):
                for j in range(len(rows)):
                    m, n = block_m + i * TILE_M, block_n + j * TILE_N
                    psum = nl.ndarray((min(TILE_M, M - m), min(TILE_N, N - n)), nl.float32, buffer=nl.psum)
                    for k in range(len(rows[j])):
                        nisa.nc_matmul(psum, columns[i][k], rows[j][k])
                    store(result, m, n, drain(psum, result.dtype))
    return result


@nki.jit
def blocked_mnk(lhsT, rhs, tiles_m=16, tiles_n=2, tiles_k=8):
    """Step 5: blocks in K too. Partial sums wait in SBUF, so the blocks of M and N can be large.

    A load now covers a whole row of tiles (8 KiB per partition instead of 2), rhs is loaded once, and
    the vector engine adds each block's sums to the running ones while the tensor engine continues.
    """
    (K, M), N = lhsT.shape, rhs.shape[1]
    block_m, block_n, block_k = tiles_m * TILE_M, tiles_n * TILE_N, tiles_k * TILE_K
    result = nl.ndarray((M, N), lhsT.dtype, buffer=nl.shared_hbm)
    for n in range(0, N, block_n):
        sums = zeroed_tiles(M, min(block_n, N - n))
        for k in range(0, K, block_k):
            moving = []
            for tile_k in range(k, min(K, k + block_k), TILE_K):
                moving.append(load(rhs, tile_k, TILE_K, n, block_n))
            for m in range(0, M, block_m):
                stationary = []
                for tile_k in range(k, min(K, k + block_k), TILE_K):
                    stationary.append(load(lhsT, tile_k, TILE_K, m, block_m))
                multiply_block(sums, m, stationary, moving)
        for m in range(len(sums)):
            packed = nl.ndarray((sums[m][0].shape[0], min(block_n, N - n)), result.dtype, buffer=nl.sbuf)
            for i in range(len(sums[m])):
                columns = sums[m][i].shape[1]
                nisa.tensor_copy(packed[:, i * TILE_N : i * TILE_N + columns], sums[m][i])
            store(result, m * TILE_M, n, packed)
    return result


def zeroed_tiles(height, width):
    """Tiles for the running sums of a block of the result, by row and column."""
    sums = []
    for m in range(0, height, TILE_M):
        row = []
        for n in range(0, width, TILE_N):
            tile = nl.ndarray((min(TILE_M, height - m), min(TILE_N, width - n)), nl.float32, buffer=nl.sbuf)
            nisa.memset(tile, 0.0)
            row.append(tile)
        sums.append(row)
    return sums


def multiply_block(sums, m, stationary, moving):
    """Add the products of one block to the running sums of its rows."""
    height, width = stationary[0].shape[1], moving[0].shape[1]
    for n in range(0, width, TILE_N):
        columns = min(TILE_N, width - n)
        for row in range(0, height, TILE_M):
            rows = min(TILE_M, height - row)
            psum = nl.ndarray((rows, columns), nl.float32, buffer=nl.psum)
            for k in range(len(moving)):
                nisa.nc_matmul(psum, stationary[k][:, row : row + rows], moving[k][:, n : n + columns])
            running = sums[(m + row) // TILE_M][n // TILE_N]
            nisa.tensor_tensor(running, running, psum, op=nl.add)


STEPS = [single_tile, tiled, hoisted, blocked_mn, blocked_mnk]
