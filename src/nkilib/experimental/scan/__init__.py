"""Linear recurrences over a sequence, and the state-space models built on them."""

from .linear_scan import linear_scan, linear_scan_ref
from .selective_scan import selective_scan, selective_scan_ref
from .ssd import ssd, ssd_ref

__all__ = ["linear_scan", "linear_scan_ref", "selective_scan", "selective_scan_ref", "ssd", "ssd_ref"]
