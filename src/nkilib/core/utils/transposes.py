"""Transposes on TensorE between rows [tokens, columns] and the layouts with columns in the partitions."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import interleave_copy
from nkilib.core.utils.projection import BANK_COLUMNS, bytes_of
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import Tiles, new_tile
from nkilib.core.utils.types import Tensor


def transpose_rows(dst: Tensor, tile: int, token: int, rows: Tensor, adjacent: int = 1) -> None:
    """dst[p, tile + k, token + t] = rows[t, 128 k + p], through PSUM, a bank at a time; dst casts.

    With `adjacent` a, of every a tiles each partition has a neighbouring columns, see projection.Activations.
    """
    tokens, columns = rows.shape
    full = columns // PMAX
    for group in TiledRange(full, bank_room(rows, tokens)):
        bank = nl.ndarray((PMAX, group.size, tokens), rows.dtype, buffer=nl.psum)
        for k in range(group.size):
            nisa.nc_transpose(bank[:, k, :], tile_of_columns(rows, group.start_offset + k, adjacent))
        place = dst[:, tile + group.start_offset : tile + group.end_offset, token : token + tokens]
        interleave_copy(place, bank, group.index)
    rest = columns - full * PMAX
    if rest > 0:
        bank = nl.ndarray((rest, tokens), rows.dtype, buffer=nl.psum)
        nisa.nc_transpose(bank, rows[:, full * PMAX :])
        nisa.tensor_copy(dst[0:rest, tile + full, token : token + tokens], bank)


def tile_of_columns(rows: Tensor, k: int, adjacent: int) -> Any:
    """The columns of tile k, [tokens, 128]."""
    first = k // adjacent * adjacent
    width = min(adjacent, rows.shape[1] // PMAX - first)  # the last group may be smaller
    run = rows[:, first * PMAX : (first + width) * PMAX]
    return run.reshape_dim(1, (PMAX, width))[:, :, k - first]


def spread_rows(rows: list, tiles: Tiles | None = None) -> Any:
    """[128, J, tokens], J = columns / 128: each partition has J adjacent columns, J p + j at [p, j]."""
    shape = (PMAX, rows[0].shape[1] // PMAX, rows_in(rows))
    tile = new_tile(tiles, shape, rows[0].dtype)
    spread_rows_into(tile, rows)
    return tile


def spread_rows_into(tile: Tensor, rows: list) -> None:
    """The same into a tile, or a part of one, [128, J, tokens]."""
    tiles = tile.shape[1]
    for i in range(len(rows)):
        spread = rows[i].reshape_dim(1, (PMAX, tiles))
        first, last = i * PMAX, i * PMAX + rows[i].shape[0]
        for group in TiledRange(tiles, bank_room(tile, last - first)):
            bank = nl.ndarray((PMAX, group.size, last - first), tile.dtype, buffer=nl.psum)
            for k in range(group.size):
                nisa.nc_transpose(bank[:, k, :], spread[:, :, group.start_offset + k])
            place = tile[:, group.start_offset : group.end_offset, first:last]
            interleave_copy(place, bank, group.index)


def rows_in(rows: list) -> int:
    """All tokens of a list of row tiles, of which all but the last are full."""
    return (len(rows) - 1) * PMAX + rows[len(rows) - 1].shape[0]


def bank_room(tensor: Tensor, width: int) -> int:
    """How many transposes of this width a PSUM bank holds, in the dtype of the tensor."""
    return BANK_COLUMNS * 4 // (width * bytes_of(tensor))


def rows_from_spread(dst: Tensor, source: Tensor) -> None:
    """The other way: dst[t, J p + j] = source[p, j, t]."""
    tiles, tokens = source.shape[1], source.shape[2]
    by_tile = dst.reshape_dim(1, (PMAX, tiles)).permute((0, 2, 1))
    for group in TiledRange(tiles, bank_room(source, PMAX)):
        bank = nl.ndarray((tokens, group.size, PMAX), source.dtype, buffer=nl.psum)
        for k in range(group.size):
            nisa.nc_transpose(bank[:, k, :], source[:, group.start_offset + k, :])
        interleave_copy(by_tile[:, group.start_offset : group.end_offset, :], bank, group.index)
