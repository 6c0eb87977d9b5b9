"""The k largest of each row: GpSimd finds those of eight rows at a time, VectorE sorts 128 rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.topk.largest import AT_ONCE, LOWEST, largest
from nkilib.core.topk.rotational_topk import rotational_topk_ref
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor

GROUP = 16  # partitions that hold a row
ROWS = PMAX // GROUP  # of one instruction
MAX_COLUMNS = 65535
MAX_K = 4096


@dataclass(frozen=True)
class GpsimdTopkConfig(nl.NKIObject):
    """A problem of gpsimd_topk: the matrix, how many of each row are found, and on how many cores."""

    rows: int  # R
    columns: int  # V
    dtype: Any  # of the input
    k: int  # how many of each row
    sorted: bool = True  # the largest comes first
    num_programs: int = 2  # cores, which share the rows


def create_gpsimd_topk_config(
    inp_shape: tuple, inp_dtype: DTypeLike, k: int, sorted: bool = True, num_programs: int = 2
) -> GpsimdTopkConfig:
    """Return the configuration for an input [B S, V] or [B, S, V]."""
    kernel_assert(len(inp_shape) in (2, 3), f"inp_shape: got {inp_shape}, expected (R, V) or (B, S, V)")
    rows, columns = 1, inp_shape[-1]
    for size in inp_shape[:-1]:
        rows *= size
    kernel_assert(
        AT_ONCE <= columns <= MAX_COLUMNS, f"inp_shape: got V = {columns}, allowed are 8 to {MAX_COLUMNS}"
    )
    most = min(MAX_K, columns)
    kernel_assert(1 <= k <= most, f"k: got {k}, allowed are 1 to {most}")
    kernel_assert(num_programs in (1, 2), f"num_programs: got {num_programs}, allowed are 1 and 2")
    return GpsimdTopkConfig(rows, columns, inp_dtype, k, sorted, num_programs)


@nki.jit
def gpsimd_topk(inp: Tensor, config: GpsimdTopkConfig) -> tuple:
    """Return (values bfloat16 [R, k], columns int32 [R, k]) of the k largest of each row of inp [R, V].

    inp is bfloat16 in HBM with 8 <= V < 65536, of values above -3e38. With config.sorted the largest comes
    first; without, the order is GpSimd's. The config comes from create_gpsimd_topk_config; its num_programs
    must be the number of cores, which share the rows. k is at most 4096 here.

    >>> import ml_dtypes
    >>> x = np.array([[3, 1, 4, 1, 5, 9, 2, 6]], ml_dtypes.bfloat16)
    >>> config = create_gpsimd_topk_config(x.shape, x.dtype, 3, num_programs=1)
    >>> values, columns = gpsimd_topk(x, config)
    >>> values.tolist(), columns.tolist()
    ([[9.0, 6.0, 5.0]], [[5, 7, 4]])
    """
    cores = get_verified_program_sharding_info("gpsimd_topk", (0, 1), 2)[1]
    assert_tensors((("inp", inp),))
    assert_shape(inp, (config.rows, config.columns), "inp")
    kernel_assert(inp.dtype == nl.bfloat16, f"inp: got {inp.dtype}, allowed is bfloat16")
    kernel_assert(
        config.num_programs == cores,
        f"config: got num_programs = {config.num_programs}, expected the {cores} cores of the launch",
    )
    values = nl.ndarray((config.rows, config.k), inp.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((config.rows, config.k), nl.int32, buffer=nl.shared_hbm)
    first, end = program_share(config.rows)
    for block in TiledRange(end - first, PMAX):
        rows = (first + block.start_offset, first + block.end_offset)
        find = sorted_top if config.sorted else top_of_block
        found, places = find(inp[rows[0] : rows[1]], config.k)
        store(values[rows[0] : rows[1]], found[:, 0 : config.k])
        chosen = nl.ndarray((block.size, config.k), nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(chosen, places[:, 0 : config.k])
        nisa.dma_copy(index[rows[0] : rows[1]], chosen)
    return values, index


def sorted_top(x: Tensor, k: int) -> tuple:
    """top_of_block, the largest first."""
    found, places = top_of_block(x, k)
    found, order = largest(found, k)
    picked = nl.ndarray(order.shape, nl.float32, buffer=nl.sbuf)
    nisa.nc_n_gather(picked, places, order)
    return found, picked


def top_of_block(x: Tensor, k: int) -> tuple:
    """The k largest of up to 128 rows, a row in each partition: float32 values and columns, 8 or more."""
    rows, columns = x.shape
    each, width = div_ceil(columns, GROUP), max(k, AT_ONCE)
    values = nl.ndarray((rows, width), nl.float32, buffer=nl.sbuf)
    places = nl.ndarray((rows, width), nl.float32, buffer=nl.sbuf)
    if k < width:
        nisa.memset(values, LOWEST)
        nisa.memset(places, 0.0)
    collected = nl.ndarray((rows, k), nl.bfloat16, buffer=nl.private_hbm)
    numbers = nl.ndarray((rows, k), nl.uint32, buffer=nl.private_hbm)
    for tile in TiledRange(rows, ROWS):
        found, index = top_of_group(x[tile.start_offset : tile.end_offset], each, k)
        for row in range(tile.size):
            place, partition = tile.start_offset + row, row * GROUP
            nisa.dma_copy(collected[place : place + 1], found[partition : partition + 1])
            nisa.dma_copy(numbers[place : place + 1], index[partition : partition + 1])
    nisa.dma_copy(values[:, 0:k], collected)
    nisa.tensor_copy(places[:, 0:k], vocabulary(load(numbers), each))
    return values, places


def top_of_group(x: Tensor, each: int, k: int) -> tuple:
    """GpSimd's result for up to eight rows, in all 16 partitions of each: values, positions [128, k]."""
    rows, columns = x.shape
    data = nl.ndarray((PMAX, each), x.dtype, buffer=nl.sbuf)
    if columns % each != 0 or rows < ROWS or columns // each < GROUP:
        nisa.memset(data, LOWEST)
    full, rest = columns // each, columns % each
    for row in range(rows):  # partition p of a row holds its columns from p * each on
        start = row * GROUP
        nisa.dma_copy(data[start : start + full], x[row, 0 : full * each].reshape((full, each)))
        if rest > 0:
            tail = data[start + full : start + full + 1, 0:rest]
            nisa.dma_copy(tail, x[row : row + 1, full * each :])
    values = nl.ndarray((PMAX, k), x.dtype, buffer=nl.sbuf)
    index = nl.ndarray((PMAX, k), nl.uint32, buffer=nl.sbuf)
    nisa.topk(values, index, data, max(AT_ONCE, GROUP * each))
    return values, index


def vocabulary(positions: Tensor, each: int) -> Any:
    """Position p + 16 c of GpSimd holds column p each + c; int32 to float32."""
    partition = nl.ndarray(positions.shape, nl.uint32, buffer=nl.sbuf)
    column = nl.ndarray(positions.shape, nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(partition, positions, nl.bitwise_and, GROUP - 1)
    nisa.tensor_scalar(column, positions, nl.right_shift, 4)
    result = nl.ndarray(positions.shape, nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(result, partition, nl.multiply, float(each), nl.add, column)
    return result


def gpsimd_topk_ref(inp: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort in numpy."""
    return rotational_topk_ref(inp, k)
