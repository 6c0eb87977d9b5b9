"""nki.framework.compiled: kernels that AWS's package compiles ahead of time; here they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nki import Kernel

from .compiler import absent


def CompileKernel(
    func: Callable[..., Any] | Kernel, artifacts_dir: str | None = None, _enable_simulation: bool = True
) -> Kernel:
    """Return the kernel of a function. Nothing is compiled, so nothing is written to `artifacts_dir`."""
    return func if isinstance(func, Kernel) else Kernel(func)


__getattr__ = absent("nki.framework.compiled")

__all__ = ["CompileKernel"]
