"""`neuronxcc.nki.typing`: annotations, and placeholders for arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

from .types import DTypeLike


class Placeholder(NamedTuple):
    """`nt.tensor[[128, 512], nl.float32]`: an argument known by its shape and dtype."""

    shape: tuple[int, ...]
    dtype: DTypeLike


class tensor:
    """`x: tensor[128, 512]` documents a shape; nothing is checked."""

    def __class_getitem__(cls, key: Any) -> Any:
        if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], (list, tuple)):
            return Placeholder(tuple(key[0]), key[1])
        return cls


class mutable_tensor(tensor):
    """An argument that the kernel writes, and returns."""


class mutable:
    """`tensor[mutable]`."""


def scalar(tile: Any) -> Any:
    return tile


__all__ = ["mutable", "mutable_tensor", "scalar", "tensor"]
