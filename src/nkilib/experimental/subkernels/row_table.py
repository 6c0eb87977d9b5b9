"""Sort the rows of a buffer by tiles of 128 tokens ("bins"), with a counting sort.

The row numbers are in SBUF. The position of a row in its bin is a running count: a scan along the free
dimension, a triangle of ones across partitions. One-hot matmuls then move each row number to its position.
"""

from __future__ import annotations

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.decode import swap
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.masks import all_ones, triangle
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor

ID_WORDS = 2  # 16-bit columns that hold a token's number
TILES_BY_BINS = 8192  # running counts in each partition
LANE_BITS = 7  # of 128 tokens, or entries in as many partitions
MAX_ROWS = 2**17 - 1  # 128 times it is exact in float32
BANK_COLUMNS = 512  # float32 of one PSUM bank


@dataclass
class RowSet(nl.NKIObject):
    """Rows of at most 128 tokens: their places (int32, -1: none) and tokens (float32, from 0), [128, n]."""

    places: Tensor
    tokens: Tensor


@dataclass
class RowTable(nl.NKIObject):
    """[128, bins K] each: rows in int32, their tokens inside the bin in float32; -1 where there is none."""

    places: Tensor
    tokens: Tensor

    def of_bin(self, number: int, k: int) -> RowSet:
        first, last = number * k, (number + 1) * k
        return RowSet(self.places[:, first:last], self.tokens[:, first:last])


