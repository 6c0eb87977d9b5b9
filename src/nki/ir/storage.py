"""Storages: the allocations that tensors are views of. Descriptions only; a backend holds the bytes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import Site
from ..machine.dtypes import DType
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF, MemoryRegion


class Storage:
    """One allocation.

    HBM is flat: `partitions` is 1 and `pitch` the whole size. On chip, `pitch` is the number of bytes
    the allocation takes in each of its partitions, and `address` the (partition, byte) the user chose.
    `loop` is the number of the dynamic loop in whose body it was allocated, 0 for none. `call` is
    the call that allocated it: a tensor that outlives its call cannot be used by a later one.
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
        "on_chip",
        "parameter",
        "constant",
        "loop",
        "call",
        "__weakref__",
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
        constant: bool = False,
        loop: int = 0,
        call: object = None,
    ):
        self.buffer = buffer
        self.shape = shape
        self.dtype = dtype
        self.name = name
        on_chip = self.on_chip = buffer is SBUF or buffer is PSUM
        if on_chip:
            self.partitions = shape[0]
            self.pitch = (shape[1] if len(shape) == 2 else prod(shape[1:])) * dtype.itemsize
        else:
            self.partitions = 1
            self.pitch = prod(shape) * dtype.itemsize
        self.address = address
        self.site = site
        self.number = number
        self.parameter = parameter
        self.constant = constant
        self.loop = loop
        self.call = call

    @property
    def nbytes(self) -> int:
        return self.partitions * self.pitch

    def taken(self, machine: Machine) -> int:
        """Return the bytes of each partition that it occupies: whole banks of PSUM; in SBUF, without a chosen
        address, tiles of few partitions lie side by side and each counts for its part.

        Up to 32 partitions may start at any quadrant, up to 64 at any half (spec/machine.md 3).
        """
        if self.buffer is PSUM:
            bank = machine.psum_bank_bytes
            return -(-self.pitch // bank) * bank
        quadrants = -(-self.partitions // machine.quadrant_partitions)
        return self.pitch if quadrants > 2 or self.address is not None else -(-self.pitch * quadrants // 4)

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

    def __reduce__(self) -> Any:
        described = (self.buffer, self.shape, self.dtype, self.name, self.address, self.site, self.number)
        return Storage, (*described, self.parameter, self.constant, self.loop)


class TracedStorage(Storage):
    """A storage whose maker sets its slots. Python makes objects without an initialiser in half the time."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self) -> None: ...
    else:
        __init__ = object.__init__


class Home(Protocol):
    """Where the bytes of storages live while a kernel's Python runs."""

    def let_go(self, storage: Storage) -> None: ...


class Lease:
    """Shared by all tensors of one storage; when it is deleted, the memory of the bytes is told.

    Recorded instructions hold views without a lease, so a long program does not keep its tiles alive.
    """

    __slots__ = ("storage", "home", "__weakref__")

    def __init__(self, storage: Storage, home: Home):
        self.storage = storage
        self.home = home

    def __del__(self) -> None:
        self.home.let_go(self.storage)
