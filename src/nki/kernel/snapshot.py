"""Snapshots of what a kernel's Python can read: a call skips that Python only while all of it is unchanged.

`Snapshot.take` follows every object that the function can reach. It knows immutable values, plain containers,
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
from .global_names import READING, Use, names_in

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

    def __init__(self, what: str, place: Place | None = None):
        where = "" if place is None else f"{place.code.co_filename}:{place.line}: {place.code.co_name} uses "
        super().__init__(where + what)


class Place(NamedTuple):
    """Where a code object names something."""

    code: types.CodeType
    offset: int
    text: str

    @property
    def line(self) -> int:
        for start, end, line in self.code.co_lines():
            if start <= self.offset < end and line is not None:
                return line
        return self.code.co_firstlineno


class Names(NamedTuple):
    """Names in a namespace, and what they stood for."""

    namespace: Mapping[str, Any]
    names: tuple[str, ...]
    values: tuple[Any, ...]  # _MISSING: the namespace does not have the name

    def hold(self) -> bool:
        return all(map(is_, map(self.namespace.get, self.names, repeat(_MISSING)), self.values))


class Contents(NamedTuple):
    """An object that can change, and what it referred to."""

    value: Any
    read: Callable[[Any], tuple]
    parts: tuple[Any, ...]

    def hold(self) -> bool:
        now = self.read(self.value)
        return len(now) == len(self.parts) and all(map(is_, now, self.parts))


class Snapshot:
    """What a function and its arguments could reach. The function itself is not kept alive."""

    def __init__(self, found: _Following, root: types.FunctionType | None):
        others = [f for f in found.functions if f is not root]
        self._root = None if root is None else weakref.ref(root)
        self._functions = others
        self._states = [*chain.from_iterable(map(_STATE, self._all_functions()))]
        self._empty = [vars(f) for f in self._all_functions() if not vars(f)]
        self._cells, self._cell_contents = found.cells, [*map(_CONTENTS, found.cells)]
        self._classes, self._bases = found.classes, [*map(_BASES, found.classes)]
        self._sizes = [_size(cls) for cls in found.classes]
        self._contents = found.contents
        self._names = [
            Names(namespace, tuple(named), tuple(named.values())) for namespace, named in found.names.values()
        ]

    @staticmethod
    def take(function: Any, arguments: Iterable[object] = ()) -> Snapshot:
        """Follow a kernel's function, and functions and classes of its arguments. Raises Unknown."""
        following = _Following()
        following.add(function, None)
        for value in arguments:
            following.add(value, None)
        following.finish()
        root = function if type(function) is types.FunctionType else None
        return Snapshot(following, root)

    def _all_functions(self) -> list[Any]:
        return self._functions if self._root is None else [self._root(), *self._functions]

    def holds(self) -> bool:
        """Return True if everything is as it was."""
        try:
            return (
                all(map(is_, chain.from_iterable(map(_STATE, self._all_functions())), self._states))
                and not any(self._empty)
                and all(map(is_, map(_CONTENTS, self._cells), self._cell_contents))
                and all(map(is_, map(_BASES, self._classes), self._bases))
                and all(names.hold() for names in self._names)
                and all(contents.hold() for contents in self._contents)
                and [*map(_size, self._classes)] == self._sizes
            )
        except (AttributeError, ValueError, RuntimeError):  # gone, emptied, or changed meanwhile
            return False


def _size(cls: type) -> int:
    """Return how many attributes a class has, without those that Python adds."""
    own = vars(cls)
    return len(own) - sum(map(own.__contains__, _ADDED))


def _pairs(value: Mapping) -> tuple:
    return (*value, *value.values())


def _state(value: object) -> tuple:
    return (type(value), *_pairs(vars(value)))


