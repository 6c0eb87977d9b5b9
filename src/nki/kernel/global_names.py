"""The names that a code object takes from its module, and the attributes it takes from them at once.

`dis` says it in full, line numbers and jumps included, which took most of a first call's look at what the
kernel's Python can read. Here the bytes are read for names alone, where their form is known.
"""

from __future__ import annotations

import dis
import sys
import types
from functools import lru_cache
from typing import Any, NamedTuple

NAMING = ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
TAKING = ("LOAD_ATTR", "LOAD_METHOD")
BETWEEN = ("CACHE", "PRECALL", "EXTENDED_ARG", "NOP", "PUSH_NULL")
KNOWN = ((3, 11), (3, 12), (3, 13))  # versions whose bytes are read here


class Use(NamedTuple):
    operation: str  # of NAMING
    name: str
    attributes: tuple[str, ...]


@lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[Use, ...]:
    """What a code object names, in order."""
    return by_bytes(code) if sys.version_info[:2] in KNOWN else by_dis(code)


def by_dis(code: types.CodeType) -> tuple[Use, ...]:
    return _uses([(i.opname, str(i.argval)) for i in dis.get_instructions(code)])


def by_bytes(code: types.CodeType) -> tuple[Use, ...]:
    """Two bytes each: operation and argument, which an EXTENDED_ARG before it makes longer."""
    names, raw = code.co_names, code.co_code
    found: list[tuple[str, str]] = []
    longer = 0
    for operation, low in zip(raw[::2], raw[1::2], strict=True):
        name, shift = _OPERATIONS[operation]
        argument = low | longer
        longer = argument << 8 if name == "EXTENDED_ARG" else 0
        if name != "CACHE":
            found.append((name, "" if shift is None else names[argument >> shift]))
    return _uses(found)


def _uses(instructions: list[tuple[str, str]]) -> tuple[Use, ...]:
    found = []
    for position, (operation, name) in enumerate(instructions):
        if operation in NAMING:
            attributes = []
            for following, attribute in instructions[position + 1 : position + 32]:
                if following in TAKING:
                    attributes.append(attribute)
                elif following not in BETWEEN:
                    break
            found.append(Use(operation, name, tuple(attributes)))
    return tuple(found)


def _operation(number: int) -> tuple[str, int | None]:
    """The name of an operation, and how far its argument is shifted to be the number of a name."""
    name: Any = dis.opname[number]
    if name == "LOAD_GLOBAL" or (name == "LOAD_ATTR" and sys.version_info >= (3, 12)):
        return name, 1
    return name, 0 if name in (*NAMING, *TAKING) else None


_OPERATIONS = [_operation(number) for number in range(256)]
