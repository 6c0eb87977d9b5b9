"""MX weights and their scales on their way to SBUF."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.mx_layout import GROUP, ONE, QUADRANT, filled
from nkilib.core.utils.projection import CHUNK_BYTES
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import Tiles, new_tile, stream_tile
from nkilib.core.utils.types import Tensor

SCALE_ROWS = QUADRANT // GROUP  # the first partitions of a quadrant hold its scales
TAPERED_TILES, LAST_PIECES = 3, 4  # of weights: tiles that come alone at the end, and pieces of the last
LONG_CHUNK_BYTES = 28 * 1024  # in each partition, of weights that lie in one piece
WIDE_BYTES = 6 * 1024  # of scales in each partition, up to which tiles share no partitions
BLOCK = 128  # rows and columns of a matrix that share a compact scale
SHARING = 4  # tiles whose scales share a quadrant
KEEP = 255  # in the mask of a shuffle


@dataclass
class MxWeights(nl.NKIObject):
    """Four-packed weights in HBM. Without `scales`, all of them are 1.

    `by_tile`: scales of a tile follow each other in HBM, not those of a row. `compact`: there is one scale
    for 128 rows and 128 columns of the matrix, [tiles, 128-row pieces of a tile, columns / 128] in HBM.
    """

    words: Any
    scales: Any = None
    by_tile: bool = False
    compact: bool = False


def word_bytes(words: Tensor) -> int:
    return 2 if words.dtype == nl.float4_e2m1fn_x4 else 4


# ---- weights -------------------------------------------------------------------------------------


@dataclass
class WeightScales(nl.NKIObject):
    """Scales of all tiles in SBUF. Four tiles share the partitions of a quadrant in each of `groups`.

    Tile t = run v + u is that of the v-th four partitions, at [.., u, columns].
    """

    groups: list
    run: int
    column: int  # of the weights, with which they begin

    def of(self, tile: int, start: int, end: int) -> Any:
        """Of columns start ... end of the weights."""
        place = tile // self.run
        first = SCALE_ROWS * (place % SHARING)
        return self.groups[place // SHARING][first:, tile % self.run, start - self.column : end - self.column]


def load_scales(weights: MxWeights, column: int, columns: int, tiles: Tiles | None) -> Any:
    """Scales of all tiles in the first partitions of each quadrant, where instructions want them.

    DMA engines serve eight partitions each. So that all of them take part, rows come as they follow each
    other, and VectorE puts them into their places.
    """
    if weights.scales is None:
        return None
    if weights.compact:
        return load_compact_scales(weights.scales, column, columns, tiles)
    rows, count = weights.scales.shape[0], weights.scales.shape[1]
    source = weights.scales if weights.scales.dtype == nl.uint8 else weights.scales.view(nl.uint8)
    if weights.by_tile:
        return load_scales_by_tile(source, column, columns, tiles)
    source = source.reshape((rows * count, source.shape[2]))[:, column : column + columns]
    run = shortest_run(count)
    places = count // run
    spread = new_tile(tiles, (PMAX, run, columns), nl.uint8)
    if rows * places == PMAX:
        nisa.dma_copy(spread, source.reshape_dim(0, (PMAX, run)))
    else:
        for quadrant in TiledRange(rows, SCALE_ROWS):
            first, size = QUADRANT * quadrant.index, quadrant.size * places
            if quadrant.size < SCALE_ROWS:  # rows of the quadrant that only pad: any number will do
                nisa.memset(spread[first : first + QUADRANT], ONE)
            part = source[quadrant.start_offset * count : quadrant.end_offset * count]
            nisa.dma_copy(spread[first : first + size], part.reshape_dim(0, (size, run)))
    if places == 1:
        return WeightScales([spread], run, column)
    groups = []
    for some in TiledRange(places, SHARING):
        groups.append(sorted_rows(spread, some, places, filled(GROUP * rows), tiles))
    return WeightScales(groups, run, column)


def load_scales_by_tile(source: Tensor, column: int, columns: int, tiles: Tiles | None) -> WeightScales:
    """Straight into their places, four rows at a time: of all tiles, or, if these are many, every fourth."""
    rows, count = source.shape[0], source.shape[1]
    if count * columns <= WIDE_BYTES:
        return load_wide_scales(source, column, columns, tiles)
    groups = new_tile(tiles, (PMAX, div_ceil(count, SHARING), columns), nl.uint8)
    for quadrant in TiledRange(rows, SCALE_ROWS):
        first = QUADRANT * quadrant.index
        part = source[quadrant.start_offset : quadrant.end_offset, :, column : column + columns]
        if quadrant.size < SCALE_ROWS:  # rows of the quadrant that only pad: any number will do
            nisa.memset(groups[first : first + QUADRANT], ONE)
        for k in range(min(SHARING, count)):
            every = part[:, k:count:SHARING, :]
            start = first + SCALE_ROWS * k
            nisa.dma_copy(groups[start : start + quadrant.size, 0 : every.shape[1], :], every)
    by_group = []
    for group in range(groups.shape[1]):
        by_group.append(groups[:, group : group + 1, :])
    return WeightScales(by_group, 1, column)


def load_wide_scales(source: Tensor, column: int, columns: int, tiles: Tiles | None) -> WeightScales:
    """All tiles side by side: the fewest transfers, small ones, in the queue that nothing else uses."""
    rows, count = source.shape[0], source.shape[1]
    wide = new_tile(tiles, (PMAX, count, columns), nl.uint8)
    for quadrant in TiledRange(rows, SCALE_ROWS):
        first = QUADRANT * quadrant.index
        if quadrant.size < SCALE_ROWS:  # rows of the quadrant that only pad: any number will do
            nisa.memset(wide[first : first + QUADRANT], ONE)
        part = source[quadrant.start_offset : quadrant.end_offset, :, column : column + columns]
        nisa.dma_copy(wide[first : first + quadrant.size], part, dge_mode=nisa.dge_mode.hwdge)
    return WeightScales([wide], count, column)


def load_compact_scales(source: Tensor, column: int, columns: int, tiles: Tiles | None) -> WeightScales:
    """Each scale serves a quadrant, which holds 128 rows, and 128 columns: copied there on chip."""
    count, quadrants = source.shape[0], source.shape[1]
    first, last = column // BLOCK, div_ceil(column + columns, BLOCK)
    few = new_tile(tiles, (PMAX, count, last - first), nl.uint8)
    nisa.memset(few, ONE)  # partitions between those of the quadrants are copied too
    plain = source if source.dtype == nl.uint8 else source.view(nl.uint8)
    for quadrant in range(quadrants):
        part = plain[:, quadrant, first:last].expand_dim(0).broadcast(0, SCALE_ROWS)
        place = few[QUADRANT * quadrant : QUADRANT * quadrant + SCALE_ROWS]
        # two queues start them: each takes longer to start than to move
        mode = nisa.dge_mode.hwdge if quadrant % 2 == 1 else nisa.dge_mode.unknown
        nisa.dma_copy(place, part, dge_mode=mode)
    wide = new_tile(tiles, (PMAX, count, (last - first) * BLOCK), nl.uint8)
    spread = few.expand_dim(3).broadcast(3, BLOCK)
    by_block = wide.reshape((PMAX, count, last - first, BLOCK))
    nisa.tensor_copy(by_block, spread, engine=nisa.gpsimd_engine)  # which has nothing else to do
    return WeightScales([wide], count, first * BLOCK)


def shortest_run(tiles: int) -> int:
    """How many tiles follow each other in a partition, so that a quadrant holds four rows of all of them."""
    run = div_ceil(tiles, GROUP)
    while tiles % run != 0:
        run = run + 1
    return run


def sorted_rows(
    spread: Tensor, some: TiledRangeIterator, places: int, partitions: int, tiles: Tiles | None
) -> Any:
    """Partition places r + v of each quadrant, for four of the v, in partition 4 (v % 4) + r."""
    mask = []
    for partition in range(QUADRANT):
        place, row = some.start_offset + partition // SCALE_ROWS, partition % SCALE_ROWS
        mask.append(places * row + place if place < some.end_offset else KEEP)
    tile = new_tile(tiles, spread.shape, nl.uint8)
    wide = nl.uint32 if spread.shape[2] % 4 == 0 else nl.uint8
    nisa.nc_stream_shuffle(tile.view(wide)[0:partitions], spread.view(wide)[0:partitions], mask)
    return tile


def load_words(
    weights: MxWeights, first: int, count: int, column: int, columns: int, tiles: Tiles | None
) -> Any:
    """Some tiles in SBUF, [whole quadrants, tiles, columns]; partitions that only pad hold zeros."""
    rows = weights.words.shape[0]
    tile = stream_tile(tiles, (filled(rows), count, columns), weights.words.dtype)
    if filled(rows) > rows:
        start = rows // QUADRANT * QUADRANT
        plain = nl.uint16 if word_bytes(weights.words) == 2 else nl.uint32
        nisa.memset(tile.view(plain)[start:], 0)
    part = weights.words[:, first : first + count, column : column + columns]
    nisa.dma_copy(tile[0:rows], part)
    return tile


class WeightStream(nl.NKIObject):
    """Some columns of the weights, tile after tile: `load` brings what is next.

    The last tile comes alone: it is what nothing hides. With `taper`, so do those before it, and the last one
    in pieces of whole blocks.
    """

    def __init__(
        self,
        weights: MxWeights,
        column: int,
        columns: int,
        tiles: Tiles | None,
        scales: WeightScales | None = None,
        taper: bool = False,
    ):
        self.weights = weights
        self.column = column
        self.columns = columns
        self.tiles = tiles
        self.count = weights.words.shape[1]
        whole = columns == weights.words.shape[2]  # tiles of a partition follow each other in HBM
        chunk = LONG_CHUNK_BYTES if whole and tiles is None else CHUNK_BYTES
        self.step = max(1, chunk // (columns * word_bytes(weights.words)))
        self.scales = load_scales(weights, column, columns, tiles) if scales is None else scales
        self.alone = min(self.count, TAPERED_TILES if taper else 1)
        self.piece = BLOCK * div_ceil(columns, BLOCK * LAST_PIECES) if taper else columns
        self.words: list = []
        self.width = columns  # of each of the words
        self.first = 0
        self.next = 0

    def load(self, tile: int) -> None:
        if tile < self.next:
            return
        rest = self.count - tile
        count = min(self.step, max(1, rest - self.alone))
        self.width = self.piece if rest == 1 else self.columns
        self.words = []
        for part in TiledRange(self.columns, self.width):
            column = self.column + part.start_offset
            self.words.append(load_words(self.weights, tile, count, column, part.size, self.tiles))
        self.first = tile
        self.next = tile + count

    def words_of(self, tile: int, start: int, end: int) -> Any:
        part = start // self.width
        at = part * self.width
        return self.words[part][:, tile - self.first, start - at : end - at]

    def scales_of(self, tile: int, start: int, end: int, ones: Tensor) -> Any:
        if self.scales is None:
            return ones[:, 0 : end - start]
        return self.scales.of(tile, self.column + start, self.column + end)
