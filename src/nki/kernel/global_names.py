"""The names that a code object takes from its module, and the attributes it takes from them at once."""

from __future__ import annotations

import dis
import re
import sys
import types
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

READING = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
NAMING = (*READING, "IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
TAKING = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
BETWEEN = ("CACHE", "PRECALL", "EXTENDED_ARG", "NOP", "PUSH_NULL")
BY_TEXT = ("getattr", "hasattr")
VARIABLES = (*READING, "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF")
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


class BodyImports(NamedTuple):
    """The modules that a code object imports, what its variables get, and what it takes from these."""

    modules: tuple[str, ...]
    uses: tuple[GlobalUse, ...]  # `name` is a module, `attributes` lead from it to what is used


def imports_in(code: types.CodeType, besides: Collection[str]) -> BodyImports | None:
    """Return the imports of a code object, besides those of some modules.

    None if a variable of an import is set by anything else, or is also one of functions inside.
    """
    steps = [i for i in dis.get_instructions(code) if i.opname not in BETWEEN]
    bound: dict[str, set[tuple[str, ...]]] = {}  # variable: module, and the attributes that lead to its value
    modules: list[str] = []
    stores: set[int] = set()  # the steps that belong to an import
    for number, step in enumerate(steps):
        if step.opname == "IMPORT_NAME" and step.argval not in besides:
            modules.append(step.argval)
            for at, variable, path in _targets(steps, number):
                bound.setdefault(variable, set()).add(path)
                stores.add(at)
    if "" in bound or any(len(paths) > 1 for paths in bound.values()):
        return None
    uses = [GlobalUse("IMPORT_NAME", path[0], path[1:], 0) for paths in bound.values() for path in paths]
    for number, step in enumerate(steps):
        variables = _variables(step)
        if number in stores or not bound.keys() & variables:
            continue
        if not step.opname.startswith("LOAD_FAST"):
            return None  # set, deleted, or a variable of functions inside
        for variable in variables[:-1]:
            uses += [GlobalUse("VALUE", path[0], path[1:], step.offset) for path in bound.get(variable, ())]
        for path in bound.get(variables[-1], ()):
            taken = tuple(_taken(steps, number + 1))
            uses.append(GlobalUse("VALUE", path[0], (*path[1:], *taken), step.offset))
    return BodyImports(tuple(modules), tuple(uses))


def _targets(steps: list[dis.Instruction], number: int) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield the steps that store what an import gives, with their variables and where the value is found.

    The variable is "" where it is none of this function alone.
    """
    name, wanted = steps[number].argval, steps[number - 1].argval
    root, *path = (name,) if wanted else name.split(".")  # `import a.b as c` takes b from a
    taken: list[str] = []
    for at in range(number + 1, len(steps)):
        step = steps[at]
        if step.opname == "IMPORT_FROM":
            taken.append(step.argval)
        elif step.opname.startswith("STORE_"):
            variable = step.argval if step.opname == "STORE_FAST" else ""
            yield at, variable, (root, *((taken[-1],) if wanted else path if taken else ()))
            if not wanted:
                return
        elif step.opname not in ("SWAP", "ROT_TWO", "POP_TOP") or (step.opname == "POP_TOP" and wanted):
            return


def _variables(step: dis.Instruction) -> tuple[str, ...]:
    """Return the local variables of a step; some have two."""
    if "FAST" not in step.opname and "DEREF" not in step.opname and "CLOSURE" not in step.opname:
        return ()
    return step.argval if isinstance(step.argval, tuple) else (str(step.argval),)


def _taken(steps: list[dis.Instruction], number: int) -> Iterator[str]:
    while number < len(steps) and steps[number].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        yield steps[number].argval
        number += 1


@lru_cache(maxsize=4096)
def attributes_by_text(code: types.CodeType) -> tuple[str | None, ...]:
    """Return the attributes that getattr, str.format and class patterns name; None if one is computed."""
    has_names = any(name in code.co_names for name in (*BY_TEXT, "format"))
    return tuple(_by_text(code)) if has_names or _MATCH_CLASS in code.co_code[::2] else ()


def _by_text(code: types.CodeType) -> Iterator[str | None]:
    found = [i for i in dis.get_instructions(code) if i.opname not in BETWEEN]
    for position, instruction in enumerate(found):
        operation, name = instruction.opname, instruction.argval
        if operation in READING and name in BY_TEXT:
            yield _second_argument(found[position + 1 :])
        elif operation in TAKING and name == "format":
            template = _text(found[position - 1])
            yield from (None,) if template is None else re.findall(r"\w+", template)
        elif operation == "MATCH_CLASS":
            yield from found[position - 1].argval


def _second_argument(following: list[dis.Instruction]) -> str | None:
    """Return the text that a call has after a variable, or attributes of one; None if it is another call."""
    rest = iter(following)
    if next(rest).opname in VARIABLES:
        for instruction in rest:
            if instruction.opname != "LOAD_ATTR":
                return _text(instruction)
    return None


def _text(instruction: dis.Instruction) -> str | None:
    is_text = instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str)
    return instruction.argval if is_text else None


def _operation(number: int) -> tuple[str, int | None]:
    """Return the name of an operation, and how far its argument is shifted to be the number of a name."""
    name = dis.opname[number]
    if name == "LOAD_GLOBAL" or (name == "LOAD_ATTR" and sys.version_info >= (3, 12)):
        return name, 1
    return name, 0 if name in (*NAMING, *TAKING) else None


_MATCH_CLASS = dis.opmap["MATCH_CLASS"]
_OPERATIONS = [_operation(number) for number in range(256)]
