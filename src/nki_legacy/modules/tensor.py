"""nki.tensor: NkiTensor, and errors for the functions that once created tensors."""

from __future__ import annotations

from typing import NoReturn

from nki.errors import error
from nki.language import NkiTensor

from ..older_names import REMOVED

__all__ = ["NkiTensor"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise error("removed-name", f"nki.tensor.{name} has been removed from NKI", help=REMOVED["meta"])
