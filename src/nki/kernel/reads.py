"""What a kernel's Python can read: only where all of it is known may a call skip that Python.

Known are plain immutable values, compared by type and value; containers and records of them; functions by
their code, defaults, closures and what they name in turn; classes by their contents, and objects that hold
nothing of their own by their class; modules of numpy, of nki and a few others that hold no state. Anything
else, an array, an open file, a ContextVar, the clock, is unknown: the Python runs again.
"""

from __future__ import annotations

import builtins
import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, EnumMeta
from typing import Any, NamedTuple

import numpy as np

from ..files import open_regular
from ..ir import tree
from ..machine.dtypes import DType
from ..machine.operators import Operator
from .arrays import is_dtype
from .global_names import names_in


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TRUSTED = _words("""
    nki ml_dtypes numpy math cmath operator functools itertools typing typing_extensions collections
    dataclasses enum abc types copy string fractions numbers builtins reprlib
    __future__ _operator _functools _collections _abc
""")
STATEFUL_NUMPY = _words("""
    random load loadtxt genfromtxt fromfile memmap fromregex DataSource geterr seterr errstate
    get_printoptions set_printoptions lib testing show_config
""")
STATEFUL_NKI = _words("cache observe options profile")
UNKNOWN_BUILTINS = _words("""
    open input breakpoint print globals locals vars eval exec __import__ compile id dir delattr memoryview
""")
_SKIPPED = _words("""
    __module__ __doc__ __dict__ __weakref__ __qualname__ __annotations__ __parameters__ __orig_bases__
    __dataclass_fields__ __dataclass_params__ __match_args__ __abstractmethods__ _abc_impl __slots__
    __static_attributes__ __firstlineno__ __annotate__ __annotate_func__ __annotations_cache__ __hash__
    __slotnames__
""")
_PLAIN = (type(None), bool, int, str, bytes, type(Ellipsis), type(NotImplemented))
_LARGEST = 4096  # elements of a container that is compared by value
_MISSING = object()


class Unknown(Exception):
    """The Python may read something whose changes cannot be detected."""


# ---- values --------------------------------------------------------------------------------------


def frozen(value: Any, open: tuple[int, ...] = ()) -> Any:
    """Something hashable that is equal for values of one type and content alone."""
    kind = value.__class__
    if kind in _PLAIN:
        return (kind, value)
    if kind is float:
        return (kind, value.hex())  # -0.0 differs from 0.0, and NaN equals NaN
    if kind is complex:
        return (kind, value.real.hex(), value.imag.hex())
    if isinstance(value, np.generic):
        return (kind, value.tobytes())
    if isinstance(value, (Enum, Operator, DType)):
        return Same(value)
    if is_dtype(value):
        return ("dtype", str(value))
    if id(value) in open:
        raise Unknown("a container that holds itself")
    open = (*open, id(value))
    if kind in (range, slice):
        return (kind, frozen((value.start, value.stop, value.step), open))
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        _check_size(value)
        return (kind, tuple(frozen(item, open) for item in value))
    if kind in (set, frozenset):
        _check_size(value)
        return (kind, tuple(frozen(item, open) for item in value))  # equal sets may differ in their order
    if kind in (dict, OrderedDict):
        _check_size(value)
        return (kind, tuple((frozen(k, open), frozen(v, open)) for k, v in value.items()))
    if tree.is_record(value):
        fields = tree.record_fields(value)
        return (kind, tuple((name, frozen(getattr(value, name), open)) for name in fields))
    raise Unknown(f"a {kind.__module__}.{kind.__qualname__}")


def _check_size(value: Any) -> None:
    if len(value) > _LARGEST:
        raise Unknown(f"a {type(value).__name__} of {len(value)} elements")


class Same:
    """Compares by identity and holds the object, so that its id is not used again."""

    __slots__ = ("value",)

    def __init__(self, value: object):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def is_plain(value: object) -> bool:
    try:
        frozen(value)
    except (Unknown, RecursionError):
        return False
    return True


# ---- checks --------------------------------------------------------------------------------------


class Named(NamedTuple):
    """A name in a namespace stands for the same object, or for an equal plain value."""

    namespace: Mapping[str, Any]
    name: str
    value: Any
    plain: Any  # its frozen form; None: identity counts

    def holds(self) -> bool:
        now = self.namespace.get(self.name, _MISSING)
        if self.plain is None or (now is self.value and not isinstance(now, _MUTABLE)):
            return now is self.value
        return _frozen_equal(now, self.plain)


_MUTABLE = (list, dict, set)


class Held(NamedTuple):
    """A container or record holds what it held."""

    value: Any
    plain: Any

    def holds(self) -> bool:
        return _frozen_equal(self.value, self.plain)


