"""The arguments of a call, flattened once.

`bind` goes through the bound arguments a single time. What it finds is shared: the tensors by name, the
part of the cache key, and the structure from which the kernel's own arguments are built.
"""

from __future__ import annotations

import inspect
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from ..errors import error
from ..ir import tree
from ..machine import dtypes
from ..machine.operators import Operator
from ..typing import check_shapes
from .arrays import NumpyFramework, TensorSpec, framework_of, is_description, is_dtype
from .explain import suggest
from .user_function import AnyKernel, plain

ALIAS_SUFFIX = ".must_alias_input"
_PLAIN = (int, float, bool, str, type(None))
_BITS = Struct("d").pack  # of a float: -0.0 differs from 0.0, and NaNs from each other


class TensorArgument(NamedTuple):
    """A tensor among the arguments of a call."""

    name: str
    value: Any  # the caller's array, or a description
    framework: Any  # None: a description


class Records(NamedTuple):
    """A class of records among the arguments."""

    cls: type


class _Slot(NamedTuple):
    """Where a tensor goes in the kernel's arguments."""

    number: int


class _Branch(NamedTuple):
    """A container among the arguments, with its children flattened."""

    container: tree.Container
    value: Any
    children: list[Any]


class Arguments(NamedTuple):
    """The flattened arguments of a call."""

    tensors: list[TensorArgument]
    key: Any  # equal for calls that the kernel's Python cannot tell apart; None: not known
    unknown: str | None  # the argument that has no key
    structure: list[tuple[inspect.Parameter, Any]]  # each parameter with its slots, branches and values
    followed: list[Any]  # functions, and classes of objects, that the kernel's Python can reach
    aliased: frozenset[str]  # those given as name.must_alias_input
    framework: Any = None  # that the tensors belong to; None for numpy

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
        return self._replace(tensors=tensors, framework=None)

    def with_tensors(self, values: Sequence[object]) -> Arguments:
        """Return the same arguments with other values for the tensors, in order."""
        tensors = [
            TensorArgument(tensor.name, value, framework_of(value))
            for tensor, value in zip(self.tensors, values, strict=True)
        ]
        return self._replace(tensors=tensors, key=None)


def bind(
    kernel: str, function: Any, signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]
) -> Arguments:
    """Bind and flatten the arguments of a call; the one place where that is done."""
    names = tuple(kwargs)
    aliased = _aliased(names)
    if aliased:
        for name in aliased & kwargs.keys():
            raise error("argument", f"{kernel}() got '{name}' twice, once as '{name}{ALIAS_SUFFIX}'")
        names = tuple(name.removesuffix(ALIAS_SUFFIX) for name in names)
    try:
        layout = _layout(Same(signature), len(args), names)
    except TypeError as problem:
        accepted = list(signature.parameters)
        unknown = [name for name in names if name not in accepted]
        raise error(
            "argument",
            f"{kernel}() {problem}",
            notes=[f"accepted: {', '.join(accepted)}"],
            help=suggest(unknown[0], accepted) if unknown else None,
        ) from None
    given = (*args, *kwargs.values())
    for last in layout.last:
        if last.equals(given):
            return last.with_tensors(given, aliased)
    values = [varying.find(given) for varying in layout.varying]
    check_shapes(plain(function), {v.name: value for v, value in zip(layout.varying, values, strict=True)})
    found = _flattened(layout, values, aliased)
    layout.last[:] = _repeatable(layout, given, found)
    return found


def _flattened(layout: _Layout, values: Sequence[Any], aliased: frozenset[str]) -> Arguments:
    flattening = _Flattening(layout.followed)
    keys, structure = [], layout.structure.copy()
    for (number, parameter, name, _, default), value in zip(layout.varying, values, strict=True):
        is_named = name is layout.named
        key, node = flattening.visit_named(value) if is_named else flattening.visit(value, name)
        structure[number] = parameter, node
        if key != default:
            keys.append((name, key))
    return Arguments(
        flattening.tensors,
        (layout.defaults, tuple(keys)) if flattening.unknown is None else None,
        flattening.unknown,
        structure,
        flattening.followed,
        aliased,
        next((f for _, _, f in flattening.tensors if f not in (None, NumpyFramework)), None),
    )


