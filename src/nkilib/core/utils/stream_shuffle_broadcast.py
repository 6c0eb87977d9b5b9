"""One partition to many."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor

QUADRANT = 32  # partitions that a shuffle reaches from one of them


def stream_shuffle_broadcast(src: Tensor, dst: Tensor) -> None:
    """dst[p, :] = src[0, :] for every partition p. Both are 2-D in SBUF, and may be the same tile."""
    _check_tile("src", src)
    _check_tile("dst", dst)
    kernel_assert(
        src.shape[1] == dst.shape[1],
        f"dst: got free size {dst.shape[1]}, expected {src.shape[1]} like src",
    )
    for quadrant in TiledRange(dst.shape[0], QUADRANT):
        rows = dst[quadrant.start_offset : quadrant.end_offset, :]
        nisa.nc_stream_shuffle(rows, src[0:1, :], shuffle_mask=[0] * QUADRANT)


def _check_tile(name: str, tile: Tensor) -> None:
    kernel_assert(len(tile.shape) == 2, f"{name}: got {len(tile.shape)} dimensions, expected 2")
    kernel_assert(tile.buffer == nl.sbuf, f"{name}: got buffer {tile.buffer}, expected nl.sbuf")
