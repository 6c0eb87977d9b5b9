"""Storages: what a tensor's bytes belong to. A description only; the bytes are `execute.memory`'s."""

from __future__ import annotations

from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

from .dtypes import DType
from .errors import Site, error

if TYPE_CHECKING:
    from .execute.memory import Memory


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


class Storage:
    """One allocation.

    HBM is flat: `partitions` is 1 and `pitch` the whole size. On chip, `pitch` is the number of bytes
    the allocation takes in each of its partitions, and `address` the (partition, byte) the user chose.
    `memory` holds the bytes while the kernel runs and some tensor still refers to them.
    """

    __slots__ = (
        "buffer",
        "shape",
        "dtype",
        "name",
        "partitions",
        "pitch",
        "address",
        "site",
        "number",
        "memory",
        "on_chip",
        "parameter",
        "constant",
        "loop",
        "leases",
        "recorder",
        "first",
        "last",
    )

    def __init__(
        self,
        buffer: MemoryRegion,
        shape: tuple[int, ...],
        dtype: DType,
        name: str = "",
        address: tuple[int, int] | None = None,
        site: Site | None = None,
        number: int = 0,
        parameter: bool = False,
    ):
        self.buffer = buffer
        self.shape = shape
        self.dtype = dtype
        self.name = name
        self.on_chip = buffer is SBUF or buffer is PSUM
        self.partitions = shape[0] if self.on_chip else 1
        self.pitch = prod(shape[1:] if self.on_chip else shape) * dtype.itemsize
        self.address = address
        self.site = site
        self.number = number
        self.parameter = parameter
        self.constant = False
        self.loop: Any = None  # the dynamic loop body this allocation belongs to
        self.memory: Memory | None = None
        self.leases = 0  # alive: the bytes stay while there is one
        self.recorder = 0  # the number of the recorder that knows its `first` and `last` instruction
        self.first = self.last = 0

    @property
    def nbytes(self) -> int:
        return self.partitions * self.pitch

    @property
    def is_held(self) -> bool:
        """True while some tensor refers to it."""
        return self.leases > 0

    @property
    def where(self) -> str:
        """For messages: `in sbuf 'acc', allocated at softmax.py:33`."""
        label = f" '{self.name}'" if self.name else ""
        if self.parameter:
            return f"in {self.buffer.value}, argument{label}"
        made = f", allocated at {self.site}" if self.site else ""
        return f"in {self.buffer.value}{label}{made}"

    def __repr__(self) -> str:
        return f"<Storage {self.number} {self.dtype}{list(self.shape)} {self.where}>"


class Lease:
    """Shared by all tensors of one storage; its death frees the bytes.

    Recorded instructions hold views without a lease, so a long program does not keep its tiles alive.
    """

    __slots__ = ("storage", "__weakref__")

    def __init__(self, storage: Storage):
        self.storage = storage
        storage.leases += 1

    def __del__(self) -> None:
        storage = self.storage
        storage.leases -= 1
        memory = storage.memory
        if memory is not None and not storage.leases:
            storage.memory = None
            memory.released()


class NoMemory:
    """Behind a placeholder tensor: whoever wants its bytes is told that there are none."""

    def _refuse(self, view: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise error(
            "placeholder",
            "this tensor is a placeholder, it has no data behind it",
            notes=[view.describe()],
            help="allocate it with nl.ndarray",
        )

    array = peek = read = read_float32 = write = is_written = matmul_written = set_matmul = _refuse

    def released(self) -> None:
        pass