class FunctionAs(NamedTuple):
    """A function has the code, defaults and closure it had."""

    function: weakref.ref[types.FunctionType]
    code: types.CodeType
    defaults: Any
    keywords: Any
    cells: tuple[Any, ...]

    @staticmethod
    def of(f: types.FunctionType) -> FunctionAs:
        return FunctionAs(weakref.ref(f), f.__code__, f.__defaults__, _copied(f.__kwdefaults__), _contents(f))

    def holds(self) -> bool:
        f = self.function()
        return (
            f is not None
            and f.__code__ is self.code
            and f.__defaults__ is self.defaults
            and _copied(f.__kwdefaults__) == self.keywords
            and all(a is b for a, b in zip(_contents(f), self.cells, strict=True))
        )


class ClassAs(NamedTuple):
    """A class has as many attributes as it had; each of them is a `Named`."""

    cls: type
    attributes: int
    bases: tuple[type, ...]

    def holds(self) -> bool:
        return _named_in(self.cls) == self.attributes and self.cls.__mro__ == self.bases


def _named_in(cls: type) -> int:
    """How many attributes a class has; Python adds some of its own when a class is first used."""
    return sum(name not in _SKIPPED for name in vars(cls))


class EmptyAs(NamedTuple):
    """An object of a Python class holds nothing of its own, as before."""

    value: Any
    cls: type

    def holds(self) -> bool:
        return type(self.value) is self.cls and not getattr(self.value, "__dict__", None)


def _is_empty(value: object) -> bool:
    """An object that is all class, such as a callable that stands for a function."""
    cls = type(value)
    return (
        type(cls) is type
        and all(base is object or base.__flags__ & _MADE_BY_PYTHON for base in cls.__mro__)
        and cls.__new__ is object.__new__
        and cls.__basicsize__ <= object.__basicsize__ + 16  # room for __dict__ and __weakref__ alone
        and not any(vars(base).get("__slots__") for base in cls.__mro__)
        and not getattr(value, "__dict__", None)
    )


_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class FileAs(NamedTuple):
    """A file has the content it had."""

    path: str
    digest: str

    def holds(self) -> bool:
        return file_digest(self.path) == self.digest


def file_digest(path: str) -> str:
    import hashlib  # OpenSSL behind it is slow to load

    try:
        with open_regular(path) as file:
            return hashlib.blake2b(file.read()).hexdigest()
    except OSError:
        return "not readable"


def _copied(keywords: dict | None) -> tuple:
    return () if keywords is None else tuple((name, id(value)) for name, value in keywords.items())


def _contents(f: types.FunctionType) -> tuple[Any, ...]:
    found = []
    for cell in f.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not filled yet
            found.append(_MISSING)
    return tuple(found)


def _frozen_equal(now: object, then: object) -> bool:
    try:
        return frozen(now) == then
    except (Unknown, RecursionError):
        return False


# ---- what can be read ----------------------------------------------------------------------------


