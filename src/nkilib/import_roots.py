"""Import roots of older releases: `nkilib_src.nkilib.x` and `nkilib_standalone.nkilib.x` are `nkilib.x`.

The roots are names of AWS's own packages, so nothing here installs them. `install` puts a finder last on
`sys.meta_path`, where it is asked for what nobody else has: a real package of the name wins, whole.
`import nki.standins` calls it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ROOTS = ("nkilib_src", "nkilib_standalone")


class OldRoot(MetaPathFinder, Loader):
    """Asked last: `root` as an empty package. Only then are names below it ours to answer."""

    def __init__(self, root: str):
        self.root = root
        self.below = BelowRoot(root)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname == self.root else None

    def exec_module(self, module: ModuleType) -> None:
        if self.below not in sys.meta_path:
            sys.meta_path.insert(0, self.below)

    def remove(self) -> None:
        """Forget the root and what was imported below it."""
        sys.meta_path.remove(self)
        if self.below in sys.meta_path:
            sys.meta_path.remove(self.below)
            for name in [name for name in sys.modules if name.partition(".")[0] == self.root]:
                del sys.modules[name]


class BelowRoot(MetaPathFinder, Loader):
    """Asked first, or the folders of nkilib would be searched again: one module, two names."""

    def __init__(self, root: str):
        self.prefix = f"{root}.nkilib"
        self.own_specs: dict[str, Any] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.prefix and not fullname.startswith(f"{self.prefix}."):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module("nkilib" + spec.name[len(self.prefix) :])
        self.own_specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has run already; Python has given it the old name's spec, which is taken back."""
        spec = module.__spec__
        assert spec is not None
        module.__spec__ = self.own_specs.pop(spec.name)


def install() -> None:
    """Make the old roots importable, where no real package has their names. Twice is once."""
    known = [finder.root for finder in sys.meta_path if isinstance(finder, OldRoot)]
    sys.meta_path += [OldRoot(root) for root in ROOTS if root not in known]


def remove() -> None:
    """Undo `install`."""
    for finder in [finder for finder in sys.meta_path if isinstance(finder, OldRoot)]:
        finder.remove()
