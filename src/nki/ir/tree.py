"""Trees: containers that kernels receive and return, and their leaves.

Tuples, named tuples, lists, dicts and records (dataclasses, NKIObjects) are containers; everything else is
a leaf. `register` adds a kind of container.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple


class Container(NamedTuple):
    """How to get the children of one kind of container, and how to rebuild it."""

    matches: Callable[[Any], bool]
    children: Callable[[Any], Iterable[tuple[str, Any]]]  # (how the child is reached, child)
    rebuild: Callable[[Any, list[Any]], Any]  # the same container around other children


def is_record(value: object) -> bool:
    """Whether a value is an instance of a dataclass or NKIObject."""
    if isinstance(value, type) or getattr(value, "is_leaf", False) is True:
        return False
    return dataclasses.is_dataclass(value) or getattr(value, "is_nki_object", False) is True


def record_fields(value: object) -> list[str]:
    """Return the names of the fields that a record has."""
    return [name for name in possible_fields(value) if hasattr(value, name)]


def possible_fields(value: object) -> dict[str, Any]:
    """Return the fields of a record by name, those of its dataclass that it lacks included."""
    slots = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    return {**dict.fromkeys(slots), **getattr(value, "__dict__", {})}


def _rebuilt_sequence(value: Any, items: list[Any]) -> Any:
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _rebuilt_dict(value: dict, items: Sequence[object]) -> dict:
    twin = copy.copy(value)
    twin.update(zip(value, items, strict=True))
    return twin


def _rebuilt_record(value: object, items: Sequence[object]) -> Any:
    twin = copy.copy(value)
    for name, item in zip(record_fields(value), items, strict=True):
        object.__setattr__(twin, name, item)
    return twin


_containers: list[Container] = [
    Container(
        lambda value: isinstance(value, (tuple, list)),
        lambda value: ((f"[{i}]", child) for i, child in enumerate(value)),
        _rebuilt_sequence,
    ),
    Container(
        lambda value: isinstance(value, dict),
        lambda value: ((f"[{key!r}]", child) for key, child in value.items()),
        _rebuilt_dict,
    ),
    Container(
        is_record,
        lambda value: ((f".{name}", getattr(value, name)) for name in record_fields(value)),
        _rebuilt_record,
    ),
]
_PLAIN = (int, float, bool, str, bytes, type(None))


def register(container: Container) -> None:
    """Treat another kind of object as a container."""
    _containers.insert(0, container)


def container_of(value: object) -> Container | None:
    """Return the kind of container a value is; None for a leaf."""
    if value.__class__ in _PLAIN:
        return None
    return next((kind for kind in _containers if kind.matches(value)), None)


def map_tree(
    change: Callable[[Any, str], Any],
    value: object,
    path: str = "",
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Return the tree with `change(leaf, path)` for every leaf; `is_leaf` makes more values leaves."""
    kind = None if is_leaf is not None and is_leaf(value) else container_of(value)
    if kind is None:
        return change(value, path)
    items = [map_tree(change, child, f"{path}{way}", is_leaf) for way, child in kind.children(value)]
    return kind.rebuild(value, items)


def flatten(value: object, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return all leaves in order."""
    found: list[Any] = []
    _collect(value, found, is_leaf)
    return found


def _collect(value: Any, found: list[Any], is_leaf: Callable[[Any], bool] | None) -> None:
    kind = None if is_leaf is not None and is_leaf(value) else container_of(value)
    if kind is None:
        found.append(value)
    else:
        for _, child in kind.children(value):
            _collect(child, found, is_leaf)


def unflatten(like: object, items: Iterable[object], is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Return a tree of the structure of `like` with other leaves, in order."""
    following = iter(items)
    return map_tree(lambda leaf, path: next(following), like, is_leaf=is_leaf)


def leaves(value: object, kind: type | tuple[type, ...]) -> list[Any]:
    """Return all leaves of a kind, in order."""
    return [leaf for leaf in flatten(value, lambda v: isinstance(v, kind)) if isinstance(leaf, kind)]


def replace_leaves(value: object, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """Return the tree with every leaf of a kind changed; the others stay."""
    if isinstance(value, kind):  # most trees are one leaf
        return change(value)
    return map_tree(
        lambda leaf, path: change(leaf) if isinstance(leaf, kind) else leaf,
        value,
        is_leaf=lambda v: isinstance(v, kind),
    )
