"""nki.tensor: the old address of functions that made tensors; NkiTensor has kept it."""

from __future__ import annotations

from typing import NoReturn

from .errors import error
from .ir.tensor import NkiTensor

__all__ = ["NkiTensor"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise error(
        "removed-name",
        f"nki.tensor.{name} has been removed from NKI",
        help="make the array with NumPy before the kernel and pass it, or embed it with nl.shared_constant",
    )
