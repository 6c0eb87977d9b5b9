"""Open NKI: the Neuron Kernel Interface in the open."""

import importlib as _importlib
import typing as _typing

from .call.bridges import TensorSpec
from .call.calls import Run
from .call.jit import jit, profile, simulate
from .call.kernel import Kernel
from .context import provided_by as _provided_by
from .context import provides as _provides
from .errors import NkiError, NkiValidationError, NkiWarning
from .options import options
from .program.program import Program
from .run.observers import observe
from .version import __version__

if _typing.TYPE_CHECKING:
    from .call.notebook import load_ipython_extension
    from .call.profile import Profile
    from .call.show import show

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


# What `import nki` can do without: names that are found when they are first asked for.
_LATER = {
    "Profile": "nki.call.profile",
    "autotune": "nki.tune",
    "load_ipython_extension": "nki.call.notebook",
    "show": "nki.call.show",
}

_provided_by(
    {
        "program.load": "nki.program.file",
        "program.parse": "nki.program.reading",
        "program.profile": "nki.call.profile",
        "program.run": "nki.call.programs",
        "program.save": "nki.program.file",
        "program.text": "nki.program.listing",
        "program.to_dict": "nki.program.listing",
        "tensor.across_partitions": "nki.language.partitions",
        "tensor.assign": "nki.isa.assignment",
    }
)


@_provides("program.vocabulary")
def _vocabulary() -> None:
    """Every instruction and value that a listing can name is there."""
    for name in ("isa", "language", "collectives"):
        _importlib.import_module(f"nki.{name}")


def __getattr__(name: str) -> _typing.Any:
    """A module that nobody imported yet (`dtype: nki.dtype` needs no other import), or an older name."""
    if name in _LATER:
        return getattr(_importlib.import_module(_LATER[name]), name)
    if name in _MODULES:
        return _importlib.import_module(f"nki.{name}")
    if name == "cache":
        return _importlib.import_module("nki.call.cache")
    return _importlib.import_module("nki.compat.older_names").older_name(name)
