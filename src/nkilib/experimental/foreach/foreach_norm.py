"""Norms of whole tensors.

Tensors are float32, bfloat16 or float16 of any shape, and `numel` is their number of elements. The result is
[1, 1] in their dtype, computed in float32; a NaN anywhere makes it NaN. On two cores each takes a contiguous
part, and the parts' results travel by sendrecv.

>>> gradient = np.array([3.0, -4.0], np.float32)
>>> l2_norm_kernel(gradient, gradient.size)
array([[5.]], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.foreach.flat_tiles import check_data, flat_tiles

TILE_COLUMNS = 2048  # small, so that little work remains after the last transfer


@nki.jit
def l2_norm_kernel(data: Tensor, numel: int) -> Tensor:
    """sqrt(sum(data^2)): [1, 1]."""
    check_data(data, data, numel, "data")
    total = reduce_all(data, numel, sum_of_squares, nl.add)
    # power, because ScalarE's sqrt is not specified at 0
    nisa.tensor_scalar(total, total, op0=nl.power, operand0=0.5, engine=nisa.engine.gpsimd)
    return as_result(total, data.dtype)


@nki.jit
def l1_norm_kernel(data: Tensor, numel: int) -> Tensor:
    """sum(|data|): [1, 1]."""
    check_data(data, data, numel, "data")
    return as_result(reduce_all(data, numel, sum_of_magnitudes, nl.add), data.dtype)


@nki.jit
def linf_norm_kernel(data: Tensor, numel: int) -> Tensor:
    """max(|data|): [1, 1]."""
    check_data(data, data, numel, "data")
    return as_result(reduce_all(data, numel, largest_magnitude, nl.maximum), data.dtype)


# ---- one tile: [P, F] to [P, 1], overwriting the tile ----------------------------------------------
# DMA loads 16-bit tiles faster than one engine can reduce them, so engines take tiles by their number.


def sum_of_squares(dst: Tensor, tile: Tensor, number: int) -> None:
    if number % 3 != 1:
        nisa.activation_reduce(tile, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=dst)
        return
    squares = nl.ndarray(tile.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(squares, tile, tile, op=nl.multiply, engine=nisa.engine.gpsimd)
    nisa.tensor_reduce(dst, op=nl.add, data=squares, axis=1)


def sum_of_magnitudes(dst: Tensor, tile: Tensor, number: int) -> None:
    if number % 2 == 1:
        nisa.activation_reduce(tile, op=nl.abs, data=tile, reduce_op=nl.add, reduce_res=dst)
    else:
        reduce_magnitudes(dst, tile, nl.add)


def largest_magnitude(dst: Tensor, tile: Tensor, number: int) -> None:
    if number % 4 == 0:
        reduce_magnitudes(dst, tile, nl.maximum)
        return
    columns = tile.shape[1]
    half = (columns + 1) // 2  # of an odd number the middle column is in both halves
    nisa.activation(tile, op=nl.abs, data=tile)
    larger = nl.ndarray((tile.shape[0], half), tile.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(
        larger, tile[:, 0:half], tile[:, columns - half : columns], op=nl.maximum, engine=nisa.engine.gpsimd
    )
    nisa.tensor_reduce(dst, op=nl.maximum, data=larger, axis=1)


def reduce_magnitudes(dst: Tensor, tile: Tensor, op: Callable[..., Tensor]) -> None:
    """Reduce |tile| over each partition, on VectorE alone."""
    nisa.tensor_scalar_reduce(tile, data=tile, op0=nl.abs, operand0=0.0, reduce_op=op, reduce_res=dst)


# ---- from tiles to one number ----------------------------------------------------------------------


def reduce_all(
    data: Tensor, numel: int, reduce_tile: Callable[[Tensor, Tensor, int], None], op: Callable[..., Tensor]
) -> Tensor:
    """Return [1, 1]: the reduction by `op` of what reduce_tile leaves of each tile. 0 must be neutral."""
    tiles = flat_tiles(numel, TILE_COLUMNS)
    parts = nl.ndarray((PMAX, max(len(tiles), 1)), nl.float32, buffer=nl.sbuf)
    nisa.memset(parts, 0.0)
    for i in range(len(tiles)):
        reduce_tile(parts[0 : tiles[i].partitions, i : i + 1], tiles[i].load(data), i)
    lanes = nl.ndarray((PMAX, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(lanes, op=op, data=parts, axis=1)
    total = across_partitions(lanes, op)
    return across_cores(total, op) if nl.num_programs(0) > 1 else total


def across_partitions(lanes: Tensor, op: Callable[..., Tensor]) -> Tensor:
    """Reduce [128, 1] to [1, 1]."""
    row = nl.ndarray((1, PMAX), nl.float32, buffer=nl.psum)
    nisa.nc_transpose(row, lanes)
    total = nl.ndarray((1, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(total, op=op, data=row, axis=1)
    return total


def across_cores(total: Tensor, op: Callable[..., Tensor]) -> Tensor:
    """Reduce the totals of both cores, on both."""
    theirs = nl.ndarray((1, 1), nl.float32, buffer=nl.sbuf)
    other = 1 - nl.program_id(0)
    nisa.sendrecv(src=total, dst=theirs, send_to_rank=other, recv_from_rank=other, pipe_id=0)
    both = nl.ndarray((1, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(both, total, theirs, op=op)
    return both


def as_result(total: Tensor, dtype: DTypeLike) -> Tensor:
    """Store a total as [1, 1] in HBM; core 0 writes it."""
    result = nl.ndarray((1, 1), dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        cast = nl.ndarray((1, 1), dtype, buffer=nl.sbuf)
        nisa.tensor_copy(cast, total)
        nisa.dma_copy(result, cast)
    return result


# ---- references in float64 -------------------------------------------------------------------------


def l2_norm_kernel_ref(data: np.ndarray, numel: int) -> np.ndarray:
    flat = np.asarray(data).astype(np.float64).ravel()
    return np.sqrt(flat @ flat).reshape(1, 1).astype(data.dtype)


def l1_norm_kernel_ref(data: np.ndarray, numel: int) -> np.ndarray:
    return np.abs(np.asarray(data).astype(np.float64)).sum().reshape(1, 1).astype(data.dtype)


def linf_norm_kernel_ref(data: np.ndarray, numel: int) -> np.ndarray:
    return np.abs(np.asarray(data).astype(np.float64)).max().reshape(1, 1).astype(data.dtype)
