"""Import stubs for packages of other vendors that device scripts expect (docs/scripts.md).

`install()` makes their names importable. A real package of the same name wins over its stub.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import ModuleType

from . import finder
from .after_import import add_to
from .profiler import add_kernels
from .table import ROOTS


def install(without: Collection[str] = ()) -> None:
    """Make the stubs importable in this process, except those of the roots in `without`."""
    finder.install({root: resolve for root, resolve in ROOTS.items() if root not in without})
    add_to("jax.profiler", add_kernels)
    if "torch_neuronx" not in without and finder.is_stub("torch_neuronx"):
        add_to("torch", _add_device)


def _add_device(torch: ModuleType) -> None:
    """Give PyTorch its device `neuron`, which a script of a device names without an import."""
    from . import devices

    devices.install()


def remove() -> None:
    """Undo `install` for imports: the stubs are no longer importable."""
    finder.remove()


@contextmanager
def importable() -> Iterator[None]:
    """Make the stubs importable while a command uses a script; inside `nki run` they are already."""
    if finder.is_installed():
        yield
        return
    finder.install(ROOTS)
    try:
        yield
    finally:
        remove()


def used() -> list[str]:
    """Return the roots of the stubs that were imported, in order."""
    return list(finder.imported)
