"""Zeros in HBM."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor

ZERO_BYTES = 16 * 1024  # of zeros that each partition stores at a time


def zero_tile(columns: int, dtype: DTypeLike) -> Tensor:
    """Zeros to `clear` rows of up to so many columns with."""
    zeros = nl.ndarray((PMAX, columns), dtype, buffer=nl.sbuf)
    nisa.memset(zeros, 0.0)
    return zeros


def clear(rows: Tensor, zeros: Tensor) -> None:
    """Zeros in all rows of a part of HBM."""
    count, columns = rows.shape
    source = zeros[:, 0:columns]
    full = count // PMAX
    for group in TiledRange(full, max(1, ZERO_BYTES // (2 * columns))):
        part = rows[group.start_offset * PMAX : group.end_offset * PMAX]
        place = part.reshape_dim(0, (group.size, PMAX)).permute((1, 0, 2))
        nisa.dma_copy(place, source.expand_dim(1).broadcast(1, group.size))
    if count % PMAX != 0:
        nisa.dma_copy(rows[full * PMAX :], source[0 : count % PMAX])
