"""Words of memory: where CPython keeps the parts of functions, cells, classes and dicts. Reads many at once.

Such a word holds the address of a part: it differs if and only if the part is another object. Where the words
lie in an object is searched for in a probe. Where they are not found, attributes are read one by one.

It rests on these facts of CPython 3.10 to 3.14. The parts of functions, cells and classes that a `class`
statement has made are references in the object itself. The length of a dict or list follows the header of
the object, that of a set one word later. An object's `__dict__`, once it was asked for, is a reference
before the object (`Py_TPFLAGS_MANAGED_DICT`, from 3.11 on), at `__dictoffset__`, or after the items of an
int or tuple. Up to 3.13 a dict has a tag after its length (PEP 509), which every change replaces by one
that no dict had before. From 3.13 on that is not so for a dict of attributes whose values lie in their
object: the second word after its tag is not 0.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import c_size_t, c_void_p, sizeof, string_at
from typing import Any

import numpy as np

PARTS: dict[type, tuple[str, ...]] = {
    types.FunctionType: (
        *("__code__", "__defaults__", "__kwdefaults__", "__dict__", "__name__", "__qualname__", "__class__"),
    ),
    types.CellType: ("cell_contents",),
    type: ("__mro__", "__name__", "__qualname__", "__class__"),
}  # what counts by its identity
TAGGED = ((3, 10), (3, 11), (3, 12), (3, 13))  # versions whose dicts have a tag, which each change replaces
_WORD = sizeof(c_void_p)
_COUNT = object.__basicsize__  # of a dict: where its length lies; its tag, keys and values follow
_COUNTS: dict[type, int] = {dict: _COUNT, list: _COUNT, set: _COUNT + _WORD}
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_MANAGED_DICT = 1 << 4 if sys.version_info >= (3, 11) else 0  # of a class: the dict lies before the object
_ALL = c_size_t * (1 << 8 * _WORD - 8)  # from an address on; those that are there are read


class Words:
    """Words at addresses. The caller keeps what lies there alive while they are read."""

    def __init__(self, addresses: Iterable[int]):
        places = np.fromiter(addresses, np.uintp)
        low = int(places.min()) if len(places) else id(self)
        self._memory = np.frombuffer(memoryview(_ALL.from_address(low)), np.uintp)
        self._numbers = ((places - low) // _WORD).astype(np.intp)

    def read(self) -> np.ndarray:
        """Return the words, in order."""
        return self._memory.take(self._numbers, mode="clip")  # all are inside; this takes half of the time


def is_heap_type(cls: type) -> bool:
    """Return True for a class that was made while Python runs: others are shorter, and have no such words."""
    return bool(cls.__flags__ & _HEAP_TYPE)


def places_of(values: Iterable[Any], kind: type) -> Iterator[int]:
    """Yield the addresses of the words of each value's parts."""
    offsets = _OFFSETS[kind]
    return (id(value) + offset for value in values for offset in offsets)


def counts_of(containers: Iterable[object]) -> Iterator[int]:
    """Yield the addresses of the lengths of dicts, lists and sets."""
    return (id(value) + _COUNTS[type(value)] for value in containers)


def state_of(value: object, attributes: dict) -> tuple[int, int] | None:
    """Return the addresses of the words of an object's class and `__dict__`; None if they are not found."""
    offset = _dict_offset(value) if HAS_WORDS else None
    if offset is None:
        return None
    places = id(value) + _OFFSETS[types.FunctionType][-1], id(value) + offset
    return places if [*Words(places).read()] == [id(type(value)), id(attributes)] else None


def _dict_offset(value: object) -> int | None:
    """Return where an object should have its `__dict__`: before it, in it, or after its items."""
    cls = type(value)
    if cls.__flags__ & _MANAGED_DICT:
        return -3 * _WORD
    if cls.__dictoffset__ > 0:
        return cls.__dictoffset__
    if isinstance(value, int):
        items = -(-int.bit_length(value) // sys.int_info.bits_per_digit)
    elif isinstance(value, tuple):
        items = tuple.__len__(value)
    else:
        return None
    return -(-(cls.__basicsize__ + items * cls.__itemsize__) // _WORD) * _WORD + cls.__dictoffset__


def tags_of(dicts: Iterable[object]) -> Iterator[int]:
    """Yield the addresses of the tags of dicts."""
    return (id(value) + _COUNT + _WORD for value in dicts)


def has_tag(value: object) -> bool:
    """Return True for a dict whose tag is replaced by every change."""
    if not HAS_TAGS or type(value) is not dict:
        return False
    return sys.version_info < (3, 13) or not Words([id(value) + _COUNT + 3 * _WORD]).read()[0]


# ---- probes --------------------------------------------------------------------------------------


def _offsets(probe: Any, parts: Sequence[str]) -> tuple[int, ...]:
    """Return where the addresses of parts lie in an object; () if one of them is not found once."""
    values = [getattr(probe, part) for part in parts]  # a function without attributes makes its dict now
    words = np.frombuffer(string_at(id(probe), type(probe).__basicsize__), np.uintp)
    found = [np.flatnonzero(words == id(value)) for value in values]
    return tuple(int(where[0]) * _WORD for where in found) if all(len(w) == 1 for w in found) else ()


def _probes() -> Iterator[Any]:
    """Yield an object of each type of PARTS, all of whose parts are different objects."""
    content: Any = object()

    def probe(value: object = (), *, named: object = ()) -> object:
        return content

    probe.__name__, probe.__qualname__ = "a name".upper(), "another".upper()
    cls = type("a class".upper(), (), {"__qualname__": "its name".upper()})
    return iter((probe, probe.__closure__[0], cls))  # type: ignore[index]


def _are_lengths_found() -> bool:
    """Return True if the lengths of containers are where they are read."""
    numbers = {1, 2, 3}
    numbers.discard(2)
    probes: list[Any] = [{}, {1: 2, 3: 4}, [], [1, 2, 3], set(), numbers]
    return [*Words(counts_of(probes)).read()] == [*map(len, probes)]


def _are_dicts_tagged(probe: dict) -> bool:
    """Return True if every change of a dict replaces its tag, by another one at each time."""
    changes: list[Callable[[], object]] = [
        lambda: probe.update(a=1, b=2, c=3),
        lambda: probe.__setitem__("a", 2),
        lambda: probe.__delitem__("a"),
        lambda: probe.pop("b"),
        probe.popitem,
        lambda: probe.setdefault("d"),
        probe.clear,
    ]
    words = Words(tags_of([probe]))
    tags = [int(words.read()[0])]
    for change in changes:
        change()
        tags.append(int(words.read()[0]))
    return len(set(tags)) == len(tags) and tags[-1] == int(words.read()[0])


_IS_CPYTHON = sys.implementation.name == "cpython" and _WORD == sizeof(c_size_t) == 8
_OFFSETS = {
    kind: _offsets(probe, parts) if _IS_CPYTHON else ()
    for (kind, parts), probe in zip(PARTS.items(), _probes(), strict=True)
}
HAS_WORDS = all(_OFFSETS.values()) and _are_lengths_found()
HAS_TAGS = (
    HAS_WORDS
    and sys.version_info[:2] in TAGGED
    and getattr(sys, "_is_gil_enabled", lambda: True)()
    and _are_dicts_tagged({})
)
