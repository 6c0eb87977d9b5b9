"""How a stand-in is found: a table of names below a root, each the name of a module of ours.

A root's finder stands last on `sys.meta_path`, where it is asked for what nobody else has: a real package of
the name wins, whole. Once a root is ours, names below it are answered first, or the folders of our modules
would be searched again and one module would have two copies.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

used: dict[str, None] = {}  # roots that were imported from here, in order


class Root(MetaPathFinder, Loader):
    """Asked last, for the root alone."""

    def __init__(self, root: str, modules: Mapping[str, str]):
        self.root = root
        self.below = Below(root, modules)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname == self.root else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        used[self.root] = None
        if self.below not in sys.meta_path:
            sys.meta_path.insert(0, self.below)
        return self.below.create_module(spec) if self.root in self.below.modules else None

    def exec_module(self, module: ModuleType) -> None:
        if self.root in self.below.modules:
            self.below.exec_module(module)

    def remove(self) -> None:
        """Forget the root and what was imported below it."""
        sys.meta_path.remove(self)
        if self.below in sys.meta_path:
            sys.meta_path.remove(self.below)
        for name in [name for name in sys.modules if name.partition(".")[0] == self.root]:
            del sys.modules[name]
        used.pop(self.root, None)


class Below(MetaPathFinder, Loader):
    """Asked first, for names below a root that is ours."""

    def __init__(self, root: str, modules: Mapping[str, str]):
        self.root, self.modules = root, modules
        self.own_specs: dict[str, Any] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{self.root}."):
            return None
        if fullname in self.modules:
            return ModuleSpec(fullname, self, is_package=True)
        raise ModuleNotFoundError(
            f"No module named {fullname!r}: the stand-in of Open NKI for {self.root} lacks it "
            f"(a real {self.root}, where installed, is used instead)",
            name=fullname,
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        ours = self.modules[spec.name]
        if not ours:  # a package without names of its own
            return None
        module = importlib.import_module(ours)
        self.own_specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has run already; Python has given it the stand-in's spec, which is taken back."""
        spec = module.__spec__
        if spec is not None and spec.name in self.own_specs:
            module.__spec__ = self.own_specs.pop(spec.name)


def install(table: Mapping[str, Mapping[str, str]], without: Sequence[str] = ()) -> None:
    """Make the roots of a table importable, where no real package has their names. Twice is once."""
    known = [finder.root for finder in sys.meta_path if isinstance(finder, Root)]
    for root, modules in table.items():
        if root not in known and root not in without:
            sys.meta_path.append(Root(root, modules))


def withdraw(root: str) -> None:
    """No stand-in for this root."""
    for finder in [f for f in sys.meta_path if isinstance(f, Root) and f.root == root]:
        finder.remove()


def remove() -> None:
    """Undo `install`."""
    for finder in [finder for finder in sys.meta_path if isinstance(finder, Root)]:
        finder.remove()
