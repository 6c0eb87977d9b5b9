"""A position bias that is stored as a band: the keys around each query."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor

ZERO_COLUMNS = 2048  # stored at a time


def spread_band(band: Tensor, lower: int, keys: int) -> Any:
    """[heads, queries, keys] in HBM with band[b, i, c] for key i - lower + c of query i, zeros elsewhere.

    Rows are long enough for a band that hangs over either end. So the band moves in one piece: a step down
    is one column to the right.
    """
    heads, queries, width = band.shape
    pitch = max(lower + keys, queries - 1 + width)
    wide = nl.ndarray((heads, queries, pitch), band.dtype, buffer=nl.private_hbm)
    zeros = zero_tile(min(pitch, ZERO_COLUMNS), band.dtype)
    for head in range(heads):
        for columns in TiledRange(pitch, ZERO_COLUMNS):
            clear(wide[head, :, columns.start_offset : columns.end_offset], zeros)
        place = wide.ap([[pitch + 1, queries], [1, width]], offset=head * queries * pitch)
        nisa.dma_copy(place, band[head])
    return wide[:, :, lower : lower + keys]


def spread_band_ref(band: np.ndarray, lower: int, keys: int) -> np.ndarray:
    """The same in numpy: element by element."""
    heads, queries, width = band.shape
    dense = np.zeros((heads, queries, keys), band.dtype)
    for i in range(queries):
        for c in range(width):
            if 0 <= i - lower + c < keys:
                dense[:, i, i - lower + c] = band[:, i, c]
    return dense
