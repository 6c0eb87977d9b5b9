"""The error for a name that a stub lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def missing(module: str, reason: str = "") -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a stub: it raises an AttributeError that names what is missing."""

    def refuse(name: str) -> NoReturn:
        root = module.partition(".")[0]
        raise AttributeError(f"the stub of Open NKI for {root} lacks {module}.{name}{reason}")

    return refuse
