"""nki.simulator: another way to call nki.simulate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nki import Kernel, simulate


def simulate_kernel(
    func: Callable[..., Any] | Kernel,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    _lnc: int = 1,
) -> Any:
    """Return nki.simulate(func)(*args, **kwargs), on `_lnc` cores."""
    kernel = simulate(func)
    launched = kernel if _lnc == kernel.lnc else kernel[_lnc]
    return launched(*args, **(kwargs or {}))


__all__ = ["simulate_kernel"]


def __dir__() -> list[str]:
    return __all__
