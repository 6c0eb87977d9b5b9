"""The bytes of all storages of a launch: allocated at the first use, freed after the last."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from typing import NoReturn

import numpy as np

from ...errors import error
from ...ir.context import running
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.machine import Machine
from ...machine.memories import SBUF, MemoryRegion
from .memory import FRESH, Memory
from .placed import ChipMemory, PlacedMemory
from .unrounded import UnroundedMemory, UnroundedPlacedMemory


class Memories(dict[Storage, Memory]):
    """The memory of each storage in use. Looking one up that does not exist yet allocates it."""

    def __init__(
        self,
        machine: Machine,
        precise: bool = True,
        call: object = None,
        released: Callable[[Storage], None] | None = None,
    ):
        super().__init__()
        self.machine = machine
        self.precise = precise
        self.call = call  # whose storages these are; None: those of any recorded program
        self.released = released  # called with storages whose bytes are freed
        self.ended: weakref.WeakSet[Storage] = weakref.WeakSet()  # of dynamic loops that are over
        self.chips: dict[tuple[int, MemoryRegion], ChipMemory] = {}

    def __missing__(self, storage: Storage) -> Memory:
        check_usable(storage, self.call, self.ended)
        if storage.address is not None:
            kind = PlacedMemory if self.precise else UnroundedPlacedMemory
            memory: Memory = kind(storage, self._chip(storage))
        else:
            memory = (Memory if self.precise else UnroundedMemory)(storage)
        self[storage] = memory
        return memory

    def _chip(self, storage: Storage) -> ChipMemory:
        """Return the physical memory of the running core that an address refers to."""
        key = (running().index, storage.buffer)
        chip = self.chips.get(key)
        if chip is None:
            m = self.machine
            pitch = m.sbuf_bytes if storage.buffer is SBUF else m.psum_bytes
            chip = self.chips[key] = ChipMemory(m.partitions, pitch)
        return chip

    def borrow(self, storage: Storage, raw: np.ndarray) -> None:
        """Use the caller's bytes for a storage; they are copied at the first write."""
        self[storage] = (Memory if self.precise else UnroundedMemory)(storage, raw)

    def fill(self, storage: Storage, raw: np.ndarray) -> None:
        """Use bytes that the caller lends for a storage; they count as fresh."""
        memory = self[storage] = Memory(storage, raw)
        memory.state, memory.borrowed = FRESH, False

    def adopt(self, storage: Storage, raw: np.ndarray) -> None:
        """Put bytes behind a storage that a backend has computed in full."""
        memory = self[storage] = Memory(storage, raw)
        memory.borrowed, memory.changed = False, True

    def array(self, view: View) -> np.ndarray:
        """Return what a view holds. Bytes that were never written are poison."""
        return self[view.storage].array(view)

    def is_written(self, view: View) -> bool:
        """Return True if all of a view was written."""
        return self[view.storage].is_written(view)

    def changed(self, storage: Storage) -> bool:
        """Return True if a storage was written since its bytes were lent."""
        return storage in self and self[storage].changed

    def let_go(self, storage: Storage) -> None:
        """Release the bytes of a storage: no tensor of the kernel's Python refers to it any more."""
        self.close(storage)

    def close(self, storage: Storage) -> None:
        """Free the bytes of a storage."""
        memory = self.pop(storage, None)
        if memory is not None:
            memory.released()
        if self.released is not None:
            self.released(storage)

    def renew(self, storage: Storage) -> None:
        """Make the tile of a loop poison for the next iteration."""
        memory = self.get(storage)
        if memory is not None:
            memory.renew()

    def end(self, storage: Storage) -> None:
        """Forbid the use of a tensor of a loop's body from now on."""
        self.close(storage)
        self.ended.add(storage)


def memory_of(view: View) -> Memory:
    """Return the memory of a view of the running core."""
    return running().memories[view.storage]


def check_usable(storage: Storage, call: object, ended: Container[Storage]) -> None:
    """Raise unless a storage belongs to this call and, if to a loop's body, to one that still runs."""
    if storage.loop and storage in ended:
        _refuse(
            storage,
            "loop-local-tensor",
            "a tensor allocated inside a dynamic loop is used after it",
            "allocate it before the loop",
        )
    if call is None or storage.call is call:
        return
    if storage.call is None:
        _refuse(
            storage,
            "placeholder",
            "this tensor is a placeholder, it has no data behind it",
            "allocate it with nl.ndarray",
        )
    _refuse(
        storage,
        "other-call",
        "this tensor belongs to an earlier call of a kernel, which has ended",
        "allocate it in this call; pass results from call to call as arguments",
    )


def _refuse(storage: Storage, kind: str, message: str, help: str) -> NoReturn:
    raise error(kind, message, notes=[f"{storage.dtype}{list(storage.shape)} {storage.where}"], help=help)
