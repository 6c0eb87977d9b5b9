"""Constant tiles of 0 and 1 for sums by matmul."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor


def all_ones(dtype: DTypeLike) -> Tensor:
    """[128, 128] of 1: as the stationary operand it sums over the partitions, for all of them."""
    tile = nl.ndarray((PMAX, PMAX), dtype, buffer=nl.sbuf)
    nisa.memset(tile, 1.0)
    return tile


def triangle(ones: Tensor) -> Tensor:
    """[i, j]: 1 where i < j. As the stationary operand it sums over earlier partitions."""
    tile = nl.ndarray(ones.shape, ones.dtype, buffer=nl.sbuf)
    nisa.affine_select(
        tile,
        [[1, ones.shape[1]]],
        channel_multiplier=-1,
        on_true_tile=ones,
        on_false_value=0.0,
        cmp_op=nl.greater,
    )
    return tile
