"""The import hooks of the stubs: a name below a root is imported as a module of ours.

The finder of roots is the last on `sys.meta_path`, so that a real package of a root's name wins, as a whole.
Once a root was imported from here, names below it are found first: the folders of our modules would be
searched otherwise, and one module would have two copies.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from .unbuilt import UnbuiltModule

Resolve = Callable[[str], str | None]
"""From the name of a stub to our module: "" is an empty package, None is a name that the stub lacks."""
UNBUILT = "unbuilt"  # a resolved name that imports, and whose names raise when they are called

_roots: dict[str, Resolve] = {}
imported: dict[str, None] = {}  # roots that were imported from here, in order


def _root(fullname: str) -> str:
    return fullname.partition(".")[0]


class _StubLoader(Loader):
    def exec_module(self, module: ModuleType) -> None:
        """Put our module into `sys.modules`, whence the import system takes the result."""
        name = module.__name__
        target = _roots[_root(name)](name)
        if target == UNBUILT:
            sys.modules[name] = UnbuiltModule(name)
        elif target:
            found = importlib.import_module(target)
            vars(found).setdefault("__path__", [])  # stubs may lie below it
            sys.modules[name] = found
        imported[_root(name)] = None


class RootFinder(MetaPathFinder):
    """Last on `sys.meta_path`: finds the roots themselves."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _StubLoader(), is_package=True) if fullname in _roots else None


class SubmoduleFinder(MetaPathFinder):
    """First on `sys.meta_path`: finds names below roots that were imported from here."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root = _root(fullname)
        if root not in imported or fullname == root:
            return None
        if _roots[root](fullname) is not None:
            return ModuleSpec(fullname, _StubLoader(), is_package=True)
        raise ModuleNotFoundError(
            f"No module named {fullname!r}: the stub of Open NKI for {root} lacks it "
            f"(a real {root}, where installed, is used instead)",
            name=fullname,
        )


_FINDERS = (RootFinder(), SubmoduleFinder())


def install(roots: Mapping[str, Resolve]) -> None:
    """Make roots importable where no real package has their names. Repeated calls add to the roots."""
    _roots.update(roots)
    last, first = _FINDERS
    if last not in sys.meta_path:
        sys.meta_path.append(last)
        sys.meta_path.insert(0, first)


def is_installed() -> bool:
    return _FINDERS[0] in sys.meta_path


def is_stub(root: str) -> bool:
    """Return True if an import of a root would get its stub: no real package has the name."""
    spec = importlib.util.find_spec(root)
    return spec is not None and isinstance(spec.loader, _StubLoader)


def remove() -> None:
    """Undo `install`, and forget the modules that were imported below the roots."""
    for finder in _FINDERS:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if _root(name) in imported]:
        del sys.modules[name]
    imported.clear()
    _roots.clear()
