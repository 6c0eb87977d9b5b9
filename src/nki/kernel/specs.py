"""Arguments described by shapes and dtypes: arrays of every framework as TensorSpecs."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

from ..ir.tree import map_tree
from .arrays import TensorSpec


class Array(Protocol):
    """An array of NumPy, PyTorch or JAX."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...


def is_array(value: object) -> TypeGuard[Array]:
    """True for everything that has a shape and a dtype, a TensorSpec too."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def as_specs(tree: object) -> Any:
    """Return the tree with every array replaced by its TensorSpec; numbers of a framework stay."""
    return map_tree(_as_spec, tree, is_leaf=is_array)


def _as_spec(value: object, path: str) -> object:
    if isinstance(value, TensorSpec) or not is_array(value) or not len(value.shape):
        return value
    return TensorSpec(tuple(value.shape), value.dtype)


def label(value: object) -> object:
    """Return described arguments as nested lists of texts, `float32[128, 512]` for a TensorSpec."""
    if isinstance(value, dict):
        return {name: label(part) for name, part in sorted(value.items())}
    if isinstance(value, (tuple, list)):
        return [label(part) for part in value]
    return f"{value.dtype}{list(value.shape)}" if is_array(value) else repr(value)
