"""Loops over tiles whose last one may be short."""

from __future__ import annotations

import nki.language as nl


class TiledRangeIterator(nl.NKIObject):
    """One tile of a range: size, index, start_offset, end_offset."""

    def __init__(self, tile_size: int, tile_index: int, start_offset: int, end_offset: int):
        self.size = tile_size
        self.index = tile_index
        self.start_offset = start_offset
        self.end_offset = end_offset


def TiledRange(size: int | TiledRangeIterator, tile_size: int) -> tuple[TiledRangeIterator, ...]:
    """Return the tiles that cover `size` elements, or another tile: then offsets stay absolute.

    >>> [(t.size, t.index, t.start_offset, t.end_offset) for t in TiledRange(300, 128)]
    [(128, 0, 0, 128), (128, 1, 128, 256), (44, 2, 256, 300)]
    """
    if isinstance(size, TiledRangeIterator):
        start, end = size.start_offset, size.end_offset
    else:
        start, end = 0, size
    tiles: list[TiledRangeIterator] = []
    for offset in range(start, end, tile_size):
        stop = min(offset + tile_size, end)
        tiles.append(TiledRangeIterator(stop - offset, len(tiles), offset, stop))
    return tuple(tiles)
