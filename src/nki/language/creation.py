"""Creating tensors: uninitialised, filled with a number, or random (spec/language.md 9)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Union

from .. import isa
from ..errors import error
from ..ir.context import current
from ..ir.layout import Int
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..machine import dtypes
from ..machine.dtypes import DTypeLike
from ..machine.machine import Machine
from ..machine.memories import SBUF, MemoryRegion
from ..machine.operators import OPERATORS
from ..typing import Number
from .allocation import allocate

_STAGE_BYTES = 32 * 1024  # per partition of the SBUF tile through which HBM is filled

# ---- uninitialised -------------------------------------------------------------------------------


class _Ndarray:
    """A function that also serves as an annotation, as in `bias: nl.ndarray | None`."""

    __name__ = __qualname__ = "ndarray"
    __module__ = "nki.language"

    def __init__(self) -> None:
        self.__doc__ = "A new tensor with undefined contents; `address=(partition, byte)` places a tile."
        self.__signature__ = inspect.signature(self.__call__)

    def __call__(
        self,
        shape: Sequence[Int],
        dtype: DTypeLike,
        buffer: MemoryRegion = SBUF,
        name: str | None = "",
        address: Sequence[Int] | None = None,
    ) -> NkiTensor:
        return allocate("ndarray", shape, dtype, buffer, name, address)

    def __get__(self, instance: object, owner: type | None = None) -> _Ndarray:
        return self  # lets help() show it as the function it is

    def __or__(self, other: object) -> Any:
        return Union[NkiTensor, NkiTensor if other is self else other]  # noqa: UP007

    __ror__ = __or__

    def __repr__(self) -> str:
        return "<function nl.ndarray>"


ndarray = _Ndarray()


def empty_like(
    x: NkiTensor, dtype: DTypeLike | None = None, buffer: MemoryRegion | None = None, name: str | None = ""
) -> NkiTensor:
    """A new tensor with undefined contents and the shape, dtype and buffer of x unless given."""
    return _like("empty_like", x, dtype, buffer, name)


def _like(
    function: str,
    x: NkiTensor,
    dtype: DTypeLike | None,
    buffer: MemoryRegion | None,
    name: str | None,
) -> NkiTensor:
    if not isinstance(x, View):
        current()
        raise error("argument", f"{function}: x must be a tensor, got {type(x).__name__}")
    return allocate(
        function, x.shape, x.dtype if dtype is None else dtype, x.buffer if buffer is None else buffer, name
    )


# ---- filled --------------------------------------------------------------------------------------


def zeros(
    shape: Sequence[Int], dtype: DTypeLike, buffer: MemoryRegion = SBUF, name: str | None = ""
) -> NkiTensor:
    """A new tensor filled with zeros."""
    return _filled(allocate("zeros", shape, dtype, buffer, name), 0)


def ones(
    shape: Sequence[Int], dtype: DTypeLike, buffer: MemoryRegion = SBUF, name: str | None = ""
) -> NkiTensor:
    """A new tensor filled with ones."""
    return _filled(allocate("ones", shape, dtype, buffer, name), 1)


def full(
    shape: Sequence[Int],
    fill_value: Number,
    dtype: DTypeLike,
    buffer: MemoryRegion = SBUF,
    name: str | None = "",
) -> NkiTensor:
    """A new tensor filled with a number; an integer dtype takes an int."""
    return _filled(allocate("full", shape, dtype, buffer, name), fill_value)


def zeros_like(
    x: NkiTensor, dtype: DTypeLike | None = None, buffer: MemoryRegion | None = None, name: str | None = ""
) -> NkiTensor:
    """A new tensor of zeros with the shape, dtype and buffer of x unless given."""
    return _filled(_like("zeros_like", x, dtype, buffer, name), 0)


def _filled(tensor: NkiTensor, value: Number) -> NkiTensor:
    if tensor.on_chip:
        isa.memset(tensor, value)
        return tensor
    tile = _stage(tensor)
    isa.memset(tile, value)
    _write_through(tile, tensor, lambda: None)
    return tensor


def _stage(tensor: NkiTensor) -> NkiTensor:
    """Return an SBUF tile through which an HBM tensor is written."""
    columns = -(-tensor.size // Machine.partitions)
    columns = min(columns, _STAGE_BYTES // tensor.dtype.itemsize)
    return allocate("full", (min(Machine.partitions, tensor.size), columns), tensor.dtype, SBUF)


def _write_through(tile: NkiTensor, tensor: NkiTensor, refill: Callable[[], object]) -> None:
    """Copy `tile` to every section of `tensor`; `refill` gives it new contents before each copy."""
    flat = tensor.reshape((tensor.size,))
    columns = tile.shape[1]
    for start in range(0, tensor.size, tile.size):
        refill()
        rows, rest = divmod(min(tile.size, tensor.size - start), columns)
        stop = start + rows * columns
        if rows:
            isa.dma_copy(flat[start:stop].reshape((rows, columns)), tile[0:rows])
        if rest:
            isa.dma_copy(flat[stop : stop + rest].reshape((1, rest)), tile[0:1, 0:rest])


# ---- random --------------------------------------------------------------------------------------


def rand(
    shape: Sequence[Int], dtype: DTypeLike, buffer: MemoryRegion = SBUF, name: str | None = ""
) -> NkiTensor:
    """A new tensor of random numbers, uniform in [0, 1)."""
    tensor = allocate("rand", shape, dtype, buffer, name)
    if not (tensor.dtype.is_float and tensor.dtype.castable):
        raise error(
            "dtype",
            f"rand: dtype {tensor.dtype} cannot hold numbers in [0, 1)",
            help="use nl.float32; nisa.rng makes random integers",
        )
    if tensor.on_chip:
        _randomize(tensor)
        return tensor
    tile = _stage(tensor)
    _write_through(tile, tensor, lambda: _randomize(tile))
    return tensor


def _randomize(tile: NkiTensor) -> None:
    if current().machine.generation >= 4:
        isa.rand2(tile, 0.0, 1.0)
        return
    bits = allocate("rand", tile.shape, dtypes.uint32)
    isa.rng(bits)
    isa.tensor_scalar(bits, bits, OPERATORS["right_shift"], 8)
    isa.tensor_scalar(tile, bits, OPERATORS["multiply"], 2.0**-24)
