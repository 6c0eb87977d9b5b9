"""Open NKI: the Neuron Kernel Interface in the open."""

from typing import Any

from .compatibility import older_name as _older_name
from .errors import NkiError, NkiValidationError, NkiWarning
from .kernel import Kernel, Run, jit, simulate
from .profiling import Profile, TensorSpec, profile

__version__ = "0.6.0+open.0.1.0"

__all__ = [
    "Kernel",
    "NkiError",
    "NkiValidationError",
    "NkiWarning",
    "Profile",
    "Run",
    "TensorSpec",
    "__version__",
    "jit",
    "profile",
    "simulate",
]


def __getattr__(name: str) -> Any:
    return _older_name(name)
