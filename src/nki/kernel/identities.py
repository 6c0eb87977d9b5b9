"""Many objects compared by identity at once: a snapshot of a large kernel has thousands of them."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import c_void_p, sizeof, string_at
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from . import words
from .words import PARTS, Words, counts_of, has_tag, places_of, state_of, tags_of

MISSING = object()  # the value of a name that a namespace does not have
attributes_of = object.__getattribute__  # runs no Python of a class
ADDED = ("__slotnames__", "__annotations_cache__")  # by Python, when a class is used


def addresses(values: Iterable[Any]) -> bytes:
    """Return where objects lie, in order: several times faster than to compare them one by one with `is`."""
    found = tuple(values)
    if ITEMS_FOLLOW:
        return string_at(id(found) + tuple.__basicsize__, len(found) * sizeof(c_void_p))
    return np.fromiter(found, object, len(found)).tobytes()


def _do_items_follow() -> bool:
    """Return True if the addresses of a tuple's items follow its fixed part: one copy takes all."""
    probe = (object(), object(), object())
    if sys.implementation.name != "cpython":
        return False
    found = string_at(id(probe) + tuple.__basicsize__, len(probe) * sizeof(c_void_p))
    return found == np.array([*map(id, probe)], np.uintp).tobytes()


ITEMS_FOLLOW = _do_items_follow()


def dict_of(cls: type) -> dict[str, Any]:
    """Return the dict that the proxy `vars(cls)` stands for."""
    (found,) = gc.get_referents(vars(cls))
    return found


class States:
    """The parts of functions, cells and classes (`PARTS`), and the classes and `__dict__`s of objects.

    One function, the root, is not kept alive.
    """

    def __init__(
        self,
        functions: Sequence[types.FunctionType],
        cells: Sequence[types.CellType] = (),
        classes: Sequence[type] = (),
        objects: Sequence[object] = (),
        empty: Sequence[Any] = (),  # containers that stay so
        root: object = None,
    ):
        self._empty = [vars(f) for f in functions if not vars(f)] + [*empty]
        self._root = [weakref.ref(f) for f in functions if f is root]
        self._others = [f for f in functions if f is not root], cells, classes
        places = {id(value): state_of(value, attributes_of(value, "__dict__")) for value in objects}
        self._objects = [value for value in objects if places[id(value)] is None]
        self._kept = [*objects, *self._parts(objects)]  # alive, so that nothing else gets their addresses
        self._words: Words | None = None
        if words.HAS_WORDS and all(map(words.is_heap_type, classes)):
            parts = [places_of(owners, kind) for kind, owners in self._owners()]
            states = [place for place in places.values() if place is not None]
            self._words = Words(chain(*parts, *states, counts_of(self._empty)))
        self._state = self._present()

    def hold(self) -> bool:
        """Return True if every part is the object that it was. Raises AttributeError if the root is gone."""
        return self._present() == self._state

    def _present(self) -> bytes:
        root = [ref() for ref in self._root]  # alive while its words are read
        if None in root or self._words is None:
            return addresses((*self._parts(self._objects), *map(bool, self._empty)))
        found = self._words.read().tobytes()
        return found + addresses(_states(self._objects)) if self._objects else found

    def _owners(self) -> Iterator[tuple[type, Sequence[Any]]]:
        functions, *others = self._others
        return zip(PARTS, ([*(ref() for ref in self._root), *functions], *others), strict=True)

    def _parts(self, objects: Sequence[object]) -> Iterator[Any]:
        found = [map(attrgetter(p), owners) for kind, owners in self._owners() for p in PARTS[kind]]
        return chain(*found, _states(objects))


def _states(objects: Sequence[object]) -> Iterator[Any]:
    return chain(map(type, objects), map(attributes_of, objects, repeat("__dict__")))


class _Names:
    """Names in a namespace, with their values; a whole namespace has no others."""

    def __init__(self, namespace: Mapping[str, Any], values: dict[str, Any], is_whole: bool):
        self.holder = namespace
        self._absent = [name for name, value in values.items() if value is MISSING]
        present = {name: value for name, value in values.items() if value is not MISSING}
        first = [*present][:1]  # once more: of two or more an itemgetter returns a tuple
        self._read = itemgetter(*first, *present) if present else lambda _: ()
        self._kept = [*map(present.get, first), *present.values()]
        self._addresses = addresses(self._kept)
        self._count = len(present) if is_whole else None
        self._added = _count_added(namespace)

    def is_changed_by_python(self) -> bool:
        """Return True if Python itself changed it: it imports modules and adds names to classes."""
        return self.holder is sys.modules or _count_added(self.holder) != self._added

    def hold(self) -> bool:
        """Return True if the names are as they were. Raises KeyError if one is gone."""
        namespace = self.holder
        return (
            addresses(self._read(namespace)) == self._addresses
            and not any(name in namespace for name in self._absent)
            and (self._count is None or len(namespace) - _count_added(namespace) == self._count)
        )


def _count_added(namespace: Mapping[str, Any]) -> int:
    return sum(name in namespace for name in ADDED)


class _Contents:
    """The keys and values of a dict."""

    def __init__(self, holder: dict):
        self.holder = holder
        self._kept = (*holder, *holder.values())
        self._addresses = addresses(self._kept)

    def is_changed_by_python(self) -> bool:
        """Return False: only the user's Python changes it."""
        return False

    def hold(self) -> bool:
        """Return True if they are as they were."""
        return addresses((*self.holder, *self.holder.values())) == self._addresses


class Dicts:
    """Names in namespaces, and whole dicts. Those whose tag is another one than before are compared."""

    def __init__(
        self,
        spaces: Iterable[tuple[Mapping[str, Any], dict[str, Any]]],
        classes: Iterable[type],  # whose namespaces get no other names
        whole: Iterable[dict],
    ):
        own = {id(dict_of(cls)) for cls in classes}
        found: list[_Names | _Contents] = [_Names(space, names, id(space) in own) for space, names in spaces]
        found += map(_Contents, whole)
        self._tagged = [part for part in found if has_tag(part.holder)]
        self._others = [part for part in found if not has_tag(part.holder)]
        self._words = Words(tags_of(part.holder for part in self._tagged))
        self._tags = np.zeros(len(self._tagged), np.uintp)  # of when they were compared last; 0: never
        self._first_tags = self._words.read()

    def are_untouched(self) -> bool:
        """Return True if no tag says that a dict was changed since this was made, and perhaps restored."""
        (differ,) = (self._words.read() != self._first_tags).nonzero()
        return all(self._tagged[number].is_changed_by_python() for number in differ)

    def hold(self) -> bool:
        """Return True if all of them are as they were. Raises KeyError if a name is gone."""
        tags = self._words.read()
        if tags.tobytes() != self._tags.tobytes():
            (differ,) = (tags != self._tags).nonzero()
            if not all(self._tagged[number].hold() for number in differ):
                return False
            self._tags = tags  # read before the contents were compared
        return all(part.hold() for part in self._others)
