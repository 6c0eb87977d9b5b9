"""nki.language.buffers: the memories of a core (spec/language.md 7)."""

from __future__ import annotations

from ..ir.tensor import NkiTensor
from ..machine.memories import PRIVATE_HBM, PSUM, SBUF, SHARED_HBM, MemoryRegion

sbuf, psum = SBUF, PSUM
private_hbm = hbm = PRIVATE_HBM
shared_hbm = SHARED_HBM

_BY_NAME: dict[str, MemoryRegion] = {region.value: region for region in MemoryRegion}


def _region(buffer: object) -> MemoryRegion | None:
    """Return the region meant by a region, its name, or a tensor; None for anything else."""
    if isinstance(buffer, str):
        return _BY_NAME.get(buffer)
    region = getattr(buffer, "buffer", buffer)
    return region if isinstance(region, MemoryRegion) else None


def is_hbm(buffer: MemoryRegion | str | NkiTensor) -> bool:
    """Whether it is HBM, private or shared: of a region, its name, or a tensor."""
    return _region(buffer) in (PRIVATE_HBM, SHARED_HBM)


def is_sbuf(buffer: MemoryRegion | str | NkiTensor) -> bool:
    """Whether it is SBUF: of a region, its name, or a tensor."""
    return _region(buffer) is SBUF


def is_psum(buffer: MemoryRegion | str | NkiTensor) -> bool:
    """Whether it is PSUM: of a region, its name, or a tensor."""
    return _region(buffer) is PSUM


def is_on_chip(buffer: MemoryRegion | str | NkiTensor) -> bool:
    """Whether it is SBUF and PSUM: of a region, its name, or a tensor."""
    return _region(buffer) in (SBUF, PSUM)


__all__ = [
    "MemoryRegion",
    "hbm",
    "is_hbm",
    "is_on_chip",
    "is_psum",
    "is_sbuf",
    "private_hbm",
    "psum",
    "sbuf",
    "shared_hbm",
]
