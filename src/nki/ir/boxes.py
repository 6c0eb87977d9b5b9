"""Boxes: the bytes that a view may touch, as partitions times bytes of a partition."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from .storage import Storage
from .view import View


class Box(NamedTuple):
    """Partitions `first` to `last` and bytes `start` to `stop` (exclusive) of a space.

    A space is a storage, or the physical memory that holds all storages placed in it by `address=`.
    """

    space: Hashable
    first: int
    last: int
    start: int
    stop: int

    def overlaps(self, other: Box) -> bool:
        return (
            self.space is other.space
            and self.first < other.last
            and other.first < self.last
            and self.start < other.stop
            and other.start < self.stop
        )

    def covers(self, other: Box) -> bool:
        return (
            self.space is other.space
            and self.first <= other.first
            and other.last <= self.last
            and self.start <= other.start
            and other.stop <= self.stop
        )


def whole_box(storage: Storage) -> Box:
    """All of a storage."""
    partition, byte = storage.address or (0, 0)
    space = storage if storage.address is None else storage.buffer
    return Box(space, partition, partition + storage.partitions, byte, byte + storage.pitch)


def box(view: View) -> Box:
    """What a view may touch: all of its storage where its address is known at run time only.

    Bytes are rounded to elements of the storage: what is known about memory is known by element.
    """
    storage, whole = view.storage, whole_box(view.storage)
    if view.indirection is not None:
        return whole
    dims = list(zip(view.shape, view.strides, strict=True))
    row, free = divmod(view.offset, view.row_pitch) if storage.on_chip else (0, view.offset)
    rows = 1
    if storage.on_chip:
        count, stride = dims.pop(0)
        if count > 1 and stride not in (0, view.row_pitch):
            return whole
        rows = count if stride else 1
    width, element = view.dtype.itemsize, storage.dtype.itemsize
    low = (free + sum(min(0, (n - 1) * s) for n, s in dims)) * width
    high = (free + sum(max(0, (n - 1) * s) for n, s in dims) + 1) * width
    low, high = low // element * element, -(-high // element) * element
    if low < 0 or high > storage.pitch:
        return whole
    return Box(
        whole.space, whole.first + row, whole.first + row + rows, whole.start + low, whole.start + high
    )
