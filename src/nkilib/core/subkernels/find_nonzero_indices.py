"""Which rows of each column are not zero.

GpSimd lists the nonzero elements of partitions 0, 16, ..., 112: eight columns at a time. TensorE transposes
columns into partitions, column 8 g + k to partition 16 k + g, and VectorE brings any eight of them to where
GpSimd looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert, warn_without_effect
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, interleave_copy
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor

AT_ONCE = 8  # columns that GpSimd processes at once
APART = 16  # partitions from one of them to the next
MAX_ROWS = 65536
MAX_COLUMNS = 128
MAX_CHUNK = 8192  # rows that are in SBUF at a time
QUADRANT = 32
BANK_TILES = 8  # transposed tiles of bfloat16 in a PSUM bank


@nki.jit
def find_nonzero_indices(
    input_tensor: Tensor,
    col_start_id: Tensor | None = None,
    n_cols: int | None = None,
    chunk_size: int | None = None,
    index_dtype: DTypeLike = nl.int32,
) -> Any:
    """Row indices of the nonzero elements of each column, ascending, then -1; and how many there are.

    indices[c] lists the t with input_tensor[t, c] != 0 of input_tensor [T, C], in index_dtype; counts[c] is
    their number, int32. col_start_id, one integer read at run time, and n_cols choose the columns
    col_start_id to col_start_id + n_cols - 1; n_cols alone has no effect. T is a multiple of 128, at
    most 65536, C at most 128. chunk_size, a multiple of 128 that divides T, bounds the rows that are in SBUF
    at a time (so do we: 8192). Any numeric dtype; NaN is not zero, -0 is. Two cores share the columns, which
    must then be an even number; one core works too, though the page asks for two.

    >>> x = np.zeros((128, 2), np.float32)
    >>> x[[3, 70], 0] = 1.0
    >>> indices, counts = find_nonzero_indices(x)
    >>> counts.tolist(), indices[0, :3].tolist(), int(indices[1].max())
    ([2, 0], [3, 70, -1], -1)
    """
    sharding = get_verified_program_sharding_info("find_nonzero_indices", (0, 1), 2)
    columns = check(input_tensor, col_start_id, n_cols, chunk_size, sharding[1])
    rows, share = input_tensor.shape[0], columns // sharding[1]
    indices = nl.ndarray((columns, rows), index_dtype, buffer=nl.shared_hbm)
    counts = nl.ndarray((columns,), nl.int32, buffer=nl.shared_hbm)
    start = None
    if col_start_id is not None:
        start = nisa.register_alloc(None)
        nisa.register_load(start, col_start_id)
    first = sharding[2] * share
    found = Found(indices, counts, first, share)
    step = chunk_rows(rows if chunk_size is None else chunk_size)
    if step < rows:
        found.fill()
    for chunk in TiledRange(rows, step):
        by_column = columns_of(input_tensor, chunk, first, share, start)
        for group in TiledRange(share, AT_ONCE):
            found.add(listed(by_column, group.index, chunk), chunk, group)
    found.store_counts()
    return indices, counts


def check(
    input_tensor: Tensor, col_start_id: Tensor | None, n_cols: int | None, chunk_size: int | None, cores: int
) -> int:
    """Return the number of columns to search."""
    assert_tensors((("input_tensor", input_tensor),), (("col_start_id", col_start_id),))
    shape = tuple(input_tensor.shape)
    kernel_assert(len(shape) == 2, f"input_tensor: got shape {shape}, expected (T, C)")
    kernel_assert(
        shape[0] % PMAX == 0 and shape[0] <= MAX_ROWS,
        f"input_tensor: got T = {shape[0]}, allowed are multiples of {PMAX} up to {MAX_ROWS}",
    )
    kernel_assert(
        shape[1] <= MAX_COLUMNS, f"input_tensor: got C = {shape[1]}, allowed are at most {MAX_COLUMNS}"
    )
    kernel_assert(
        col_start_id is None or n_cols is not None, "n_cols: got None, col_start_id needs a number of columns"
    )
    kernel_assert(
        col_start_id is None or col_start_id.size == 1,
        "col_start_id: got several elements, expected one integer",
    )
    kernel_assert(
        chunk_size is None or (chunk_size > 0 and chunk_size % PMAX == 0 and shape[0] % chunk_size == 0),
        f"chunk_size: got {chunk_size}, allowed are multiples of {PMAX} that divide T = {shape[0]}",
    )
    warn_without_effect(col_start_id is not None, "col_start_id", (("n_cols", n_cols),))
    columns = shape[1] if col_start_id is None or n_cols is None else n_cols
    kernel_assert(
        0 < columns <= shape[1], f"n_cols: got {columns}, allowed are 1 to the {shape[1]} columns there are"
    )
    kernel_assert(
        columns % cores == 0, f"input_tensor: got {columns} columns, allowed on two cores are even numbers"
    )
    return columns


def chunk_rows(rows: int) -> int:
    """The largest divisor of `rows` that is a multiple of 128 and fits."""
    best = PMAX
    for tiles in range(1, min(rows, MAX_CHUNK) // PMAX + 1):
        if rows % (tiles * PMAX) == 0:
            best = tiles * PMAX
    return best


def columns_of(input_tensor: Tensor, chunk: Any, first: int, columns: int, start: Any) -> Any:
    """1 where a column is not zero, [128, rows] float32: column 8 g + k in partition 16 k + g."""
    tiles, width = chunk.size // PMAX, input_tensor.shape[1]
    loaded = nl.ndarray((PMAX, tiles, columns), input_tensor.dtype, buffer=nl.sbuf)
    view = input_tensor.ap(
        [[tiles * width, PMAX], [width, tiles], [1, columns]],
        offset=chunk.start_offset * width + first,
        scalar_offset=start,
        indirect_dim=1,
    )
    nisa.dma_copy(loaded, view)  # row tiles p + f of the chunk at [p, f]
    spread = nl.ndarray((PMAX, tiles, AT_ONCE, APART), nl.bfloat16, buffer=nl.sbuf)
    if columns < PMAX:
        nisa.memset(spread, 0.0)
    for group in TiledRange(columns, AT_ONCE):
        some = loaded[:, :, group.start_offset : group.end_offset]
        nisa.tensor_scalar(spread[:, :, 0 : group.size, group.index], some, nl.not_equal, 0.0)
    result = nl.ndarray((PMAX, PMAX, tiles), nl.float32, buffer=nl.sbuf)
    flat = spread.flatten_dims(2, 3)
    for group in TiledRange(tiles, BANK_TILES):
        bank = nl.ndarray((PMAX, group.size, PMAX), nl.bfloat16, buffer=nl.psum)
        for i in range(group.size):
            nisa.nc_transpose(bank[:, i, :], flat[:, group.start_offset + i, :], engine=nisa.tensor_engine)
        place = result[:, :, group.start_offset : group.end_offset].permute((0, 2, 1))
        interleave_copy(place, bank, group.index)
    return result.flatten_dims(1, 2)


def listed(by_column: Tensor, group: int, chunk: Any) -> Tensor:
    """What GpSimd finds in eight columns: [128, rows + 1] int32, in partitions 0, 16, ..., 112."""
    source = by_column
    if group > 0:
        source = nl.ndarray(by_column.shape, by_column.dtype, buffer=nl.sbuf)
        mask = []
        for i in range(QUADRANT):
            mask.append(i // APART * APART + group)
        nisa.nc_stream_shuffle(source, by_column, mask)
    result = nl.ndarray((PMAX, chunk.size + 1), nl.int32, buffer=nl.sbuf)
    nisa.memset(
        result[:, chunk.size : chunk.size + 1], 0
    )  # counts, also of partitions that GpSimd leaves out
    nisa.nonzero_with_count(result, source, index_offset=chunk.start_offset, padding_val=-1)
    return result


@dataclass
class Found(nl.NKIObject):
    """What was found so far in this core's columns."""

    indices: Tensor
    counts: Tensor
    first: int
    columns: int

    def __post_init__(self) -> None:
        self.totals = nl.ndarray((PMAX, div_ceil(self.columns, AT_ONCE)), nl.float32, buffer=nl.sbuf)
        nisa.memset(self.totals, 0.0)

    def fill(self) -> None:
        """-1 everywhere: of several chunks the last need not reach the end."""
        rows = self.indices.shape[1]
        blank = nl.ndarray((self.columns, rows // PMAX), self.indices.dtype, buffer=nl.sbuf)
        nisa.memset(blank, -1)
        place = self.indices[self.first : self.first + self.columns]
        for part in range(PMAX):
            nisa.dma_copy(place[:, part * (rows // PMAX) : (part + 1) * (rows // PMAX)], blank)

    def add(self, result: Tensor, chunk: Any, group: Any) -> None:
        """Append what a chunk has to what the ones before it had, and count."""
        place = self.totals[:, group.index : group.index + 1]
        before = None
        if chunk.index > 0:
            before = nl.ndarray((PMAX, 1), nl.int32, buffer=nl.sbuf)
            nisa.tensor_copy(before, place)
        for k in range(group.size):
            row = self.indices[self.first + group.start_offset + k]
            partition = k * APART
            if before is not None:
                at = nisa.register_alloc(None)
                nisa.register_load(at, before[partition : partition + 1])
                row = row.ap([[1, chunk.size]], scalar_offset=at, indirect_dim=0)
            else:
                row = row[0 : chunk.size]
            nisa.dma_copy(row.expand_dim(0), result[partition : partition + 1, 0 : chunk.size])
        nisa.tensor_tensor(place, place, result[:, chunk.size : chunk.size + 1], nl.add)

    def store_counts(self) -> None:
        """Totals stand in partitions 16 k: transposed, they are in the order of the columns."""
        groups = self.totals.shape[1]
        bank = nl.ndarray((groups, PMAX), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(bank, self.totals, engine=nisa.tensor_engine)
        totals = nl.ndarray((groups, AT_ONCE), nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(totals, bank.reshape_dim(1, (AT_ONCE, APART))[:, :, 0])
        whole = self.columns // AT_ONCE
        place = self.counts[self.first : self.first + self.columns]
        if whole > 0:
            full = place[0 : whole * AT_ONCE].reshape((whole, AT_ONCE))
            nisa.dma_copy(full, totals[0:whole])
        if whole < groups:
            rest = place[whole * AT_ONCE : self.columns].expand_dim(0)
            nisa.dma_copy(rest, totals[whole : whole + 1, 0 : self.columns - whole * AT_ONCE])


def find_nonzero_indices_ref(
    input_tensor: np.ndarray,
    col_start_id: np.ndarray | None = None,
    n_cols: int | None = None,
    chunk_size: int | None = None,
    index_dtype: DTypeLike = np.int32,
) -> tuple[np.ndarray, np.ndarray]:
    """find_nonzero_indices in numpy."""
    x = np.asarray(input_tensor)
    if col_start_id is not None and n_cols is not None:
        start = int(np.ravel(col_start_id)[0])
        x = x[:, start : start + n_cols]
    indices = np.full((x.shape[1], x.shape[0]), -1, index_dtype)
    for column in range(x.shape[1]):
        rows = np.flatnonzero(x[:, column] != 0)
        indices[column, : len(rows)] = rows
    return indices, (x != 0).sum(0).astype(np.int32)
