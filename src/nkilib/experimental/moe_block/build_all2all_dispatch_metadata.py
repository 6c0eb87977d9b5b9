"""How many tokens go to each rank, each token once, and where they begin in the buffer that is sent."""

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
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor

MAX_RANKS = 512  # float32 of one PSUM bank
MAX_ELEMENTS = 2**24  # counts are exact in float32


@nki.jit
def build_all2all_dispatch_metadata(
    expert_index: Tensor, num_experts: int, num_elements_per_token: int, replica_group_size: int
) -> Tensor:
    """Return [4, R] uint32: elements sent to each rank, their exclusive running sum, and two rows of zeros.

    expert_index [T, K] int32 holds the experts of each token; rank r has experts r E/R to (r + 1) E/R - 1. A
    token counts once for a rank, however many of its experts are there; counts are tokens times
    num_elements_per_token, up to 2^24 in all. Experts outside 0 to E - 1 are not counted. One core does all.
    Read of the page: the arguments, deduplicated counts and displacements; the layout of the result is that
    of all_to_all_v's metadata, whose last rows the collective fills.

    >>> build_all2all_dispatch_metadata(np.array([[0, 1], [2, 0]], np.int32), 4, 10, 2).tolist()
    [[20, 10], [0, 20], [0, 0], [0, 0]]
    """
    core, ranks = get_verified_program_sharding_info("build_all2all_dispatch_metadata")[2], replica_group_size
    check(expert_index, num_experts, num_elements_per_token, ranks)
    result = nl.ndarray((4, ranks), nl.uint32, buffer=nl.shared_hbm)
    if core > 0:
        return result
    tokens, k = expert_index.shape
    starts = nl.ndarray((min(tokens, PMAX), ranks), nl.float32, buffer=nl.sbuf)
    nisa.iota(starts, [[num_experts // ranks, ranks]])
    ends = like(starts)
    nisa.tensor_scalar(ends, starts, nl.add, float(num_experts // ranks))
    ones = nl.ndarray((min(tokens, PMAX), 1), nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(ones, 1.0)
    bank = nl.ndarray((1, ranks), nl.float32, buffer=nl.psum)
    for tile in TiledRange(tokens, PMAX):
        index = load(expert_index[tile.start_offset : tile.end_offset], nl.float32)
        goes = nl.ndarray((tile.size, ranks), nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(goes, 0.0)
        for column in range(k):
            expert = index[:, column : column + 1]
            here, there = like(goes), like(goes)
            nisa.tensor_scalar(here, starts[0 : tile.size], nl.less_equal, expert)
            nisa.scalar_tensor_tensor(there, ends[0 : tile.size], nl.greater, expert, nl.multiply, here)
            nisa.tensor_tensor(goes, goes, there, op=nl.maximum)
        nisa.nc_matmul(bank, ones[0 : tile.size], goes)
    counts, factors = like(bank), like(bank)
    nisa.tensor_scalar(counts, bank, nl.multiply, float(num_elements_per_token))
    nisa.memset(factors, 1.0)
    sums = like(bank)
    nisa.tensor_tensor_scan(sums, factors, counts, 0.0, op0=nl.multiply, op1=nl.add)
    table = nl.ndarray((1, 4, ranks), nl.uint32, buffer=nl.sbuf)
    nisa.memset(table, 0)
    nisa.tensor_copy(table[:, 0, :], counts)
    nisa.tensor_tensor(table[:, 1, :], sums, counts, op=nl.subtract)
    nisa.dma_copy(result.reshape((1, 4, ranks)), table)
    return result


def check(index: Tensor, experts: int, elements: int, ranks: int) -> None:
    assert_tensors((("expert_index", index),))
    kernel_assert(
        len(index.shape) == 2 and index.dtype in (nl.int32, nl.uint32),
        f"expert_index: got {index.dtype} of shape {tuple(index.shape)}, expected int32 (T, K)",
    )
    kernel_assert(1 <= ranks <= MAX_RANKS, f"replica_group_size: got {ranks}, allowed are 1 to {MAX_RANKS}")
    kernel_assert(
        experts >= ranks and experts % ranks == 0,
        f"num_experts: got {experts}, allowed are positive multiples of {ranks} ranks",
    )
    most = MAX_ELEMENTS // (index.shape[0] * min(ranks, index.shape[1]))
    kernel_assert(1 <= elements <= most, f"num_elements_per_token: got {elements}, allowed are 1 to {most}")


def build_all2all_dispatch_metadata_ref(
    expert_index: np.ndarray, num_experts: int, num_elements_per_token: int, replica_group_size: int
) -> np.ndarray:
    """Count sets in numpy."""
    each = num_experts // replica_group_size
    counts = np.zeros(replica_group_size, np.int64)
    for token in np.asarray(expert_index):
        for rank in {int(expert) // each for expert in token if 0 <= expert < num_experts}:
            counts[rank] += num_elements_per_token
    return np.stack([counts, np.cumsum(counts) - counts, 0 * counts, 0 * counts]).astype(np.uint32)
