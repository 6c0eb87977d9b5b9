"""The memories a tensor can live in."""

from __future__ import annotations

from enum import Enum


class MemoryRegion(Enum):
    """Where a tensor lives. `nl.hbm` is another name of `private_hbm`."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    def __repr__(self) -> str:
        return f"nl.{self.value}"

    __hash__ = object.__hash__  # members are singletons; the inherited hash is a Python call


SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
PRIVATE_HBM, SHARED_HBM = MemoryRegion.private_hbm, MemoryRegion.shared_hbm
