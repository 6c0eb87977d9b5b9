"""Loading and storing tiles of HBM tensors."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.types import DTypeLike, Tensor


def piece(matrix: Tensor, rows: Any, columns: Any) -> Any:
    """The place of a tile in a matrix; rows and columns are tiles of a TiledRange."""
    return matrix[rows.start_offset : rows.end_offset, columns.start_offset : columns.end_offset]


def load(view: Tensor, dtype: DTypeLike | None = None) -> Tensor:
    """A copy of a view of HBM in SBUF. DMA casts it where `dtype` is another than the view's."""
    tile = nl.ndarray(view.shape, view.dtype if dtype is None else dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, view)
    return tile


def store(view: Tensor, tile: Tensor) -> None:
    """Write a tile in SBUF or PSUM to a view of HBM. Casts and PSUM pass through the Scalar engine."""
    ready = tile
    if view.dtype != tile.dtype or tile.buffer == nl.psum:
        ready = nl.ndarray(tile.shape, view.dtype, buffer=nl.sbuf)
        nisa.activation(ready, nl.copy, tile)
    nisa.dma_copy(view, ready)


def hardware_queue() -> Any:
    """The dge_mode of small transfers that others wait for: descriptors made in hardware, where a core can.

    Those made in software start one after the other; this is a second queue beside them.
    """
    if nisa.get_nc_version() >= nisa.nc_version.gen3:
        return nisa.dge_mode.hwdge
    return nisa.dge_mode.unknown
