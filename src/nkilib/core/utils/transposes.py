"""Transposes on TensorE between rows [tokens, columns] and the layouts with columns in the partitions."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import interleave_copy
from nkilib.core.utils.projection import BANK_COLUMNS, PARTITIONS, bytes_of
from nkilib.core.utils.tiled_range import TiledRange


def transpose_rows(dst: Any, tile: int, token: int, rows: Any) -> None:
    """dst[p, tile + k, token + t] = rows[t, 128 k + p], through PSUM, a bank at a time; dst casts."""
    tokens, columns = rows.shape
    full = columns // PARTITIONS
    for group in TiledRange(full, bank_room(rows, tokens)):
        bank = nl.ndarray((PARTITIONS, group.size, tokens), rows.dtype, buffer=nl.psum)
        for k in range(group.size):
            column = (group.start_offset + k) * PARTITIONS
            nisa.nc_transpose(bank[:, k, :], rows[:, column : column + PARTITIONS])
        place = dst[:, tile + group.start_offset : tile + group.end_offset, token : token + tokens]
        interleave_copy(place, bank, group.index)
    rest = columns - full * PARTITIONS
    if rest > 0:
        bank = nl.ndarray((rest, tokens), rows.dtype, buffer=nl.psum)
        nisa.nc_transpose(bank, rows[:, full * PARTITIONS :])
        nisa.tensor_copy(dst[0:rest, tile + full, token : token + tokens], bank)


def spread_rows(rows: list, dst: Any = None) -> Any:
    """[128, J, tokens] or dst, J = columns / 128: a partition has J adjacent columns, J p + j at [p, j]."""
    tokens, tiles = rows_in(rows), rows[0].shape[1] // PARTITIONS
    tile = dst
    if tile is None:
        tile = nl.ndarray((PARTITIONS, tiles, tokens), rows[0].dtype, buffer=nl.sbuf)
    for i in range(len(rows)):
        spread = rows[i].reshape_dim(1, (PARTITIONS, tiles))
        first, last = i * PARTITIONS, i * PARTITIONS + rows[i].shape[0]
        for group in TiledRange(tiles, bank_room(tile, last - first)):
            bank = nl.ndarray((PARTITIONS, group.size, last - first), tile.dtype, buffer=nl.psum)
            for k in range(group.size):
                nisa.nc_transpose(bank[:, k, :], spread[:, :, group.start_offset + k])
            place = tile[:, group.start_offset : group.end_offset, first:last]
            interleave_copy(place, bank, group.index)
    return tile


def rows_in(rows: list) -> int:
    """All tokens of a list of row tiles, of which all but the last are full."""
    return (len(rows) - 1) * PARTITIONS + rows[len(rows) - 1].shape[0]


def bank_room(tensor: Any, width: int) -> int:
    """How many transposes of this width a PSUM bank holds, in the dtype of the tensor."""
    return BANK_COLUMNS * 4 // (width * bytes_of(tensor))


def rows_from_spread(dst: Any, source: Any) -> None:
    """The other way: dst[t, J p + j] = source[p, j, t]."""
    tiles, tokens = source.shape[1], source.shape[2]
    by_tile = dst.reshape_dim(1, (PARTITIONS, tiles)).permute((0, 2, 1))
    for group in TiledRange(tiles, bank_room(source, PARTITIONS)):
        bank = nl.ndarray((tokens, group.size, PARTITIONS), source.dtype, buffer=nl.psum)
        for k in range(group.size):
            nisa.nc_transpose(bank[:, k, :], source[:, group.start_offset + k, :])
        interleave_copy(by_tile[:, group.start_offset : group.end_offset, :], bank, group.index)
