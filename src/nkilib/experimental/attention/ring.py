"""What ring attention's kernels share: the ring, and which worker's tokens a rank holds at a step."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import program_share


class Ring(nl.NKIObject):
    """The workers of each replica group, one after the other. At step i, worker w holds what w - i had."""

    def __init__(self, replica_groups, num_workers: int):
        groups = [list(range(num_workers))] if replica_groups is None else replica_groups
        self.group = ncc.ReplicaGroup(groups)
        self.workers = num_workers
        kernel_assert(
            len(self.group[0]) == num_workers,
            f"num_workers: got {num_workers}, allowed is the size of the groups, {len(self.group[0])}",
        )
        self.rank = ncc.rank_id() if num_workers > 1 else None

    def send_on(self, buffers: list, step: int) -> None:
        """Every tensor of this step's buffers goes to the next worker, each on a channel of its own."""
        here, there = buffers[step % 2], buffers[(step + 1) % 2]
        ncc.collective_permute_implicit(
            by_channel(here), by_channel(there), self.group, channel_ids=list(range(len(here)))
        )

    def offset_at(self, step: int, tokens: int, striped: bool) -> Any:
        """[1, 1] int32: the position of this worker's first query, counted from the first key it holds.

        Contiguous: (w - w') tokens. Striped: 0, or -1 where the keys stand behind the queries.
        """
        ranks = 1
        for members in self.group:
            ranks = max(ranks, max(members) + 1)
        table = np.zeros((1, ranks), np.int32)
        for members in self.group:
            for place in range(self.workers):
                behind = step > place  # the keys belong to a later worker
                distance = step - self.workers if behind else step
                table[0, members[place]] = (-1 if behind else 0) if striped else distance * tokens
        offset = nl.ndarray((1, 1), nl.int32, buffer=nl.private_hbm)
        nisa.dma_copy(offset, nl.shared_constant(table)[:, nl.ds(self.rank, 1)])
        return offset


def by_channel(tensors: list) -> list:
    """One channel for each tensor."""
    found = []
    for tensor in tensors:
        found.append([tensor])
    return found


def named(shape: Any, dtype: Any, name: str) -> Any:
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm, name=name)


def copy_rows(dst: Any, src: Any) -> None:
    """dst = src, [n, rows, columns]; each core copies its share of the rows."""
    count = src.shape[0] * src.shape[1]
    first, end = program_share(count)
    rows = (count, src.shape[2])
    if first < end:
        nisa.dma_copy(dst.reshape(rows)[first:end], src.reshape(rows)[first:end])
