"""Names of older releases of `nki`: what still works, and what replaced the rest (language.md 1.2)."""

from __future__ import annotations

from typing import Any

from .errors import NkiError, error
from .kernel import Kernel

_PROFILE = "kernel.profile(*args) models where the time goes"
_TENSOR = "make the array with NumPy before the kernel and pass it, or embed it with nl.shared_constant"

REMOVED = {
    "profile": _PROFILE,
    "baremetal": "call the kernel: kernel(*args)",
    "simulate_kernel": "nki.simulate(kernel)(*args)",
    "tensor": _TENSOR,
    "meta": _TENSOR,
}


def cpu_simulate(kernel):
    """The kernel, to be launched as cpu_simulate(kernel)[lnc](...); what AWS's library tests call."""
    return Kernel(kernel) if not isinstance(kernel, Kernel) else kernel


def benchmark(kernel=None, *args, **kwargs):
    """Modelled latency of a kernel."""
    raise error(
        "not-implemented-yet",
        "nki.benchmark: the timing model is not connected to it yet",
        help="call the kernel to check its results",
    )


SUPPORTED = {"benchmark": benchmark, "cpu_simulate": cpu_simulate}


def removed(name: str) -> NkiError:
    """The AttributeError for a removed `nki.name`, with its replacement."""
    return error("removed-name", f"nki.{name} has been removed from NKI", help=REMOVED[name])


def older_name(name: str) -> Any:
    """`nki.name` for a name that is not in the module."""
    if name in SUPPORTED:
        return SUPPORTED[name]
    if name in REMOVED:
        raise removed(name)
    raise AttributeError(f"module 'nki' has no attribute {name!r}")
