"""The content of a program as a key: programs whose plans are equal word for word have the same one.

All that a planner can see counts: the platform, the storages, and of every instruction its class, options,
views and where they lie. Lines, names and the numbers in constants do not: a plan never looks at them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from operator import attrgetter
from typing import Any

import numpy as np

from ...ir.instruction import Instruction
from ...ir.program import Item, Loop, Program
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.dtypes import DType
from ...machine.machine import Machine
from ...machine.operators import Operator

LOOP, END = -1, -2  # in the place of an instruction's kind


class Unkeyed(Exception):
    """An option that nothing is known of: the program has no key."""


def content_key(program: Program) -> bytes | None:
    """32 bytes, the same in every process of a machine; None: some option cannot be told from others."""
    content = _Content(program)
    try:
        return content.digest()
    except (Unkeyed, KeyError):  # KeyError: a storage that the program does not list
        return None


class _Content:
    """What is said of a program: texts, each once, and numbers."""

    def __init__(self, program: Program):
        self.program = program
        self.storages = {storage: number for number, storage in enumerate(program.storages)}
        self.by_access: dict[int, tuple[int, Any]] = {}  # by the identity of what a signature's share
        self.texts: dict[str, int] = {}
        self.numbers: list[int] = []

    def digest(self) -> bytes:
        from hashlib import sha256  # programs that are not planned do without

        program = self.program
        found = sha256(_machine(program.machine).encode())
        self._storages()
        for items in program.cores:
            self._items(items)
            self.numbers.append(END)
        found.update("\n".join(self.texts).encode())
        found.update(array("q", self.numbers).tobytes())
        return found.digest()

    def _storages(self) -> None:
        known: dict[tuple, int] = {}
        for s in self.program.storages:
            kind = s.buffer, s.shape, s.dtype, s.address, s.parameter, s.constant, s.loop
            number = known.get(kind)
            if number is None:
                number = known[kind] = self._number(_storage(s))
            self.numbers.append(number)
        self.numbers.append(END)

    def _items(self, items: Sequence[Item]) -> None:
        known, storages, numbers = self.by_access, self.storages, self.numbers
        for item in items:
            if isinstance(item, Loop):
                self._loop(item)
                continue
            access = item.access
            kind = known.get(id(access))
            if kind is None:
                kind = known[id(access)] = self._kind(item)
            number, views = kind
            if views is None:
                numbers.append(number)
                for view in item.operands():
                    if isinstance(view, View):
                        self._view(view)
                continue
            parts = views(item)
            if len(parts) == 2:  # most have two or three
                a, b = parts
                numbers += number, storages[a.storage], a.offset, storages[b.storage], b.offset
            elif len(parts) == 3:
                a, b, c = parts
                numbers += (
                    number,
                    storages[a.storage],
                    a.offset,
                    storages[b.storage],
                    b.offset,
                    storages[c.storage],
                    c.offset,
                )
            else:
                numbers.append(number)
                for view in parts:
                    numbers += storages[view.storage], view.offset

    def _kind(self, instruction: Instruction) -> tuple[int, Any]:
        """The number of a signature, and what gives the views of its instructions."""
        number = self._number(_signature(instruction))
        access = instruction.access
        if not access.fixed:
            return number, None
        if len(access.views) > 1:
            return number, attrgetter(*access.views)
        return number, lambda item: [getattr(item, name) for name in access.views]

    def _view(self, view: View) -> None:
        """A view whose address is known at run time: all that takes part in it."""
        self.numbers.append(self.storages[view.storage])
        self.numbers.append(view.offset)
        ind = view.indirection
        if ind is not None:
            for part in (ind.base, ind.index):
                if isinstance(part, View):
                    self._view(part)

    def _loop(self, loop: Loop) -> None:
        self.numbers.append(LOOP)
        self.numbers.append(self._number(f"{loop.function} {loop.number} {loop.step}"))
        self._items(loop.body)
        self.numbers.append(END)

    def _number(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))


def _machine(machine: Machine) -> str:
    values = [getattr(machine, field.name) for field in fields(machine)]
    return repr([sorted(v) if isinstance(v, frozenset) else v for v in values])


def _storage(s: Storage) -> str:
    parts = (s.buffer.value, tuple(s.shape), str(s.dtype), s.address, s.parameter, s.constant, s.loop)
    return f"storage {parts!r}"


def _signature(instruction: Instruction) -> str:
    cls = type(instruction)
    values = [_shown(getattr(instruction, field)) for field in instruction.fields]
    return f"{cls.__module__}.{cls.__qualname__}({', '.join(values)})"


def _shown(value: Any) -> str:
    """An operand or option, without what differs between instructions of one signature."""
    if isinstance(value, View):
        ind = value.indirection
        how = (
            "" if ind is None else f" {ind.kind} {ind.scale} {ind.dim} {_shown(ind.base)} {_shown(ind.index)}"
        )
        return f"[{tuple(value.shape)} {tuple(value.strides)} {value.dtype}{how}]"
    kind = value.__class__
    if value is None or kind in (bool, int, float, str):
        return f"{kind.__name__} {value!r}"
    if isinstance(value, Operator):
        return f"operator {value.name!r}"
    if isinstance(value, DType):
        return f"dtype {str(value)!r}"
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value.name}"
    if isinstance(value, np.generic):
        return f"{value.dtype.str} {value.tobytes().hex()}"
    if getattr(value, "is_register", False):
        return kind.__name__
    if isinstance(value, (tuple, list)) and not any(isinstance(part, View) for part in value):
        return f"{kind.__name__}({', '.join(map(_shown, value))})"
    raise Unkeyed(f"a {kind.__name__}")


__all__ = ["content_key"]
