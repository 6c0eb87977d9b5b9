"""Collectives between tensors in HBM, each as a kernel: copy in, exchange, copy out.

Hardware does not exchange the arguments of a kernel themselves, so each is copied to a named tensor first.
On two cores each copies half of the rows, and both make the call.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups

from .rings import named_tensor


@nki.jit
def all_reduce_hbm_kernel(input: Tensor, replica_group: ReplicaGroups) -> Tensor:
    """out = the sum of input over the ranks of the group, on each of them.

    >>> from nki.ranks import run_ranks
    >>> x = np.arange(4, dtype=np.float32).reshape(2, 2, 1)
    >>> out = run_ranks(all_reduce_hbm_kernel, 2, lambda rank: (x[rank], ((0, 1),)))
    >>> out[1].tolist()
    [[2.0], [4.0]]
    """
    src = source_of(input)
    dst = named_tensor(input.shape, input.dtype, "dst")
    ncc.all_reduce([src], [dst], replica_group, nl.add)
    return result_of(dst)


@nki.jit
def all_gather_hbm_kernel(input: Tensor, replica_group: ReplicaGroups, num_ranks: int) -> Tensor:
    """out = the inputs of the ranks, one after the other along dimension 0."""
    check_ranks(replica_group, num_ranks)
    src = source_of(input)
    dst = named_tensor(with_rows(input, input.shape[0] * num_ranks), input.dtype, "dst")
    ncc.all_gather([src], [dst], replica_group, 0)
    return result_of(dst)


@nki.jit
def reduce_scatter_hbm_kernel(input: Tensor, replica_group: ReplicaGroups, num_ranks: int) -> Tensor:
    """out = this rank's part, of num_ranks along dimension 0, of the sum of input over the ranks."""
    check_ranks(replica_group, num_ranks)
    check_parts(input, num_ranks)
    src = source_of(input)
    dst = named_tensor(with_rows(input, input.shape[0] // num_ranks), input.dtype, "dst")
    ncc.reduce_scatter([src], [dst], replica_group, 0, nl.add)
    return result_of(dst)


@nki.jit
def all_to_all_hbm_kernel(input: Tensor, replica_group: ReplicaGroups) -> Tensor:
    """Part j of out = this rank's part of the input of rank j, along dimension 0."""
    check_parts(input, len(replica_group[0]))
    src, dst = source_of(input), named_tensor(input.shape, input.dtype, "dst")
    ncc.all_to_all([src], [dst], replica_group, 0)
    return result_of(dst)


@nki.jit
def rank_id_kernel(in_tensor: Tensor) -> Tensor:
    """out = in_tensor[rank], [1, ...]: the rank is a run-time offset."""
    assert_tensors((("in_tensor", in_tensor),))
    out = named_tensor(with_rows(in_tensor, 1), in_tensor.dtype, "out")
    nisa.dma_copy(out, in_tensor[nl.ds(ncc.rank_id(), 1)])
    return out


@nki.jit
def dma_copy_rank_id_kernel(in_tensor: Tensor, rank_id_lookup: Tensor) -> Tensor:
    """out = in_tensor[rank_id_lookup[rank]], [1, ...]; the table entry passes through SBUF."""
    assert_tensors((("in_tensor", in_tensor), ("rank_id_lookup", rank_id_lookup)))
    entries = rank_id_lookup.reshape((rank_id_lookup.shape[0], 1))
    entry = nl.ndarray((1, 1), rank_id_lookup.dtype)
    nisa.dma_copy(entry, entries[nl.ds(ncc.rank_id(), 1)])
    row = nisa.register_alloc()
    nisa.register_load(row, entry)
    out = named_tensor(with_rows(in_tensor, 1), in_tensor.dtype, "out")
    nisa.dma_copy(out, in_tensor[nl.ds(row, 1)])
    return out


def check_ranks(replica_group: ReplicaGroups, num_ranks: int) -> None:
    size = len(replica_group[0])
    kernel_assert(num_ranks == size, f"num_ranks: got {num_ranks}, allowed is the size of the groups, {size}")


def check_parts(input: Tensor, ranks: int) -> None:
    assert_tensors((("input", input),))
    kernel_assert(
        input.shape[0] % ranks == 0, f"input: got {input.shape[0]} rows, allowed are multiples of {ranks}"
    )


def with_rows(tensor: Tensor, rows: int) -> tuple[int, ...]:
    """Return the shape of a tensor with another number of rows."""
    return (rows,) + tuple(tensor.shape[1:])


def source_of(input: Tensor) -> Tensor:
    """Copy an argument to a named tensor."""
    assert_tensors((("input", input),))
    src = named_tensor(input.shape, input.dtype, "src")
    copy_share(src, input)
    return src


def result_of(dst: Tensor) -> Tensor:
    """Copy the received tensor to the result."""
    out = named_tensor(dst.shape, dst.dtype, "out")
    copy_share(out, dst)
    return out


def copy_share(dst: Tensor, src: Tensor) -> None:
    """Copy src to dst between HBM tensors; each core copies its share of the rows."""
    first, end = program_share(dst.shape[0])
    if first < end:
        nisa.dma_copy(dst[first:end], src[first:end])


# ---- references: what every rank has, in a list --------------------------------------------------


def all_reduce_hbm_kernel_ref(inputs: list, group: ReplicaGroups) -> list:
    """Return the results of all ranks for their inputs."""
    return [sum_over(inputs, members_of(group, rank)) for rank in range(len(inputs))]


def all_gather_hbm_kernel_ref(inputs: list, group: ReplicaGroups) -> list:
    """Return the results of all ranks for their inputs."""
    return [np.concatenate([inputs[r] for r in members_of(group, rank)]) for rank in range(len(inputs))]


def reduce_scatter_hbm_kernel_ref(inputs: list, group: ReplicaGroups) -> list:
    """Return the results of all ranks for their inputs."""
    found = []
    for rank in range(len(inputs)):
        members = members_of(group, rank)
        found.append(np.split(sum_over(inputs, members), len(members))[members.index(rank)])
    return found


def all_to_all_hbm_kernel_ref(inputs: list, group: ReplicaGroups) -> list:
    """Return the results of all ranks for their inputs."""
    found = []
    for rank in range(len(inputs)):
        members = members_of(group, rank)
        parts = [np.split(inputs[r], len(members))[members.index(rank)] for r in members]
        found.append(np.concatenate(parts))
    return found


def members_of(group: ReplicaGroups, rank: int) -> list:
    return next(list(members) for members in group if rank in members)


def sum_over(inputs: list, members: list) -> np.ndarray:
    total = inputs[members[0]].astype(np.float32)
    for rank in members[1:]:
        total = total + inputs[rank].astype(np.float32)
    return total.astype(inputs[0].dtype)
