"""Collectives whose sizes are known at run time (collectives.md 2.10, 2.11), for a world of one rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import warn
from ..hardware.machine import Machine
from ..hardware.memories import SBUF
from ..isa import rules
from ..isa.dma import transfer
from ..program.instruction import In, InOut, Out
from ..run.core import issue
from ..tensors import View
from .groups import RANK, ReplicaGroup, as_group
from .instruction import Collective, paired, reading, writing

SEND_COUNT, SEND_DISPL, RECV_COUNTS, RECV_DISPLS = range(4)  # rows of the metadata tensor


def all_gather_v(
    srcs,
    dsts,
    replica_group,
    metadata_tensor,
    recv_counts_known=False,
    has_rdispls=False,
    priority=None,
    name=None,
):
    """Slot j of dst = what rank j sends; how much and from where, the metadata says at run time."""
    group = as_group(replica_group, "all_gather_v")
    for dst, src in paired("all_gather_v", srcs, dsts):
        issue(AllGatherV(dst, src, group, metadata_tensor, recv_counts_known, has_rdispls, priority, name))


def all_to_all_v(
    srcs,
    dsts,
    replica_group,
    metadata_tensor,
    recv_counts_known=False,
    has_rdispls=False,
    priority=None,
    name=None,
):
    """What rank j sends to this one lands in dst; how much, from and to where, the metadata says."""
    group = as_group(replica_group, "all_to_all_v")
    for dst, src in paired("all_to_all_v", srcs, dsts):
        issue(AllToAllV(dst, src, group, metadata_tensor, recv_counts_known, has_rdispls, priority, name))


class AllGatherV(Collective):
    """Flat buffers of elements; rows of the metadata: send count, send displacement, receive counts."""

    public = "all_gather_v"
    partial = (0, 1, 2)

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
        wanted = (1, rows, 1) if self.metadata_tensor.on_chip else (rows, 1)
        if tuple(self.metadata_tensor.shape) != wanted or not self.metadata_tensor.is_contiguous():
            got = list(self.metadata_tensor.shape)
            raise rules.fail(
                self,
                "shape",
                f"metadata_tensor must be dense {list(wanted)}, it is {got}",
                ["metadata_tensor"],
            )

    def perform(self) -> None:
        count = self._entry(SEND_COUNT)
        begin = self._entry(SEND_DISPL)
        target = self._entry(RECV_DISPLS) if self.has_rdispls else 0
        src, dst = _flat(self.src), _flat(self.dst)
        self._inside("src", SEND_DISPL, begin + count, src.size)
        self._inside("dst", RECV_DISPLS if self.has_rdispls else SEND_COUNT, target + count, dst.size)
        if count:
            sent, landing = src[begin : begin + count], dst[target : target + count]
            transfer(writing(landing), reading(sent), self.src.dtype, self.dst.dtype)
        if not self.recv_counts_known:
            writing(self._cell(RECV_COUNTS))[...] = count

    def _cell(self, row: int) -> View:
        table = self.metadata_tensor
        return table[:, row : row + 1] if table.on_chip else table[row : row + 1]

    def _entry(self, row: int) -> int:
        return int(np.asarray(reading(self._cell(row))).reshape(-1)[0])

    def _inside(self, name: str, row: int, end: int, size: int) -> None:
        if end > size:
            raise rules.fail(
                self,
                "index",
                f"rank {RANK}, metadata row {row}: elements up to {end} of {name}, which has {size}",
                [name],
            )


class AllToAllV(AllGatherV):
    """Like AllGatherV, with counts and displacements per destination; row 3 says where chunks land."""

    public = "all_to_all_v"

    def _check_displacements(self, machine: Machine) -> None:
        if self.has_rdispls:
            rules.generation(self, 4, machine, "has_rdispls=True")


def _flat(view: View) -> View:
    return view.reshape((view.size,))