class _Following:
    """One walk over all that is reachable."""

    def __init__(self) -> None:
        self.functions: list[types.FunctionType] = []
        self.cells: list[types.CellType] = []
        self.classes: list[type] = []
        self.contents: list[Contents] = []
        self.names: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}  # by the id of the namespace
        self._seen: dict[int, Any] = {}
        self._todo: list[tuple[Any, Place | None]] = []
        self._place: Place | None = None  # what names the object that is followed

    def add(self, value: object, place: Place | None) -> None:
        if id(value) not in self._seen and not pure.is_pure(value):
            self._seen[id(value)] = value
            self._todo.append((value, place))

    def finish(self) -> None:
        """Follow everything that was added, and what it leads to."""
        while self._todo:
            value, self._place = self._todo.pop()
            if len(self._seen) > LARGEST:
                raise self._unknown(f"more than {LARGEST} objects")
            self._follow(value)

    def _unknown(self, what: str) -> Unknown:
        named = "" if self._place is None else f"{self._place.text}: "
        return Unknown(named + what, self._place)

    def _unlisted(self, what: str) -> Unknown:
        return self._unknown(f"{what} is not on the list of what is known")

    def _add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value, self._place)

    def _note(self, namespace: Mapping[str, Any], name: str, value: object) -> None:
        self.names.setdefault(id(namespace), (namespace, {}))[1][name] = value

    def _follow(self, value: Any) -> None:
        kind = type(value)
        if kind is types.FunctionType:
            self._function(value)
        elif kind in _PARTS:
            self._add_all(_PARTS[kind](value))
        elif kind in _CHANGING:
            self._watch(value, _CHANGING[kind])
        elif kind is types.ModuleType:
            self._whole_module(value)
        elif isinstance(value, type):
            self._class(value)
        elif hasattr(kind, "with_schedule"):  # a kernel: it cannot change
            self.add(value.func, self._place)
        else:
            self._object(value)

    def _watch(self, value: Any, read: Callable[[Any], tuple]) -> None:
        parts = read(value)
        self.contents.append(Contents(value, read, parts))
        self._add_all(parts)

    # ---- classes and objects ---------------------------------------------------------------------

    def _class(self, cls: type) -> None:
        if pure.is_listed_module(cls.__module__):
            return
        if type(cls) not in pure.METACLASSES or not pure.is_written_in_python(cls):
            raise self._unknown(
                f"class {cls.__module__}.{cls.__qualname__} is not on the list of what is known"
            )
        own, is_enum = vars(cls), type(cls) is not type
        self.classes.append(cls)
        for name in own:
            if name not in _SKIPPED and not (is_enum and name.startswith("_") and name.endswith("_")):
                self._note(own, name, own[name])
                self.add(own[name], self._place)
        self._add_all(cls.__mro__[1:])

    def _object(self, value: object) -> None:
        cls = type(value)
        if _is_named_by_nki(value):  # nl.sbuf; not a tensor that a kernel left behind
            return
        if pure.is_listed_module(cls.__module__) or not all(map(_has_no_state, cls.__mro__)):
            is_function = cls is types.BuiltinFunctionType
            what = repr(value).strip("<>") if is_function else f"a {cls.__module__}.{cls.__qualname__}"
            raise self._unlisted(what)
        self.add(cls, self._place)
        if isinstance(value, tuple):
            self._add_all(value)
        if hasattr(value, "__dict__"):
            self._watch(value, _state)

    # ---- functions and modules -------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> None:
        module = function.__globals__.get("__name__")
        is_listed = pure.is_listed_module(module) or module == pure.ONLY_RAISING
        if is_listed and (not function.__closure__ or _is_named_by_nki(function)):
            return
        self.functions.append(function)
        self.cells += function.__closure__ or ()
        try:
            self._add_all(map(_CONTENTS, function.__closure__ or ()))
        except ValueError:
            raise self._unknown(f"a variable of {function.__qualname__} has no value yet") from None
        self._add_all(function.__defaults__ or ())
        if function.__kwdefaults__:
            self._watch(function.__kwdefaults__, _pairs)
        if vars(function):
            self._watch(vars(function), _pairs)
        for code in () if is_listed else _codes(function.__code__):
            self._code(code, function)

    def _code(self, code: types.CodeType, function: Any) -> None:
        for name in code.co_names:
            if (name.startswith("__") and name not in pure.DUNDERS) or name in pure.REFUSED_ATTRIBUTES:
                raise Unknown(name, Place(code, 0, name))
        if not pure.BY_TEXT.isdisjoint(code.co_names) and any("__" in text for text in _texts(code)):
            raise Unknown("attributes by their names", Place(code, 0, ""))
        for use in names_in(code):
            self._place = Place(code, use.offset, ".".join((use.name, *use.attributes)))
            if use.operation in READING:
                self._global(use, function.__globals__, function.__builtins__)
            elif use.operation == "IMPORT_NAME":
                if use.name not in pure.WHOLE_MODULES or ("." in use.name and not use.attributes):
                    raise self._unknown("an import in its body")
                self._note(sys.modules, use.name, sys.modules.get(use.name))
                self._add_all([sys.modules.get(use.name)])
            else:
                raise self._unknown("a global that it changes")

    def _global(self, use: Use, namespace: Mapping[str, Any], builtins: Mapping[str, Any]) -> None:
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
        self.add(value, self._place)

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
        for name, value in list(vars(module).items()):
            self._note(vars(module), name, value)
            if isinstance(value, types.FunctionType):
                self.add(value, self._place)


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
    """Yield the strings in a code object, without its docstring."""
    for constant in code.co_consts[1:]:
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
    list: tuple,
    set: tuple,
    bytearray: tuple,
    dict: _pairs,
    OrderedDict: _pairs,
}
