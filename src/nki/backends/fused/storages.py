"""Which storages are tracked value by value, and which stay memory that is written in place.

Tiles on chip are tracked. HBM stays in place, and so does everything that a fence touches: an instruction
whose addresses are known at run time only, or that depends on a dynamic loop, a register, the other core or
a rank. HBM that is never written needs no order; nor does HBM of which every element is written once and
never read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import gcd
from typing import Any

import numpy as np

from ...ir.effects import effects
from ...ir.instruction import Instruction
from ...ir.program import walk
from ...ir.storage import Storage
from ...ir.view import View
from ..lowered import Lowered, Signature


class Storages:
    """What is known of the storages of a program before its values are tracked."""

    def __init__(self, lowered: Lowered, in_place: Iterable[Storage] = ()):
        self.in_place: set[Storage] = set(in_place)  # on chip, and not tracked
        self.written: set[Storage] = set()  # in HBM, by any core
        self.read: set[Storage] = set()
        self.stores: dict[Storage, list[View]] = {}
        for items, kinds in zip(lowered.items, lowered.kinds, strict=True):
            for item, kind in zip(items, kinds, strict=True):
                if kind is None or kind.fence or kind.lazy:
                    for instruction in walk([item]):
                        self._keep_in_place(instruction)
                elif kind.hbm_writes:
                    self._note(item, kind)
                else:
                    for name in kind.hbm_reads:  # most copies are loads
                        self.read.add(getattr(item, name).storage)
        self.write_once: set[Storage] = set()  # each element at most once, and never read
        self.complete: set[Storage] = set()  # of these, written as a whole
        for storage, views in self.stores.items():
            if storage not in self.read:
                once, complete = _written_once(storage, views)
                if once:
                    self.write_once.add(storage)
                    if complete:
                        self.complete.add(storage)

    def _note(self, instruction: object, kind: Signature) -> None:
        for name in kind.hbm_reads:
            self.read.add(getattr(instruction, name).storage)
        for name, is_read in kind.hbm_writes:
            view = getattr(instruction, name)
            self.written.add(view.storage)
            self.stores.setdefault(view.storage, []).append(view)
            if is_read:
                self.read.add(view.storage)

    def _keep_in_place(self, instruction: Instruction) -> None:
        """Keep everything that an instruction touches in place."""
        for storage in touched(instruction):
            (self.in_place if storage.on_chip else self.read).add(storage)
        for view in effects(instruction).written:
            self.written.add(view.storage)

    def is_tracked(self, storage: Storage) -> bool:
        return storage.on_chip and storage not in self.in_place

    def share_addresses(self, storages: Iterable[Storage]) -> bool:
        """Return whether a tile in place has bytes of another one: their order would be lost."""
        placed = Counter((s.buffer, s.address, s.partitions, s.pitch) for s in storages if s.address)
        in_place = {(s.buffer, s.address, s.partitions, s.pitch) for s in self.in_place if s.address}
        return any(placed[one] > 1 or any(_overlap(one, other) for other in placed) for one in in_place)

    def is_constant(self, storage: Storage) -> bool:
        """Return whether a storage is in HBM and never written."""
        return not storage.on_chip and storage not in self.written


def _overlap(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Return whether two different places of a memory have bytes in common."""
    (memory, at, *size), (other_memory, there, *other_size) = one, other
    sides = zip(at, size, there, other_size, strict=True)  # partitions, bytes
    return one != other and memory is other_memory and all(a < b + m and b < a + n for a, n, b, m in sides)


def touched(instruction: Instruction) -> Iterator[Storage]:
    """Iterate over the storages of the operands, and of the indices in them."""
    for view in instruction.views():
        if view.indirection is not None and view.indirection.base is not None:
            yield view.indirection.base.storage
        yield view.storage


def _written_once(storage: Storage, views: list[View]) -> tuple[bool, bool]:
    """Return whether no element is written twice, and whether every element is written."""
    if any(v.dtype is not storage.dtype or v.indirection is not None or v.repeats() for v in views):
        return False, False
    if any(stride < 0 for v in views for stride in v.strides):
        return False, False
    if sum(v.size for v in views) > storage.nbytes // storage.dtype.itemsize:
        return False, False
    grain = _grain(storage, views)
    flags = np.zeros(storage.nbytes // storage.dtype.itemsize // grain, np.bool_)
    for view in views:
        shape, strides = list(view.shape), [s // grain for s in view.strides]
        if grain > 1:
            shape[-1] //= grain
            strides[-1] = 1
        part = np.ndarray(shape, np.bool_, flags, view.offset // grain, strides)
        if part.any():
            return False, False
        part[...] = True
    return True, bool(flags.all())


def _grain(storage: Storage, views: list[View]) -> int:
    """Return how many neighbouring elements are always written together."""
    found = storage.nbytes // storage.dtype.itemsize
    for view in views:
        if view.strides[-1] != 1:
            return 1
        found = gcd(found, view.offset, view.shape[-1])
        for n, stride in zip(view.shape[:-1], view.strides[:-1], strict=True):
            if n > 1:
                found = gcd(found, stride)
        if found == 1:
            return 1
    return found
