"""Rows of blocks, written one after the other at the block offsets that a table gives."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor

FILL_COLUMNS = 2048  # of padding that a partition stores at a time


@nki.jit
def indexed_flatten(
    input_tensor: Tensor,
    f_len: int,
    output_len: int,
    row_offsets: Tensor,
    row_offsets_start: Tensor | None = None,
    padding_val: int | float = -1,
) -> Tensor:
    """out [output_len]: row e of input_tensor [E, T], in blocks of f_len, from block row_offsets[s + e].

    f_len divides T and output_len. row_offsets is [N] int32, s the one element of row_offsets_start or 0.
    Blocks outside out are left out; later rows overwrite earlier ones; what no row covers is padding_val. One
    core does all, a second one nothing. The original has no page: this follows what callers pass.

    >>> indexed_flatten(np.array([[1, 2], [3, 4]], np.int32), 1, 5, np.array([3, 1], np.int32)).tolist()
    [-1, 3, 4, 1, 2]
    """
    core = get_verified_program_sharding_info("indexed_flatten", (0, 1), 2)[2]
    check(input_tensor, f_len, output_len, row_offsets, row_offsets_start)
    out = nl.ndarray((output_len,), input_tensor.dtype, buffer=nl.shared_hbm)
    if core > 0:
        return out
    rows, length = input_tensor.shape
    fill(out, padding_val)
    offsets = nl.ndarray((1, rows), nl.int32, buffer=nl.sbuf)
    if row_offsets_start is None:
        nisa.dma_copy(offsets, row_offsets[0:rows].expand_dim(0))
    else:
        start = nisa.register_alloc(None)
        nisa.register_load(start, row_offsets_start)
        nisa.dma_copy(offsets, row_offsets.ap([[1, 1], [1, rows]], scalar_offset=start, indirect_dim=0))
    ones = nl.ndarray((1, PMAX), nl.float32, buffer=nl.sbuf)
    nisa.memset(ones, 1.0)
    numbers = nl.ndarray((1, rows), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(numbers, offsets)
    for group in TiledRange(rows, 512):
        first = nl.ndarray((PMAX, group.size), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(first, ones, numbers[:, group.start_offset : group.end_offset])
        for row in range(group.size):
            put_row(out, input_tensor[group.start_offset + row], first[:, row : row + 1], f_len)
    return out


def put_row(out: Tensor, row: Tensor, first: Tensor, f_len: int) -> None:
    """Write the blocks of one row; `first` [128, 1] is the place of its first."""
    blocks = row.shape[0] // f_len
    source = row.reshape((blocks, f_len))
    target = out.reshape((out.shape[0] // f_len, f_len))
    for tile in TiledRange(blocks, PMAX):
        step = nl.ndarray((tile.size, 1), nl.float32, buffer=nl.sbuf)
        nisa.iota(step, [[0, 1]], offset=tile.start_offset, channel_multiplier=1)
        places = nl.ndarray((tile.size, 1), nl.int32, buffer=nl.sbuf)
        nisa.tensor_tensor(places, step, first[0 : tile.size], op=nl.add)
        view = target.ap([[f_len, tile.size], [1, f_len]], vector_offset=places)
        data = load(source[tile.start_offset : tile.end_offset])
        nisa.dma_copy(view, data, oob_mode=nisa.oob_mode.skip)


def fill(out: Tensor, value: int | float) -> None:
    """Write the value everywhere."""
    length = out.shape[0]
    columns = min(FILL_COLUMNS, length)
    tile = nl.ndarray((PMAX, columns), out.dtype, buffer=nl.sbuf)
    nisa.memset(tile, value)
    for part in TiledRange(length, PMAX * columns):
        rows = part.size // columns
        if rows > 0:
            place = out[part.start_offset : part.start_offset + rows * columns]
            nisa.dma_copy(place.reshape((rows, columns)), tile[0:rows])
        if part.size > rows * columns:
            place = out[part.start_offset + rows * columns : part.end_offset]
            nisa.dma_copy(place.expand_dim(0), tile[0:1, 0 : part.size - rows * columns])


def check(input_tensor: Tensor, f_len: int, output_len: int, offsets: Tensor, start: Tensor | None) -> None:
    assert_tensors(
        (("input_tensor", input_tensor), ("row_offsets", offsets)), (("row_offsets_start", start),)
    )
    kernel_assert(
        len(input_tensor.shape) == 2, f"input_tensor: got shape {tuple(input_tensor.shape)}, expected (E, T)"
    )
    length = input_tensor.shape[1]
    kernel_assert(
        f_len > 0 and length % f_len == 0, f"f_len: got {f_len}, expected a divisor of T = {length}"
    )
    kernel_assert(
        output_len > 0 and output_len % f_len == 0,
        f"output_len: got {output_len}, expected a multiple of f_len = {f_len}",
    )
    kernel_assert(
        len(offsets.shape) == 1 and offsets.dtype in (nl.int32, nl.uint32),
        f"row_offsets: got {offsets.dtype} of shape {tuple(offsets.shape)}, expected int32 [N]",
    )
    kernel_assert(
        offsets.shape[0] >= input_tensor.shape[0],
        f"row_offsets: got {offsets.shape[0]} offsets, expected one for each of {input_tensor.shape[0]} rows",
    )
    kernel_assert(
        start is None or start.size == 1, "row_offsets_start: got several elements, expected one integer"
    )


def indexed_flatten_ref(
    input_tensor: np.ndarray,
    f_len: int,
    output_len: int,
    row_offsets: np.ndarray,
    row_offsets_start: np.ndarray | None = None,
    padding_val: int | float = -1,
) -> np.ndarray:
    """Block by block in numpy."""
    start = 0 if row_offsets_start is None else int(np.ravel(row_offsets_start)[0])
    out = np.full((output_len // f_len, f_len), padding_val, input_tensor.dtype)
    for row, blocks in enumerate(input_tensor.reshape(len(input_tensor), -1, f_len)):
        for i, block in enumerate(blocks):
            place = int(row_offsets[start + row]) + i
            if 0 <= place < len(out):
                out[place] = block
    return out.reshape(-1)
