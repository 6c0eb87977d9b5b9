"""Elementwise kernels over whole tensors: the building blocks of torch's foreach operations.

Tensors are float32, bfloat16 or float16 of any shape, and `numel` is their number of elements. A scalar
comes as a [128, 1] tensor with the same value in each row. Arithmetic is float32; the result has the shape
and dtype of the first tensor. On two cores each takes a contiguous part.

>>> data1, data2 = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
>>> add_tensor_kernel(data1, data2, np.full((128, 1), 2.0, np.float32), data1.size)  # data1 + 2 * data2
array([2., 3., 4.], dtype=float32)

Division multiplies by VectorE's reciprocal: x / 0 is infinite or NaN as in IEEE 754, and a divisor so small
that its reciprocal overflows counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.types import Tensor
from nkilib.experimental.foreach.flat_tiles import (
    FlatTile,
    check_data,
    check_scalar,
    flat_tiles,
    load_scalar,
)

TILE_COLUMNS = 4096  # transfers of 1 MiB (16-bit) keep the DMA engines busy


# ---- all tiles of the tensors -----------------------------------------------------------------------


def elementwise(
    operation: Callable[[list, Tensor], None],
    data: tuple,
    names: tuple,
    numel: int,
    scalar_tensor: Tensor | None = None,
    scalar_name: str = "",
) -> Tensor:
    """Apply `operation(tiles, scalar)`, which leaves its result in tiles[0], to all tiles of the tensors."""
    check_all(data, names, numel)
    scalar = None
    if scalar_name:
        check_scalar(scalar_tensor, scalar_name)
        scalar = load_scalar(scalar_tensor)
    result = nl.ndarray(data[0].shape, data[0].dtype, buffer=nl.shared_hbm)
    for tile in flat_tiles(numel, TILE_COLUMNS):
        tiles = load_all(data, tile)
        operation(tiles, scalar[0 : tile.partitions] if scalar is not None else None)
        tile.store(result, tiles[0])
    return result


def check_all(data: tuple, names: tuple, numel: int) -> None:
    for i in range(len(data)):
        check_data(data[i], data[0], numel, names[i])


def load_all(data: tuple, tile: FlatTile) -> list:
    tiles = []
    for tensor in data:
        tiles.append(tile.load(tensor))
    return tiles


def float32_like(tile: Tensor) -> Tensor:
    """Allocate a tile for an intermediate result, which is not rounded to 16 bits."""
    return nl.ndarray(tile.shape, nl.float32, buffer=nl.sbuf)


# ---- operations on one tile ------------------------------------------------------------------------


def add_scalar(tiles: list, scalar: Tensor) -> None:
    nisa.tensor_scalar(tiles[0], tiles[0], op0=nl.add, operand0=scalar)


def subtract_scalar(tiles: list, scalar: Tensor) -> None:
    nisa.tensor_scalar(tiles[0], tiles[0], op0=nl.subtract, operand0=scalar)


def multiply_scalar(tiles: list, scalar: Tensor) -> None:
    nisa.tensor_scalar(tiles[0], tiles[0], op0=nl.multiply, operand0=scalar)


def divide_scalar(tiles: list, scalar: Tensor) -> None:
    inverse = float32_like(scalar)
    nisa.reciprocal(inverse, scalar)
    multiply_scalar(tiles, inverse)


def add_scaled(tiles: list, alpha: Tensor) -> None:
    scale_and_add(tiles[0], tiles[1], alpha, tiles[0])


def subtract_scaled(tiles: list, alpha: Tensor) -> None:
    nisa.scalar_tensor_tensor(
        tiles[0],
        data=tiles[1],
        op0=nl.multiply,
        operand0=alpha,
        op1=nl.subtract,
        operand1=tiles[0],
        reverse1=True,
    )


def multiply(tiles: list, scalar: Tensor) -> None:
    nisa.tensor_tensor(tiles[0], tiles[0], tiles[1], op=nl.multiply)


def divide(tiles: list, scalar: Tensor) -> None:
    write_quotient(tiles[0], tiles[0], tiles[1])


def add_quotient(tiles: list, value: Tensor) -> None:
    quotient = float32_like(tiles[0])
    write_quotient(quotient, tiles[1], tiles[2])
    nisa.activation(quotient, op=nl.copy, data=quotient, scale=value)
    nisa.tensor_tensor(tiles[0], tiles[0], quotient, op=nl.add, engine=nisa.engine.gpsimd)


def write_quotient(dst: Tensor, dividend: Tensor, divisor: Tensor) -> None:
    """Set dst = dividend / divisor. VectorE computes the reciprocal, so other engines do the rest."""
    inverse = float32_like(divisor)
    nisa.reciprocal(inverse, divisor)
    nisa.tensor_tensor(dst, dividend, inverse, op=nl.multiply, engine=nisa.engine.gpsimd)


def add_product(tiles: list, value: Tensor) -> None:
    product = float32_like(tiles[0])
    nisa.tensor_tensor(product, tiles[1], tiles[2], op=nl.multiply)
    scale_and_add(tiles[0], product, value, tiles[0])


def interpolate(tiles: list, weight: Tensor) -> None:
    difference = float32_like(tiles[0])
    # on VectorE alone the two instructions would take longer than the transfers
    nisa.tensor_tensor(difference, tiles[1], tiles[0], op=nl.subtract, engine=nisa.engine.gpsimd)
    scale_and_add(tiles[0], difference, weight, tiles[0])


def square_root(tiles: list, scalar: Tensor) -> None:
    # power, because ScalarE's sqrt is not specified at 0; negative numbers become -1, whose power is NaN
    nisa.tensor_scalar(
        tiles[0],
        tiles[0],
        op0=nl.maximum,
        operand0=-1.0,
        op1=nl.power,
        operand1=0.5,
        engine=nisa.engine.gpsimd,
    )


def scale_and_add(dst: Tensor, data: Tensor, scale: Tensor, addend: Tensor) -> None:
    """dst = data * scale + addend."""
    nisa.scalar_tensor_tensor(dst, data=data, op0=nl.multiply, operand0=scale, op1=nl.add, operand1=addend)


# ---- tensor and scalar -----------------------------------------------------------------------------


@nki.jit
def add_scalar_kernel(data: Tensor, scalar_tensor: Tensor, numel: int) -> Tensor:
    """data + scalar."""
    return elementwise(add_scalar, (data,), ("data",), numel, scalar_tensor, "scalar_tensor")


@nki.jit
def sub_scalar_kernel(data: Tensor, scalar_tensor: Tensor, numel: int) -> Tensor:
    """data - scalar."""
    return elementwise(subtract_scalar, (data,), ("data",), numel, scalar_tensor, "scalar_tensor")


@nki.jit
def mul_scalar_kernel(data: Tensor, scalar_tensor: Tensor, numel: int) -> Tensor:
    """data * scalar."""
    return elementwise(multiply_scalar, (data,), ("data",), numel, scalar_tensor, "scalar_tensor")


@nki.jit
def div_scalar_kernel(data: Tensor, scalar_tensor: Tensor, numel: int) -> Tensor:
    """data / scalar."""
    return elementwise(divide_scalar, (data,), ("data",), numel, scalar_tensor, "scalar_tensor")


# ---- two tensors -----------------------------------------------------------------------------------


@nki.jit
def add_tensor_kernel(data1: Tensor, data2: Tensor, alpha_tensor: Tensor, numel: int) -> Tensor:
    """data1 + alpha * data2."""
    data, names = (data1, data2), ("data1", "data2")
    return elementwise(add_scaled, data, names, numel, alpha_tensor, "alpha_tensor")


@nki.jit
def sub_tensor_kernel(data1: Tensor, data2: Tensor, alpha_tensor: Tensor, numel: int) -> Tensor:
    """data1 - alpha * data2."""
    data, names = (data1, data2), ("data1", "data2")
    return elementwise(subtract_scaled, data, names, numel, alpha_tensor, "alpha_tensor")


@nki.jit
def mul_tensor_kernel(data1: Tensor, data2: Tensor, numel: int) -> Tensor:
    """data1 * data2."""
    return elementwise(multiply, (data1, data2), ("data1", "data2"), numel)


@nki.jit
def div_tensor_kernel(data1: Tensor, data2: Tensor, numel: int) -> Tensor:
    """data1 / data2."""
    return elementwise(divide, (data1, data2), ("data1", "data2"), numel)


@nki.jit
def lerp_kernel(data: Tensor, end: Tensor, weight_tensor: Tensor, numel: int) -> Tensor:
    """data + weight * (end - data)."""
    tensors, names = (data, end), ("data", "end")
    return elementwise(interpolate, tensors, names, numel, weight_tensor, "weight_tensor")


# ---- three tensors, one tensor ---------------------------------------------------------------------


@nki.jit
def addcdiv_kernel(data: Tensor, data1: Tensor, data2: Tensor, value_tensor: Tensor, numel: int) -> Tensor:
    """data + value * (data1 / data2)."""
    tensors, names = (data, data1, data2), ("data", "data1", "data2")
    return elementwise(add_quotient, tensors, names, numel, value_tensor, "value_tensor")


@nki.jit
def addcmul_kernel(data: Tensor, data1: Tensor, data2: Tensor, value_tensor: Tensor, numel: int) -> Tensor:
    """data + value * (data1 * data2)."""
    tensors, names = (data, data1, data2), ("data", "data1", "data2")
    return elementwise(add_product, tensors, names, numel, value_tensor, "value_tensor")


@nki.jit
def sqrt_kernel(data: Tensor, numel: int) -> Tensor:
    """Square root of data; NaN where it is negative."""
    return elementwise(square_root, (data,), ("data",), numel)


# ---- references in float64 -------------------------------------------------------------------------


def wide(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def first(scalar_tensor: np.ndarray) -> float:
    """Return the value that a scalar tensor has in each row."""
    return float(np.asarray(scalar_tensor)[0, 0])


def rounded(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Convert to the dtype of a tensor; values out of range become infinite, as on the device."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(like.dtype)


def add_scalar_kernel_ref(data: np.ndarray, scalar_tensor: np.ndarray, numel: int) -> np.ndarray:
    return rounded(wide(data) + first(scalar_tensor), data)


def sub_scalar_kernel_ref(data: np.ndarray, scalar_tensor: np.ndarray, numel: int) -> np.ndarray:
    return rounded(wide(data) - first(scalar_tensor), data)


def mul_scalar_kernel_ref(data: np.ndarray, scalar_tensor: np.ndarray, numel: int) -> np.ndarray:
    return rounded(wide(data) * first(scalar_tensor), data)


def div_scalar_kernel_ref(data: np.ndarray, scalar_tensor: np.ndarray, numel: int) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return rounded(wide(data) / first(scalar_tensor), data)


def add_tensor_kernel_ref(
    data1: np.ndarray, data2: np.ndarray, alpha_tensor: np.ndarray, numel: int
) -> np.ndarray:
    return rounded(wide(data1) + first(alpha_tensor) * wide(data2), data1)


def sub_tensor_kernel_ref(
    data1: np.ndarray, data2: np.ndarray, alpha_tensor: np.ndarray, numel: int
) -> np.ndarray:
    return rounded(wide(data1) - first(alpha_tensor) * wide(data2), data1)


def mul_tensor_kernel_ref(data1: np.ndarray, data2: np.ndarray, numel: int) -> np.ndarray:
    return rounded(wide(data1) * wide(data2), data1)


def div_tensor_kernel_ref(data1: np.ndarray, data2: np.ndarray, numel: int) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return rounded(wide(data1) / wide(data2), data1)


def lerp_kernel_ref(data: np.ndarray, end: np.ndarray, weight_tensor: np.ndarray, numel: int) -> np.ndarray:
    return rounded(wide(data) + first(weight_tensor) * (wide(end) - wide(data)), data)


def addcdiv_kernel_ref(
    data: np.ndarray, data1: np.ndarray, data2: np.ndarray, value_tensor: np.ndarray, numel: int
) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return rounded(wide(data) + first(value_tensor) * (wide(data1) / wide(data2)), data)


def addcmul_kernel_ref(
    data: np.ndarray, data1: np.ndarray, data2: np.ndarray, value_tensor: np.ndarray, numel: int
) -> np.ndarray:
    return rounded(wide(data) + first(value_tensor) * (wide(data1) * wide(data2)), data)


def sqrt_kernel_ref(data: np.ndarray, numel: int) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return rounded(np.sqrt(wide(data)), data)
