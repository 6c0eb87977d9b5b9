"""Open NKI: the Neuron Kernel Interface in the open."""

import importlib as _importlib
from typing import Any as _Any

from .call.bridges import TensorSpec
from .call.calls import Run
from .call.jit import jit, profile, simulate
from .call.kernel import Kernel
from .call.notebook import load_ipython_extension
from .call.profile import Profile
from .call.programs import run as _run  # noqa: F401  what it provides to Program
from .call.show import show
from .compat.older_names import older_name as _older_name
from .errors import NkiError, NkiValidationError, NkiWarning
from .options import options
from .program.program import Program
from .run.observers import observe
from .version import __version__

__all__ = [
    "Kernel",
    "NkiError",
    "NkiValidationError",
    "NkiWarning",
    "Profile",
    "Program",
    "Run",
    "TensorSpec",
    "__version__",
    "jit",
    "load_ipython_extension",
    "observe",
    "options",
    "profile",
    "show",
    "simulate",
]

_MODULES = (
    "collectives",
    "compiler",
    "dtype",
    "experimental",
    "framework",
    "isa",
    "language",
    "mx",
    "ranks",
    "runtime",
    "simulator",
    "tensor",
    "testing",
    "tune",
)


def __dir__() -> list[str]:
    return [*__all__, *_MODULES]


def __getattr__(name: str) -> _Any:
    """A module that nobody imported yet (`dtype: nki.dtype` needs no other import), or an older name."""
    if name == "cache":
        return _importlib.import_module("nki.call.cache")
    if name == "autotune":
        return _importlib.import_module("nki.tune").autotune
    return _importlib.import_module(f"nki.{name}") if name in _MODULES else _older_name(name)
