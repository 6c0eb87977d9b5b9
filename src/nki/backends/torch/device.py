"""A torch device during a run, and which torch dtypes hold the elements of numpy's."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from torch import device as TorchDevice


class Unsupported(Exception):
    """A numpy function that tensors do not support: the host must run it."""


class Lengthy(Exception):
    """A loop over the elements of a tile: too many functions to compile."""


class Device:
    """A torch device during a run: the constants of a plan there, and the masks to check at the end."""

    reads = False  # the host may read values during the run
    compiles = False  # the functions that are called become one kernel

    def __init__(self, torch: ModuleType, where: TorchDevice, constants: dict[tuple, Any]):
        self.torch, self.where, self.constants = torch, where, constants
        self.doubts: list[Any] = []  # masks; if one is not empty, the host runs the program

    def constant(self, array: np.ndarray) -> Any:
        """Return a small array as a tensor on the device; it is cached."""
        key = (array.dtype.str, array.shape, array.tobytes())
        found = self.constants.get(key)
        if found is None:
            found = self.constants[key] = self.tensor(array)
        return found

    def tensor(self, array: np.ndarray) -> Any:
        """Return an array as a tensor on the device."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        held = getattr(self.torch, held_as(array.dtype))
        plain = array if array.dtype in _NUMPYS else array.view(_BY_SIZE[array.dtype.itemsize])
        tensor = self.torch.from_numpy(plain if plain.flags.writeable else plain.copy())
        return (tensor if tensor.dtype == held else tensor.view(held)).to(self.where)

    def number(self, value: object, dtype: object, on_host: bool = False) -> Any:
        """Return a number as a tensor without dimensions, on the device or on the host."""
        key = (repr(value), dtype, on_host)  # 0.0 and -0.0 differ
        found = self.constants.get(key)
        if found is None:
            found = self.torch.tensor(value, dtype=dtype)
            found = found if on_host else found.to(self.where)
            self.constants[key] = found
        return found

    def doubt(self) -> Any:
        """Return whether a mask is not empty, as a tensor; None if there are no masks."""
        return self.torch.stack(self.doubts).any() if self.doubts else None


_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = frozenset((np.dtype("float32"), np.dtype("float64"), np.dtype("float16"), _BFLOAT16))
SAME = FLOATS | {np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "bool")}
_NUMPYS = SAME - {_BFLOAT16}  # that numpy has too
_BY_SIZE = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


@cache
def held_as(dtype: np.dtype) -> str:
    """Return the torch dtype that holds the elements: the same one, or integers of the same size."""
    return dtype.name if dtype in SAME else _BY_SIZE[dtype.itemsize]
