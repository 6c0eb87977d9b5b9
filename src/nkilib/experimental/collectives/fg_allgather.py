"""A fine-grained all-gather: a ring whose buffers are stored to the result while they are sent on."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups

from .rings import check_degree, consecutive_groups, ring_buffers, send_on, slot_at, slot_numbers

BUFFER_BYTES = 64 * 1024  # of a partition, for each of the two buffers


@nki.jit
def fine_grained_allgather(
    lhs: Tensor, tp_degree: int, num_groups: int, force_hbm_cc: bool = False
) -> Tensor:
    """out [tp_degree, m, K] = lhs [m, K] of all ranks, by a ring; out.reshape(M, K) is the gathered matrix.

    The ranks form num_groups rings of tp_degree (4, 8, ..., 128) consecutive ranks. Buffers are in SBUF
    where they fit, otherwise or with `force_hbm_cc` in HBM. Two cores move half of the rows each.

    >>> from nki.ranks import run_ranks
    >>> x = np.arange(4 * 6 * 2, dtype=np.float32).reshape(4, 6, 2)
    >>> out = run_ranks(fine_grained_allgather, 4, lambda rank: (x[rank], 4, 1))
    >>> bool((out[3] == x).all())
    True
    """
    check_degree(tp_degree)
    assert_tensors((("lhs", lhs),))
    kernel_assert(len(lhs.shape) == 2, f"lhs: got {len(lhs.shape)} dimensions, allowed are 2")
    rows, columns = lhs.shape
    cores = nl.num_programs(0)
    kernel_assert(rows % cores == 0, f"lhs: got {rows} rows, allowed are multiples of {cores}")
    group = consecutive_groups(tp_degree, num_groups)
    out = nl.ndarray((tp_degree, rows, columns), lhs.dtype, buffer=nl.shared_hbm, name="out")
    numbers = slot_numbers(tp_degree, num_groups)
    first, end = program_share(rows)
    count = end - first
    partitions = tile_rows(count)
    if force_hbm_cc or count // partitions * columns * sizeinbytes(lhs.dtype) > BUFFER_BYTES:
        ring_in_hbm(out, lhs, first, count, group, numbers)
    else:
        ring_in_sbuf(out, lhs, first, count, group, numbers)
    return out


def tile_rows(rows: int) -> int:
    """Return over how many partitions the rows are spread: the largest divisor up to 128."""
    for partitions in range(min(rows, PMAX), 0, -1):
        if rows % partitions == 0:
            return partitions
    return 1


def ring_in_sbuf(
    out: Tensor, lhs: Tensor, first: int, count: int, group: ReplicaGroups, numbers: Tensor | None
) -> None:
    """Run the ring in SBUF: each core has its own buffers, with several rows in each partition."""
    degree, _, columns = out.shape
    partitions = tile_rows(count)
    each = count // partitions
    channels = 2 if (each * columns) % 2 == 0 else 1
    shape = (partitions, each * columns)
    buffers = [nl.ndarray(shape, lhs.dtype), nl.ndarray(shape, lhs.dtype)]
    places = out.reshape((degree, out.shape[1] // each, each * columns))
    begin = first // each
    nisa.dma_copy(buffers[0], lhs[first : first + count].reshape((partitions, each * columns)))
    for step in range(degree):
        if step < degree - 1:
            send_on(buffers, step, channels, group)
        slot = slot_at(step, group, numbers)
        nisa.dma_copy(places[nl.ds(slot, 1), begin : begin + partitions, :], buffers[step % 2])


def ring_in_hbm(
    out: Tensor, lhs: Tensor, first: int, count: int, group: ReplicaGroups, numbers: Tensor | None
) -> None:
    """Run the ring in HBM: the cores share the buffers, and each fills and empties its half."""
    degree, rows, columns = out.shape
    channels = 2 if rows % 2 == 0 else 1
    buffers = ring_buffers((rows, columns), lhs.dtype)
    nisa.dma_copy(buffers[0][first : first + count], lhs[first : first + count])
    for step in range(degree):
        if step < degree - 1:
            send_on(buffers, step, channels, group)
        slot = slot_at(step, group, numbers)
        place = out[nl.ds(slot, 1), first : first + count, :]
        nisa.dma_copy(place, buffers[step % 2][first : first + count])


def fine_grained_allgather_ref(inputs: list, tp_degree: int, num_groups: int) -> list:
    """Return the results of all ranks for their inputs."""
    rings = [np.stack(inputs[g * tp_degree : (g + 1) * tp_degree]) for g in range(num_groups)]
    return [rings[rank // tp_degree] for rank in range(len(inputs))]
