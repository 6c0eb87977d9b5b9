"""Every public kernel by its name: `from nkilib.kernels import rmsnorm_quant_kernel`."""

from __future__ import annotations

from typing import Any

from nkilib import catalogue


def __getattr__(name: str) -> Any:
    """Import the kernel's module when it is asked for."""
    return catalogue.find(name)


def __dir__() -> list[str]:
    return [kernel.name for kernel in catalogue.kernels() if kernel.is_built]