class Reads:
    """Follows all that a function can read. Raises Unknown where it cannot know."""

    def __init__(self) -> None:
        self.checks: list[Any] = []
        self._seen: set[int] = set()
        self._held: list[Any] = []  # so that their ids are not used again

    @staticmethod
    def of(function: object, values: object = ()) -> Reads | None:
        """Of a kernel's function and the values given to it; None when something is unknown."""
        reads = Reads()
        try:
            reads.visit(function)
            for value in tree.flatten(values):
                reads.visit_argument(value)
            for kind in _classes_in(values):
                reads.visit(kind)
        except (Unknown, RecursionError):
            return None
        reads._held.clear()
        return reads

    def watch(self, files: Iterable[tuple[str, str]]) -> None:
        """The Python also read these files: path and digest."""
        self.checks += [FileAs(path, digest) for path, digest in files]

    def still_hold(self) -> bool:
        return all(check.holds() for check in self.checks)

    def visit_argument(self, value: object) -> None:
        """Of the arguments, functions and classes are followed; tensors and plain values are in the key."""
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial, type)) or _is_kernel(
            value
        ):
            self.visit(value)

    def visit(self, value: Any) -> None:
        """Follow a value that the Python can get hold of."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._held.append(value)
        if isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self.visit(value.__func__)
            self.visit(value.__self__)
        elif isinstance(value, functools.partial):
            self.visit(value.func)
            for part in (*value.args, *value.keywords.values()):
                self.visit(part)
        elif isinstance(value, (staticmethod, classmethod)):
            self.visit(value.__func__)
        elif isinstance(value, property):
            for part in (value.fget, value.fset, value.fdel):
                if part is not None:
                    self.visit(part)
        elif isinstance(value, functools.cached_property) or _is_kernel(value):
            self.visit(value.func)
        elif isinstance(value, types.ModuleType):
            if not _is_trusted(value.__name__):
                raise Unknown(f"module {value.__name__} as a whole")
        elif not _is_constant(value):
            self._object(value)

    def _object(self, value: object) -> None:
        if _is_empty(value) and not tree.is_record(value):
            self.checks.append(EmptyAs(value, type(value)))
            self.visit(type(value))
        else:
            self._plain(value)

    def _plain(self, value: object) -> None:
        plain = frozen(value)
        if isinstance(value, _MUTABLE) or tree.is_record(value):
            self.checks.append(Held(value, plain))
        for kind in _classes_in(value):
            self.visit(kind)

    def _class(self, cls: type) -> None:
        if _is_trusted(cls.__module__) or is_dtype(cls):
            return
        if type(cls) not in (type, EnumMeta) and not _is_trusted(type(cls).__module__):
            raise Unknown(f"class {cls.__qualname__}, whose class is {type(cls).__qualname__}")
        self.checks.append(ClassAs(cls, _named_in(cls), cls.__mro__))
        for name, value in list(vars(cls).items()):
            if name not in _SKIPPED and not (isinstance(cls, EnumMeta) and name.startswith("_")):
                self._named(vars(cls), name, value)
        for base in cls.__mro__[1:]:
            self.visit(base)

    def _named(self, namespace: Mapping[str, object], name: str, value: object) -> None:
        plain = None
        if not isinstance(value, Enum) and is_plain(value):
            plain = frozen(value)
        self.checks.append(Named(namespace, name, value, plain))
        self.visit(value)

    def _function(self, function: types.FunctionType) -> None:
        known = _is_trusted(function.__globals__.get("__name__"))
        if known and not function.__closure__:
            return
        self.checks.append(FunctionAs.of(function))
        for value in _contents(function):
            if value is not _MISSING:
                self.visit(value)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(value)
        for name, value in vars(function).items():
            self._named(vars(function), name, value)
        for code in () if known else _codes(function.__code__):
            self._code(code, function.__globals__)

    def _code(self, code: types.CodeType, namespace: Mapping[str, object]) -> None:
        for operation, name, attributes in names_in(code):
            if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
                self._global(name, namespace, list(attributes))
            elif operation == "IMPORT_NAME":
                if not _is_trusted(name):
                    raise Unknown(f"an import of {name}")
            else:
                raise Unknown(f"global {name} is changed")

    def _global(self, name: str, namespace: Mapping[str, object], attributes: list[str]) -> None:
        if name.startswith("@"):  # not a Python name: pytest's, in the asserts that it rewrites
            return
        value = namespace.get(name, _MISSING)
        if value is _MISSING:
            if name in UNKNOWN_BUILTINS:
                raise Unknown(f"{name}()")
            if hasattr(builtins, name):
                self.checks.append(Named(namespace, name, _MISSING, None))
            return  # else a NameError, the same at every call
        if isinstance(value, types.ModuleType):
            self.checks.append(Named(namespace, name, value, None))
            self._module(value, attributes)
            return
        self._named(namespace, name, value)

    def _module(self, module: types.ModuleType, attributes: list[str]) -> None:
        root = module.__name__.partition(".")[0]
        if _is_trusted(module.__name__):
            stateful = {"numpy": STATEFUL_NUMPY, "nki": STATEFUL_NKI}.get(root, frozenset())
            if module.__name__ == root and stateful and not attributes:
                raise Unknown(f"module {root} as a whole")
            if set(attributes[:2]) & stateful:
                raise Unknown(f"{root}.{'.'.join(attributes)}")
            return
        if not attributes:
            raise Unknown(f"module {module.__name__} as a whole")
        value = vars(module).get(attributes[0], _MISSING)
        if value is _MISSING:
            raise Unknown(f"{module.__name__}.{attributes[0]}")
        if isinstance(value, types.ModuleType):
            self.checks.append(Named(vars(module), attributes[0], value, None))
            self._module(value, attributes[1:])
        else:
            self._named(vars(module), attributes[0], value)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _is_trusted(module: str | None) -> bool:
    return (module or "").partition(".")[0] in TRUSTED


_DESCRIPTORS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GenericAlias,
)


def _is_constant(value: object) -> bool:
    """Objects that hold no state: builtin functions, descriptors, things of dataclasses and typing."""
    if isinstance(value, (types.BuiltinFunctionType, np.ufunc)):
        owner = getattr(value, "__self__", None)
        return owner is None or isinstance(owner, (types.ModuleType, type))
    if isinstance(value, _DESCRIPTORS):
        return True
    if isinstance(value, functools._lru_cache_wrapper):
        raise Unknown("a function with a cache of its own")
    home = type(value).__module__
    return home in ("dataclasses", "typing", "abc", "_abc") or isinstance(value, (Enum, Operator, DType))


def _is_kernel(value: object) -> bool:
    return hasattr(type(value), "with_schedule")


def _classes_in(value: object) -> list[type]:
    """The classes of all records and enum members in a value: their methods can be called."""
    found: list[type] = []

    def look(value: object, depth: int = 0) -> None:
        if tree.is_record(value) or isinstance(value, Enum):
            found.append(type(value))
        kind = tree.container_of(value)
        if kind is not None and depth < 50:
            for _, child in kind.children(value):
                look(child, depth + 1)

    look(value)
    return found
