"""Dependences: which earlier access of a memory a later one must wait for, and why.

An `AccessHistory` is given every read and write of a space (`boxes.space_of`) in program order, and adds to
the waits of each what it conflicts with. Two accesses conflict when their boxes overlap and one of them
writes. What follows from other waits may be left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from .boxes import Box, space_of
from .storage import Storage

RAW, WAR, WAW = (
    "data",
    "overwrite",
    "rewrite",
)  # why: it reads, overwrites or rewrites what the earlier one did

Waits = dict[int, str]  # number of the earlier access -> why


class AccessHistory:
    """The accesses of one space that later ones may conflict with. Accesses are numbered by the caller."""

    __slots__ = ("writes", "reads")

    def __init__(self) -> None:
        self.writes: dict[Box, int] = {}
        self.reads: dict[Box, list[int]] = {}

    def read(self, number: int, box: Box, waits: Waits) -> None:
        """Record that access `number` reads a box; it waits for the writes that overlap it."""
        writes = self.writes
        if len(writes) == 1 and box in writes:  # most tiles are written and read as a whole
            wait(waits, number, writes[box], RAW)
        else:
            for other, writer in writes.items():
                if box.overlaps(other):
                    wait(waits, number, writer, RAW)
        readers = self.reads.get(box)
        if readers is None:
            self.reads[box] = [number]
        else:
            readers.append(number)

    def write(self, number: int, box: Box, waits: Waits) -> None:
        """Record that access `number` writes a box; it waits for the accesses that overlap it.

        Accesses whose boxes lie in this one are forgotten: what conflicts with them also conflicts with this
        write, which comes after them.
        """
        if self.reads:
            for other, readers in list(self.reads.items()):
                if box.overlaps(other):
                    for reader in readers:
                        wait(waits, number, reader, WAR)
                    if box.contains(other):
                        del self.reads[other]
        writes = self.writes
        if len(writes) == 1 and box in writes:
            wait(waits, number, writes[box], WAW)
        elif writes:
            for other, writer in list(writes.items()):
                if box.overlaps(other):
                    wait(waits, number, writer, WAW)
                    if box.contains(other):
                        del writes[other]
        writes[box] = number


def wait(waits: Waits, number: int, other: int, why: str) -> None:
    """Add that access `number` waits for another one: if for more than one reason, for its data."""
    if other != number and (other not in waits or why == RAW):
        waits[other] = why


Level = TypeVar("Level", int, tuple[int, int])


class AccessLevels(Generic[Level]):
    """The level at which whole storages, or anything else by its key, were last written and touched.

    An access comes at a level no lower than that of the accesses it depends on. Levels only need an order.
    """

    def __init__(self) -> None:
        self.written: dict[Hashable, Level] = {}
        self.touched: dict[Hashable, Level] = {}

    def after(self, reads: Iterable[Storage], writes: Iterable[Storage], level: Level) -> Level:
        """Return the lowest level, not below `level`, for something that reads and writes these storages."""
        for storage in reads:
            level = max(level, self.written.get(space_of(storage), level))
        for storage in writes:
            level = max(level, self.touched.get(space_of(storage), level))
        return level

    def add(self, reads: Iterable[Storage], writes: Iterable[Storage], level: Level) -> None:
        """Record an access at a level."""
        for storage in reads:
            self.touched[space_of(storage)] = max(level, self.touched.get(space_of(storage), level))
        for storage in writes:
            self.touched[space_of(storage)] = max(level, self.touched.get(space_of(storage), level))
            self.written[space_of(storage)] = level
