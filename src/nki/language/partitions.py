"""Reshapes that move elements from one partition to another: no view can, so the elements are copied."""

from __future__ import annotations

from collections.abc import Sequence

from .. import isa
from ..ir.context import current, warn
from ..ir.tensor import NkiTensor
from ..machine.memories import PRIVATE_HBM, PSUM
from .allocation import allocate


def across_partitions(tile: NkiTensor, sizes: Sequence[int]) -> NkiTensor | None:
    """Copy the elements of a tile in order to a tile of another number of partitions, with a warning.

    Return None if no tile has that shape.
    """
    if len(sizes) < 2 or sizes[0] > current().machine.partitions or tile.indirection is not None:
        return None
    warn(
        "partition-dim",
        f"reshape: dimension 0 must stay {tile.shape[0]}, got {sizes[0]}",
        [tile.describe(), "its elements are copied, through HBM, to a new tile; a compiler would refuse"],
        "reshape the HBM tensor before loading it",
    )
    if tile.buffer is PSUM:
        there = allocate("reshape", tile.shape, tile.dtype)
        isa.tensor_copy(there, tile)
        tile = there
    between = allocate("reshape", tile.shape, tile.dtype, PRIVATE_HBM)
    isa.dma_copy(between, tile)
    moved = allocate("reshape", tuple(sizes), tile.dtype)
    isa.dma_copy(moved, between.reshape(tuple(sizes)))
    return moved
