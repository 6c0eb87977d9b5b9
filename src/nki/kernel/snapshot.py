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
from abc import ABCMeta, get_cache_token
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copyreg import dispatch_table
from inspect import CO_OPTIMIZED
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, NamedTuple

from ..ir.tensor import NkiTensor
from . import pure
from .arguments import Records
from .global_names import BY_TEXT, READING, GlobalUse, attributes_by_text, imports_in, names_in
from .identities import ADDED, MISSING, Dicts, States, addresses, attributes_of, dict_of
from .user_function import AnyKernel

LARGEST = 20_000  # objects that are followed
_UNREAD = pure.words("""
    __doc__ __annotations__ __parameters__ __orig_bases__ __dataclass_fields__ __dataclass_params__ __slots__
    __annotate__ __annotate_func__ __type_params__
""")  # attributes of a class whose parts a kernel's Python does not read

_CONTENTS = attrgetter("cell_contents")


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
        self._objects: dict[int, Any] = {}  # by their ids; of which the class and `__dict__` are compared
        self._dicts: list[dict] = []
        self._groups: list[Collection[Any]] = []  # lists and sets
        self._others: list[tuple[Any, Callable[[Any], tuple]]] = []  # what can change, with what reads it
        self._names: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}  # by the id of the namespace
        self._registrations: object = None  # with abstract classes
        self._copies = False  # objects, as `dispatch_table` says for their classes
        self._attributes: set[str] = set()  # that the code takes from something
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
        own_classes = [*self._classes]
        for cls in own_classes if self._copies else ():
            self._note(dispatch_table, cls, dispatch_table.get(cls, MISSING))
        self._note_methods_of_tensors()
        self._states = States(
            *(self._functions, self._cells, self._classes, [*self._objects.values()]),
            *([group for group in self._groups if not group], function),
        )
        self._groups = [group for group in self._groups if group]
        self._contents = Dicts(self._names.values(), own_classes, self._dicts)
        self._functions.clear()
        parts, self._sizes = self._present()
        self._kept = [*parts]  # alive, so that nothing else gets their addresses
        self._addresses = addresses(self._kept)

    def holds(self) -> bool:
        """Return True if everything is as it was."""
        try:
            parts, sizes = self._present()
            return (
                sizes == self._sizes
                and self._states.hold()
                and self._contents.hold()
                and addresses(parts) == self._addresses
                and self._registrations in (None, get_cache_token())
            )
        except (AttributeError, KeyError, ValueError, RuntimeError):  # gone, emptied, or changed meanwhile
            return False

    def is_untouched(self) -> bool:
        """Return True if no thread has changed a dict, and perhaps restored it, since this was taken."""
        return self._contents.are_untouched()

    def _present(self) -> tuple[Iterator[Any], list[int]]:
        """Return what counts by its identity in containers and other objects, and how many each has."""
        found = [*self._groups, *(read(value) for value, read in self._others)]
        return chain.from_iterable(found), [*map(len, found)]

    def _add(self, values: Iterable[Any]) -> None:
        for value in values:
            if id(value) not in self._seen and not pure.is_pure(value):
                self._seen[id(value)] = value
                self._todo.append((value, self._place))

    def _unknown(self, what: str) -> Unknown:
        return Unknown(f"{self._place or ''}{what}")

    def _unlisted(self, what: str) -> Unknown:
        return self._unknown(f"{what} is not on the list of what is known")

    def _note(self, namespace: Mapping[Any, Any], name: Any, value: object) -> None:
        self._names.setdefault(id(namespace), (namespace, {}))[1][name] = value

    def _watch(self, value: Any, read: Callable[[Any], tuple]) -> None:
        """Compare the parts of what can change at every call."""
        if type(value) is dict:
            self._dicts.append(value)
        elif type(value) in (list, set):
            self._groups.append(value)
        elif read is _state and (attributes := _plain_attributes(value)) is not None:
            self._objects[id(value)] = value
            self._dicts.append(attributes)
        else:
            self._others.append((value, read))

    def _watch_parts(self, value: Any, read: Callable[[Any], tuple]) -> None:
        self._watch(value, read)
        self._add(read(value))

    def _follow(self, value: Any) -> None:
        kind = type(value)
        if kind is types.FunctionType:
            self._function(value)
        elif kind in _PARTS:
            self._add(_PARTS[kind](value))
        elif kind in _CHANGING:
            self._watch_parts(value, _CHANGING[kind])
        elif kind in _WRAPPING:
            self._watch_parts(value, _WRAPPING[kind])
            if _plain_attributes(value) is not None:
                self._watch_parts(value, _state)
        elif kind is types.ModuleType:
            self._whole_module(value)
        elif kind is Records:
            self._records(value.cls)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, AnyKernel):
            self._watch(value, _state)
            self._add([value.func])
        elif pure.is_alias(value):
            self._add((getattr(value, "__origin__", None), *getattr(value, "__args__", ())))
        else:
            self._object(value)

    # ---- classes and objects ---------------------------------------------------------------------

    def _class(self, cls: type) -> None:
        if pure.is_listed(cls.__module__, cls):
            if isinstance(cls, ABCMeta):  # other classes may be registered with it
                self._registrations = get_cache_token()
            return
        if type(cls) not in pure.METACLASSES or not pure.is_written_in_python(cls):
            raise self._unlisted(f"class {cls.__module__}.{cls.__qualname__}")
        self._note_class(cls)
        self._add(value for name, value in vars(cls).items() if name not in _UNREAD and name not in ADDED)
        self._add(cls.__mro__[1:])

    def _note_class(self, cls: type) -> None:
        self._classes.append(cls)
        own = dict_of(cls)
        for name in own:
            if name not in ADDED:
                self._note(own, name, own[name])

    def _note_methods_of_tensors(self) -> None:
        """Note those that the code names: they may be replaced."""
        names = [n for n in self._attributes.intersection(dir(NkiTensor)) if not n.startswith("__")]
        for cls in NkiTensor.__mro__[:-1]:
            self._classes.append(cls)
            own = dict_of(cls)
            for name in names:
                self._note(own, name, own.get(name, MISSING))

    def _records(self, cls: type) -> None:
        """Follow the class of records among the arguments, whose fields are in the key of the call."""
        fields = getattr(cls, "__dataclass_fields__", ())
        for base in set(cls.__mro__) - {object, Generic}:
            if not pure.is_written_in_python(base) or not all(name in fields for name in _slots(base)):
                raise self._unknown(f"a {cls.__module__}.{cls.__qualname__} holds more than its fields")
        self._add([cls])

    def _object(self, value: object) -> None:
        cls = type(value)
        if _is_named_by_nki(value):  # nl.tile_size; not a tensor that a kernel left behind
            self._watch(value, _state)
            return
        if pure.is_listed_module(cls.__module__) or not all(map(_has_no_state, cls.__mro__)):
            is_function = cls is types.BuiltinFunctionType
            what = repr(value).strip("<>") if is_function else f"a {cls.__module__}.{cls.__qualname__}"
            raise self._unlisted(what)
        self._add([cls])
        if isinstance(value, tuple):
            self._add(value)
        self._watch_parts(value, _state)

    # ---- functions and modules -------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> None:
        module = function.__globals__.get("__name__")
        is_listed = pure.is_listed(module, function) or module == pure.ONLY_RAISING
        self._copies = self._copies or module in ("copy", "dataclasses")
        self._functions.append(function)
        if is_listed and (not function.__closure__ or _is_named_by_nki(function)):
            return
        self._cells += function.__closure__ or ()
        try:
            self._add(map(_CONTENTS, function.__closure__ or ()))
        except ValueError:
            raise self._unknown(f"a variable of {function.__qualname__} has no value yet") from None
        self._add(function.__defaults__ or ())
        for mapping in (function.__kwdefaults__, vars(function)):
            if mapping:
                self._watch_parts(mapping, _pairs)
        for code in () if is_listed else _codes(function.__code__):
            self._code(code, function)

    def _code(self, code: types.CodeType, function: Any) -> None:
        is_function = code.co_flags & CO_OPTIMIZED  # not the body of a class
        for name in (*code.co_names, *attributes_by_text(code)):
            if name is None:
                self._place = Place(code, 0, "an attribute")
                raise self._unknown("its name is computed")
            self._attributes.add(name)
            if pure.leads_out(name) and (is_function or name not in pure.CLASS_BODY):
                self._place = Place(code, 0, name)
                raise self._unlisted("the attribute")
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
        value = namespace.get(use.name, MISSING)
        self._note(namespace, use.name, value)
        if value is MISSING:
            value = builtins.get(use.name, MISSING)
            if value is MISSING:
                raise self._unknown("the name is not defined")
            self._note(builtins, use.name, value)
            if use.name in BY_TEXT:  # attributes_by_text has found what they take
                return
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
        self._note_module(module)
        return value

    def _note_module(self, module: types.ModuleType) -> None:
        """Note the class of a module: another one may have properties."""
        self._objects[id(module)] = module

    def _whole_module(self, module: types.ModuleType) -> None:
        if module.__name__ not in pure.WHOLE_MODULES:
            raise self._unknown(f"module {module.__name__} as a value")
        self._watch(vars(module), _pairs)
        self._note_module(module)
        self._add(value for value in vars(module).values() if isinstance(value, types.FunctionType))


