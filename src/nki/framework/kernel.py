"""The same class as nki.Kernel."""

from ..kernel import Kernel

__all__ = ["Kernel"]
