"""Operands of `nl` functions: tiles and numbers, and what brings them to one shape (spec/language.md 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import isa
from ..errors import NkiError, error
from ..ir.context import current, running, warn
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine import dtypes
from ..machine.dtypes import DType, DTypeLike
from ..machine.memories import PSUM
from .allocation import allocate
from .watch import INTEGERS, WatchIntegers

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_QUADRANT = 32  # partitions nc_stream_shuffle serves at a time


def check_tile(function: str, name: str, value: object) -> NkiTensor:
    """Return `value`, if it is a tile in SBUF or PSUM; load a tensor in HBM, with a warning."""
    if not isinstance(value, NkiTensor):
        shown = repr(value) if is_number(value) else type(value).__name__
        help = "fill a tile with nl.full" if is_number(value) else None
        raise wrong_argument(f"{function}: {name} must be a tile, got {shown}", help)
    return value if value.on_chip else _loaded(function, name, value)


def _loaded(function: str, name: str, tensor: NkiTensor) -> NkiTensor:
    """Return a copy of an HBM tensor in SBUF: simulators accept what compilers refuse."""
    warn(
        "buffer",
        f"{function}: {name} is in HBM, nl.{function} works on tiles in SBUF or PSUM; it is loaded first",
        notes=[f"{name}: {tensor.describe()}"],
        help="load it yourself: nl.load, or nisa.dma_copy into an SBUF tile",
    )
    tile = allocate(function, tensor.shape if tensor.ndim > 1 else (*tensor.shape, 1), tensor.dtype)
    isa.dma_copy(tile, tensor)
    return tile


def wrong_argument(message: str, help: str | None = None) -> NkiError:
    """Return the error of a wrong argument; outside a kernel, raise the error that there is no kernel."""
    current()
    return error("argument", message, help=help)


def check_operand(function: str, name: str, value: object) -> NkiTensor | int | float:
    """Return `value`, if it is a tile or a number; numbers become Python's."""
    if not is_number(value):
        return check_tile(function, name, value)
    number: int | float = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, int) and not -(2**31) <= number < 2**32:
        raise wrong_argument(f"{function}: {name}={number} does not fit 32 bits")
    return number


_NUMBERS = (bool, int, float, np.floating, np.integer, np.bool_)


def is_number(value: object) -> TypeIs[int | float | np.floating | np.integer | np.bool_]:
    return value.__class__ is not NkiTensor and isinstance(value, _NUMBERS)


def common_shape(function: str, **tiles: NkiTensor) -> tuple[int, ...]:
    """Return the shape all tiles broadcast to: equal ranks, equal sizes or 1."""
    shapes = {name: tuple(tile.shape) for name, tile in tiles.items()}
    first, *others = shapes.values()
    if all(shape == first for shape in others):
        return first
    sizes = [max(column) for column in zip(*shapes.values(), strict=False)]
    fits = all(
        len(shape) == len(first) and all(n in (1, size) for n, size in zip(shape, sizes, strict=True))
        for shape in shapes.values()
    )
    if not fits:
        shown = " and ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise error(
            "shape",
            f"{function}: {shown} do not fit together",
            notes=[f"{name}: {tile.describe()}" for name, tile in tiles.items()],
            help="dimensions must be equal or 1, and ranks equal (t.expand_dim adds a dimension)",
        )
    small = [name for name, tile in tiles.items() if not _is_served(tile, sizes)]
    if small:
        warn(
            "broadcast",
            f"{function}: {small[0]} {shapes[small[0]]} is broadcast to {tuple(sizes)}",
            notes=[f"{name}: {tiles[name].describe()}" for name in small],
            help="device code wants equal shapes or a (P, 1) operand; nl.broadcast_to makes the copy visible",
        )
    return tuple(sizes)


def _is_served(tile: NkiTensor, sizes: list[int]) -> bool:
    """Whether a tile has the full shape, or is the (P, 1) operand that tensor_scalar takes."""
    return list(tile.shape) == sizes or (tile.free_elements == 1 and tile.shape[0] == sizes[0])


