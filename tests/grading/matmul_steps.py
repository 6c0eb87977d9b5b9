"""The five steps of the guide to matrix products, written for the tests of the task `matmul-guide`."""

import nki
import nki.isa as nisa
import nki.language as nl

M_TILE, K_TILE, N_TILE = 128, 128, 512
M_BLOCK, K_BLOCK, N_BLOCK = 1024, 1024, 1024


def load(source):
    tile = nl.ndarray(source.shape, source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, source)
    return tile


def store(out, psum):
    tile = nl.ndarray(psum.shape, out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(tile, psum)
    nisa.dma_copy(out, tile)


@nki.jit
def basic(aT, b):
    """One product: no more than a tile."""
    out = nl.ndarray((aT.shape[1], b.shape[1]), aT.dtype, buffer=nl.shared_hbm)
    psum = nl.ndarray(out.shape, nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, load(aT), load(b))
    store(out, psum)
    return out


@nki.jit
def tiled(aT, b):
    """Load both operands of every product."""
    out = nl.ndarray((aT.shape[1], b.shape[1]), aT.dtype, buffer=nl.shared_hbm)
    for m in range(0, aT.shape[1], M_TILE):
        rows = slice(m, min(m + M_TILE, aT.shape[1]))
        for n in range(0, b.shape[1], N_TILE):
            psum = nl.ndarray((rows.stop - m, N_TILE), nl.float32, buffer=nl.psum)
            for k in range(0, aT.shape[0], K_TILE):
                left, right = load(aT[k : k + K_TILE, rows]), load(b[k : k + K_TILE, n : n + N_TILE])
                nisa.nc_matmul(psum, left, right)
            store(out[rows, n : n + N_TILE], psum)
    return out


@nki.jit
def hoisted(aT, b):
    """Load the left tiles of a row block once."""
    out = nl.ndarray((aT.shape[1], b.shape[1]), aT.dtype, buffer=nl.shared_hbm)
    for m in range(0, aT.shape[1], M_TILE):
        rows = slice(m, min(m + M_TILE, aT.shape[1]))
        lefts = [load(aT[k : k + K_TILE, rows]) for k in range(0, aT.shape[0], K_TILE)]
        for n in range(0, b.shape[1], N_TILE):
            psum = nl.ndarray((rows.stop - m, N_TILE), nl.float32, buffer=nl.psum)
            for k in range(0, aT.shape[0], K_TILE):
                nisa.nc_matmul(psum, lefts[k // K_TILE], load(b[k : k + K_TILE, n : n + N_TILE]))
            store(out[rows, n : n + N_TILE], psum)
    return out


def products(out, lefts, rights, m, n, rows, columns):
    """Store the product of a block of rows and a block of columns, tile by tile."""
    for i in range(0, rows, M_TILE):
        height = min(M_TILE, rows - i)
        for j in range(0, columns, N_TILE):
            psum = nl.ndarray((height, N_TILE), nl.float32, buffer=nl.psum)
            for left, right in zip(lefts, rights, strict=True):
                nisa.nc_matmul(psum, left[:, i : i + height], right[:, j : j + N_TILE])
            store(out[m + i : m + i + height, n + j : n + j + N_TILE], psum)


@nki.jit
def blocked(aT, b):
    """Load blocks of several tiles of rows and columns, over the whole contraction."""
    depth, rows = aT.shape
    out = nl.ndarray((rows, b.shape[1]), aT.dtype, buffer=nl.shared_hbm)
    for m in range(0, rows, 256):
        height = min(256, rows - m)
        lefts = [load(aT[k : k + K_TILE, m : m + height]) for k in range(0, depth, K_TILE)]
        for n in range(0, b.shape[1], N_BLOCK):
            width = min(N_BLOCK, b.shape[1] - n)
            rights = [load(b[k : k + K_TILE, n : n + width]) for k in range(0, depth, K_TILE)]
            products(out, lefts, rights, m, n, height, width)
    return out


@nki.jit
def optimized(aT, b):
    """Load large blocks of all dimensions, and store whole rows of a block."""
    depth, rows = aT.shape
    out = nl.ndarray((rows, b.shape[1]), aT.dtype, buffer=nl.shared_hbm)
    for n in range(0, b.shape[1], N_BLOCK):
        width = min(N_BLOCK, b.shape[1] - n)
        sums = []
        for k in range(0, depth, K_BLOCK):
            inner = range(k, min(k + K_BLOCK, depth), K_TILE)
            rights = [load(b[i : i + K_TILE, n : n + width]) for i in inner]
            lefts = [load(aT[i : i + K_TILE]) for i in inner]
            add_block(sums, lefts, rights, rows, width)
        for i in range(len(sums)):
            result = nl.ndarray(sums[i].shape, out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(result, sums[i])
            nisa.dma_copy(out[i * M_TILE : i * M_TILE + result.shape[0], n : n + width], result)
    return out


def add_block(sums, lefts, rights, rows, width):
    """Add the products of a block of the contraction to the sums in SBUF; the first block makes them."""
    first = len(sums) == 0
    for m in range(0, rows, M_TILE):
        height = min(M_TILE, rows - m)
        if first:
            sums.append(nl.ndarray((height, width), nl.float32, buffer=nl.sbuf))
        total = sums[m // M_TILE]
        for j in range(0, width, N_TILE):
            psum = nl.ndarray((height, N_TILE), nl.float32, buffer=nl.psum)
            for i in range(len(lefts)):
                nisa.nc_matmul(psum, lefts[i][:, m : m + height], rights[i][:, j : j + N_TILE])
            part = total[:, j : j + N_TILE]
            if first:
                nisa.tensor_copy(part, psum)
            else:
                nisa.tensor_tensor(part, part, psum, nl.add)
