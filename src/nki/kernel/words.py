"""Words of memory: where CPython keeps the parts of functions, cells, classes and dicts. Reads many at once.

Such a word holds the address of a part: it differs if and only if the part is another object. Where the words
lie in an object is searched for in a probe. Where they are not found, attributes are read one by one.
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
        *("__code__", "__defaults__", "__kwdefaults__", "__dict__", "__name__", "__qualname__"),
    ),
    types.CellType: ("cell_contents",),
    type: ("__mro__", "__name__", "__qualname__"),
}  # what counts by its identity
TAGGED = ((3, 10), (3, 11), (3, 12), (3, 13))  # versions whose dicts have a tag, which each change replaces
_WORD = sizeof(c_void_p)
_COUNT = object.__basicsize__  # of a dict: where its length lies; its tag, keys and values follow
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
        return self._memory.take(self._numbers)


def places_of(values: Iterable[Any], kind: type) -> Iterator[int]:
    """Yield the addresses of the words of each value's parts."""
    offsets = _OFFSETS[kind]
    return (id(value) + offset for value in values for offset in offsets)


def counts_of(dicts: Iterable[object]) -> Iterator[int]:
    """Yield the addresses of the lengths of dicts."""
    return (id(value) + _COUNT for value in dicts)


def tags_of(dicts: Iterable[object]) -> Iterator[int]:
    """Yield the addresses of the tags of dicts."""
    return (id(value) + _COUNT + _WORD for value in dicts)


def has_tag(value: object) -> bool:
    """Return True for a dict whose tag is replaced by every change.

    From Python 3.13 on, attributes are set without that in a dict whose values lie in their object.
    """
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


def _are_dicts_counted(probe: dict) -> bool:
    """Return True if the length of a dict is where it is read."""
    lengths = []
    for number in range(4):
        lengths.append(int(Words(counts_of([probe])).read()[0]) == len(probe))
        probe[number] = None
    return all(lengths)


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
HAS_WORDS = all(_OFFSETS.values()) and _are_dicts_counted({})
HAS_TAGS = (
    HAS_WORDS
    and sys.version_info[:2] in TAGGED
    and getattr(sys, "_is_gil_enabled", lambda: True)()
    and _are_dicts_tagged({})
)