def stretch(x: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """Return a view of x with its size-1 free dimensions repeated."""
    for dim in range(1, len(shape)):
        if x.shape[dim] != shape[dim]:
            x = x.broadcast(dim, shape[dim])
    return x


def spread(x: NkiTensor, partitions: int) -> NkiTensor:
    """Return x itself, or a copy of its single partition on many."""
    if x.shape[0] == partitions:
        return x
    out = allocate("broadcast_to", (partitions, *x.shape[1:]), x.dtype)
    spread_into(out, x)
    return out


def spread_into(out: NkiTensor, x: NkiTensor) -> None:
    """Copy the single partition of x to every partition of `out`.

    TensorE multiplies floats by a column of ones, as the architecture guide says NKI does ("alternative use
    cases" of the Tensor Engine); other dtypes go bit by bit through VectorE.
    """
    if _multiplies(x):
        _multiplied(out, in_sbuf(x))
        return
    for start in range(0, out.shape[0], _QUADRANT):
        stop = min(start + _QUADRANT, out.shape[0])
        isa.nc_stream_shuffle(out[start:stop], x, [0] * _QUADRANT)


def _multiplies(x: NkiTensor) -> bool:
    """Whether TensorE can take x: a float that float32 sums keep exactly, in rows that can be split."""
    known = x.dtype in ("float32", "bfloat16", "float16")
    small = x.free_elements <= current().machine.gemm_moving_fmax
    return known and x.indirection is None and (x.ndim == 2 or small or x.is_contiguous())


def _multiplied(out: NkiTensor, x: NkiTensor) -> None:
    """Compute ones.T @ x in PSUM, bank by bank, then copy it to SBUF on the least busy engine."""
    most, first = current().machine.gemm_moving_fmax, x.start_partition
    ones = allocate("broadcast_to", (first + 1, out.shape[0]), x.dtype)[first : first + 1]
    isa.memset(ones, 1.0)
    if x.free_elements > most and x.ndim > 2:
        x = x.reshape((1, x.free_elements))
        out = out.reshape((out.shape[0], x.free_elements))
    for start in range(0, x.free_elements, most):
        part = x if x.free_elements <= most else x[:, start : min(start + most, x.free_elements)]
        target = out if part is x else out[:, start : min(start + most, x.free_elements)]
        bank = allocate("broadcast_to", (out.shape[0], *part.shape[1:]), dtypes.float32, PSUM)
        isa.nc_matmul(bank, ones, part)
        isa.tensor_copy(target, bank)


def in_sbuf(x: NkiTensor) -> NkiTensor:
    """Return x itself, or a copy of it in SBUF."""
    return cast(x, x.dtype) if x.buffer is PSUM else x


def cast(x: NkiTensor, dtype: DType) -> NkiTensor:
    """Return a copy of x in SBUF with another dtype."""
    out = allocate("copy", x.shape, dtype)
    isa.tensor_copy(out, x)
    return out


def result_dtype(function: str, dtype: DTypeLike | None, *tiles: NkiTensor) -> DType:
    """Return `dtype` if given, else the promoted dtype of the tiles (spec/language.md 6.2)."""
    if dtype is not None:
        return dtypes.resolve(dtype, f"{function}: dtype")
    result = tiles[0].dtype
    for tile in tiles[1:]:
        result = dtypes.promote(result, tile.dtype)
    return result


def watch_integers(function: str, *values: object) -> None:
    """Warn (int-precision) if an `nl` function gets 32-bit integers beyond 2^24 (spec/language.md 6.1)."""
    tiles = [v for v in values if isinstance(v, View) and v.dtype in INTEGERS and v.indirection is None]
    if not tiles or running() is None:
        return
    number = max((abs(v) for v in values if isinstance(v, int)), default=0)
    for i, tile in enumerate(tiles):
        issue(WatchIntegers(function, tile, number if i == 0 else 0))
