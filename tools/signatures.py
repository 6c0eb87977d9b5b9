"""Write what editors see of nki.isa, nki.language and nki.collectives: stubs, and the texts of classes.

These modules define part of their names when they are imported, which no editor does. A stub lists the public
names and the old names that still work: functions and classes imported from their modules, the rest with
type and text. It has no `__getattr__`, so that a type checker finds a misspelt name. A class has its text
where it is defined: a first paragraph, then that of src/nki/reference.

python tools/signatures.py          write them
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nki.collectives
import nki.collectives.groups
import nki.collectives.operations
import nki.ir.indexing
import nki.ir.instruction
import nki.ir.layout
import nki.ir.tensor
import nki.isa
import nki.isa.enums
import nki.isa.virtual_register
import nki.language
import nki.language.dynamic_loop
import nki.language.reductions
import nki.machine.dtypes
import nki.machine.engines
import nki.machine.memories
import nki.typing
import texts
from nki.reference import sections

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
    nki.isa.virtual_register,
    nki.typing,
    nki.machine.dtypes,
    nki.ir.indexing,
    nki.language.reductions,
    nki.language.dynamic_loop,
    nki.collectives.groups,
    nki.collectives.operations,
)
PACKAGES = ("collectives", "isa", "language")
MODULES = {"np": "numpy as _np", "os": "os as _os"}  # by what annotations call them


def files() -> dict[Path, str]:
    """Return the text of each stub, and of each file with a public class, by its path below src/."""
    stubs = {Path("nki", name, "__init__.pyi"): text(getattr(nki, name)) for name in PACKAGES}
    return {**stubs, **described_classes()}


def described_classes() -> dict[Path, str]:
    """Return the files that define public classes, with their whole texts."""
    found: dict[Path, str] = {}
    for file in texts.files():
        package = texts.PACKAGES[texts.prefix_of(file)]
        for name, section in sections(file).items():
            value = getattr(package, name)
            if isinstance(value, type):
                path = Path(inspect.getfile(value)).relative_to(SOURCES)
                source = found.get(path) or (SOURCES / path).read_text(encoding="utf-8")
                found[path] = _described(source, name, section)
    return found


def _described(source: str, name: str, section: str) -> str:
    """Return a source file with the text of a class as the rest of its docstring."""
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    node = next(node for node in classes if node.name == name)
    first = (ast.get_docstring(node) or "").partition("\n\n")[0]
    lines = f'"""{first}\n\n{section}\n"""'.splitlines()
    shown = "\n".join(f"    {line}".rstrip() for line in lines)
    before = source.splitlines()[: node.body[0].lineno - 1]
    after = source.splitlines()[node.body[0].end_lineno :]
    return "\n".join([*before, shown, *after]) + "\n"


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
            bodies.append(_function(name, value, function, module))
    if any("_builtins." in body for body in bodies):
        imports.add(("", "builtins as _builtins"))
    imports -= {(home, n) for home, n in imports if (home, f"{n} as {n}") in imports}
    lines = [f"from {home} import {name}" if home else f"import {name}" for home, name in sorted(imports)]
    first = (inspect.getdoc(module) or "").splitlines()[0]
    return HEAD.format(first=first) + "\n".join([*lines, "", *bodies])


def _types(function: Any) -> Iterator[tuple[str, str]]:
    """Yield module and name of every type in the signature of a function."""
    signature = inspect.signature(function)
    if _is_block(function):
        yield "contextlib", "contextmanager"
    for annotation in (signature.return_annotation, *(p.annotation for p in signature.parameters.values())):
        for name in re.findall(r"[A-Za-z_][\w.]*", annotation):
            if "." in name:
                yield "", MODULES[name.partition(".")[0]]
            elif not hasattr(builtins, name):
                yield next(home.__name__ for home in TYPES if hasattr(home, name)), name


def _is_written(value: Any, name: str) -> bool:
    """Whether a static reader finds it with its text: a class, or a function whose text is in its `def`."""
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    if not isinstance(value, (types.FunctionType, type)) or getattr(home, name, None) is not value:
        return False
    if isinstance(value, type):
        return True
    in_file = inspect.unwrap(value).__code__.co_filename == home.__file__
    return in_file and "\nExample:" not in (value.__doc__ or "")


def _can_be_called(value: Any) -> bool:
    return callable(value) and not hasattr(value, "kind")  # an operator without a function is a token


def _function(name: str, value: Any, function: Any, module: types.ModuleType) -> str:
    given = inspect.signature(function).parameters.values()
    listed = ", ".join(_parameter(parameter, module) for parameter in given)
    lines = (inspect.getdoc(value) or name).splitlines()
    document = "\n".join([lines[0], *(f"    {line}".rstrip() for line in lines[1:])])
    document += "\n    " if len(lines) > 1 else ""
    result = _shown(inspect.signature(function).return_annotation, module)
    text = f'def {name}({listed}) -> {result}:\n    """{document}"""\n'
    return f"@contextmanager\n{text}" if _is_block(function) else text


def _is_block(function: Any) -> bool:
    """Whether it serves `with` blocks: contextlib has wrapped a generator."""
    return inspect.isgeneratorfunction(inspect.unwrap(function)) and function is not inspect.unwrap(function)


def _shown(annotation: str, module: types.ModuleType) -> str:
    """Return an annotation with private names of modules, and of builtins that the stub defines anew."""
    shown = re.sub(r"\b(np|os)\.", r"_\1.", annotation)
    hidden = "|".join(sorted(vars(builtins).keys() & vars(module).keys() - {"__name__"}))
    return re.sub(rf"\b({hidden})\b", r"_builtins.\1", shown) if hidden else shown


def _parameter(parameter: inspect.Parameter, module: types.ModuleType) -> str:
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else " = ..."
    if type(parameter.default) in (bool, int, str, float, type(None)):
        default = f" = {parameter.default!r}"
    return f"{star}{parameter.name}: {_shown(parameter.annotation, module)}{default}"


if __name__ == "__main__":
    for path, made in files().items():
        (SOURCES / path).write_text(made, encoding="utf-8")
        print(f"wrote {path}")
