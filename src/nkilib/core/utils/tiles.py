"""Where a kernel's tiles come from: the compiler, or the SBUF manager that its caller passes."""

from __future__ import annotations

from typing import Any

import nki.language as nl
from nkilib.core.utils.allocator import BufferManager, bytes_per_partition
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.types import DTypeLike, Tensor

STREAM_BYTES = 64 * 1024  # in each partition, for what is used once and is gone


class Tiles(nl.NKIObject):
    """Tiles on the stack of a manual SbufManager.

    `new` is freed with its scope, `stream` when as much again has streamed by: each chunk of weights is used
    before the bytes of the first come up again.
    """

    def __init__(self, sbm: BufferManager):
        self.sbm = sbm
        size = min(STREAM_BYTES, sbm.get_free_space() // 2)
        reserved = sbm.alloc_stack((nl.tile_size.pmax, max(1, size)), nl.uint8, align=64)
        self.end = sbm.get_stack_curr_addr()
        self.start = self.end - reserved.shape[1]
        self.next = self.start

    def stream(self, shape: tuple, dtype: DTypeLike) -> Tensor:
        size = (bytes_per_partition(shape, dtype) + 63) // 64 * 64
        kernel_assert(
            size <= self.end - self.start,
            f"sbm: a chunk of weights takes {size} bytes per partition, there are {self.end - self.start}",
        )
        if self.next + size > self.end:
            self.next = self.start
        address = self.next
        self.next = self.next + size
        return nl.ndarray(shape, dtype, buffer=nl.sbuf, address=(0, address))


def manual(sbm: BufferManager | None) -> bool:
    """True for a manager that gives addresses."""
    return sbm is not None and not sbm.is_auto_alloc()


def new_tile(tiles: Tiles | None, shape: tuple, dtype: DTypeLike) -> Any:
    """A tile in SBUF, of the compiler's choosing where `tiles` is None."""
    if tiles is None:
        return nl.ndarray(shape, dtype, buffer=nl.sbuf)
    return tiles.sbm.alloc_stack(shape, dtype)


def stream_tile(tiles: Tiles | None, shape: tuple, dtype: DTypeLike) -> Any:
    """The same for data that is used at once."""
    if tiles is None:
        return nl.ndarray(shape, dtype, buffer=nl.sbuf)
    return tiles.stream(shape, dtype)


def open_scope(tiles: Tiles | None) -> None:
    """What is new from here on is freed by close_scope."""
    if tiles is not None:
        tiles.sbm.open_scope()


def close_scope(tiles: Tiles | None) -> None:
    if tiles is not None:
        tiles.sbm.close_scope()
