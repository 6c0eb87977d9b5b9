"""The MP2 energy as four separate kernels, each a pass from HBM to HBM at the speed of DMA or close to it.

What a library of elementwise kernels would run: transpose T, combine T (2 T - T^t), multiply by
1 / (e_i + e_j - e_a - e_b), sum over rows. The fused kernel of trnblas does all of it in one pass.
"""

import nki
import nki.isa as nisa
import nki.language as nl
from trnblas.nki.gemm import TILE_M, pieces
from trnblas.nki.mp2 import load_strips, reciprocals, sbuf_tile, spread

COLUMNS = 4096  # of an elementwise tile
PAIRS = 4  # j's of one load


@nki.jit
def transpose_step(t_flat, nvir):
    """out[i nvir + b, j nvir + a] = t_flat[i nvir + a, j nvir + b]"""
    out = nl.ndarray(t_flat.shape, t_flat.dtype, buffer=nl.shared_hbm)
    spans = pieces(nvir, TILE_M)
    identity = nl.shared_identity_matrix(spans[0][1], dtype=nl.float32)
    for row in range(0, t_flat.shape[0], nvir):
        for first in range(0, t_flat.shape[1], PAIRS * nvir):
            last = min(first + PAIRS * nvir, t_flat.shape[1])
            strips = load_strips(t_flat, row, spans, first, last)
            for span in spans:
                turned = sbuf_tile((span[1] - span[0], last - first))
                for column in range(0, last - first, nvir):
                    transpose_strip(turned[:, column : column + nvir], strips, column, span, spans, identity)
                nisa.dma_copy(out[row + span[0] : row + span[1], first:last], turned)
    return out


def transpose_strip(target, strips, column, span, spans, identity):
    psum = nl.ndarray(target.shape, nl.float32, buffer=nl.psum)
    for k in range(len(spans)):
        block = strips[k][:, column + span[0] : column + span[1]]
        rows = block.shape[0]
        part = psum[:, spans[k][0] : spans[k][1]]
        nisa.nc_matmul(part, block, identity[0:rows, 0:rows], is_moving_onezero=True)
    if span[0] == 0:
        nisa.activation(target, nl.copy, psum)
    else:
        nisa.tensor_copy(target, psum)


@nki.jit
def combine_step(t_flat, transposed):
    """t_flat * (2 t_flat - transposed)"""
    out = nl.ndarray(t_flat.shape, t_flat.dtype, buffer=nl.shared_hbm)
    for rows in pieces(t_flat.shape[0], TILE_M):
        for columns in pieces(t_flat.shape[1], COLUMNS):
            x, y = load_tile(t_flat, rows, columns), load_tile(transposed, rows, columns)
            nisa.scalar_tensor_tensor(y, x, nl.multiply, 2.0, nl.subtract, y)
            nisa.tensor_tensor(x, x, y, op=nl.multiply)
            nisa.dma_copy(out[rows[0] : rows[1], columns[0] : columns[1]], x)
    return out


@nki.jit
def divide_step(x, eps_occ_chunk, eps_occ_full, eps_vir):
    """x[i nvir + a, j nvir + b] / (e_i + e_j - e_a - e_b)"""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nvir, nocc = eps_vir.shape[0], eps_occ_full.shape[0]
    spans = pieces(nvir, TILE_M)
    virtuals = full_virtual_sums(eps_vir, spans)
    occupied, chunk = spread(eps_occ_full, spans[0][1]), spread(eps_occ_chunk, spans[0][1])
    for i in range(eps_occ_chunk.shape[0]):
        shifts = sbuf_tile((spans[0][1], nocc))
        nisa.tensor_scalar(shifts, occupied, op0=nl.add, operand0=chunk[:, i : i + 1])
        for first in range(0, nocc, PAIRS):
            last = min(first + PAIRS, nocc)
            strips = load_strips(x, i * nvir, spans, first * nvir, last * nvir)
            for k in range(len(spans)):
                rows = spans[k][1] - spans[k][0]
                for j in range(first, last):
                    part = strips[k][:, (j - first) * nvir : (j - first + 1) * nvir]
                    weights = reciprocals(virtuals[k], shifts[0:rows, j : j + 1])
                    nisa.tensor_tensor(part, part, weights, op=nl.multiply)
                target = out[i * nvir + spans[k][0] : i * nvir + spans[k][1], first * nvir : last * nvir]
                nisa.dma_copy(target, strips[k])
    return out


def full_virtual_sums(eps_vir, spans):
    """-e_a - e_b for the a's of each span and all b's."""
    nvir = eps_vir.shape[0]
    row = spread(eps_vir, spans[0][1])
    tiles = []
    for span in spans:
        rows = span[1] - span[0]
        column, tile = sbuf_tile((rows, 1)), sbuf_tile((rows, nvir))
        nisa.dma_copy(column, eps_vir.reshape((nvir, 1))[span[0] : span[1]])
        nisa.tensor_scalar(tile, row[0:rows], op0=nl.add, operand0=column, op1=nl.multiply, operand1=-1.0)
        tiles.append(tile)
    return tiles


@nki.jit
def sum_step(x, nvir):
    """[rows, nocc]: the sum over b of each row and j."""
    nocc = x.shape[1] // nvir
    out = nl.ndarray((x.shape[0], nocc), x.dtype, buffer=nl.shared_hbm)
    for rows in pieces(x.shape[0], TILE_M):
        sums = sbuf_tile((rows[1] - rows[0], nocc))
        for js in pieces(nocc, 8):
            tile = load_tile(x, rows, (js[0] * nvir, js[1] * nvir))
            parts = tile.reshape((rows[1] - rows[0], js[1] - js[0], nvir))
            nisa.tensor_reduce(sums[:, js[0] : js[1]], nl.add, parts, axis=2)
        nisa.dma_copy(out[rows[0] : rows[1]], sums)
    return out


def load_tile(matrix, rows, columns):
    tile = sbuf_tile((rows[1] - rows[0], columns[1] - columns[0]))
    nisa.dma_copy(tile, matrix[rows[0] : rows[1], columns[0] : columns[1]])
    return tile
