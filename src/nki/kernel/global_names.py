"""The names that a code object takes from its module, and the attributes it takes from them at once."""

from __future__ import annotations

import dis
import sys
import types
from functools import lru_cache
from typing import NamedTuple

READING = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
NAMING = (*READING, "IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
TAKING = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
BETWEEN = ("CACHE", "PRECALL", "EXTENDED_ARG", "NOP", "PUSH_NULL")
KNOWN = ((3, 11), (3, 12), (3, 13))  # versions whose bytes are read here, ten times faster than by `dis`


class GlobalUse(NamedTuple):
    """A name in a code object."""

    operation: str  # of NAMING
    name: str
    attributes: tuple[str, ...]
    offset: int  # of its instruction


@lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[GlobalUse, ...]:
    """Return what a code object names, in order."""
    return uses(by_bytes(code) if sys.version_info[:2] in KNOWN else by_dis(code))


def by_dis(code: types.CodeType) -> list[tuple[str, str, int]]:
    """Return the operation, the name and the offset of each instruction, as `dis` reports it."""
    found = [(i.opname, str(i.argval), i.offset) for i in dis.get_instructions(code)]
    return [(name, text if name in (*NAMING, *TAKING) else "", offset) for name, text, offset in found]


def by_bytes(code: types.CodeType) -> list[tuple[str, str, int]]:
    """Return the same from the bytes: an operation and an argument, which an EXTENDED_ARG makes longer."""
    names, raw = code.co_names, code.co_code
    found = []
    longer = 0
    for offset in range(0, len(raw), 2):
        name, shift = _OPERATIONS[raw[offset]]
        argument = raw[offset + 1] | longer
        longer = argument << 8 if name == "EXTENDED_ARG" else 0
        if name != "CACHE":
            found.append((name, "" if shift is None else names[argument >> shift], offset))
    return found


def uses(instructions: list[tuple[str, str, int]]) -> tuple[GlobalUse, ...]:
    """Join each name with the attributes that are taken from it."""
    found = []
    for position, (operation, name, offset) in enumerate(instructions):
        if operation in NAMING:
            attributes = []
            for following, attribute, _ in instructions[position + 1 : position + 32]:
                if following in TAKING:
                    attributes.append(attribute)
                elif following not in BETWEEN:
                    break
            found.append(GlobalUse(operation, name, tuple(attributes), offset))
    return tuple(found)


def _operation(number: int) -> tuple[str, int | None]:
    """Return the name of an operation, and how far its argument is shifted to be the number of a name."""
    name = dis.opname[number]
    if name == "LOAD_GLOBAL" or (name == "LOAD_ATTR" and sys.version_info >= (3, 12)):
        return name, 1
    return name, 0 if name in (*NAMING, *TAKING) else None


_OPERATIONS = [_operation(number) for number in range(256)]
