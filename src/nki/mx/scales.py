"""Where kernels want the scales: in the first rows of each quadrant, four tiles side by side if packed.

Dense scales are [K/32, F]: row r belongs to rows 8r to 8r+7 of the elements [K/4, 4F].
"""

from __future__ import annotations

import numpy as np

from .arrays import Array, either

QUADRANT, SCALES = 32, 4  # rows of a quadrant, and how many of them hold its scales
TILE_ROWS = 128  # of elements that one matmul takes
PACKED_TILES = 4  # that share a block of 128 rows of packed scales


def _hardware_rows(dense_rows: int) -> np.ndarray:
    row = np.arange(dense_rows)
    return QUADRANT * (row // SCALES) + row % SCALES


def _packed_rows(dense_rows: int) -> np.ndarray:
    per_tile = TILE_ROWS // QUADRANT * SCALES
    tile, row = np.divmod(np.arange(dense_rows), per_tile)
    block, place = np.divmod(tile, PACKED_TILES)
    return TILE_ROWS * block + SCALES * place + _hardware_rows(per_tile)[row]


def _checked(dense: Array) -> np.ndarray:
    dense = np.asarray(dense)
    if dense.ndim != 2 or dense.shape[0] % SCALES:
        raise ValueError(f"scales: got shape {dense.shape}, expected [K/32, F] with K a multiple of 128")
    return dense


def _spread(dense: np.ndarray, rows: np.ndarray, total: int) -> np.ndarray:
    out = np.zeros((total, dense.shape[1]), dense.dtype)
    out[rows] = dense
    return out


@either
def to_hardware_scales(dense: Array) -> Array:
    """Dense [K/32, F] as [K/4, F]: row r at 32 (r // 4) + r % 4, zeros between; as an SBUF tile has them."""
    dense = _checked(dense)
    return _spread(dense, _hardware_rows(dense.shape[0]), 8 * dense.shape[0])


@either
def from_hardware_scales(scales: Array) -> Array:
    """[K/4, F] as dense [K/32, F]."""
    scales = np.asarray(scales)
    return scales[_hardware_rows(scales.shape[0] // 8)]


@either
def pack_scales(dense: Array) -> Array:
    """Dense [K/32, F] as [128 ceil(tiles/4), F]: tile t in block t // 4, 4 (t % 4) rows further down."""
    dense = _checked(dense)
    tiles = -(-dense.shape[0] // (TILE_ROWS // 8))
    total = TILE_ROWS * -(-tiles // PACKED_TILES)
    return _spread(dense, _packed_rows(dense.shape[0]), total)


@either
def unpack_scales(packed: Array, k: int) -> Array:
    """Packed scales of a contraction of k as dense [K/32, F]."""
    return np.asarray(packed)[_packed_rows(k // 32)]
