"""The MP2 energy of a block of amplitudes in one pass over HBM.

E = sum D[a, b] T[a, b] (2 T[a, b] - T[b, a]) for each pair (i, j), with D = 1 / (e_i + e_j - e_a - e_b). D is
symmetric, so a block above the diagonal also covers its mirror: with G = T[a, b] - T[b, a] / 2

    D T[a, b] (2 T[a, b] - T[b, a]) + D T[b, a] (2 T[b, a] - T[a, b]) = 2 D (G**2 + 3/4 T[b, a]**2)

TensorE transposes T[b, a] and sums over partitions, ScalarE squares and inverts, VectorE does the rest.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nki.typing import Tensor
from trnblas.nki.gemm import NC_V3, TILE_M, TILE_N, Span, all_cores, pieces

PAIRS_TOGETHER = 4  # j's of one load: a DMA of several KiB per partition
SUMS_TOGETHER = nl.tile_size.psum_bank_fmax // 2  # pairs whose two sums fit into a PSUM bank


@nki.jit
def mp2_energy_kernel(t_flat: Tensor, eps_occ_chunk: Tensor, eps_occ_full: Tensor, eps_vir: Tensor) -> Tensor:
    """Partial sums [p_tile, ic, nocc] of T (2 T - T^t) / (e_i + e_j - e_a - e_b); their sum is the energy.

    T[i, j, a, b] = t_flat[i * nvir + a, j * nvir + b]: t_flat is [ic * nvir, nocc * nvir] float32, and the
    orbital energies are [ic], [nocc] and [nvir]. p_tile is the largest divisor of nvir up to 128.

    >>> mp2_energy_kernel(t_flat, eps_occ[:4], eps_occ, eps_vir).sum()
    """
    ic, nocc, nvir = eps_occ_chunk.shape[0], eps_occ_full.shape[0], eps_vir.shape[0]
    shape = (ic * nvir, nocc * nvir)
    assert tuple(t_flat.shape) == shape, f"mp2_energy_kernel: t_flat is {t_flat.shape}; {shape} is needed"
    assert t_flat.dtype == nl.float32, f"mp2_energy_kernel: t_flat is {t_flat.dtype}; float32 is needed"
    result = nl.ndarray((largest_divisor(nvir), ic, nocc), nl.float32, buffer=nl.shared_hbm)
    spans = pieces(nvir, TILE_M)
    rows = spans[0][1]
    constants = {
        "identity": nl.shared_identity_matrix(rows, dtype=nl.float32),
        "ones": filled((rows, 1), 1.0),
        "virtuals": virtual_sums(eps_vir, spans),
        "reduction": reduction_matrix(rows, result.shape[0]),
    }
    occupied, chunk = spread(eps_occ_full, rows), spread(eps_occ_chunk, rows)
    cores, me = all_cores()
    for i in range(me, ic, cores):
        shifts = nl.ndarray((rows, nocc), nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(shifts, occupied, op0=nl.add, operand0=chunk[:, i : i + 1])
        for js in pieces(nocc, SUMS_TOGETHER):
            sums = nl.ndarray((rows, 2, js[1] - js[0]), nl.float32, buffer=nl.psum)
            for first in range(js[0], js[1], PAIRS_TOGETHER):
                last = min(first + PAIRS_TOGETHER, js[1])
                strips = load_strips(t_flat, i * nvir, spans, first * nvir, last * nvir)
                for j in range(first, last):
                    pair = sums[:, :, j - js[0] : j - js[0] + 1]
                    add_pair(pair, strips, (j - first) * nvir, spans, shifts[:, j : j + 1], constants)
            mirrored_rows = spans[1][1] - spans[1][0] if len(spans) > 1 else 0
            store_partials(result[:, i, js[0] : js[1]], sums, mirrored_rows, constants["reduction"])
    return result


def mp2_energy_ref(
    t_flat: np.ndarray, eps_occ_chunk: np.ndarray, eps_occ_full: np.ndarray, eps_vir: np.ndarray
) -> np.ndarray:
    """Return the energy [ic, nocc] of each pair in numpy, in float64: the expected sum over partitions."""
    chunk, full, virtual = (x.astype(np.float64) for x in (eps_occ_chunk, eps_occ_full, eps_vir))
    t = t_flat.astype(np.float64).reshape(len(chunk), len(virtual), len(full), len(virtual)).swapaxes(1, 2)
    denominators = chunk[:, None, None, None] + full[:, None, None] - np.add.outer(virtual, virtual)
    return (t * (2 * t - t.swapaxes(2, 3)) / denominators).sum((2, 3))


# ---- one pair ------------------------------------------------------------------------------------


def add_pair(
    sums: Tensor, strips: list[Tensor], first: int, spans: list[Span], shift: Tensor, constants: dict
) -> None:
    """Add the partial sums of the diagonal blocks to sums[:, 0], and of those above it to sums[:, 1]."""
    for i in range(len(spans)):
        together = max(1, TILE_N // TILE_M)
        for begin in range(i, len(spans), together):
            blocks = spans[begin : min(begin + together, len(spans))]
            quotient = weighted(strips, first, i, begin, blocks, spans, shift, constants)
            for block in blocks:
                columns = quotient[:, block[0] - blocks[0][0] : block[1] - blocks[0][0]]
                kind = 0 if block == spans[i] else 1
                # a matmul with a column of ones sums over partitions and leaves the columns in partitions
                target = sums[0 : block[1] - block[0], kind]
                nisa.nc_matmul(
                    target, columns, constants["ones"][0 : columns.shape[0]], is_moving_onezero=True
                )


def weighted(
    strips: list[Tensor],
    first: int,
    i: int,
    begin: int,
    blocks: list[Span],
    spans: list[Span],
    shift: Tensor,
    constants: dict,
) -> Tensor:
    """Return (G**2 + 3/4 T[b, a]**2) / (e_i + e_j - e_a - e_b) for a's of span i and b's of the blocks."""
    a, b = spans[i], (blocks[0][0], blocks[-1][1])
    shape = (a[1] - a[0], b[1] - b[0])
    mirrored = nl.ndarray(shape, nl.float32, buffer=nl.psum)
    for k in range(len(blocks)):
        transpose_block(mirrored, strips[begin + k], first, a, blocks[k], b[0], constants["identity"])
    difference, square = sbuf_tile(shape), sbuf_tile(shape)
    straight = strips[i][:, first + b[0] : first + b[1]]
    nisa.scalar_tensor_tensor(difference, mirrored, nl.multiply, -0.5, nl.add, straight)
    nisa.activation(square, nl.square, mirrored)
    nisa.activation(difference, nl.square, difference)
    nisa.scalar_tensor_tensor(square, square, nl.multiply, 0.75, nl.add, difference)
    weights = reciprocals(constants["virtuals"][i][:, b[0] - a[0] : b[1] - a[0]], shift[0 : shape[0]])
    nisa.tensor_tensor(square, square, weights, op=nl.multiply)
    return square


def transpose_block(
    mirrored: Tensor, strip: Tensor, first: int, a: Span, b: Span, origin: int, identity: Tensor
) -> None:
    """Set mirrored[:, b] to T[b, a] transposed. A product with a flagged identity is fastest on trn1."""
    block = strip[:, first + a[0] : first + a[1]]
    target = mirrored[:, b[0] - origin : b[1] - origin]
    rows = b[1] - b[0]
    nisa.nc_matmul(target, block, identity[0:rows, 0:rows], is_moving_onezero=True)


def reciprocals(virtuals: Tensor, shift: Tensor) -> Tensor:
    """Return 1 / (virtuals + shift); the reciprocal of trn1 takes no bias."""
    weights = sbuf_tile(virtuals.shape)
    if nisa.get_nc_version() >= NC_V3:
        nisa.activation(weights, nl.reciprocal, virtuals, bias=shift)
        return weights
    nisa.activation(weights, nl.copy, virtuals, bias=shift)
    nisa.activation(weights, nl.reciprocal, weights)
    return weights


# ---- loads and stores ----------------------------------------------------------------------------


def load_strips(t_flat: Tensor, row: int, spans: list[Span], first: int, last: int) -> list[Tensor]:
    """Load columns first to last of the rows of each span, counted from `row`."""
    strips = []
    for span in spans:
        strip = sbuf_tile((span[1] - span[0], last - first))
        nisa.dma_copy(strip, t_flat[row + span[0] : row + span[1], first:last])
        strips.append(strip)
    return strips


def virtual_sums(eps_vir: Tensor, spans: list[Span]) -> list[Tensor]:
    """Return -e_a - e_b for the a's of each span and all b's from its first on."""
    nvir = eps_vir.shape[0]
    row = spread(eps_vir, spans[0][1])
    tiles = []
    for span in spans:
        rows = span[1] - span[0]
        column, tile = sbuf_tile((rows, 1)), sbuf_tile((rows, nvir - span[0]))
        nisa.dma_copy(column, eps_vir.reshape((nvir, 1))[span[0] : span[1]])
        nisa.tensor_scalar(
            tile, row[0:rows, span[0] : nvir], op0=nl.add, operand0=column, op1=nl.multiply, operand1=-1.0
        )
        tiles.append(tile)
    return tiles


def spread(vector: Tensor, rows: int) -> Tensor:
    """Load a vector of HBM into each of `rows` partitions."""
    size = vector.shape[0]
    tile = sbuf_tile((rows, size))
    nisa.dma_copy(tile, vector.ap([[0, rows], [1, size]]))
    return tile


def store_partials(result: Tensor, sums: Tensor, mirrored_rows: int, reduction: Tensor) -> None:
    """Store the diagonal sums + 2 x the others; reduced over partitions where result has fewer rows."""
    shape = (sums.shape[0], sums.shape[2])
    partials = sbuf_tile(shape)
    nisa.tensor_copy(partials, sums[:, 0])
    if mirrored_rows > 0:
        target = partials[0:mirrored_rows]
        nisa.scalar_tensor_tensor(target, sums[0:mirrored_rows, 1], nl.multiply, 2.0, nl.add, target)
    if result.shape[0] != shape[0]:
        reduced = nl.ndarray(result.shape, nl.float32, buffer=nl.psum)
        nisa.nc_matmul(reduced, reduction, partials, is_stationary_onezero=True)
        partials = sbuf_tile(result.shape)
        nisa.tensor_copy(partials, reduced)
    nisa.dma_copy(result, partials)


def reduction_matrix(rows: int, width: int) -> Tensor:
    """Return a stationary operand that sums all partitions into the first of `width`."""
    reduction = filled((rows, width), 0.0)
    nisa.memset(reduction[:, 0:1], 1.0)
    return reduction


def filled(shape: tuple[int, ...], value: float) -> Tensor:
    tile = sbuf_tile(shape)
    nisa.memset(tile, value)
    return tile


def sbuf_tile(shape: tuple[int, ...]) -> Tensor:
    return nl.ndarray(shape, nl.float32, buffer=nl.sbuf)


def largest_divisor(size: int) -> int:
    """Return the largest divisor of size up to 128."""
    best = 1
    for candidate in range(1, min(size, TILE_M) + 1):
        if size % candidate == 0:
            best = candidate
    return best
