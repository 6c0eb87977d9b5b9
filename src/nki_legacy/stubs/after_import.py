"""Additions to other packages' modules: a function is called when a module has been imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

Addition = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """First on `sys.meta_path`: sees modules being imported, and adds to them."""

    def __init__(self) -> None:
        self.additions: dict[str, Addition] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        addition = self.additions.get(fullname)
        spec = PathFinder.find_spec(fullname, path) if addition else None
        if addition is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            addition(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = AfterImport()


def add_to(name: str, addition: Addition) -> None:
    """Call `addition` with a module as soon as it is imported, or now; once in this process."""
    if name in _finder.additions:
        return
    _finder.additions[name] = addition
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    if name in sys.modules:
        addition(sys.modules[name])
