"""nki.simulator: another way to call nki.simulate."""

from __future__ import annotations

from .kernel.jit import simulate


def simulate_kernel(func, args=(), kwargs=None, _lnc=1):
    """nki.simulate(func)(*args, **kwargs), on `_lnc` cores."""
    kernel = simulate(func)
    launched = kernel if _lnc == kernel.lnc else kernel[_lnc]
    return launched(*args, **(kwargs or {}))


__all__ = ["simulate_kernel"]


def __dir__() -> list[str]:
    return __all__
