"""The public function of an instruction, made from its class.

The fields of a class are the parameters of its function, in their order and with their defaults; its text is
the function's. `tools/signatures.py` writes the same into the stub that editors and type checkers read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir.instruction import Instruction, NkiInstruction
from ..launch.core import issue
from ..machine.operators import Operator, resolve

# what a caller passes for a field; every other annotation is the type itself
_PASSED = dict.fromkeys(("Out", "In", "InOut", "Accumulated"), "NkiTensor") | {
    "OptionalIn": "NkiTensor | None",
    "OptionalOut": "NkiTensor | None",
    "Operand": "TileOrNumber",
    "Operand | None": "TileOrNumber | None",
    "Operator": "OperatorLike",
}


def public(cls: type[Instruction]) -> Callable[..., NkiInstruction]:
    """Return the function that issues an instruction of a class: operators resolved, lists as tuples."""
    name, fields = cls.public, {field: cls.__annotations__[field] for field in cls.fields}
    parameters = [f"{f}=_defaults[{f!r}]" if f in cls.defaults else f for f in fields]
    lines = [f"def {name}({', '.join(parameters)}, name=None):"]
    for field, kind in fields.items():
        if kind == "Operator":
            lines.append(f"    if {field}.__class__ is not _Operator:")
            lines.append(f"        {field} = _resolve({field}, {name!r}, {field!r})")
        elif "Sequence" in kind:
            lines.append(f"    if {field}.__class__ is list:")
            lines.append(f"        {field} = tuple({field})")
    lines.append(f"    return _issue(_cls({', '.join(fields)}, name))")
    scope: dict[str, Any] = {"__name__": cls.__module__, "_cls": cls, "_defaults": cls.defaults}
    scope |= {"_issue": issue, "_Operator": Operator, "_resolve": resolve}
    exec("\n".join(lines), scope)  # made of names in our own classes; a call must cost no loop over fields
    function: Any = scope[name]
    passed = {field: _PASSED.get(kind, kind) for field, kind in fields.items()}
    function.__annotations__ = {**passed, "name": "str | None", "return": "NkiInstruction"}
    function.__doc__ = cls.__doc__
    return function  # type: ignore[no-any-return]
