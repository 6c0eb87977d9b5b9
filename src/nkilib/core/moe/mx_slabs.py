"""Gate and up of an expert, MX weights and scales, in two transfers: what few tokens wait for."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.mx_weights import mx_intermediate_size
from nkilib.core.utils.mx_layout import LANES, lane_columns
from nkilib.core.utils.mx_weight_loads import SCALE_ROWS, SHARING, sorted_rows, word_bytes
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor

SLAB_BYTES = 32 * 1024  # of words in each partition
PIECES = 8  # into which the scales of a row are cut, so that 16 rows fill all partitions


def fits_slab(p: Any) -> bool:
    """Words are few, and no block of columns has its scales in two pieces."""
    size = p.gate_up.size // (p.gate_up.shape[0] * PMAX) * word_bytes(p.gate_up)
    inner = mx_intermediate_size(p)
    return size <= SLAB_BYTES and LANES * lane_columns(inner) == inner


class Slab(nl.NKIObject):
    """Words [128, 2, tiles, I] in SBUF. Scales stand in pieces of a row (gate and up, tiles, I), four of them
    in the partitions of a quadrant in each of two tiles."""

    def __init__(self, p: Any, expert: Tensor | int):
        experts, _, _, tiles, inner = p.gate_up.shape
        self.tiles = tiles
        self.inner = inner
        self.piece = 2 * tiles * inner // PIECES
        self.words = nl.ndarray((PMAX, 2, tiles, inner), p.gate_up.dtype, buffer=nl.sbuf)
        nisa.dma_copy(self.words, p.gate_up.select(0, expert))
        codes = p.gate_up_scale if p.gate_up_scale.dtype == nl.uint8 else p.gate_up_scale.view(nl.uint8)
        spread = nl.ndarray((PMAX, 1, self.piece), nl.uint8, buffer=nl.sbuf)
        by_piece = codes.reshape((experts, PMAX, 1, self.piece))
        nisa.dma_copy(spread, by_piece.select(0, expert))
        self.groups = []
        for some in TiledRange(PIECES, SHARING):
            self.groups.append(sorted_rows(spread, some, PIECES, PMAX, None))

    def scales(self, half: int, tile: int, start: int, end: int) -> Any:
        offset = (half * self.tiles + tile) * self.inner + start
        number = offset // self.piece
        at = offset - number * self.piece
        first = SCALE_ROWS * (number % SHARING)
        return self.groups[number // SHARING][first:, 0, at : at + end - start]


class SlabStream(nl.NKIObject):
    """Gate (half 0) or up (1) of a slab, as project_features_mx takes weights."""

    def __init__(self, slab: Slab, half: int):
        self.slab = slab
        self.half = half
        self.count = slab.tiles
        self.column = 0

    def begin(self, column: int) -> None:
        self.column = column

    def load(self, tile: int) -> None:
        """Everything is there."""

    def words_of(self, tile: int, start: int, end: int) -> Any:
        return self.slab.words[:, self.half, tile, self.column + start : self.column + end]

    def scales_of(self, tile: int, start: int, end: int, ones: Tensor) -> Any:
        return self.slab.scales(self.half, tile, self.column + start, self.column + end)
