"""Emission of packed factors: tiles that continue each other in memory are one."""

from __future__ import annotations

import numpy as np
import pytest

from nki.backends.fused.emission import MAX_JOINED, _join_rows
from nki.backends.fused.steps import ArrayRef, PackedTile
from nki.machine.dtypes import float32


def tiles_of(array, height, width):
    """The tiles of a matrix [K, M] in memory, term by term."""
    rows, columns = array.shape
    found = []
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            offset = row * array.strides[0] + column * array.strides[1]
            source = ArrayRef(0, offset, (min(height, rows - row), width), array.strides, float32)
            found.append(PackedTile(row, 1, source.shape[0], column, width, source))
    return found


def pack(tiles, raw, shape):
    packed = np.zeros(shape, np.float32)
    for row, step, rows, column, columns, (_, offset, *layout, dtype) in tiles:
        source = np.ndarray(layout[0], dtype.storage, raw, offset, layout[1])
        packed[row : row + step * rows : step, column : column + columns] += source
    return packed


@pytest.mark.parametrize("order", ["C", "F"])
def test_tiles_below_each_other_are_joined_and_pack_the_same_matrix(order):
    array = np.arange(300 * 96, dtype=np.float32).reshape((300, 96), order=order)
    tiles = tiles_of(array, 64, 32)
    joined = _join_rows(tiles)
    assert len(tiles) == 15 and [(t.row, t.rows) for t in joined] == [(0, 300)] * 3
    np.testing.assert_array_equal(pack(joined, array, array.shape), array)


def test_tiles_that_are_apart_in_memory_or_in_the_factor_stay_apart():
    array = np.arange(128 * 32, dtype=np.float32).reshape(128, 32)
    above, below = tiles_of(array, 64, 32)
    moved = below._replace(source=below.source._replace(offset=below.source.offset + 4))
    other = below._replace(source=below.source._replace(storage=1))
    for second in (moved, other, below._replace(row=65)):
        assert _join_rows([above, second]) == [above, second]


def test_tiles_large_enough_for_threads_stay_apart():
    array = np.empty((4 * MAX_JOINED // 512, 512), np.float32)
    assert [t.rows * t.columns for t in _join_rows(tiles_of(array, 128, 512))] == [MAX_JOINED] * 4
