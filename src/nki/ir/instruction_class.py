"""How an instruction's class is made from its annotations: its slots, initialiser, key and operand tables.

An annotation names what happens to an operand; `nki.ir.instruction` lists them. Everything else that is
annotated is an option.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from .view import View

READS = ("In", "InOut", "Operand", "OptionalIn")
WRITES = ("Out", "InOut", "OptionalOut", "Accumulated")
REGISTERS = ("RegisterOut", "RegisterIn")
TILES = ("In", "Out", "InOut", "Accumulated")  # never a number or None

INSTRUCTIONS: dict[str, Any] = {}  # by the name a listing gives them
LIBRARIES: list[Callable[[], None]] = []  # each imports packages that define instructions


class InstructionType(type):
    """Gives an instruction's class what follows from its annotations."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        fields = {
            k: v for k, v in namespace.get("__annotations__", {}).items() if not v.startswith("ClassVar")
        }
        namespace["__slots__"] = tuple(fields)
        defaults = {field: namespace.pop(field) for field in fields if field in namespace}
        cls: Any = super().__new__(mcls, name, bases, namespace)
        if cls.public:
            known = INSTRUCTIONS.get(cls.public)
            taken = known is not None and (known.__module__, known.__qualname__) != (
                cls.__module__,
                cls.__qualname__,
            )
            cls.listed_as = f"{cls.public}.{name}" if taken else cls.public
            INSTRUCTIONS[cls.listed_as] = cls
        if not fields:  # a variant that shares its parent's operands
            return cls
        cls.fields, cls.defaults = tuple(fields), defaults
        kinds = {k: v.removesuffix(" | None") for k, v in fields.items()}  # `Operand | None` is an Operand
        kinds = {k: v for k, v in kinds.items() if v in READS or v in WRITES}
        cls.operand_names = tuple(kinds)
        cls.read_at = tuple(i for i, kind in enumerate(kinds.values()) if kind in READS)
        cls.write_at = tuple(i for i, kind in enumerate(kinds.values()) if kind in WRITES)
        cls.accumulates = "Accumulated" in kinds.values()
        cls.registers = tuple(k for k, v in fields.items() if v in REGISTERS)
        cls.registers_written = tuple(k for k, v in fields.items() if v == "RegisterOut")
        cls.required = frozenset(k for k, v in kinds.items() if v in TILES)
        if name != "Instruction":
            for method in _GENERATED:
                setattr(cls, method, _generated_on_use(cls, method, fields, kinds))
        return cls


_GENERATED = ("__init__", "key", "bare_key", "operands")


def _generated_on_use(cls: Any, method: str, fields: dict[str, str], kinds: dict[str, str]) -> Any:
    """Return a method that generates the real one at its first call: few programs use every instruction."""

    def first(self: Any, *args: object, **named: object) -> Any:
        _generate(cls, fields, kinds)
        return getattr(cls, method)(self, *args, **named)

    return first


def _generate(cls: Any, fields: dict[str, str], kinds: dict[str, str]) -> None:
    """Write these methods as straight-line code: they run once per instruction."""
    parts, bare = [], []
    for field in fields:
        if field in kinds:
            taken = f"{field} = self.{field} = self.{field}.plain or self.{field}.bare()"
            sig = f"{field}._sig or {field}.sig"
            if field in cls.required:
                bare += [f"    {taken}"]
            else:
                bare += [
                    f"    {field} = self.{field}",
                    f"    if isinstance({field}, _View):",
                    f"        {taken}",
                ]
                sig = f"({sig}) if isinstance({field}, _View) else option_key({field})"
            parts.append(sig)
        elif field in cls.registers:  # what a register holds is a run-time value; a number is an option
            given = f"self.{field}"
            parts.append(f"type({given}) if getattr({given}, 'is_register', False) else option_key({given})")
        elif any(word in fields[field] for word in ("tuple", "Any", "Number", "Sequence")):
            given = f"self.{field}"
            parts.append(f"{given} if {given} is None or {given} is _NONE else option_key({given})")
        else:
            parts.append(f"type(self.{field}), self.{field}")
    key = f"    return (type(self), {', '.join(parts)})"
    lines = [
        f"def __init__(self, {', '.join(fields)}{', ' if fields else ''}name=None):",
        *(f"    self.{field} = {field}" for field in fields),
        "    self.name = name",
        "def key(self):",
        *(f"    {field} = self.{field}" for field in kinds),
        key,
        "def bare_key(self):",
        *bare,
        key,
        "def operands(self):",
        f"    return ({''.join(f'self.{k}, ' for k in kinds)})",
    ]
    scope: dict[str, Any] = {"_View": View, "option_key": option_key, "_NONE": ()}
    exec("\n".join(lines), scope)
    for method in _GENERATED:
        scope[method].__qualname__ = f"{cls.__qualname__}.{method}"
        setattr(cls, method, scope[method])


def option_key(value: Any) -> Hashable:
    """Return an option for a key: 1, 1.0 and True differ, so do 0.0 and -0.0; in tuples too."""
    if value.__class__ is tuple:
        return tuple([option_key(v) for v in value])
    if isinstance(value, (float, np.floating)) and value == 0:
        return value.__class__, repr(value)
    return value.__class__, value
