"""What a kernel's Python may use and still be skipped: the allow-list of the program cache.

Everything here returns the same for the same arguments and changes nothing else. A name that is not listed,
such as `print`, `time.time` or `numpy.random`, makes the Python run at every call.
"""

from __future__ import annotations

import builtins
import cmath
import functools
import itertools
import math
import operator
import types
import typing
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Iterable, Mapping
from enum import Enum, EnumMeta
from typing import Any, NewType

import numpy as np

from ..machine.dtypes import DType
from ..machine.operators import Operator


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


BUILTINS = words("""
    __build_class__ __debug__ abs all any ascii bin bool bytearray bytes callable chr classmethod complex dict
    divmod enumerate filter float format frozenset hash hex int isinstance issubclass iter len list map
    max min next object oct ord pow property range repr reversed round set slice sorted staticmethod str sum
    super tuple type zip NotImplemented Ellipsis
""")
NUMPY = words("""
    ndarray dtype generic integer floating inexact number prod sum cumsum cumprod min max mean all any arange
    linspace zeros ones full eye identity array asarray zeros_like ones_like full_like reshape transpose
    concatenate stack tile repeat where tri tril triu meshgrid diag outer dot clip argmax argmin argsort sort
    unique iinfo finfo issubdtype result_type can_cast ndim shape size
""")
WHOLE_MODULES = ["nki.language", "nki.isa", "nki.collectives", "math", "itertools"]

# modules whose functions and classes are not followed
PYTHON_MODULES = words("""
    typing typing_extensions dataclasses enum collections contextlib functools copy operator fractions reprlib
""")
UNLISTED = words(
    "fields get_type_hints attrgetter methodcaller"
)  # of these modules: they read what is not compared
NKI_PACKAGES = words("language isa collectives ir machine typing errors mx dtype")
ONLY_RAISING = "nkilib.core.utils.kernel_assert"  # it finds a kernel's name for an error, in frames

# attributes with underscores that do not lead from a value to a namespace, or are compared
DUNDERS = words("""
    __init__ __post_init__ __new__ __init_subclass__ __call__ __class__ __name__ __qualname__ __len__
    __getitem__ __setitem__ __contains__ __iter__ __next__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    __hash__ __repr__ __str__ __bool__ __int__ __index__ __float__ __enter__ __exit__ __setattr__ __delattr__
    __build_class__ __debug__
""")
CLASS_BODY = words("""
    __module__ __doc__ __annotations__ __firstlineno__ __static_attributes__ __classcell__
    __classdict__
""")  # names that the body of a class sets
REFUSED_ATTRIBUTES = words("""
    gi_frame gi_code cr_frame ag_frame tb_frame f_globals f_locals f_builtins f_back format_map tofile dump
""")  # frames, attributes by computed names, files

METACLASSES = (type, EnumMeta)
_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis), type(NotImplemented))
_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, *_METHODS)
_READING = words("format format_map __getattribute__ __subclasses__")  # what they take is named by a text
_FIELD = type(vars(namedtuple("_Named", "field"))["field"])
_CONSTANTS = (DType, Operator, _FIELD)


def _listed() -> Iterable[object]:
    yield from (getattr(builtins, name) for name in BUILTINS)
    yield from (v for v in vars(builtins).values() if isinstance(v, type) and issubclass(v, BaseException))
    for module in (math, cmath, operator, itertools):
        functions = (v for name, v in vars(module).items() if callable(v) and name not in UNLISTED)
        yield from (v for v in functions if not isinstance(v, types.FunctionType))
    yield from (getattr(np, name) for name in NUMPY)
    yield from (v for v in vars(np).values() if isinstance(v, np.ufunc))
    yield from (functools.partial, functools.reduce, functools.cmp_to_key, OrderedDict, defaultdict, deque)


_PURE: Mapping[int, object] = {id(value): value for value in _listed()}


def is_pure(value: Any) -> bool:
    """Return True for an immutable value, and for a function or type of the list."""
    kind = type(value)
    if kind in _IMMUTABLE or kind in _CONSTANTS or id(value) in _PURE:
        return True
    if kind in _DESCRIPTORS:
        return value.__name__ not in _READING and (
            id(value.__objclass__) in _PURE or is_written_in_python(value.__objclass__)
        )
    if kind is types.BuiltinFunctionType:
        return id(value.__self__) in _PURE  # dict.fromkeys
    if issubclass(kind, Enum):
        return is_listed_module(kind.__module__)
    return _is_typing(kind) and not is_alias(value) or _is_numpy_constant(value)


def is_alias(value: Any) -> bool:
    """Return True for a type with others in brackets, such as `list[int]`, and for types that `|` joins."""
    kind = type(value)
    return kind in (types.GenericAlias, types.UnionType) or _is_typing(kind) and hasattr(value, "__origin__")


def _is_typing(kind: type) -> bool:
    """Return True for a class of `typing` whose objects do not change: `Optional[int]`."""
    return kind.__module__ == "typing" and kind is not NewType and vars(typing).get(kind.__name__) is kind


def _is_numpy_constant(value: Any) -> bool:
    """Return True for a scalar or dtype of numpy, ml_dtypes, torch or JAX."""
    kind = type(value)
    if isinstance(value, np.dtype):
        return value.fields is None and value.subdtype is None and value.metadata is None
    if isinstance(value, type) and issubclass(value, np.generic):
        return not is_written_in_python(value)
    if issubclass(kind, np.generic):
        return not is_written_in_python(kind) and not isinstance(value, (np.void, np.object_))
    return kind.__module__ == "torch" and kind.__name__ == "dtype" or kind.__name__ == "_ScalarMeta"


def leads_out(name: str) -> bool:
    """Return True for an attribute that may lead to what a snapshot does not follow."""
    return (name.startswith("__") and name not in DUNDERS) or name in REFUSED_ATTRIBUTES


_languages: list[str] = []


def add_language(package: str, *modules: str) -> None:
    """List a package whose functions do no more than those of nki.language, and its modules for kernels."""
    _languages.append(package)
    WHOLE_MODULES.extend((package, *modules))


def is_listed_module(name: object) -> bool:
    """Return True for a module whose functions and classes are not followed."""
    root, _, rest = str(name).partition(".")
    ours = root == "nki" and rest.partition(".")[0] in NKI_PACKAGES
    return root in PYTHON_MODULES or ours or str(name).startswith(tuple(_languages))


def is_listed(module: object, value: Any) -> bool:
    """Return True for a function or class of a listed module that is not followed."""
    return is_listed_module(module) and value.__name__ not in UNLISTED


def is_written_in_python(cls: type) -> bool:
    """Return True for a class that a `class` statement has made: it has no methods in C."""
    return bool(cls.__flags__ & _HEAP_TYPE) and not any(_is_compiled(v, cls) for v in vars(cls).values())


def _is_compiled(value: Any, cls: type) -> bool:
    if type(value) is types.BuiltinFunctionType:
        return value.__self__ is cls
    return type(value) in _METHODS and value.__objclass__ is cls


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
