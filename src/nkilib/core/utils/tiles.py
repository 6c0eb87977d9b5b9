"""New tiles, placed by the compiler or by the SBUF manager that the caller passes."""

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


def new_column(rows: int) -> Tensor:
    """Return a new float32 tile [rows, 1]: a number for each partition."""
    return nl.ndarray((rows, 1), nl.float32, buffer=nl.sbuf)


def like(tile: Tensor, dtype: DTypeLike | None = None) -> Tensor:
    """Return a new SBUF tile of the same shape and, unless `dtype` is given, the same dtype."""
    return nl.ndarray(tile.shape, tile.dtype if dtype is None else dtype, buffer=nl.sbuf)


def manual(sbm: BufferManager | None) -> bool:
    """Return whether a manager assigns addresses."""
    return sbm is not None and not sbm.is_auto_alloc()


def new_tile(tiles: Tiles | None, shape: tuple, dtype: DTypeLike) -> Any:
    """Return a tile in SBUF, placed by the compiler where `tiles` is None."""
    if tiles is None:
        return nl.ndarray(shape, dtype, buffer=nl.sbuf)
    return tiles.sbm.alloc_stack(shape, dtype)


def stream_tile(tiles: Tiles | None, shape: tuple, dtype: DTypeLike) -> Any:
    """Return a tile for data that is used at once."""
    if tiles is None:
        return nl.ndarray(shape, dtype, buffer=nl.sbuf)
    return tiles.stream(shape, dtype)


def open_scope(tiles: Tiles | None) -> None:
    """Begin a scope: close_scope frees the tiles that are new from here on."""
    if tiles is not None:
        tiles.sbm.open_scope()


def close_scope(tiles: Tiles | None) -> None:
    if tiles is not None:
        tiles.sbm.close_scope()
