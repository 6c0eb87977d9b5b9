"""Modules of a package that is not built here: every name imports, and raises when it is called."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from nki.errors import error


class UnbuiltModule(ModuleType):
    """A module or a function, as the importing script will have it: both are imported alike."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name[0].isupper():
            return _unbuilt_class(self.__name__, name)
        return import_module(f"{self.__name__}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        _refuse(self.__name__)


def _unbuilt_class(module: str, name: str) -> type:
    def __init__(self: object, *args: object, **kwargs: object) -> None:
        _refuse(f"{module}.{name}")

    return type(name, (), {"__init__": __init__, "__module__": module})


def _refuse(name: str) -> NoReturn:
    root = name.partition(".")[0]
    raise error(
        "removed-name",
        f"the stub of Open NKI for {root} lacks {name}: it can be imported, not called",
        help="run the kernels alone, or install the package on a Trainium machine",
    )
