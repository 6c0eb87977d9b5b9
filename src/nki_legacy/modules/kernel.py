"""nki.framework.kernel: the same class as nki.Kernel."""

from nki import Kernel

__all__ = ["Kernel"]
