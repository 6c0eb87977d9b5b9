"""What installed distributions add to `nki`, found by the entry points that they declare.

- `nki.modules`: `compiler = "package.compiler"` makes that module importable as `nki.compiler`. A dotted name
  (`compiler.driver`) adds a module below one that the same group adds; the parent then has `__path__ = []`.
- `nki.attributes`: `benchmark = "package.module:function"` is the value of `nki.benchmark`.
- `nki.commands`: `run = "package.module:COMMAND"` is the `nki.cli.command.Command` of `nki run`.
- `nki.scripts`: `stubs = "package.module:function"` returns a context in which commands load scripts.
- `nki.libraries`: `nkilib = "nkilib.catalogue:kernels"` returns the kernels that `nki kernels` lists.

Names of `nki` itself win. The declarations are read once, when a name that `nki` lacks is first used, and an
entry point is imported when it is used, so that one that cannot be imported harms no other.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@functools.cache
def entry_points(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group, by name; those of a package that is not there are left out."""
    from importlib import metadata  # slow to import, and most programs use no plugin

    found = metadata.entry_points(group=group)
    return {entry.name: entry for entry in found if _is_importable(entry.module.partition(".")[0])}


@functools.cache
def _is_importable(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def load(entry: EntryPoint) -> Any:
    """Return the module or the value that an entry point names."""
    module = importlib.import_module(entry.module)
    return getattr(module, entry.attr) if entry.attr else module


def attribute(name: str) -> Any:
    """Return `nki.name` for a name that `nki` lacks; AttributeError if no plugin has it."""
    if not name.startswith("__"):
        if name in entry_points("nki.modules"):
            return importlib.import_module(f"nki.{name}")
        if name in entry_points("nki.attributes"):
            return load(entry_points("nki.attributes")[name])
    raise AttributeError(f"module 'nki' has no attribute {name!r}")


class ModuleFinder:
    """Import `nki.x` as the module of the entry point `x`. Last on `sys.meta_path`: real modules win."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "nki" or name not in entry_points("nki.modules"):
            return None
        return ModuleSpec(fullname, self)  # type: ignore[arg-type]  # importlib.abc is slow to import

    def create_module(self, spec: ModuleSpec) -> None: ...

    def exec_module(self, module: ModuleType) -> None:
        """Put the plugin's module into `sys.modules`, whence the import system takes the result."""
        fullname = module.__name__
        sys.modules[fullname] = load(entry_points("nki.modules")[fullname.partition(".")[2]])


def install() -> None:
    """Make the modules of plugins importable."""
    if not any(isinstance(finder, ModuleFinder) for finder in sys.meta_path):
        sys.meta_path.append(ModuleFinder())
