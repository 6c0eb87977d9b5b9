"""Argsort of a row by counting the elements that are larger, and those that are equal and come earlier.

Each partition holds one element and a copy of the whole row; counts are exact in float32. Elements become
int32 keys. The engines compare in float32, which cannot hold them all, so that a comparison is that of the
halves: (high - other high) + (low - other low) / 2^16 has the right sign however it is rounded.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, is_hbm_buffer
from nkilib.core.utils.stream_shuffle_broadcast import stream_shuffle_broadcast
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import Tensor
from nkilib.experimental.subkernels.tie_order import PASS, new_counts, put_places

MAX_ELEMENTS = 8192
BANK_COLUMNS = 512  # float32 of one PSUM bank
LARGEST_KEY = 2**31 - 1


@nki.jit
def argsort_unstable(data: Tensor, descending: bool = False, output_in_sbuf: bool = False) -> Tensor:
    """Return the indices that sort a row [1, N], with a fixed order of equal elements; [1, N] uint32.

    data is int32 or float32, in HBM or SBUF; NaNs count as equal and larger than infinity, -0.0 equals 0.0.
    N is at most 8192, of any residue modulo 8. Equal elements are ordered as by passes of max8 and
    nc_match_replace8: in each group of 8 of the descending order, equal ones come in descending position.
    Ascending order is its reverse.

    >>> argsort_unstable(np.array([[5, 2, 5, 3]], np.int32)).tolist()
    [[1, 3, 0, 2]]
    >>> argsort_unstable(np.array([[5, 2, 5, 3]], np.int32), descending=True).tolist()
    [[2, 0, 3, 1]]
    """
    check(data)
    core = get_verified_program_sharding_info("argsort_unstable", (0, 1), 2)[2]
    total = data.shape[1]
    tiles = TiledRange(total, PMAX)
    places = nl.ndarray((min(total, PMAX), len(tiles)), nl.int32, buffer=nl.sbuf)
    row = Keys(row_in_all_partitions(data, min(total, PMAX)))
    for tile in tiles:
        value = nl.ndarray((tile.size, 1), data.dtype, buffer=nl.sbuf)
        nisa.dma_copy(value, data[0:1, tile.start_offset : tile.end_offset])
        place = places[0 : tile.size, tile.index : tile.index + 1]
        put_places_of_tile(place, row, Keys(value), tile, descending)
    if total <= BANK_COLUMNS:
        return by_matmul(places, tiles, total, output_in_sbuf, core)
    return by_scatter(places, tiles, total, output_in_sbuf, core)


def check(data: Tensor) -> None:
    assert_tensors((("data", data),))
    kernel_assert(
        len(data.shape) == 2 and data.shape[0] == 1, f"data: got shape {tuple(data.shape)}, expected (1, N)"
    )
    kernel_assert(
        data.dtype in (nl.int32, nl.float32), f"data: got {data.dtype}, allowed are int32 and float32"
    )
    size = data.shape[1]
    kernel_assert(size <= MAX_ELEMENTS, f"data: got {size} elements, allowed are at most {MAX_ELEMENTS}")


def row_in_all_partitions(data: Tensor, partitions: int) -> Tensor:
    """Load data into every partition."""
    total = data.shape[1]
    row = nl.ndarray((partitions, total), data.dtype, buffer=nl.sbuf)
    if is_hbm_buffer(data):
        nisa.dma_copy(row, data.broadcast(0, partitions))
    else:
        stream_shuffle_broadcast(data, row)
    return row


class Keys(nl.NKIObject):
    """The halves of int32 keys that order the elements of a tile [P, N], which the keys overwrite."""

    def __init__(self, tile: Tensor):
        keys = tile
        if tile.dtype == nl.float32:
            keys = tile.view(nl.int32)
            order_floats(tile, keys)
        self.high = keys.view(nl.int16)[:, 1::2]
        self.low = keys.view(nl.uint16)[:, 0::2]


def order_floats(values: Tensor, keys: Tensor) -> None:
    """Turn float32 bits into int32 keys of the same order; `keys` is a view of `values`."""
    is_nan = nl.ndarray(values.shape, nl.uint8, buffer=nl.sbuf)
    is_negative = nl.ndarray(values.shape, nl.uint8, buffer=nl.sbuf)
    nisa.tensor_tensor(is_nan, values, values, nl.not_equal)
    nisa.tensor_scalar(values, values, nl.add, 0.0)  # -0.0 becomes 0.0
    nisa.tensor_scalar(is_negative, values, nl.less, 0.0)
    other = nl.ndarray(values.shape, nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(other, keys, nl.bitwise_xor, LARGEST_KEY)
    nisa.tensor_copy_predicated(keys, other, is_negative)
    nisa.memset(other, LARGEST_KEY)
    nisa.tensor_copy_predicated(keys, other, is_nan)


def put_places_of_tile(
    dst: Tensor, row: Keys, value: Keys, tile: TiledRangeIterator, descending: bool
) -> None:
    """Set dst to the ranks of one element in each partition, number start + p of the row."""
    count, total = tile.size, row.high.shape[1]
    high, low = new_counts(dst), new_counts(dst)
    nisa.tensor_copy(high, value.high)
    nisa.tensor_copy(low, value.low)
    match = nl.ndarray((count, total), nl.float32, buffer=nl.sbuf)
    difference = nl.ndarray((count, total), nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(match, row.low[0:count], nl.subtract, low, op1=nl.multiply, operand1=2.0**-16)
    nisa.scalar_tensor_tensor(difference, row.high[0:count], nl.subtract, high, nl.add, match)
    greater, equal, before = new_counts(dst), new_counts(dst), new_counts(dst)
    nisa.tensor_scalar_reduce(match, difference, nl.greater, 0.0, nl.add, reduce_res=greater)
    nisa.tensor_scalar_reduce(match, difference, nl.equal, 0.0, nl.add, reduce_res=equal)
    earlier = match[:, 0 : tile.end_offset]
    nisa.affine_select(
        earlier,
        [[-1, tile.end_offset]],
        channel_multiplier=1,
        on_true_tile=earlier,
        on_false_value=0.0,
        cmp_op=nl.greater,
        offset=tile.start_offset,
    )
    nisa.tensor_reduce(before, nl.add, earlier, 1)
    put_places(dst, greater, equal, before, total, descending)


def by_matmul(
    places: Tensor, tiles: tuple[TiledRangeIterator, ...], total: int, output_in_sbuf: bool, core: int
) -> Tensor:
    """Return index with index[places[i]] = i: one-hot rows of the places, times the row numbers."""
    columns = nl.ndarray((places.shape[0], total), nl.float32, buffer=nl.sbuf)
    nisa.iota(columns, [[1, total]])
    found = nl.ndarray((1, total), nl.float32, buffer=nl.psum)
    for tile in tiles:
        place = nl.ndarray((tile.size, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(place, places[0 : tile.size, tile.index : tile.index + 1])
        hit = nl.ndarray((tile.size, total), nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(hit, columns[0 : tile.size], nl.equal, place)
        number = nl.ndarray((tile.size, 1), nl.float32, buffer=nl.sbuf)
        nisa.iota(number, [[0, 1]], offset=tile.start_offset, channel_multiplier=1)
        nisa.nc_matmul(found, number, hit)
    index = nl.ndarray((1, total), nl.uint32, buffer=nl.sbuf)
    nisa.tensor_copy(index, found)
    if output_in_sbuf:
        return index
    result = nl.ndarray((1, total), nl.uint32, buffer=nl.shared_hbm)
    if core == 0:
        nisa.dma_copy(result, index)
    return result


def by_scatter(
    places: Tensor, tiles: tuple[TiledRangeIterator, ...], total: int, output_in_sbuf: bool, core: int
) -> Tensor:
    """Compute the same by DMA, for long rows."""
    buffer = nl.private_hbm if output_in_sbuf else nl.shared_hbm
    result = nl.ndarray((1, total), nl.uint32, buffer=buffer)
    if core == 0 or output_in_sbuf:
        cells = result.reshape((total, 1))
        for tile in tiles:
            number = nl.ndarray((tile.size, 1), nl.int32, buffer=nl.sbuf)
            nisa.iota(number, [[0, 1]], offset=tile.start_offset, channel_multiplier=1)
            place = places[0 : tile.size, tile.index : tile.index + 1]
            nisa.dma_copy(cells.ap([[1, tile.size], [1, 1]], vector_offset=place), number.view(nl.uint32))
    if not output_in_sbuf:
        return result
    index = nl.ndarray((1, total), nl.uint32, buffer=nl.sbuf)
    nisa.dma_copy(index, result)
    return index


def argsort_unstable_ref(data: np.ndarray, descending: bool = False) -> np.ndarray:
    """Sort in numpy: passes of 8, each with its equal values in reverse."""
    values = np.asarray(data).ravel()
    values = np.unique(values, return_inverse=True)[1]  # sorted, NaN last, equal ones alike
    order = np.argsort(-values, kind="stable")
    for start in range(0, len(order), PASS):
        part = order[start : start + PASS]
        order[start : start + PASS] = part[np.lexsort((-part, -values[part]))]
    return (order if descending else order[::-1]).astype(np.uint32).reshape(1, -1)
