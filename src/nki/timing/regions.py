"""Regions: which accesses of a storage conflict, and what an operation must wait for."""

from __future__ import annotations

from typing import NamedTuple

from ..ir.instruction import Instruction
from ..ir.storage import Storage
from ..ir.view import View

TRANSFERS = ("dma", "spill", "reload")  # kinds of operations that DMA engines do
RAW, WAR, WAW, SPACE, ORDER = "data", "overwrite", "rewrite", "space", "order"


class Operation:
    """One thing an engine or a DMA queue does."""

    __slots__ = (
        "index", "position", "instruction", "kind", "is_dma", "waits", "tile", "again", "site", "core"
    )  # fmt: skip

    def __init__(self, index: int, instruction: Instruction | None, kind: str, core: int, position: int):
        self.index = index
        self.position = position  # in the program; -1 for spills
        self.instruction = instruction  # None for spills
        self.kind = kind  # the engine's name, "dma", "spill" or "reload"
        self.is_dma = kind in TRANSFERS
        self.waits: dict[int, str] = {}  # operation index -> why
        self.tile: Storage | None = None  # spills: what is moved
        self.again: Instruction | None = None  # reloads: the load that is done again
        self.site = instruction.site if instruction is not None else None
        self.core = core

    def copy(self) -> Operation:
        """The same, with waits of its own."""
        made = Operation(self.index, self.instruction, self.kind, self.core, self.position)
        made.waits, made.tile, made.again = dict(self.waits), self.tile, self.again
        return made

    def wait_for(self, other: int, why: str) -> None:
        if other != self.index and (other not in self.waits or why == RAW):
            self.waits[other] = why


class Region(NamedTuple):
    """A rectangle of a space: partitions (or HBM rows) and bytes inside them."""

    first: int
    last: int
    begin: int
    end: int

    def overlaps(self, other: Region) -> bool:
        return (
            self.first < other.last
            and other.first < self.last
            and self.begin < other.end
            and other.begin < self.end
        )

    def covers(self, other: Region) -> bool:
        return (
            self.first <= other.first
            and other.last <= self.last
            and self.begin <= other.begin
            and other.end <= self.end
        )


def region(view: View) -> Region:
    """The smallest rectangle that holds a view; for a run-time index, the whole storage."""
    storage = view.storage
    if view.indirection is not None and view.indirection.kind != "static":
        return Region(0, 1 << 40, 0, 1 << 60)
    width = view.dtype.itemsize
    if storage.on_chip:
        partition, byte = storage.address or (0, 0)
        first, free = divmod(view.offset, view.row_pitch)
        reach = sum((n - 1) * s for n, s in zip(view.shape[1:], view.strides[1:], strict=True))
        begin = byte + free * width
        return Region(
            partition + first, partition + first + view.shape[0], begin, begin + (reach + 1) * width
        )
    row = storage.shape[-1] * storage.dtype.itemsize
    begin = view.offset * width
    inside = (
        sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True) if s * width < row) * width
    )
    total = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)) * width
    if begin % row + inside + width <= row:  # a block of whole or partial rows
        return Region(begin // row, (begin + total) // row + 1, begin % row, begin % row + inside + width)
    return Region(begin // row, (begin + total + width - 1) // row + 1, 0, row)


class Space:
    """The accesses of one storage (or of a core's placed memory) that later ones may conflict with."""

    __slots__ = ("writes", "reads")

    def __init__(self) -> None:
        self.writes: dict[Region, int] = {}
        self.reads: dict[Region, list[int]] = {}

    def read(self, op: Operation, box: Region) -> None:
        writes = self.writes
        if len(writes) == 1 and box in writes:  # most tiles are written and read as a whole
            op.wait_for(writes[box], RAW)
        else:
            for other, writer in writes.items():
                if box.overlaps(other):
                    op.wait_for(writer, RAW)
        readers = self.reads.get(box)
        if readers is None:
            self.reads[box] = [op.index]
        else:
            readers.append(op.index)

    def write(self, op: Operation, box: Region) -> None:
        if self.reads:
            self._overwrite(op, box)
        writes = self.writes
        if len(writes) == 1 and box in writes:
            op.wait_for(writes[box], WAW)
        elif writes:
            for other, writer in list(writes.items()):
                if box.overlaps(other):
                    op.wait_for(writer, WAW)
                    if box.covers(other):
                        del writes[other]
        writes[box] = op.index

    def _overwrite(self, op: Operation, box: Region) -> None:
        """Wait for those who read what was there."""
        for other, readers in list(self.reads.items()):
            if box.overlaps(other):
                for reader in readers:
                    op.wait_for(reader, WAR)
                if box.covers(other):
                    del self.reads[other]


WHOLE = Region(0, 1 << 40, 0, 1 << 60)
