"""nki.framework.compiled: kernels that AWS's package compiles ahead; here they run."""

from __future__ import annotations

from ..compiler import absent
from ..kernel.kernel import Kernel


def CompileKernel(func, artifacts_dir=None, _enable_simulation=True):
    """The kernel of a function. Nothing is compiled, so nothing is left in `artifacts_dir`."""
    return func if isinstance(func, Kernel) else Kernel(func)


__getattr__ = absent("nki.framework.compiled")

__all__ = ["CompileKernel"]
