"""How microscaling (MX) words and their scales are laid out: sizes, and which element is where."""

from __future__ import annotations

from typing import Any

import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

LANES, GROUP, QUADRANT = 4, 8, 32  # elements of a word; partitions that share a scale; a quadrant
TILE = PMAX * LANES  # of the contraction
ONE = 127  # the code of the scale 1
SCALE_DTYPES = (nl.uint8, nl.float8_e8m0fnu)
WORDS = (nl.float8_e4m3fn_x4, nl.float8_e5m2_x4, nl.float4_e2m1fn_x4)


def as_words(name: str, tensor: Tensor) -> Any:
    """A tensor seen as four-packed: it is so, has words without a type, or FP8 with four lanes innermost."""
    if tensor.dtype in WORDS:
        return tensor
    if tensor.dtype == nl.uint16:
        return tensor.view(nl.float4_e2m1fn_x4)
    if tensor.dtype == nl.uint32:
        return tensor.view(nl.float8_e4m3fn_x4)
    kernel_assert(
        tensor.dtype in (nl.float8_e4m3fn, nl.float8_e5m2),
        f"{name}: got {tensor.dtype}, expected a four-packed FP8 or FP4 dtype, uint16, uint32, float8_e4m3fn "
        "or float8_e5m2",
    )
    return tensor.view(nl.float8_e4m3fn_x4 if tensor.dtype == nl.float8_e4m3fn else nl.float8_e5m2_x4)


def filled(rows: int) -> int:
    """Partitions of whole quadrants, which is what MX instructions work on."""
    return div_ceil(rows, QUADRANT) * QUADRANT


def contraction_rows(size: int) -> int:
    """Partitions that a contraction fills: of less than a tile a quarter, in whole groups."""
    return min(PMAX, div_ceil(div_ceil(size, LANES), GROUP) * GROUP)


def lane_columns(size: int, tile: int = 0) -> int:
    """How many elements of a contraction follow each other in a lane of a tile.

    It is a quarter of the tile, rounded up to an even number: they are the columns of a stationary operand.
    The last lanes may have fewer, and the partitions after those, up to a whole group, hold zeros.
    """
    quarter = div_ceil(min(TILE, size - tile * TILE), LANES)
    return quarter + quarter % 2


def block_column(size: int, block: int) -> int:
    """Where block 4 t + q begins, which is lane q of tile t of a contraction."""
    tile = block // LANES
    return tile * TILE + block % LANES * lane_columns(size, tile)
