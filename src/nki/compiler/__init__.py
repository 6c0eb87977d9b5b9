"""nki.compiler: Open NKI has no binary back end. Importing works; every name says what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ..errors import error


def absent(module: str, does: str = "drives AWS's compiler") -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module whose names drive AWS's compiler, or its runtime."""

    def refuse(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise error(
            "no-compiler",
            f"{module}.{name} {does}, which Open NKI does not have",
            help="call the kernel to run it, nki.profile(kernel)(*args) to price it, `nki check` to check it",
        )

    return refuse


__getattr__ = absent("nki.compiler")
