"""The memories a tensor can live in."""

from __future__ import annotations

from enum import Enum


class MemoryRegion(Enum):
    """Where a tensor lives. `nl.hbm` is another name of `private_hbm`.

    Members:

    - `sbuf`: 128 partitions on the chip, which every engine reads and writes.
    - `psum`: 128 partitions of 2 KiB banks, where TensorE accumulates.
    - `private_hbm`: memory of the device; `nl.hbm` is the same.
    - `shared_hbm`: memory of the device that all cores and the caller see.

    Example:

    ```python
    print([region.name for region in nl.MemoryRegion])
    ```

    ```output
    ['sbuf', 'psum', 'private_hbm', 'shared_hbm']
    ```

    See also: `ndarray`, `sbuf`, `psum`, `hbm`, `is_on_chip`.
    """

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    def __repr__(self) -> str:
        return f"nl.{self.value}"

    __hash__ = object.__hash__  # members are singletons; the inherited hash is a Python call


SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
PRIVATE_HBM, SHARED_HBM = MemoryRegion.private_hbm, MemoryRegion.shared_hbm
