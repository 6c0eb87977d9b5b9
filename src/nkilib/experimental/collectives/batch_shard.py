"""Queries from tensor parallel to tensor and data parallel ranks: more heads, a part of the batches."""

from __future__ import annotations

from enum import Enum

import numpy as np

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_members, assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.collectives import source_of, with_rows
from nkilib.experimental.collectives.rings import ReplicaGroups, named_tensor


class AttnQBatchShardLayout(Enum):
    """Axes of the queries: (heads, B, S, d) or (d, B, heads, S)."""

    NBSd = 0
    dBnS = 1


@nki.jit
def attn_q_batch_shard(
    input: Tensor,
    iota_workers: Tensor,
    gathered_buf: Tensor,
    gqa_group_size: int,
    replica_group: ReplicaGroups,
    layout: AttnQBatchShardLayout = AttnQBatchShardLayout.NBSd,
    rank_id_in: Tensor | None = None,
) -> Tensor:
    """Return the queries of all heads of a group of ranks, for this rank's part of the batches.

    input is (n, B, S, d) (layout NBSd) or (d, B, 1, S) (dBnS); the result (G n, B / G, S, d) or (G, d, B / G,
    S), G = gqa_group_size being the size of the groups. iota_workers [1, ranks] int32 has the first batch of
    each rank, (rank % G) B / G; rank_id_in [1, 1] int32 is the rank where the caller knows it. gathered_buf
    is a workspace of the shape of input with G times as many rows; it is not written here. Every core
    computes the result alone: core 0 stores it.

    >>> from nki.ranks import run_ranks
    >>> x, table = np.arange(4, dtype=np.float32).reshape(2, 1, 2, 1, 1), np.array([[0, 1]], np.int32)
    >>> space = np.zeros((2, 2, 1, 1), np.float32)
    >>> out = run_ranks(attn_q_batch_shard, 2, lambda rank: (x[rank], table, space, 2, ((0, 1),)))
    >>> [o.ravel().tolist() for o in out]
    [[0.0, 2.0], [1.0, 3.0]]
    """
    core = get_verified_program_sharding_info("attn_q_batch_shard", (0, 1), 2)[2]
    check(input, iota_workers, gathered_buf, gqa_group_size, replica_group, layout, rank_id_in)
    rows, batches, groups = input.shape[0], input.shape[1], gqa_group_size
    gathered = named_tensor(with_rows(input, rows * groups), input.dtype, "gathered")
    ncc.all_gather([source_of(input)], [gathered], replica_group, 0)
    entry = nl.ndarray((1, 1), iota_workers.dtype, buffer=nl.sbuf)
    table = iota_workers.reshape((iota_workers.shape[1], 1))
    if rank_id_in is None:
        nisa.dma_copy(entry, table[nl.ds(ncc.rank_id(), 1)])
    else:
        rank = nisa.register_alloc()
        nisa.register_load(rank, rank_id_in)
        nisa.dma_copy(entry, table[nl.ds(rank, 1)])
    first = nisa.register_alloc()
    nisa.register_load(first, entry)
    each, rest = batches // groups, input.shape[2] * input.shape[3]
    flat = gathered.reshape((rows * groups, batches, rest))
    out = named_tensor((rows * groups, each, rest), input.dtype, "out")
    if core == 0:
        nisa.dma_copy(out, flat[:, nl.ds(first, each), :])
    if layout == AttnQBatchShardLayout.dBnS:
        return out.reshape((groups, rows, each, input.shape[3]))
    return out.reshape((rows * groups, each, input.shape[2], input.shape[3]))


def check(
    input: Tensor,
    table: Tensor,
    space: Tensor,
    groups: int,
    replica_group: ReplicaGroups,
    layout: AttnQBatchShardLayout,
    rank: Tensor | None,
) -> None:
    tensors = (("input", input), ("iota_workers", table), ("gathered_buf", space))
    assert_tensors(tensors, (("rank_id_in", rank),))
    assert_members(("layout", layout, AttnQBatchShardLayout))
    shape = tuple(input.shape)
    kernel_assert(len(shape) == 4, f"input: got shape {shape}, expected four axes, {layout.name}")
    kernel_assert(
        layout == AttnQBatchShardLayout.NBSd or shape[2] == 1,
        f"input: got {shape[2]} heads, allowed is 1 for dBnS",
    )
    size = len(replica_group[0])
    kernel_assert(groups == size, f"gqa_group_size: got {groups}, allowed is the size of the groups, {size}")
    kernel_assert(shape[1] % groups == 0, f"input: got {shape[1]} batches, allowed are multiples of {groups}")
    assert_shape(space, with_rows(input, shape[0] * groups), "gathered_buf")
    kernel_assert(
        len(table.shape) == 2 and table.shape[0] == 1 and table.dtype == nl.int32,
        f"iota_workers: got {table.dtype} of shape {tuple(table.shape)}, expected int32 (1, ranks)",
    )
    if rank is not None:
        assert_shape(rank, (1, 1), "rank_id_in")


def attn_q_batch_shard_ref(inputs: list, group: ReplicaGroups, layout: AttnQBatchShardLayout) -> list:
    """Return the results of all ranks for their inputs."""
    results = []
    for rank in range(len(inputs)):
        members = next(list(members) for members in group if rank in members)
        stacked = np.stack([inputs[member] for member in members])
        each = stacked.shape[2] // len(members)
        start = rank % len(members) * each
        part = stacked[:, :, start : start + each]
        flat = layout == AttnQBatchShardLayout.NBSd
        results.append(part.reshape(-1, *part.shape[2:]) if flat else part[:, :, :, 0])
    return results
