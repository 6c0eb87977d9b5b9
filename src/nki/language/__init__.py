"""nki.language (nl): tensors, loops, operators and functions built on instructions."""

from ..dtypes import *  # noqa: F403
from ..operators import OPERATORS
from ..storage import MemoryRegion
from .creation import ndarray

sbuf, psum = MemoryRegion.sbuf, MemoryRegion.psum
private_hbm = hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm
globals().update(OPERATORS)
