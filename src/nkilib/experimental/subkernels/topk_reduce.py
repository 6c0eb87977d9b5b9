"""The sum of each token's rows: gathered by DMA, summed by TensorE with a 0/1 selection matrix.

Up to 128 tokens the rows are read in order, and cores share the columns. More tokens are summed 128 at a
time; a table lists which rows belong to which 128 (row_table.py), and cores share the tokens.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import (
    div_ceil,
    get_verified_program_sharding_info,
    interleave_copy,
    program_share,
)
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.subkernels.row_table import (
    BANK_COLUMNS,
    ID_WORDS,
    MAX_ROWS,
    TILES_BY_BINS,
    RowSet,
    all_rows,
    rows_by_bin,
)

BANKS = 8
BUFFERS = 6  # gathered tiles of rows in flight


@nki.jit
def topk_reduce(input: Tensor, T: int, K: int, token_base_index: int = 1) -> Tensor:
    """out[t] = sum of the rows whose packed token number is token_base_index + t; [T, H].

    input is [R, H + 2] in bfloat16 or float16; the last two columns of a row hold its token's number, the
    bits of one int32. Rows with other numbers (-1: padding) are left out; a token has at most K rows, and
    without any its result is 0. Sums are float32, rounded once. Rows that carry infinities or NaN make NaN of
    the 128 tokens they are summed with. More than the documented 128 tokens are accepted, up to R T = 2^27.

    >>> rows = np.zeros((4, 6), np.float16)
    >>> rows[:, :4], rows[:, 4:] = np.eye(4), np.array([[2, -1, 1, 2]], np.int32).T.view(np.float16)
    >>> topk_reduce(rows, 2, 2).tolist()
    [[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]]
    """
    n_prgs, core = get_verified_program_sharding_info("topk_reduce", (0, 1), 2)[1:]
    check(input, T, K, n_prgs)
    width = input.shape[1] - ID_WORDS
    result = nl.ndarray((T, width), input.dtype, buffer=nl.shared_hbm)
    gather = Gather(input, min(width, BANK_COLUMNS * BANKS))
    if T <= PMAX:
        start, end = program_share(width)
        reduce_tile(result[:, start:end], gather, all_rows(input, T, token_base_index), start)
        return result
    first, last = program_share(T, PMAX)
    table = rows_by_bin(input, T, K, token_base_index, n_prgs, core)
    for tile in TiledRange(T, PMAX):
        if first <= tile.start_offset and tile.start_offset < last:
            rows = table.of_bin(tile.index, K)
            reduce_tile(result[tile.start_offset : tile.end_offset], gather, rows, 0)
    return result


def check(data: Tensor, tokens: int, k: int, n_prgs: int) -> None:
    assert_tensors((("input", data),))
    kernel_assert(
        len(data.shape) == 2 and data.shape[1] > ID_WORDS,
        f"input: got shape {tuple(data.shape)}, expected (R, H + 2)",
    )
    kernel_assert(
        data.dtype in (nl.bfloat16, nl.float16), f"input: got {data.dtype}, allowed are bfloat16 and float16"
    )
    kernel_assert(tokens >= 1, f"T: got {tokens}, allowed is at least 1")
    kernel_assert(k >= 1, f"K: got {k}, allowed is at least 1")
    width = data.shape[1] - ID_WORDS
    kernel_assert(width % n_prgs == 0, f"input: got H = {width}, allowed are multiples of {n_prgs} cores")
    rows = data.shape[0]
    fits = div_ceil(rows, PMAX) * div_ceil(tokens, PMAX) <= TILES_BY_BINS and rows <= MAX_ROWS
    kernel_assert(
        tokens <= PMAX or fits,
        f"T: got {tokens} with {rows} rows, allowed are 128, or 2^17 rows and products up to 2^27",
    )


class Gather(nl.NKIObject):
    """Gather rows of HBM into a ring of SBUF tiles, initially 0 so that skipped rows stay finite."""

    def __init__(self, data: Tensor, columns: int):
        self.data = data
        self.tiles = []
        for i in range(BUFFERS):
            tile = nl.ndarray((PMAX, columns), data.dtype, buffer=nl.sbuf)
            nisa.memset(tile, 0.0, engine=nisa.gpsimd_engine if i % 2 == 0 else nisa.vector_engine)
            self.tiles.append(tile)
        self.next = 0

    def rows(self, places: Tensor, column: int, columns: int) -> Tensor:
        """Gather columns column ...

        of the rows at these indices, [128, columns]; indices outside are skipped.
        """
        tile = self.tiles[self.next][:, 0:columns]
        self.next = (self.next + 1) % BUFFERS
        pattern = [[self.data.shape[1], PMAX], [1, columns]]
        source = self.data.ap(pattern, offset=column, vector_offset=places)
        nisa.dma_copy(tile, source, oob_mode=nisa.oob_mode.skip)
        return tile


def reduce_tile(dst: Tensor, gather: Gather, rows: RowSet, column: int) -> None:
    """Set dst [tokens <= 128, columns] in HBM to sums of rows, whose columns begin at `column`."""
    tokens, width = dst.shape
    choices = selections(rows, tokens, dst.dtype)
    for part in TiledRange(width, BANK_COLUMNS * BANKS):
        banks = []
        for bank in TiledRange(part.size, BANK_COLUMNS):
            banks.append(nl.ndarray((tokens, bank.size), nl.float32, buffer=nl.psum))
        for i in range(len(choices)):
            places = rows.places[:, i : i + 1]
            data = gather.rows(places, column + part.start_offset, part.size)
            for bank in TiledRange(part.size, BANK_COLUMNS):
                moving = data[:, bank.start_offset : bank.end_offset]
                nisa.nc_matmul(banks[bank.index], choices[i], moving)
        sums = nl.ndarray((tokens, part.size), dst.dtype, buffer=nl.sbuf)
        for bank in TiledRange(part.size, BANK_COLUMNS):
            interleave_copy(sums[:, bank.start_offset : bank.end_offset], banks[bank.index], bank.index)
        nisa.dma_copy(dst[:, part.start_offset : part.end_offset], sums)


def selections(rows: RowSet, tokens: int, dtype: DTypeLike) -> list:
    """Return [row, token] for each 128 rows: 1 where the row belongs to the token."""
    columns = nl.ndarray((PMAX, tokens), nl.float32, buffer=nl.sbuf)
    nisa.iota(columns, [[1, tokens]])
    choices = []
    for i in range(rows.places.shape[1]):
        choice = nl.ndarray((PMAX, tokens), dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(choice, columns, nl.equal, rows.tokens[:, i : i + 1])
        choices.append(choice)
    return choices


def topk_reduce_ref(input: np.ndarray, T: int, K: int, token_base_index: int = 1) -> np.ndarray:
    """Sum in numpy, in float64. K only bounds how many rows a token has."""
    values, ids = input[:, :-ID_WORDS], np.ascontiguousarray(input[:, -ID_WORDS:]).view(np.int32).ravel()
    out = np.zeros((T, values.shape[1]))
    for t in range(T):
        out[t] = values[ids == token_base_index + t].astype(np.float64).sum(axis=0)
    return out.astype(input.dtype)