def _pairs(value: Mapping) -> tuple:
    return (*value, *value.values())


def _state(value: object) -> tuple:
    """Return the class, attributes and their values of an object; no Python of its class is run."""
    try:
        return (type(value), *_pairs(attributes_of(value, "__dict__")))
    except AttributeError:
        return (type(value),)


def _plain_attributes(value: object) -> dict | None:
    """Return the `__dict__` of an object, if it is a dict and no subclass of it."""
    try:
        found = attributes_of(value, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def _is_named_by_nki(value: object) -> bool:
    modules = [sys.modules[name] for name in pure.WHOLE_MODULES if name in sys.modules]
    return pure.is_listed_module(getattr(value, "__module__", None)) and any(
        value is known for module in modules for known in vars(module).values()
    )


def _has_no_state(cls: type) -> bool:
    """Return True for a class whose objects hold nothing beside `__dict__` and an immutable value."""
    if pure.is_written_in_python(cls):
        return not any(_slots(cls))
    return cls in (object, int, float, str, bytes, tuple)


def _slots(cls: type) -> Iterator[str]:
    """Yield the names of the slots of a class: `__slots__` may have been changed since it was made."""
    for name, value in vars(cls).items():
        if type(value) is types.MemberDescriptorType and value.__objclass__ is cls:
            yield name


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    tuple: iter,
    frozenset: iter,
    slice: attrgetter("start", "stop", "step"),
    types.MethodType: attrgetter("__func__", "__self__"),
}
_CHANGING: dict[type, Callable[[Any], tuple]] = {
    **dict.fromkeys((list, set, bytearray), tuple),
    dict: _pairs,
    functools.cached_property: attrgetter("func", "__class__"),
}
_WRAPPING: dict[type, Callable[[Any], tuple]] = {  # they may have attributes, too
    **dict.fromkeys((staticmethod, classmethod), attrgetter("__func__", "__class__")),
    property: attrgetter("fget", "fset", "fdel"),
    functools.partial: attrgetter("func", "args", "keywords"),
    OrderedDict: _pairs,
}
