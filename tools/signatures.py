"""Write the stubs of nki.isa and nki.language: what editors and type checkers see of them.

Both modules define part of their names when they are imported, which no editor does. A stub lists the public
names and the old names that still work: functions and classes imported from their modules, the rest with
type and text. It has no `__getattr__`, so that a type checker finds a misspelt name.

python tools/signatures.py          write them
"""

from __future__ import annotations

import builtins
import collections.abc
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nki.ir.instruction
import nki.ir.layout
import nki.ir.tensor
import nki.isa
import nki.isa.enums
import nki.language
import nki.machine.engines
import nki.machine.memories
import nki.typing

SOURCES = Path(__file__).parents[1] / "src"
HEAD = '''"""{first}

Written by `make docs` (`python tools/signatures.py`). Do not edit.
"""

'''
# modules that define the types of parameters
TYPES = (
    collections.abc,
    nki.machine.engines,
    nki.machine.memories,
    nki.ir.layout,
    nki.ir.tensor,
    nki.ir.instruction,
    nki.isa.enums,
    nki.typing,
)


def files() -> dict[Path, str]:
    """Return the text of each stub by its path below src/."""
    return {Path("nki", name, "__init__.pyi"): text(getattr(nki, name)) for name in ("isa", "language")}


def text(module: types.ModuleType) -> str:
    imports: set[tuple[str, str]] = set()  # as isort has them: by module, then by name
    bodies = []
    for name in sorted([*module.__all__, *getattr(module, "_LEGACY", ())]):
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            imports.add((value.__name__.rpartition(".")[0], f"{name} as {name}"))
            continue
        if _is_written(value, name):
            imports.add((value.__module__, f"{name} as {name}"))
            continue
        function = getattr(value, "function", None) or (value if _can_be_called(value) else None)
        if function is None:
            imports.add((type(value).__module__, type(value).__name__))
            bodies.append(f"{name}: {type(value).__name__}\n")
        else:
            imports.update(_types(function))
            bodies.append(_function(name, value, function))
    imports -= {(home, n) for home, n in imports if (home, f"{n} as {n}") in imports}
    lines = [f"from {home} import {name}" for home, name in sorted(imports)]
    first = (inspect.getdoc(module) or "").splitlines()[0]
    return HEAD.format(first=first) + "\n".join([*lines, "", *bodies])


def _types(function: Any) -> Iterator[tuple[str, str]]:
    """Yield module and name of every type in the signature of a function."""
    signature = inspect.signature(function)
    for annotation in (signature.return_annotation, *(p.annotation for p in signature.parameters.values())):
        for name in re.findall(r"[A-Za-z_]\w*", annotation):
            if not hasattr(builtins, name):
                yield next(home.__name__ for home in TYPES if hasattr(home, name)), name


def _is_written(value: Any, name: str) -> bool:
    """Whether a static reader finds it: a class or a function with a `def`, under its own name."""
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    if not isinstance(value, (types.FunctionType, type)) or getattr(home, name, None) is not value:
        return False
    code = getattr(inspect.unwrap(value), "__code__", None)
    return code is None or code.co_filename == home.__file__


def _can_be_called(value: Any) -> bool:
    return callable(value) and not hasattr(value, "kind")  # an operator without a function is a token


def _function(name: str, value: Any, function: Any) -> str:
    listed = ", ".join(map(_parameter, inspect.signature(function).parameters.values()))
    lines = (inspect.getdoc(value) or name).splitlines()
    document = "\n".join([lines[0], *(f"    {line}".rstrip() for line in lines[1:])])
    document += "\n    " if len(lines) > 1 else ""
    result = inspect.signature(function).return_annotation
    return f'def {name}({listed}) -> {result}:\n    """{document}"""\n'


def _parameter(parameter: inspect.Parameter) -> str:
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else " = ..."
    if isinstance(parameter.default, (int, str, float, type(None))):
        default = f" = {parameter.default!r}"
    return f"{star}{parameter.name}: {parameter.annotation}{default}"


if __name__ == "__main__":
    for path, made in files().items():
        (SOURCES / path).write_text(made, encoding="utf-8")
        print(f"wrote {path}")