class _Bound(NamedTuple):
    """The arguments of a call, numbers, texts and tensors alone. Equal calls differ in their tensors only."""

    known: list[Any]  # what is given; of a tensor, what it is like
    places: list[int]  # of the tensors of `arguments`
    arguments: Arguments  # without tensors

    def equals(self, given: Sequence[Any]) -> bool:
        """Return whether another call is equal."""
        try:
            return all(map(_is_like, given, self.known))
        except RuntimeError:  # a nested tensor has no shape
            return False

    def with_tensors(self, given: Sequence[Any], aliased: frozenset[str]) -> Arguments:
        """Return the arguments of an equal call."""
        old, key, unknown, structure, followed, _, framework = self.arguments
        pairs = zip(old, self.places, strict=True)
        tensors = [TensorArgument(name, given[place], owner) for (name, _, owner), place in pairs]
        return Arguments(tensors, key, unknown, structure, followed, aliased, framework)


class _Like(NamedTuple):
    """What tensors have in common that the Python cannot tell apart."""

    kind: Any
    shape: tuple[int, ...]
    dtype: Any


def _is_like(value: Any, known: Any) -> bool:
    if value is known:
        return True
    if not isinstance(known, _Like):
        if type(value) is not type(known):  # `__class__` may be another one
            return False
        return _BITS(value) == _BITS(known) if known.__class__ is float else bool(value == known)
    return type(value) is known.kind and bool(value.dtype == known.dtype and value.shape == known.shape)


def _repeatable(layout: _Layout, given: Sequence[Any], found: Arguments) -> list[_Bound]:
    """Return what recognises an equal call: nothing where an argument may change, or reaches others."""
    places = [varying.find(range(len(given))) for varying in layout.varying]
    if found.unknown is not None or not all(place.__class__ is int for place in places):
        return []
    tensors = {id(tensor.value) for tensor in found.tensors if tensor.framework is not None}
    known = [_Like(type(v), tuple(v.shape), v.dtype) if id(v) in tensors else v for v in given]
    if not all(like.__class__ in (_Like, *_PLAIN) for like in known):
        return []
    of_tensors = [place for place in places if known[place].__class__ is _Like]
    without = [tensor._replace(value=None) for tensor in found.tensors]
    return [_Bound(known, of_tensors, found._replace(tensors=without))]


@lru_cache(maxsize=1024)
def _aliased(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.removesuffix(ALIAS_SUFFIX) for name in names if name.endswith(ALIAS_SUFFIX))


class _Varying(NamedTuple):
    """A parameter whose value a call gives, or whose default may change."""

    number: int
    parameter: inspect.Parameter
    name: str
    find: Callable[[Sequence[Any]], Any]  # its value among those that are given
    default: Any  # the key of its default; None if there is none, or it may change


class _Layout(NamedTuple):
    """How a signature takes the arguments of a call: what does not change from call to call, and the rest."""

    defaults: Same  # the keys of all defaults, also of those that a call replaces: one object for equal ones
    structure: list[Any]
    followed: list[Any]
    varying: list[_Varying]
    named: str | None  # the parameter that takes all other names
    last: list[_Bound]  # the last call, if an equal one can be recognised


@lru_cache(maxsize=1024)
def _layout(signature: Same, count: int, names: tuple[str, ...]) -> _Layout:
    """Bind the numbers of `count` positional arguments and of those with names, as `inspect` does it."""
    numbers = range(count + len(names))
    bound = signature.value.bind(*numbers[:count], **dict(zip(names, numbers[count:], strict=True)))
    given = set(bound.arguments)
    bound.apply_defaults()
    keys, structure, varying = [], [], []
    followed: list[Any] = []
    for number, (name, value) in enumerate(bound.arguments.items()):
        parameter = signature.value.parameters[name]
        key, node, reached = _default(parameter, parameter.default)
        keys.append((name, key))
        is_fixed = key is not None and name not in given
        structure.append((parameter, node) if is_fixed else None)
        followed.extend(reached if is_fixed else ())
        if not is_fixed:
            varying.append(_Varying(number, parameter, name, _finder(parameter, value, name in given), key))
    named = next((v.name for v in varying if v.parameter.kind is inspect.Parameter.VAR_KEYWORD), None)
    return _Layout(_one_object(tuple(keys)), structure, followed, varying, named, [])


@lru_cache(maxsize=1024)
def _one_object(value: tuple) -> Same:
    """Return one object for equal tuples: fast to hash, and to compare."""
    return Same(value)


def _finder(parameter: inspect.Parameter, value: Any, is_given: bool) -> Callable[[Sequence[Any]], Any]:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return lambda given: tuple(given[number] for number in value)
    if parameter.kind is parameter.VAR_KEYWORD:
        return lambda given: {name: given[number] for name, number in value.items()}
    return itemgetter(value) if is_given else lambda given: value


