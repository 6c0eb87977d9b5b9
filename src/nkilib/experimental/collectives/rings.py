"""Rings: every rank sends its buffer to the next rank, until all ranks have received everything.

A kernel works on a buffer while it is sent on, which hides the communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.types import DTypeLike, Tensor

ReplicaGroups: TypeAlias = Sequence[Sequence[int]] | ncc.ReplicaGroup
DEGREES = (4, 8, 16, 32, 64, 128)


def check_degree(tp_degree: int) -> None:
    kernel_assert(tp_degree in DEGREES, f"tp_degree: got {tp_degree}, allowed are {DEGREES}")


def consecutive_groups(tp_degree: int, num_groups: int) -> ncc.ReplicaGroup:
    """Return num_groups rings of tp_degree consecutive ranks."""
    kernel_assert(num_groups >= 1, f"num_groups: got {num_groups}, allowed are 1 and more")
    groups = []
    for g in range(num_groups):
        groups.append(list(range(g * tp_degree, (g + 1) * tp_degree)))
    return ncc.ReplicaGroup(groups)


def slot_numbers(tp_degree: int, num_groups: int) -> Tensor | None:
    """Return [1, ranks]: the index of each rank in its ring. None where it equals the rank."""
    if num_groups == 1:
        return None
    numbers = nl.ndarray((1, num_groups * tp_degree), nl.int32)
    nisa.iota(numbers, [[0, num_groups], [1, tp_degree]], 0)
    return numbers


def slot_at(step: int, group: ReplicaGroups, numbers: Tensor | None) -> nisa.VirtualRegister:
    """Return a register: the index in the ring of the rank whose data is here after `step` steps."""
    rank = ncc.collective_permute_implicit_current_processing_rank_id(step, group)
    if numbers is None:
        return rank
    slot = nisa.register_alloc()
    nisa.register_load(slot, numbers[0:1, nl.ds(rank, 1)])
    return slot


def rank_table(group: ReplicaGroups, by_place: list) -> Tensor:
    """Return a constant [1, ranks] int32: for each rank the entry of its index in its group."""
    ranks = 1
    for members in group:
        ranks = max(ranks, max(members) + 1)
    table = np.zeros((1, ranks), np.int32)
    for members in group:
        for i in range(len(by_place)):
            table[0, members[i]] = by_place[i]
    return nl.shared_constant(table)


def named_tensor(shape: tuple[int, ...], dtype: DTypeLike, name: str) -> Tensor:
    """Allocate a tensor in shared HBM that collectives find by its name."""
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm, name=name)


def ring_buffers(shape: tuple[int, ...], dtype: DTypeLike) -> list:
    """Allocate two buffers in HBM: one holds the rank's data, the other receives."""
    found = []
    for i in range(2):
        found.append(named_tensor(shape, dtype, f"ring{i}"))
    return found


def send_on(buffers: list, step: int, channels: int, group: ReplicaGroups) -> None:
    """Send this step's buffer to the next rank's next buffer, split by rows or columns over the channels.

    A buffer is [rows, columns]; in SBUF the columns are split, since partitions stay where they are.
    """
    here, there = buffers[step % 2], buffers[(step + 1) % 2]
    ncc.collective_permute_implicit(
        pieces(here, channels), pieces(there, channels), group, channel_ids=list(range(channels))
    )


def pieces(buffer: Tensor, channels: int) -> list:
    """Return a list of one piece for each channel."""
    found = []
    if buffer.buffer == nl.sbuf:
        width = buffer.shape[1] // channels
        for c in range(channels):
            found.append([buffer[:, c * width : (c + 1) * width]])
    else:
        height = buffer.shape[0] // channels
        for c in range(channels):
            found.append([buffer[c * height : (c + 1) * height]])
    return found
