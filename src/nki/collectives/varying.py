"""Collectives whose sizes are known at run time (spec/collectives.md 2.10, 2.11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.context import warn
from ..ir.instruction import In, InOut, Out
from ..ir.layout import Int
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..isa import rules
from ..launch.core import issue
from ..machine.machine import Machine
from ..machine.memories import SBUF
from .groups import GroupLike, ReplicaGroup, as_group
from .instruction import Collective, Received, paired, reading, writing

SEND_COUNT, SEND_DISPL, RECV_COUNTS, RECV_DISPLS = range(4)  # rows of the metadata tensor


def all_gather_v(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: GroupLike,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: Int | None = None,
    name: str | None = None,
) -> None:
    """Slot j of dst = what rank j sends; the metadata has counts and displacements, at run time."""
    options = (metadata_tensor, recv_counts_known, has_rdispls, priority, name)
    _issue(AllGatherV, srcs, dsts, replica_group, options)


def all_to_all_v(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: GroupLike,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: Int | None = None,
    name: str | None = None,
) -> None:
    """dst = what each rank sends to this one; the metadata has counts and displacements, at run time."""
    options = (metadata_tensor, recv_counts_known, has_rdispls, priority, name)
    _issue(AllToAllV, srcs, dsts, replica_group, options)


def _issue(
    cls: type[AllGatherV], srcs: Any, dsts: Any, replica_group: object, options: tuple[object, ...]
) -> None:
    group = as_group(replica_group, cls.public)
    for dst, src in paired(cls.public, srcs, dsts):
        issue(cls(dst, src, group, *options))


class AllGatherV(Collective):
    """Flat buffers of elements; rows of the metadata: send count, send displacement, receive counts."""

    public = "all_gather_v"
    fixed_sizes = False  # the metadata has the counts

    dst: Out
    src: In
    replica_group: ReplicaGroup
    metadata_tensor: InOut
    recv_counts_known: bool
    has_rdispls: bool
    priority: Any

    def check(self, machine: Machine) -> None:
        self.check_operands(machine, "src")
        self.in_hbm("dst", "src")
        self._check_displacements(machine)
        self._check_metadata()
        _flat(self.dst), _flat(self.src)
        if self.dst.size % self.replica_group.size:
            ranks = self.replica_group.size
            raise rules.fail(
                self, "shape", f"{self.dst.size} elements are no slots for {ranks} ranks", ["dst"]
            )
        warn("hardware-limit", f"{self.public}: hardware runs it with LNC 2 and four ranks or more alone")

    def _check_displacements(self, machine: Machine) -> None:
        if self.has_rdispls:
            raise rules.fail(
                self, "not-supported", "has_rdispls=True is not supported", [], "use all_to_all_v"
            )

    def _check_metadata(self) -> None:
        rules.dtype_in(self, "metadata_tensor", ("uint32",))
        rules.buffers(self, "metadata_tensor", (SBUF, self.dst.buffer, self.src.buffer))
        rows = 4 if self.has_rdispls else 3
        ranks = self.replica_group.size
        wanted = (1, rows, ranks) if self.metadata_tensor.on_chip else (rows, ranks)
        if tuple(self.metadata_tensor.shape) != wanted or not self.metadata_tensor.is_contiguous():
            got = list(self.metadata_tensor.shape)
            raise rules.fail(
                self,
                "shape",
                f"metadata_tensor must be dense {list(wanted)}, it is {got}",
                ["metadata_tensor"],
            )

    def traffic(self) -> tuple[float, float, int]:
        """As if every slot were full: counts are known at run time."""
        n = self.replica_group.size
        return self.dst.nbytes, self.dst.nbytes * (n - 1) / n, 1

    def sends(self, table: np.ndarray, members: tuple[int, ...]) -> list[tuple[int, int]]:
        """(count, displacement) of each chunk a rank sends, from its metadata."""
        return [(int(table[SEND_COUNT, 0]), int(table[SEND_DISPL, 0]))]

    def chunk_for(self, index: int) -> int:
        """Which of the chunks a rank sends is for the member at an index."""
        return 0

    def sources(self, rank: int, members: tuple[int, ...]) -> list[np.ndarray]:
        """The metadata and the chunks, one after the other."""
        table, src = self._table(members), _flat(self.src)
        chunks = []
        for count, begin in self.sends(table, members):
            self._inside("src", rank, SEND_DISPL, begin + count, src.size)
            if count:
                chunks.append(reading(src[begin : begin + count]).copy())
        sent = np.concatenate(chunks) if chunks else np.empty(0, self.src.dtype.storage)
        return [sent, table]

    def receive(self, rank: int, members: tuple[int, ...], received: Received) -> None:
        mine, dst = members.index(rank), _flat(self.dst)
        table, slot = self._table(members), self.dst.size // len(members)
        taken: list[tuple[int, int]] = []
        counts = []
        for index, sender in enumerate(members):
            theirs = received.array(index, 1).reshape(table.shape)
            sends = self.sends(theirs, members)
            chunk = self.chunk_for(mine)
            count, first = sends[chunk][0], sum(c for c, _ in sends[:chunk])
            start = int(table[RECV_DISPLS, index]) if self.has_rdispls else index * slot
            end = start + count
            if not self.has_rdispls and count > slot:
                self._inside(f"the slot of dst for rank {sender}", sender, SEND_COUNT, count, slot)
            self._inside("dst", rank, RECV_DISPLS if self.has_rdispls else SEND_COUNT, end, dst.size)
            self._apart(taken, start, end)
            counts.append(count)
            if count:
                data = received.array(index)[first : first + count]
                if data.size != count:
                    raise self._wrong_message(sender, f"{data.size} elements, its metadata has {count}")
                self.land(dst[start:end], data)
        if not self.recv_counts_known:
            writing(self._row(RECV_COUNTS))[...] = np.asarray(counts, np.uint32)

    def _row(self, row: int) -> View:
        table = self.metadata_tensor
        return table[:, row : row + 1] if table.on_chip else table[row : row + 1]

    def _table(self, members: tuple[int, ...]) -> np.ndarray:
        """The rows that are read; row 2 is an output."""
        rows = 4 if self.has_rdispls else 3
        table = np.zeros((rows, len(members)), np.uint32)
        for row in (SEND_COUNT, SEND_DISPL, *((RECV_DISPLS,) if self.has_rdispls else ())):
            table[row] = np.asarray(reading(self._read_part(row))).reshape(-1)
        return table

    def _read_part(self, row: int) -> View:
        """Of its first two rows, only the first entry counts."""
        found = self._row(row)
        return found[..., 0:1]

    def _inside(self, what: str, rank: int, row: int, end: int, size: int) -> None:
        if end > size:
            raise rules.fail(
                self,
                "index",
                f"rank {rank}, metadata row {row}: elements up to {end} of {what}, which has {size}",
                ["src" if what == "src" else "dst"],
            )

    def _apart(self, taken: list[tuple[int, int]], start: int, end: int) -> None:
        for a, b in taken:
            if start < b and a < end:
                raise rules.fail(
                    self,
                    "collective-overlap",
                    f"two chunks land on elements {max(a, start)} to {min(b, end)} of dst",
                    ["dst"],
                )
        taken.append((start, end))


class AllToAllV(AllGatherV):
    """Like AllGatherV, with counts and displacements per destination; row 3 has the places of the chunks."""

    public = "all_to_all_v"

    def _check_displacements(self, machine: Machine) -> None:
        if self.has_rdispls:
            rules.generation(self, 4, machine, "has_rdispls=True")

    def sends(self, table: np.ndarray, members: tuple[int, ...]) -> list[tuple[int, int]]:
        return [(int(count), int(begin)) for count, begin in table[:RECV_COUNTS].T]

    def chunk_for(self, index: int) -> int:
        return index

    def _read_part(self, row: int) -> View:
        return self._row(row)


def _flat(view: View) -> View:
    return view.reshape((view.size,))