def _default(parameter: inspect.Parameter, value: Any) -> tuple[Any, Any, list[Any]]:
    """Return the key and the node of a default, and what is followed of it; None if it may change."""
    flattening = _Flattening([])
    if isinstance(value, (*_PLAIN, Enum, dtypes.DType)) and not hasattr(value, "shape"):
        key, node = flattening.visit(value, parameter.name)
        if flattening.unknown is None:
            return key, node, flattening.followed
    return None, None, []


class _Flattening:
    """One pass over the arguments of a call."""

    def __init__(self, followed: list[Any]) -> None:
        self.tensors: list[TensorArgument] = []
        self.followed = followed.copy()
        self.unknown: str | None = None  # the first argument that has no key

    def visit(self, value: Any, name: str) -> tuple[Any, Any]:
        """Return the key of an argument and its node."""
        kind = type(value)
        if kind in _PLAIN:
            return (kind, _BITS(value) if kind is float else value), value
        if isinstance(value, np.generic):
            return self.visit(value.item(), name)
        framework = framework_of(value)
        if framework is not None or is_description(value):
            self.tensors.append(TensorArgument(name, value, framework))
            return self._tensor_key(value, name), _Slot(len(self.tensors) - 1)
        if is_dtype(value):
            return (dtypes.DType, self._dtype(value, name)), dtypes.resolve(value, f"argument '{name}'")
        container = tree.container_of(value)
        if kind is OrderedDict and vars(value):
            self._refuse(value, name)
        if container is None:
            return self._leaf_key(value, name), value
        if kind not in (tuple, list, dict, OrderedDict):
            self.followed.append(Records(kind) if container.matches is tree.is_record else kind)
            if isinstance(value, (tuple, list, dict)) and not _is_named_tuple(value):
                self._refuse(value, name)  # it may hold more than its elements
        keys, children = [], []
        for way, child in container.children(value):
            key, node = self.visit(child, f"{name}{way}")
            keys.append((way, key))
            children.append(node)
        names = tuple(self._leaf_key(key, name) for key in value) if isinstance(value, dict) else ()
        return (kind, tuple(keys), names), _Branch(container, value, children)

    def visit_named(self, values: dict[str, Any]) -> tuple[Any, Any]:
        """Return the key of arguments by name, and their node."""
        pairs = {name: self.visit(value, name) for name, value in values.items()}
        container = tree.container_of(values)
        assert container is not None
        key = tuple((name, key) for name, (key, _) in pairs.items())
        return key, _Branch(container, values, [node for _, node in pairs.values()])

    def _tensor_key(self, value: Any, name: str) -> Any:
        try:
            return "tensor", tuple(value.shape), self._dtype(value.dtype, name)
        except RuntimeError:  # a nested tensor: its framework refuses it
            return self._refuse(value, name)

    def _refuse(self, value: object, name: str) -> None:
        kind = type(value)
        self.unknown = self.unknown or f"argument '{name}' is a {kind.__module__}.{kind.__qualname__}"

    def _leaf_key(self, value: Any, name: str) -> Any:
        """Return something hashable that is equal for values of one type and content alone."""
        kind = type(value)
        if kind in _PLAIN or kind in (bytes, complex, type(Ellipsis), type(NotImplemented)):
            if kind is complex:
                return kind, _BITS(value.real), _BITS(value.imag)
            return kind, _BITS(value) if kind is float else value
        if kind in (range, slice):
            return kind, self._leaf_key((value.start, value.stop, value.step), name)
        if kind in (tuple, frozenset):  # equal sets may differ in their order
            return kind, tuple(self._leaf_key(item, name) for item in value)
        if isinstance(value, (Enum, Operator, dtypes.DType)) or _is_callable(value):
            self.followed.append(value)
            return Same(value)
        return self._refuse(value, name)

    def _dtype(self, dtype: object, name: str) -> Any:
        found = _known_dtype(dtype)
        if found is None:  # the run itself reports what is wrong
            self.unknown = self.unknown or f"argument '{name}' is {dtype}"
        return found


class Same:
    """Compares by identity and holds the object, so that its id is not used again."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _build(node: Any, tensors: Sequence[Any]) -> Any:
    """Return the kernel's argument for a node."""
    kind = node.__class__
    if kind is _Slot:
        return tensors[node.number]
    if kind is _Branch:
        return node.container.rebuild(node.value, [_build(child, tensors) for child in node.children])
    return node


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields") and not getattr(value, "__dict__", None)


def _is_callable(value: object) -> bool:
    """Functions and classes count by identity here, and a snapshot watches what they hold."""
    return isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type, np.ufunc, AnyKernel))


@lru_cache(maxsize=1024)
def _known_dtype(dtype: object) -> dtypes.DType | None:
    try:
        return dtypes.resolve(dtype)
    except TypeError:
        return None
