"""Snapshots of what a kernel's Python can read: a call skips that Python only while all of it is unchanged.

A snapshot follows every object that the function can reach. It knows immutable values, plain containers,
functions, classes and objects written in Python, and what `pure` lists. An object that can change is compared
at every later call, by the identity of what it refers to. Anything else raises `Unknown`: an array, an open
file, the clock. Then the Python runs at every call.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat
from operator import attrgetter, is_
from typing import Any, NamedTuple

from . import pure
from .global_names import READING, GlobalUse, imports_in, names_in

LARGEST = 20_000  # objects that are followed
_MISSING = object()
_ADDED = ("__slotnames__", "__annotations_cache__", "__abstractmethods__")  # by Python, when a class is used
_SKIPPED = pure.words("""
    __module__ __doc__ __dict__ __weakref__ __qualname__ __annotations__ __parameters__ __orig_bases__
    __dataclass_fields__ __dataclass_params__ __match_args__ __slots__ __static_attributes__ __firstlineno__
    __annotate__ __annotate_func__ __type_params__
""").union(_ADDED)

_STATE = attrgetter("__code__", "__defaults__", "__kwdefaults__", "__dict__")
_CONTENTS = attrgetter("cell_contents")
_BASES = attrgetter("__mro__")


class Unknown(Exception):
    """The Python may read something whose changes cannot be detected."""


class Place(NamedTuple):
    """Where a code object names something."""

    code: types.CodeType
    offset: int
    text: str

    def __str__(self) -> str:
        lines = (n for start, end, n in self.code.co_lines() if n and start <= self.offset < end)
        line = next(lines, self.code.co_firstlineno)
        return f"{self.code.co_filename}:{line}: {self.code.co_name} uses {self.text}: "


class Snapshot:
    """What a function, and functions and classes among its arguments, can reach. Raises Unknown.

    The function itself is not kept alive.
    """

    def __init__(self, function: Any, arguments: Iterable[object] = ()):
        self._functions: list[types.FunctionType] = []
        self._cells: list[types.CellType] = []
        self._classes: list[type] = []
        self._contents: list[tuple[Any, Callable[[Any], tuple], tuple]] = []  # what can change, and its parts
        self._names: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}  # by the id of the namespace
        self._seen: dict[int, Any] = {}
        self._todo: list[tuple[Any, Place | None]] = []
        self._place: Place | None = None  # what names the object that is followed
        self._add([*arguments, function])  # it is followed first
        while self._todo:
            value, self._place = self._todo.pop()
            if len(self._seen) > LARGEST:
                raise self._unknown(f"more than {LARGEST} objects")
            self._follow(value)
        self._seen.clear()
        self._states = [*chain.from_iterable(map(_STATE, self._functions))]
        self._empty = [vars(f) for f in self._functions if not vars(f)]
        self._root = [weakref.ref(f) for f in self._functions if f is function]
        self._functions = [f for f in self._functions if f is not function]
        self._cell_contents = [*map(_CONTENTS, self._cells)]
        self._bases, self._sizes = [*map(_BASES, self._classes)], [*map(_size, self._classes)]

    def holds(self) -> bool:
        """Return True if everything is as it was."""
        functions = chain((ref() for ref in self._root), self._functions)
        try:
            return (
                all(map(is_, chain.from_iterable(map(_STATE, functions)), self._states))
                and not any(self._empty)
                and all(map(is_, map(_CONTENTS, self._cells), self._cell_contents))
                and all(map(is_, map(_BASES, self._classes), self._bases))
                and [*map(_size, self._classes)] == self._sizes
                and self._names_hold()
                and all(_are_same(read(value), parts) for value, read, parts in self._contents)
            )
        except (AttributeError, ValueError, RuntimeError):  # gone, emptied, or changed meanwhile
            return False

    def _names_hold(self) -> bool:
        for namespace, values in self._names.values():
            if not all(map(is_, map(namespace.get, values, repeat(_MISSING)), values.values())):
                return False
        return True

    def _add(self, values: Iterable[Any]) -> None:
        for value in values:
            if id(value) not in self._seen and not pure.is_pure(value):
                self._seen[id(value)] = value
                self._todo.append((value, self._place))

    def _unknown(self, what: str) -> Unknown:
        return Unknown(f"{self._place or ''}{what}")

    def _unlisted(self, what: str) -> Unknown:
        return self._unknown(f"{what} is not on the list of what is known")

    def _note(self, namespace: Mapping[str, Any], name: str, value: object) -> None:
        self._names.setdefault(id(namespace), (namespace, {}))[1][name] = value

    def _watch(self, value: Any, read: Callable[[Any], tuple]) -> None:
        parts = read(value)
        self._contents.append((value, read, parts))
        self._add(parts)

    def _follow(self, value: Any) -> None:
        kind = type(value)
        if kind is types.FunctionType:
            self._function(value)
        elif kind in _PARTS:
            self._add(_PARTS[kind](value))
        elif kind in _CHANGING:
            self._watch(value, _CHANGING[kind])
        elif kind is types.ModuleType:
            self._whole_module(value)
        elif isinstance(value, type):
            self._class(value)
        elif hasattr(kind, "with_schedule"):  # a kernel: it cannot change
            self._add([value.func])
        else:
            self._object(value)

    # ---- classes and objects ---------------------------------------------------------------------

    def _class(self, cls: type) -> None:
        if pure.is_listed_module(cls.__module__):
            return
        if type(cls) not in pure.METACLASSES or not pure.is_written_in_python(cls):
            raise self._unlisted(f"class {cls.__module__}.{cls.__qualname__}")
        own, is_enum = vars(cls), type(cls) is not type
        self._classes.append(cls)
        for name in own:
            if name not in _SKIPPED and not (is_enum and name.startswith("_") and name.endswith("_")):
                self._note(own, name, own[name])
                self._add([own[name]])
        self._add(cls.__mro__[1:])

    def _object(self, value: object) -> None:
        cls = type(value)
        if _is_named_by_nki(value):  # nl.sbuf; not a tensor that a kernel left behind
            return
        if pure.is_listed_module(cls.__module__) or not all(map(_has_no_state, cls.__mro__)):
            is_function = cls is types.BuiltinFunctionType
            what = repr(value).strip("<>") if is_function else f"a {cls.__module__}.{cls.__qualname__}"
            raise self._unlisted(what)
        self._add([cls])
        if isinstance(value, tuple):
            self._add(value)
        if hasattr(value, "__dict__"):
            self._watch(value, _state)

    # ---- functions and modules -------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> None:
        module = function.__globals__.get("__name__")
        is_listed = pure.is_listed_module(module) or module == pure.ONLY_RAISING
        if is_listed and (not function.__closure__ or _is_named_by_nki(function)):
            return
        self._functions.append(function)
        self._cells += function.__closure__ or ()
        try:
            self._add(map(_CONTENTS, function.__closure__ or ()))
        except ValueError:
            raise self._unknown(f"a variable of {function.__qualname__} has no value yet") from None
        self._add(function.__defaults__ or ())
        for mapping in (function.__kwdefaults__, vars(function)):
            if mapping:
                self._watch(mapping, _pairs)
        for code in () if is_listed else _codes(function.__code__):
            self._code(code, function)

    def _code(self, code: types.CodeType, function: Any) -> None:
        for name in code.co_names:
            if (name.startswith("__") and name not in pure.DUNDERS) or name in pure.REFUSED_ATTRIBUTES:
                self._place = Place(code, 0, name)
                raise self._unlisted("the attribute")
        if not pure.BY_TEXT.isdisjoint(code.co_names) and any("__" in text for text in _texts(code)):
            self._place = Place(code, 0, "attributes by their names")
            raise self._unknown("one of them may lead to a namespace")
        whole = set()
        for use in names_in(code):
            self._place = Place(code, use.offset, ".".join((use.name, *use.attributes)))
            if use.operation in READING:
                self._global(use, function.__globals__, function.__builtins__)
            elif use.operation != "IMPORT_NAME":
                raise self._unknown("it changes a global")
            elif use.name in pure.WHOLE_MODULES and ("." not in use.name or use.attributes):
                whole.add(use.name)
                self._note(sys.modules, use.name, sys.modules.get(use.name))
                self._add([sys.modules.get(use.name)])
        if any(use.operation == "IMPORT_NAME" and use.name not in whole for use in names_in(code)):
            self._imports(code, whole, function.__builtins__)

    def _imports(self, code: types.CodeType, besides: set[str], builtins: Mapping[str, Any]) -> None:
        """Follow what a function takes from modules that it imports itself; they are imported already."""
        found = imports_in(code, besides)
        self._place = Place(code, 0, "an import in its body")
        if found is None or not all(type(sys.modules.get(m)) is types.ModuleType for m in found.modules):
            raise self._unknown("its variable is set elsewhere, or the module is unknown")
        self._note(builtins, "__import__", builtins.get("__import__"))
        for module in found.modules:
            self._note(sys.modules, module, sys.modules[module])
        for use in found.uses:
            self._place = Place(code, use.offset, ".".join((use.name, *use.attributes)))
            value: Any = sys.modules.get(use.name)
            for attribute in use.attributes:
                if type(value) is not types.ModuleType:
                    break
                value = self._attribute(value, attribute)
            if use.operation == "VALUE":
                self._add([value])

    def _global(self, use: GlobalUse, namespace: Mapping[str, Any], builtins: Mapping[str, Any]) -> None:
        if use.name.startswith("@"):  # not a Python name: pytest's, for asserts that fail
            return
        value = namespace.get(use.name, _MISSING)
        self._note(namespace, use.name, value)
        if value is _MISSING:
            value = builtins.get(use.name, _MISSING)
            if value is _MISSING:
                raise self._unknown("the name is not defined")
            self._note(builtins, use.name, value)
        for attribute in use.attributes:
            if type(value) is not types.ModuleType:
                break
            value = self._attribute(value, attribute)
        self._add([value])

    def _attribute(self, module: types.ModuleType, name: str) -> Any:
        if name not in vars(module) and module.__name__ == "nki":
            getattr(module, name, None)  # it imports its modules when they are first named
        if name not in vars(module):
            raise self._unknown(f"{module.__name__} does not have the name")
        value = vars(module)[name]
        self._note(vars(module), name, value)
        return value

    def _whole_module(self, module: types.ModuleType) -> None:
        if module.__name__ not in pure.WHOLE_MODULES:
            raise self._unknown(f"module {module.__name__} as a value")
        self._contents.append((vars(module), _pairs, _pairs(vars(module))))
        self._add(value for value in vars(module).values() if isinstance(value, types.FunctionType))


def _are_same(now: tuple, then: tuple) -> bool:
    return len(now) == len(then) and all(map(is_, now, then))


def _size(cls: type) -> int:
    """Return how many attributes a class has, without those that Python adds."""
    own = vars(cls)
    return len(own) - sum(map(own.__contains__, _ADDED))


def _pairs(value: Mapping) -> tuple:
    return (*value, *value.values())


def _state(value: object) -> tuple:
    return (type(value), *_pairs(vars(value)))


def _is_named_by_nki(value: object) -> bool:
    modules = [sys.modules[name] for name in pure.WHOLE_MODULES if name in sys.modules]
    return pure.is_listed_module(getattr(value, "__module__", None)) and any(
        value is known for module in modules for known in vars(module).values()
    )


def _has_no_state(cls: type) -> bool:
    """Return True for a class whose objects hold nothing beside `__dict__` and an immutable value."""
    if pure.is_written_in_python(cls):
        return not vars(cls).get("__slots__")
    return cls in (object, int, float, str, bytes, tuple)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _texts(code: types.CodeType) -> Iterator[str]:
    """Yield the strings in a code object."""
    for constant in code.co_consts:
        for text in constant if isinstance(constant, tuple) else (constant,):
            if isinstance(text, str):
                yield text


_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    tuple: iter,
    frozenset: iter,
    slice: attrgetter("start", "stop", "step"),
    types.MethodType: attrgetter("__func__", "__self__"),
    staticmethod: lambda method: [method.__func__],
    classmethod: lambda method: [method.__func__],
    property: attrgetter("fget", "fset", "fdel"),
    functools.cached_property: lambda method: [method.func],
    functools.partial: attrgetter("func", "args", "keywords"),
}
_CHANGING: dict[type, Callable[[Any], tuple]] = {
    **dict.fromkeys((list, set, bytearray), tuple),
    **dict.fromkeys((dict, OrderedDict), _pairs),
}
