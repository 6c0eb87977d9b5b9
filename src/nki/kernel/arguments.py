"""The arguments of a call, flattened once.

`flatten` goes through the bound arguments a single time. What it finds is shared: the tensors by name, the
part of the cache key, and the structure from which the kernel's own arguments are built.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..ir import tree
from ..machine import dtypes
from .arrays import NumpyFramework, TensorSpec, framework_of, is_description, is_dtype
from .reads import Same, Unknown, frozen

_PLAIN = (int, float, bool, str, type(None))


class TensorArgument(NamedTuple):
    """A tensor among the arguments of a call."""

    name: str
    value: Any  # the caller's array, or a description
    framework: Any  # None: a description


class _Slot(NamedTuple):
    """Where a tensor goes in the kernel's arguments."""

    number: int


class _Branch(NamedTuple):
    """A container among the arguments, with its children flattened."""

    container: tree.Container
    value: Any
    children: list[Any]


@dataclass(frozen=True)
class Arguments:
    """The flattened arguments of a call."""

    tensors: list[TensorArgument]
    key: Any  # equal for calls that the kernel's Python cannot tell apart; None: not known
    structure: list[tuple[inspect.Parameter, Any]]  # each parameter with its slots, branches and values
    values: dict[str, Any]  # what the caller passed for each parameter

    @property
    def framework(self) -> Any:
        """The framework, other than numpy, that the tensors belong to; None for numpy."""
        for _, _, framework in self.tensors:
            if framework is not None and framework is not NumpyFramework:
                return framework
        return None

    def call(self, function: Any, tensors: Sequence[object]) -> Any:
        """Call the kernel's function with these in the place of the tensors."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter, node in self.structure:
            value = _build(node, tensors)
            if parameter.kind is parameter.VAR_POSITIONAL:
                args += value
            elif parameter.kind is parameter.VAR_KEYWORD:
                kwargs.update(value)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = value
            else:
                args.append(value)
        return function(*args, **kwargs)

    def described(self) -> Arguments:
        """Return the same arguments with descriptions in the place of arrays."""
        tensors = [
            TensorArgument(name, TensorSpec(tuple(value.shape), value.dtype), None)
            for name, value, _ in self.tensors
        ]
        return replace(self, tensors=tensors)

    def with_tensors(self, values: Sequence[object]) -> Arguments:
        """Return the same arguments with other values for the tensors, in order."""
        tensors = [
            TensorArgument(tensor.name, value, framework_of(value))
            for tensor, value in zip(self.tensors, values, strict=True)
        ]
        return replace(self, tensors=tensors, key=None)


def flatten(bound: inspect.BoundArguments) -> Arguments:
    """Flatten the arguments of a call."""
    flattening = _Flattening()
    keys, structure = [], []
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        if parameter.kind is parameter.VAR_KEYWORD:
            pairs = {k: flattening.visit(v, k) for k, v in value.items()}
            keys += [(k, key) for k, (key, _) in pairs.items()]
            children = [node for _, node in pairs.values()]
            container = tree.container_of(value)
            assert container is not None
            node: Any = _Branch(container, value, children)
        else:
            key, node = flattening.visit(value, name)
            keys.append((name, key))
        structure.append((parameter, node))
    key = tuple(keys) if flattening.is_known else None
    return Arguments(flattening.tensors, key, structure, dict(bound.arguments))


class _Flattening:
    """One pass over the arguments of a call."""

    def __init__(self) -> None:
        self.tensors: list[TensorArgument] = []
        self.is_known = True  # every argument has a key

    def visit(self, value: Any, name: str) -> tuple[Any, Any]:
        """Return the key of an argument and its node."""
        kind = value.__class__
        if kind in _PLAIN:
            return (kind, value.hex() if kind is float else value), value
        if isinstance(value, np.generic):
            return self.visit(value.item(), name)
        framework = framework_of(value)
        if framework is not None or is_description(value):
            self.tensors.append(TensorArgument(name, value, framework))
            return self._tensor_key(value), _Slot(len(self.tensors) - 1)
        if is_dtype(value):
            return (dtypes.DType, self._dtype(value)), dtypes.resolve(value, f"argument '{name}'")
        container = tree.container_of(value)
        if container is None:
            return (Same(value) if _is_followed(value) else self._frozen(value)), value
        keys, children = [], []
        for way, child in container.children(value):
            key, node = self.visit(child, f"{name}{way}")
            keys.append((way, key))
            children.append(node)
        names = tuple(map(self._frozen, value)) if isinstance(value, dict) else ()
        return (kind, tuple(keys), names), _Branch(container, value, children)

    def _tensor_key(self, value: Any) -> Any:
        try:
            return "tensor", tuple(value.shape), self._dtype(value.dtype)
        except RuntimeError:  # a nested tensor: its framework refuses it
            self.is_known = False
            return None

    def _frozen(self, value: object) -> Any:
        try:
            return frozen(value)
        except Unknown:
            self.is_known = False
            return None

    def _dtype(self, dtype: object) -> Any:
        found = _known_dtype(dtype)
        self.is_known = self.is_known and found is not None  # the run itself reports what is wrong
        return found


def _build(node: Any, tensors: Sequence[Any]) -> Any:
    """Return the kernel's argument for a node."""
    kind = node.__class__
    if kind is _Slot:
        return tensors[node.number]
    if kind is _Branch:
        return node.container.rebuild(node.value, [_build(child, tensors) for child in node.children])
    return node


def _is_followed(value: object) -> bool:
    """Functions and classes count by identity here, and `Reads` watches what they hold."""
    return isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type, np.ufunc)) or hasattr(
        type(value), "with_schedule"
    )


@lru_cache(maxsize=1024)
def _known_dtype(dtype: object) -> dtypes.DType | None:
    try:
        return dtypes.resolve(dtype)
    except TypeError:
        return None
