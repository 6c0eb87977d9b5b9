"""What all tensors of one shape, dtype and buffer have in common."""

from __future__ import annotations

from ..errors import Site
from ..machine.dtypes import DType
from ..machine.memories import MemoryRegion
from .layout import Shape, row_major
from .storage import Lease, Storage, TracedStorage
from .tensor import NkiTensor, tensor_of
from .view import View


class Template:
    """The common parts of all tensors of one shape, dtype and buffer, which loops allocate repeatedly."""

    __slots__ = ("shape", "strides", "dtype", "storage", "sig")

    def __init__(self, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion):
        self.shape = Shape(shape)
        self.strides = row_major(shape)
        self.dtype = dtype
        self.storage = Storage(buffer, self.shape, dtype)  # one like theirs
        self.sig = View(self.storage, 0, self.shape, self.strides, dtype).sig

    def tensor(self, storage: Storage, lease: Lease | None) -> NkiTensor:
        """Return the tensor that covers a storage without a chosen address."""
        return tensor_of(storage, lease, 0, self.shape, self.strides, self.dtype, self.sig)

    def traced(self, name: str, site: Site | None, number: int, call: object) -> NkiTensor:
        """Return a tensor with a new storage, without bytes: most of what a traced kernel allocates."""
        like, storage = self.storage, TracedStorage()
        storage.buffer = like.buffer
        storage.shape = shape = self.shape
        storage.dtype = dtype = self.dtype
        storage.name = name
        storage.on_chip = like.on_chip
        storage.partitions = like.partitions
        storage.pitch = like.pitch
        storage.address = None
        storage.site = site
        storage.number = number
        storage.parameter = False
        storage.constant = False
        storage.loop = 0
        storage.call = call
        return tensor_of(storage, None, 0, shape, self.strides, dtype, self.sig)
