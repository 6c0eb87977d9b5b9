"""nki.compiler: Open NKI has no binary back end. Importing works; every name raises."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

from nki.errors import error

__path__: list[str] = []  # a package, whose submodules are entry points too


def absent(module: str, does: str = "drives AWS's compiler") -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module whose names drive AWS's compiler, or its runtime."""

    def refuse(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise error(
            "no-compiler",
            f"{module}.{name} {does}, which Open NKI does not have",
            help="call the kernel to run it, nki.profile(kernel)(*args) to price it, `nki check` to check it",
        )

    return refuse


def absent_module(name: str) -> ModuleType:
    """Return a module of AWS's compiler whose names all raise NkiError[no-compiler]."""
    module = ModuleType(name, f"{name} of AWS's compiler: every name raises NkiError[no-compiler].")
    vars(module)["__getattr__"] = absent(name)
    return module


driver = absent_module("nki.compiler.driver")
frontend = absent_module("nki.compiler.frontend")
kernel_builder = absent_module("nki.compiler.kernel_builder")
ncc_driver = absent_module("nki.compiler.ncc_driver")

__getattr__ = absent("nki.compiler")
