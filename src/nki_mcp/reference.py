"""The reference as data: every public name with its signature, its docstring and its facts.

The pages of the site and `nki search` are made of it.
"""

from __future__ import annotations

import argparse
import ast
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nki.check.pages import PAGES
from nki.cli import parser
from nki.cli.completion import commands_of
from nki.cli.docs import FILES, instructions
from nki.ir.instruction import Instruction
from nki.ir.validation import GENERATION_NAMES
from nki.machine.dtypes import DType
from nki.machine.memories import MemoryRegion
from nki.machine.operators import Operator
from nkilib.catalogue import kernels

MODULES = (
    *("nki", "nki.isa", "nki.language", "nki.collectives", "nki.mx", "nki.ranks", "nki.testing", "nki.tune"),
    *("trnblas", "trnblas.nki"),
)
NEED_TORCH = ("trnblas", "trnblas.nki")


@dataclass(frozen=True)
class ReferenceEntry:
    """A public name."""

    name: str
    module: str  # "" for a command or a kind of error
    group: str  # Functions, Classes, ...
    signature: str
    text: str

    @property
    def whole(self) -> str:
        return f"{self.module}.{self.name}" if self.module else self.name


def public_names(module: Any) -> list[str]:
    """Return the documented names of a module."""
    return sorted(name for name in module.__all__ if not name.startswith("__"))


@cache
def entries() -> tuple[ReferenceEntry, ...]:
    """Return everything that the reference describes; what needs torch is read from its source."""
    return tuple(_entries())


def _entries() -> Iterator[ReferenceEntry]:
    for module in MODULES:
        if module in NEED_TORCH:
            yield from _from_source(module)
            continue
        home = importlib.import_module(module)
        for name in public_names(home):
            yield entry(name, getattr(home, name), module)
    for kernel in kernels():
        if kernel.is_built:
            yield entry(kernel.name, kernel.target, kernel.module)
    for name, command in commands().items():
        yield ReferenceEntry(
            f"nki {name}", "", "Commands", command.format_usage().strip(), command.format_help()
        )
    for kind, page in PAGES.items():
        yield ReferenceEntry(kind, "", "Errors and warnings", f"nki explain {kind}", page.meaning)


def entry(name: str, value: Any, module: str) -> ReferenceEntry:
    """Return the entry of a value."""
    return ReferenceEntry(
        name, module, group(value), f"{module}.{name}{parameters(value)}", inspect.getdoc(value) or ""
    )


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the subcommands of `nki`."""
    return {name: command for name, (command, _) in commands_of(parser()).items()}


def group(value: Any) -> str:
    """Return the heading that a value stands below."""
    if isinstance(value, Operator):
        return "Operators"
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return "Enumerations"
    if isinstance(value, type):
        return "Classes"
    if isinstance(value, DType):
        return "Data types"
    if isinstance(value, MemoryRegion):
        return "Memories"
    return "Functions" if callable(value) else "Other names"


def parameters(value: Any) -> str:
    """Return the parameters of a callable as a text; "" for a value that is none."""
    if not callable(value) or isinstance(value, type) and issubclass(value, (enum.Enum, Exception)):
        return ""
    try:
        signature = str(inspect.signature(value))
    except (TypeError, ValueError):
        return "(...)"
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)  # annotations without quotes
    return re.sub(r"<([\w.]+)[^<>]*>", r"\1", re.sub(r" at 0x\w+", "", signature))


# ---- facts of instructions -----------------------------------------------------------------------


@cache
def instruction_classes() -> dict[str, type[Instruction]]:
    """Return the class of each instruction by the name of its public function."""
    return {name: c for modules in FILES.values() for m in modules for name, c in instructions(m).items()}


def facts(name: str) -> dict[str, str]:
    """Return the engines, generations and cost of an instruction; {} for another name."""
    cls = instruction_classes().get(name)
    if cls is None:
        return {}
    engines = ", ".join(e.name for e in cls.engines) or ("sequencer" if cls.registers else "DMA")
    since = ", ".join(shown for number, shown in GENERATION_NAMES.items() if number >= cls.since)
    return {"engines": engines, "generations": since, "cost": cls.cost_formula, "source": cls.cost_source}


# ---- packages that are not imported --------------------------------------------------------------


def _from_source(package: str) -> Iterator[ReferenceEntry]:
    """Yield the public functions and classes of a package from its source: to import it takes seconds."""
    found = find_spec(package.partition(".")[0])
    if found is None or not found.submodule_search_locations:
        return
    folder = Path(found.submodule_search_locations[0]).joinpath(*package.split(".")[1:])
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.py"))]
    public = {name for tree in trees for name in _listed(tree)}
    for tree in trees:
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in public:
                signature = f"({ast.unparse(node.args)})" if isinstance(node, ast.FunctionDef) else ""
                kind = "Functions" if signature else "Classes"
                whole = f"{package}.{node.name}{signature}"
                yield ReferenceEntry(node.name, package, kind, whole, ast.get_docstring(node) or "")


def _listed(tree: ast.Module) -> Iterator[str]:
    """Yield the names that stand in `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from (str(n.value) for n in ast.walk(node.value) if isinstance(n, ast.Constant))
