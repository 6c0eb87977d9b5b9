"""The k largest of each row, largest first: eight at a time on VectorE.

A row that is longer than others need partitions is spread over several: each piece gives its k largest, then
the pieces of a row are brought to one partition and searched again, as many at a time as SBUF has space for.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import div_ceil, program_share
from nkilib.core.utils.tile_io import store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor

AT_ONCE = 8  # what max8 finds
MAX_COLUMNS = 16384  # that max8 reads
MERGED_COLUMNS = 8192  # of pieces that are searched together, beside the row itself
MAX_WIDTH = PMAX * MAX_COLUMNS  # of a row, a piece in each partition
PIECE_COLUMNS = 512  # shorter pieces of rows do not pay
LOWEST = -3.0e38  # padding, and in place of what was found: values must be larger


def largest(data: Tensor, k: int, dtype: Any = nl.float32) -> tuple:
    """(values in dtype, places uint32), [rows, k rounded up to 8] each; data [rows, 8 or more] is lost."""
    rows, passes = data.shape[0], div_ceil(k, AT_ONCE)
    values = nl.ndarray((rows, passes * AT_ONCE), dtype, buffer=nl.sbuf)
    places = nl.ndarray((rows, passes * AT_ONCE), nl.uint32, buffer=nl.sbuf)
    for i in range(passes):
        some = (slice(None), slice(i * AT_ONCE, (i + 1) * AT_ONCE))
        nisa.max8(values[some], data)
        nisa.nc_find_index8(places[some], data, values[some])
        if i < passes - 1:
            nisa.nc_match_replace8(data, data, values[some], LOWEST)
    return values, places


def top_of_rows(values: Tensor, index: Tensor, x: Tensor) -> None:
    """values, index [R, k] = the k largest of each row of x [R, V] and their columns, this core's rows."""
    first, end = program_share(x.shape[0])
    columns, k = x.shape[1], values.shape[1]
    pieces = div_ceil(columns, MAX_COLUMNS)
    if first < end:
        pieces = max(pieces, min(PMAX // min(PMAX, end - first), columns // max(PIECE_COLUMNS, 8 * k)))
    for tile in TiledRange(end - first, PMAX // pieces):
        start = first + tile.start_offset
        found, places = top_of_pieces(x[start : start + tile.size], pieces, k)
        store(values[start : start + tile.size], found[:, 0:k])
        chosen = nl.ndarray((tile.size, k), nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(chosen, places[:, 0:k])
        nisa.dma_copy(index[start : start + tile.size], chosen)


def top_of_pieces(x: Tensor, pieces: int, k: int) -> tuple:
    """The k largest of rows [n, V] with n pieces <= 128, and their columns in float32."""
    rows, columns = x.shape
    width = max(AT_ONCE, div_ceil(columns, pieces))
    dtype = nl.float32 if x.dtype == nl.float16 else x.dtype  # float16 cannot hold LOWEST
    data = nl.ndarray((rows * pieces, width), dtype, buffer=nl.sbuf)
    if width * pieces != columns:
        nisa.memset(data, LOWEST)
    for piece in TiledRange(columns, width):
        place = slice(piece.index * rows, (piece.index + 1) * rows)
        nisa.dma_copy(data[place, 0 : piece.size], x[:, piece.start_offset : piece.end_offset])
    own, places = largest(data, min(k, width))
    index = nl.ndarray(own.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(index, places)
    if pieces == 1:
        return own, index
    return merged(own, index, rows, width, k)


def merged(own: Tensor, index: Tensor, rows: int, width: int, k: int) -> tuple:
    """Search what the pieces of each row have found, a few pieces at a time after the best so far."""
    each, pieces = own.shape[1], own.shape[0] // rows
    found = (own[0:rows], index[0:rows])
    for group in TiledRange(pieces - 1, max(1, MERGED_COLUMNS // each - 1)):
        values = nl.ndarray((rows, 1 + group.size, each), nl.float32, buffer=nl.sbuf)
        columns = nl.ndarray((rows, 1 + group.size, each), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(values[:, 0, :], found[0])
        nisa.dma_copy(columns[:, 0, :], found[1])
        for place in range(1, 1 + group.size):
            piece = group.start_offset + place
            partitions = slice(piece * rows, (piece + 1) * rows)
            nisa.dma_copy(values[:, place, :], own[partitions])
            nisa.dma_copy(columns[:, place, :], index[partitions])
            part = columns[:, place, :]
            nisa.tensor_scalar(part, part, nl.add, float(piece * width))
        best, places = largest(values.flatten_dims(1, 2), k)
        chosen = nl.ndarray(best.shape, nl.float32, buffer=nl.sbuf)
        nisa.nc_n_gather(chosen, columns.flatten_dims(1, 2), places)
        found = (best, chosen)
    return found


def as_rows(x: Tensor) -> Any:
    """x [..., V] as a matrix."""
    return x.reshape((x.size // x.shape[-1], x.shape[-1]))
