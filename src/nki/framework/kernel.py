"""The same class as nki.Kernel."""

from ..kernel.kernel import Kernel

__all__ = ["Kernel"]
