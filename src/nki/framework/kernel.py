"""The same class as nki.Kernel."""

from ..call.kernel import Kernel

__all__ = ["Kernel"]
