"""Import roots of older releases: `nkilib_src.nkilib.x` and `nkilib_standalone.nkilib.x` are `nkilib.x`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class OldRoot(MetaPathFinder, Loader):
    """Answers every import below `root.nkilib` with the module of nkilib itself: one module, two names."""

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


def serve(root: str) -> None:
    """Make `root.nkilib` another name of nkilib."""
    sys.meta_path.insert(0, OldRoot(root))