def token_numbers(data: Tensor, base: int) -> Tensor:
    """Load the token of row R' p + n at [p, n], float32, R' rows per partition; -1 behind the last row."""
    total = data.shape[0]
    each = div_ceil(total, PMAX)
    ids = nl.ndarray((PMAX, each, ID_WORDS), data.dtype, buffer=nl.sbuf)
    full, rest = total // each, total % each
    words = data[:, data.shape[1] - ID_WORDS :]
    if full < PMAX:
        nisa.memset(ids.view(nl.int32), base - 1)
    if full > 0:
        nisa.dma_copy(ids[0:full], words[0 : full * each].reshape_dim(0, (full, each)))
    if rest > 0:
        nisa.dma_copy(ids[full : full + 1, 0:rest, :], words[full * each :].expand_dim(0))
    tokens = nl.ndarray((PMAX, each), nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(tokens, ids.view(nl.int32).reshape((PMAX, each)), nl.subtract, float(base))
    return tokens


def row_numbers(each: int) -> Tensor:
    """Return the row at [p, n] of token_numbers, float32."""
    rows = nl.ndarray((PMAX, each), nl.float32, buffer=nl.sbuf)
    nisa.iota(rows, [[1, each]], channel_multiplier=each)
    return rows


def inside(tokens: Tensor, end: int) -> Tensor:
    """Return 1 where 0 <= token < end, else 0."""
    flag, low = nl.ndarray(tokens.shape, nl.float32, nl.sbuf), nl.ndarray(tokens.shape, nl.float32, nl.sbuf)
    nisa.tensor_scalar(low, tokens, nl.greater_equal, 0.0)
    nisa.scalar_tensor_tensor(flag, tokens, nl.less, float(end), nl.multiply, low)
    return flag


def where(flag: Tensor, values: Tensor) -> Tensor:
    """Return values where the flag is 1, else -1, as int32."""
    chosen = nl.ndarray(values.shape, nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(chosen, values, nl.add, 1.0, nl.multiply, flag)
    whole = nl.ndarray(values.shape, nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(whole, chosen, nl.subtract, 1.0)
    return whole


def all_rows(data: Tensor, tokens: int, base: int) -> RowSet:
    """Return every row of the buffer that belongs to a token."""
    numbers = token_numbers(data, base)
    return RowSet(where(inside(numbers, tokens), row_numbers(numbers.shape[1])), numbers)


def rows_by_bin(data: Tensor, tokens: int, k: int, base: int, n_prgs: int, core: int) -> RowTable:
    """Return the table of all bins, with K entries for each of a bin's 128 tokens. Cores share the work."""
    bins = div_ceil(tokens, PMAX)
    numbers = token_numbers(data, base)
    entries = Entries(numbers, tokens, bins, k)
    found = nl.ndarray((PMAX, bins * k), nl.float32, buffer=nl.sbuf)
    for part in TiledRange(bins * k, BANK_COLUMNS):
        columns = nl.ndarray((PMAX, part.size), nl.float32, buffer=nl.sbuf)
        nisa.iota(columns, [[1, part.size]], offset=part.start_offset)
        sums = nl.ndarray((PMAX, part.size), nl.float32, buffer=nl.psum)
        for n in range(core, numbers.shape[1], n_prgs):
            entries.add(sums, columns, n)
        nisa.tensor_copy(found[:, part.start_offset : part.end_offset], sums)
    if n_prgs > 1:
        nisa.tensor_tensor(found, found, swap(found, core, 0), op=nl.add)
    return unpack(found)


def unpack(found: Tensor) -> RowTable:
    """Return rows and tokens from the sums of Entries."""
    shape = found.shape
    value, lane = nl.ndarray(shape, nl.int32, nl.sbuf), nl.ndarray(shape, nl.int32, nl.sbuf)
    places, used = nl.ndarray(shape, nl.int32, nl.sbuf), nl.ndarray(shape, nl.float32, nl.sbuf)
    tokens = nl.ndarray(shape, nl.float32, nl.sbuf)
    nisa.tensor_scalar(value, found, nl.subtract, 1.0)
    nisa.tensor_scalar(places, value, nl.right_shift, LANE_BITS)
    nisa.tensor_scalar(lane, value, nl.bitwise_and, PMAX - 1)
    nisa.tensor_scalar(used, found, nl.greater, 0.0)
    nisa.tensor_copy(tokens, where(used, lane))
    nisa.tensor_copy(places, where(used, places))
    return RowTable(places, tokens)


class Entries(nl.NKIObject):
    """The value and position of each row's entry in the table: entry e of a bin is in partition e mod 128."""

    def __init__(self, numbers: Tensor, tokens: int, bins: int, k: int):
        shape = numbers.shape
        whole, bin_of = nl.ndarray(shape, nl.int32, nl.sbuf), nl.ndarray(shape, nl.int32, nl.sbuf)
        valid = inside(numbers, tokens)
        nisa.tensor_tensor(numbers, numbers, valid, op=nl.multiply)
        nisa.tensor_copy(whole, numbers)
        nisa.tensor_scalar(bin_of, whole, nl.right_shift, LANE_BITS)
        self.value = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)  # 1 + 128 row + token in its bin
        nisa.tensor_scalar(whole, whole, nl.bitwise_and, PMAX - 1)
        rows = row_numbers(shape[1])
        nisa.scalar_tensor_tensor(self.value, rows, nl.multiply, float(PMAX), nl.add, whole)
        nisa.tensor_scalar(self.value, self.value, nl.add, 1.0)
        counts = places_in_bins(bin_of, valid, bins)
        nisa.scalar_tensor_tensor(valid, counts, nl.less, float(PMAX * k), nl.multiply, valid)
        nisa.tensor_tensor(self.value, self.value, valid, op=nl.multiply)
        nisa.tensor_copy(whole, counts)
        self.lane = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
        self.column = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
        part = nl.ndarray(shape, nl.int32, buffer=nl.sbuf)
        nisa.tensor_scalar(part, whole, nl.bitwise_and, PMAX - 1)
        nisa.tensor_copy(self.lane, part)
        nisa.tensor_scalar(part, whole, nl.right_shift, LANE_BITS)
        nisa.scalar_tensor_tensor(self.column, bin_of, nl.multiply, float(k), nl.add, part)
        self.lanes = nl.ndarray((PMAX, PMAX), nl.float32, buffer=nl.sbuf)
        nisa.iota(self.lanes, [[1, PMAX]])

    def add(self, sums: Tensor, columns: Tensor, n: int) -> None:
        """Add the rows at [:, n] by one matmul of one-hot lanes with values in their columns."""
        lane = nl.ndarray((PMAX, PMAX), nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(lane, self.lanes, nl.equal, self.lane[:, n : n + 1])
        value = nl.ndarray(columns.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            value,
            columns,
            nl.equal,
            self.column[:, n : n + 1],
            op1=nl.multiply,
            operand1=self.value[:, n : n + 1],
        )
        nisa.nc_matmul(sums, lane, value)


def places_in_bins(bin_of: Tensor, valid: Tensor, bins: int) -> Tensor:
    """Count the rows of the same bin before each row, float32 [128, n]."""
    each = bin_of.shape[1]
    number = nl.ndarray(bin_of.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(number, where(valid, bin_of))
    hits = nl.ndarray((PMAX, bins, each), nl.bfloat16, buffer=nl.sbuf)
    totals = nl.ndarray((PMAX, bins), nl.float32, buffer=nl.sbuf)
    for b in range(bins):
        total = totals[:, b : b + 1]
        nisa.tensor_scalar_reduce(hits[:, b, :], number, nl.equal, float(b), nl.add, reduce_res=total)
    base = nl.ndarray((PMAX, bins), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(base, earlier_partitions(totals))
    ones = nl.ndarray((PMAX, each), nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(ones, 1.0)
    running = nl.ndarray((PMAX, bins, each), nl.float32, buffer=nl.sbuf)
    for b in range(bins):
        start = base[:, b : b + 1]
        nisa.tensor_tensor_scan(running[:, b, :], ones, hits[:, b, :], start, op0=nl.multiply, op1=nl.add)
    index, column = nl.ndarray(bin_of.shape, nl.int32, nl.sbuf), nl.ndarray(bin_of.shape, nl.int32, nl.sbuf)
    nisa.iota(column, [[1, each]])
    nisa.scalar_tensor_tensor(index, bin_of, nl.multiply, float(each), nl.add, column)
    counts = nl.ndarray(bin_of.shape, nl.float32, buffer=nl.sbuf)
    nisa.nc_n_gather(counts, running.reshape((PMAX, bins * each)), index.view(nl.uint32))
    nisa.tensor_scalar(counts, counts, nl.subtract, 1.0)
    return counts


def earlier_partitions(totals: Tensor) -> Tensor:
    """Return sums over the preceding partitions, in PSUM; exact, as float32 products are."""
    before = triangle(all_ones(nl.float32))
    sums = nl.ndarray(totals.shape, nl.float32, buffer=nl.psum)
    for part in TiledRange(totals.shape[1], BANK_COLUMNS):
        columns = totals[:, part.start_offset : part.end_offset]
        nisa.nc_matmul(sums[:, part.start_offset : part.end_offset], before, columns)
    return sums
