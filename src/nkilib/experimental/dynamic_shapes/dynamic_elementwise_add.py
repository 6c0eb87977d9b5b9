"""The sum of two matrices in a number of rows that a tensor gives at run time."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor

TILE_ROWS = nl.tile_size.pmax
COLUMNS_UNIT = 512
TILE_COLUMNS = 2048  # several transfers in each iteration, so that they overlap with the sums


@nki.jit
def dynamic_elementwise_add(input_a: Tensor, input_b: Tensor, num_m_tiles: Tensor) -> Tensor:
    """input_a + input_b in the rows below 128 * num_m_tiles; the other rows of the result are not written.

    Inputs are [M, H] of bfloat16 with M % 128 == 0 and H % 512 == 0; num_m_tiles is [1, 1] of int32 in HBM,
    0 to M / 128, which is not checked. The sum is rounded once. Two cores share the columns.

    >>> a = np.ones((256, 512), "bfloat16")
    >>> dynamic_elementwise_add(a, a, np.array([[2]], np.int32))[0, :3]
    array([2, 2, 2], dtype=bfloat16)
    """
    check_arguments(input_a, input_b, num_m_tiles)
    result = nl.ndarray(input_a.shape, input_a.dtype, buffer=nl.shared_hbm)
    a, b, total = by_row_tiles(input_a), by_row_tiles(input_b), by_row_tiles(result)
    tiles = nisa.register_alloc()
    nisa.register_load(tiles, num_m_tiles)

    def add_row_tile(m: nisa.VirtualRegister) -> None:
        add_columns(total.select(0, m), a.select(0, m), b.select(0, m))

    nl.fori_loop(0, tiles, add_row_tile)
    return result


def check_arguments(input_a: Tensor, input_b: Tensor, num_m_tiles: Tensor) -> None:
    given = (("input_a", input_a), ("input_b", input_b), ("num_m_tiles", num_m_tiles))
    assert_tensors(given)
    kernel_assert(input_a.dtype == nl.bfloat16, f"input_a: got dtype {input_a.dtype}, allowed is bfloat16")
    kernel_assert(input_b.dtype == nl.bfloat16, f"input_b: got dtype {input_b.dtype}, allowed is bfloat16")
    kernel_assert(
        len(input_a.shape) == 2, f"input_a: got shape {tuple(input_a.shape)}, allowed are two dimensions"
    )
    assert_shape(input_b, input_a.shape, "input_b")
    rows, columns = input_a.shape
    kernel_assert(rows % TILE_ROWS == 0, f"input_a: got {rows} rows, allowed are multiples of {TILE_ROWS}")
    kernel_assert(
        columns % COLUMNS_UNIT == 0,
        f"input_a: got {columns} columns, allowed are multiples of {COLUMNS_UNIT}",
    )
    assert_shape(num_m_tiles, (1, 1), "num_m_tiles")
    kernel_assert(
        num_m_tiles.dtype == nl.int32, f"num_m_tiles: got dtype {num_m_tiles.dtype}, allowed is int32"
    )


def by_row_tiles(matrix: Tensor) -> Tensor:
    """View [M, H] as [M / 128, 128, H]."""
    return matrix.reshape_dim(0, (matrix.shape[0] // TILE_ROWS, TILE_ROWS))


def add_columns(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Compute total = a + b, [128, H], for this core's share of the columns."""
    start, end = program_share(total.shape[1], COLUMNS_UNIT)
    for part in TiledRange(end - start, TILE_COLUMNS):
        first, last = start + part.start_offset, start + part.end_offset
        x, y = load(a[:, first:last]), load(b[:, first:last])
        nisa.tensor_tensor(x, x, y, op=nl.add)
        nisa.dma_copy(total[:, first:last], x)


def dynamic_elementwise_add_ref(
    input_a: np.ndarray, input_b: np.ndarray, num_m_tiles: np.ndarray
) -> np.ndarray:
    """Return only the rows that are written."""
    rows = TILE_ROWS * int(np.asarray(num_m_tiles)[0, 0])
    total = input_a[:rows].astype(np.float32) + input_b[:rows].astype(np.float32)
    return total.astype(input_a.dtype)
