"""Counts and offsets of the rows that go to each rank: comparisons, summed over the tokens by TensorE."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor

MAX_RANKS = 511  # one boundary more than ranks, in a PSUM bank


@nki.jit
def build_all_to_all_v_metadata(
    expert_index: Tensor,
    replica_group_size: int,
    E: int,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
) -> Tensor:
    """Count the rows for each rank and find where they begin; [3, replica_group_size] uint32.

    expert_index [T, K] int32 holds the experts of each token; rank r has experts r E/R to (r + 1) E/R - 1.
    Row 0: (token, expert) pairs for each rank; row 1: their exclusive running sum; row 2: zeros, which the
    collective replaces by what it receives. recv_counts_known and has_rdispls (a fourth row) are not
    supported, as documented. An expert outside 0 to E - 1 is an out-of-bounds error.

    >>> build_all_to_all_v_metadata(np.array([[0, 3], [2, 3]], np.int32), 2, 4).tolist()
    [[1, 3], [0, 1], [0, 0]]
    """
    ranks, core = replica_group_size, get_verified_program_sharding_info("build_all_to_all_v_metadata")[2]
    check(expert_index, ranks, E, recv_counts_known, has_rdispls)
    result = nl.ndarray((3, ranks), nl.uint32, buffer=nl.shared_hbm)
    tokens, k = expert_index.shape
    if core == 0:
        rows = min(tokens, PMAX)
        ones = nl.ndarray((rows, 1), nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(ones, 1.0)
        borders = nl.ndarray((rows, ranks + 1), nl.float32, buffer=nl.sbuf)
        nisa.iota(borders, [[E // ranks, ranks + 1]])
        below = nl.ndarray((1, ranks + 1), nl.float32, buffer=nl.psum)
        for tile in TiledRange(tokens, PMAX):
            index = load(expert_index[tile.start_offset : tile.end_offset], nl.float32)
            for column in range(k):
                less = nl.ndarray((tile.size, ranks + 1), nl.bfloat16, buffer=nl.sbuf)
                nisa.tensor_scalar(less, borders[0 : tile.size], nl.greater, index[:, column : column + 1])
                nisa.nc_matmul(below, ones[0 : tile.size], less)
        sums = nl.ndarray((1, ranks + 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(sums, below)
        table = nl.ndarray((1, 3, ranks), nl.uint32, buffer=nl.sbuf)
        nisa.memset(table, 0)
        nisa.tensor_tensor(table[:, 0, :], sums[:, 1:], sums[:, 0:ranks], op=nl.subtract)
        nisa.tensor_scalar(table[:, 1, :], sums[:, 0:ranks], nl.subtract, sums[:, 0:1])
        uncounted = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
        counted = sums[:, ranks : ranks + 1]
        nisa.tensor_scalar(
            uncounted, sums[:, 0:1], nl.subtract, counted, op1=nl.add, operand1=float(tokens * k)
        )
        # the result has one row: pairs that belong to no rank move it out of bounds
        row = result.ap([[3 * ranks, 1], [1, 3 * ranks]], vector_offset=uncounted)
        nisa.dma_copy(row, table.reshape((1, 3 * ranks)))
    return result


def check(expert_index: Tensor, ranks: int, experts: int, recv_counts_known: bool, has_rdispls: bool) -> None:
    assert_tensors((("expert_index", expert_index),))
    kernel_assert(not recv_counts_known, "recv_counts_known: got True, allowed is False")
    kernel_assert(not has_rdispls, "has_rdispls: got True, allowed is False")
    kernel_assert(
        len(expert_index.shape) == 2,
        f"expert_index: got shape {tuple(expert_index.shape)}, expected (T, K)",
    )
    kernel_assert(
        expert_index.dtype in (nl.int32, nl.uint32),
        f"expert_index: got {expert_index.dtype}, allowed is int32",
    )
    kernel_assert(1 <= ranks <= MAX_RANKS, f"replica_group_size: got {ranks}, allowed are 1 to {MAX_RANKS}")
    kernel_assert(
        experts >= ranks and experts % ranks == 0,
        f"E: got {experts}, allowed are positive multiples of {ranks} ranks",
    )


def build_all_to_all_v_metadata_ref(expert_index: np.ndarray, replica_group_size: int, E: int) -> np.ndarray:
    """Compute the same in numpy."""
    ranks = np.asarray(expert_index).ravel() // (E // replica_group_size)
    counts = np.array([(ranks == r).sum() for r in range(replica_group_size)])
    return np.stack([counts, np.cumsum(counts) - counts, 0 * counts]).astype(np.uint32)
