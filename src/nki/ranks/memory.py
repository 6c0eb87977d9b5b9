"""Memory that the processes of a world share: files without a name, which vanish with the last of them."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

POPULATED = getattr(mmap, "MAP_POPULATE", 0)  # all pages at once: a fault for each costs more than its copy


def unnamed_file() -> int:
    """A file descriptor of memory that has no name and no size yet."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nki-rank")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Mapped:
    """The bytes of such a file, as far as they have been written."""

    def __init__(self, file: int):
        self.file = file
        self.map: mmap.mmap | None = None

    def bytes(self, start: int, size: int) -> np.ndarray:
        """A part of it, not copied."""
        if size == 0:
            return np.empty(0, np.uint8)
        if self.map is None or len(self.map) < start + size:  # old views keep the old mapping
            self.map = mmap.mmap(self.file, os.fstat(self.file).st_size, mmap.MAP_SHARED | POPULATED)
        return np.frombuffer(self.map, np.uint8, size, start)

    def array(self, dtype: np.dtype, shape: list[int], start: int, size: int) -> np.ndarray:
        """An array of it, not copied."""
        return self.bytes(start, size).view(dtype).reshape(shape)


class Arena:
    """A process's own file: what it sends stays there until every receiver has read it."""

    PAGE = 1 << 16

    def __init__(self, file: int):
        self.file, self.mapped = file, Mapped(file)
        self.live: dict[int, tuple[int, int]] = {}  # start and end by the number of the message
        self.size = 0

    def put(self, number: int, data: np.ndarray) -> int:
        """Copy bytes to a free place; where it begins."""
        start = self._place(data.nbytes)
        if start + data.nbytes > self.size:
            self.size = -(-(start + data.nbytes) // self.PAGE) * self.PAGE
            os.ftruncate(self.file, self.size)
        self.live[number] = (start, start + data.nbytes)
        self.mapped.bytes(start, data.nbytes)[...] = data
        return start

    def free(self, numbers: list[int]) -> None:
        for number in numbers:
            self.live.pop(number, None)

    def _place(self, size: int) -> int:
        taken = sorted(self.live.values())
        start = 0
        for begin, end in taken:
            if start + size <= begin:
                break
            start = -(-end // 64) * 64
        return start
