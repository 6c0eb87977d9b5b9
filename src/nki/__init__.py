"""Open NKI: the Neuron Kernel Interface in the open."""

import importlib as _importlib
import typing as _typing

try:  # before any file that could be another distribution's
    from open_nki import checked as _checked  # noqa: F401
except ModuleNotFoundError as _missing:  # this package was copied without its distribution
    if _missing.name != "open_nki":
        raise

from . import plugins as _plugins
from .errors import NkiError, NkiValidationError, NkiWarning
from .ir.hooks import hooks as _hooks
from .ir.instruction_class import LIBRARIES as _LIBRARIES
from .ir.program import Program
from .kernel.arrays import TensorSpec
from .kernel.arrays import register_framework as _register_framework
from .kernel.jit import jit, profile, simulate
from .kernel.kernel import Kernel
from .kernel.run import Run
from .launch.observers import observe
from .options import options
from .tracebacks import install as _install_tracebacks
from .version import __version__

if _typing.TYPE_CHECKING:
    from . import collectives, dtype, isa, language, mx, ranks, testing, tune  # noqa: F401
    from .kernel import cache  # noqa: F401
    from .kernel.profile import Profile
    from .testing.notebook import load_ipython_extension
    from .testing.show import show
    from .tune import autotune  # noqa: F401

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
    "dtype",
    "isa",
    "language",
    "mx",
    "ranks",
    "testing",
    "tune",
)


def __dir__() -> list[str]:
    return [*__all__, *_MODULES]


# What `import nki` can do without: names that are found when they are first asked for.
_LATER = {
    "Profile": "nki.kernel.profile",
    "autotune": "nki.tune",
    "load_ipython_extension": "nki.testing.notebook",
    "show": "nki.testing.show",
}


def _import_instructions() -> None:
    """Define every instruction and value that a listing can name."""
    for name in ("isa", "language", "collectives"):
        _importlib.import_module(f"nki.{name}")


_LIBRARIES.append(_import_instructions)


def _run_program(program: Program, arrays: _typing.Sequence[object]) -> _typing.Any:
    from .kernel.programs import run

    return run(program, arrays)


def _profile_program(program: Program) -> "Profile":
    from .kernel.profile import profile_program

    return profile_program(program)


def _assign(tile: "language.NkiTensor", value: object) -> None:
    from .isa.assignment import assign

    assign(tile, value)


def _is_language_function(name: str) -> bool:
    return name in _importlib.import_module("nki.language").__all__


def _move_across_partitions(
    tile: "language.NkiTensor", sizes: _typing.Sequence[int]
) -> "language.NkiTensor | None":
    from .language.partitions import across_partitions

    return across_partitions(tile, sizes)


_install_tracebacks()
_hooks.run_program = _run_program
_hooks.profile_program = _profile_program
_hooks.assign = _assign
_hooks.is_language_function = _is_language_function
_hooks.move_across_partitions = _move_across_partitions


def _torch() -> _typing.Any:
    from .frameworks import torch

    return torch


def _jax() -> _typing.Any:
    from .frameworks import jax

    return jax


_register_framework(["torch"], _torch)
_register_framework(["jax", "jaxlib"], _jax)


def _attribute(name: str) -> _typing.Any:
    """Import a module when it is first named (`dtype: nki.dtype` needs no other import), or ask plugins."""
    if name in _LATER:
        return getattr(_importlib.import_module(_LATER[name]), name)
    if name in _MODULES:
        return _importlib.import_module(f"nki.{name}")
    if name == "cache":
        return _importlib.import_module("nki.kernel.cache")
    return _plugins.attribute(name)


if not _typing.TYPE_CHECKING:  # a type checker finds misspelt names
    __getattr__ = _attribute


_plugins.install()
