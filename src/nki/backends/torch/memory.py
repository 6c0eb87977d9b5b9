"""The memory of a run whose instructions go one by one: the reference's, with its bytes on a device.

What was written, and by a matmul, is known on the host, as in the reference; only the bytes are elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...ir.storage import Storage
from ...machine.dtypes import DType
from ...machine.machine import Machine
from ..reference.memories import Memories, check_usable
from ..reference.memory import FRESH, Memory
from ..reference.placed import ChipMemory, PlacedMemory
from .device import Device, Unsupported, held_as
from .lanes import Lanes

SMALL = 4096  # bytes of a constant that is worth keeping


class ReadableDevice(Device):
    """A device whose values the host reads where it needs them: in order, nothing waits for the end."""

    reads = True

    def __init__(self, torch: Any, where: Any):
        super().__init__(torch, where, {})

    def constant(self, array: np.ndarray) -> Any:
        return super().constant(array) if array.nbytes <= SMALL else self.tensor(array)

    def bytes(self, count: int) -> Any:
        """Return new bytes."""
        return self.torch.empty(count, dtype=self.torch.uint8, device=self.where)


class _OnDevice(Memory):
    """A memory whose `raw` is a tensor; for a moment, or at the end, an array on the host."""

    device: ReadableDevice
    raw: Any

    def part(self, shape: Sequence[int], dtype: DType, start: int, strides: Sequence[int]) -> Any:
        if isinstance(self.raw, np.ndarray):
            return super().part(shape, dtype, start, strides)
        width = dtype.itemsize
        if start % width or any(n > 1 and (s % width or s < 0) for n, s in zip(shape, strides, strict=True)):
            raise Unsupported("elements that are not in line")
        whole = self.raw.view(getattr(self.device.torch, held_as(dtype.storage)))
        steps = tuple([max(s, 0) // width for s in strides])
        return Lanes(whole.as_strided(tuple(shape), steps, start // width), 0, dtype.storage, self.device)

    def move(self, raw: Any) -> None:
        """Put the same bytes elsewhere."""
        self.raw = raw
        self.arrays.clear()
        self.floats.clear()

    def _own(self) -> None:
        self.move(self.raw.copy() if isinstance(self.raw, np.ndarray) else self.raw.clone())
        self.borrowed = False


class DeviceMemory(_OnDevice):
    """Without an explicit address."""

    def __init__(self, storage: Storage, device: ReadableDevice, raw: Any = None):
        super().__init__(storage, device.bytes(storage.nbytes) if raw is None else raw)
        self.device = device
        if raw is None:
            self.borrowed, self.state = False, FRESH

    def released(self) -> None:
        """Leave the bytes to torch."""


class PlacedDeviceMemory(_OnDevice, PlacedMemory):
    """With an explicit address."""

    def __init__(self, storage: Storage, device: ReadableDevice, chip: ChipMemory):
        super().__init__(storage, chip)  # type: ignore[arg-type]
        self.device = device


class DeviceMemories(Memories):
    """The memories of a run on a device."""

    def __init__(self, machine: Machine, device: ReadableDevice):
        super().__init__(machine)
        self.device = device

    def __missing__(self, storage: Storage) -> Memory:
        check_usable(storage, self.call, self.ended)
        found: Memory = (
            DeviceMemory(storage, self.device)
            if storage.address is None
            else PlacedDeviceMemory(storage, self.device, self._chip(storage))
        )
        self[storage] = found
        return found

    def _chip(self, storage: Storage) -> ChipMemory:
        chip = super()._chip(storage)
        if isinstance(chip.raw, np.ndarray):
            chip.raw = self.device.bytes(chip.raw.size)
        return chip

    def lend(self, storage: Storage, tensor: Any) -> None:
        """Use the bytes of a tensor for a storage; they are copied at the first write."""
        self[storage] = DeviceMemory(storage, self.device, tensor.reshape(-1).view(self.device.torch.uint8))

    def to_host(self) -> None:
        """Move everything that is left to the host."""
        for memory in self.values():
            if isinstance(memory, DeviceMemory) and memory.state != FRESH:
                memory.move(memory.raw.cpu().numpy())

    @contextmanager
    def on_host(self, storages: Iterable[Storage]) -> Iterator[None]:
        """Context: the bytes of some storages are on the host."""
        memories = [memory for s in dict.fromkeys(storages) if isinstance(memory := self[s], _OnDevice)]
        tensors = [memory.raw for memory in memories]
        copies = {id(tensor): tensor.cpu().numpy() for tensor in tensors}  # a chip's, once
        for memory, tensor in zip(memories, tensors, strict=True):
            memory.move(copies[id(tensor)])
        try:
            yield
        finally:
            for memory, tensor in zip(memories, tensors, strict=True):
                if memory.raw is not copies[id(tensor)]:
                    tensor = self.device.tensor(memory.raw)
                elif not memory.borrowed:
                    tensor.copy_(self.device.tensor(memory.raw))
                memory.move(tensor)
