"""What experts have computed, back to the ranks of the tokens."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.kernel_assert import assert_shape
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.a2av_train.packing import check_exchange, exchange, load_counts
from nkilib.experimental.collectives.rings import ReplicaGroups, named_tensor
from nkilib.experimental.misc.indexed_rows import rows_at


@nki.jit
def unpermute_a2av(
    output: Tensor, send_indices: Tensor, recv_counts: Tensor, replica_group: ReplicaGroups
) -> Tensor:
    """Send rows back to the ranks they came from, and add them up at their tokens, [T, H].

    Args:
        output: [EP T, H] in bfloat16, float16 or float32: recv_counts[s] rows for rank s from row s T on.
        send_indices: [T, EP] int32, as given to `permute_a2av`; within a column every token occurs once.
        recv_counts: [1, EP] int32 or uint32: how many tokens came from each rank.
        replica_group: one or more groups of EP ranks.

    Sums are in float32; a token that went nowhere is zero. Two cores share the ranks when they pack, and the
    columns when they add.

    >>> rows, places = np.array([[5.0], [0.0]], np.float32), np.array([[1], [2]], np.int32)
    >>> unpermute_a2av(rows, places, np.array([[1]], np.int32), ((0,),)).tolist()
    [[0.0], [5.0]]
    """
    get_verified_program_sharding_info("unpermute_a2av", (0, 1), 2)
    ranks = check_exchange(("output", output), send_indices, ("recv_counts", recv_counts), replica_group)
    tokens, width = send_indices.shape[0], output.shape[1]
    assert_shape(output, (ranks * tokens, width), "output")
    counts = load_counts(recv_counts)
    send = named_tensor(output.shape, output.dtype, "send")
    first, end = program_share(ranks)
    for rank in range(first, end):
        for tile in TiledRange(tokens, PMAX):
            start = rank * tokens + tile.start_offset
            place = counts.places(rank, tile)
            rows = load(output[start : start + tile.size])
            nisa.dma_copy(rows_at(send, place), rows, oob_mode=nisa.oob_mode.skip)
    received = exchange(send, counts, replica_group)[0]
    out = nl.ndarray((tokens, width), output.dtype, buffer=nl.shared_hbm)
    left, right = program_share(width)
    if left < right:
        total = nl.ndarray((tokens, right - left), nl.float32, buffer=nl.private_hbm)
        clear(total, zero_tile(right - left, nl.float32))
        add_received(total, received[:, left:right], send_indices)
        for tile in TiledRange(tokens, PMAX):
            rows = slice(tile.start_offset, tile.end_offset)
            store(out[rows, left:right], load(total[rows]))
    return out


def add_received(total: Tensor, received: Tensor, send_indices: Tensor) -> None:
    """total[index] += the row that came back for it, where there is one."""
    tokens, ranks = send_indices.shape
    for rank in range(ranks):
        for tile in TiledRange(tokens, PMAX):
            index = load(send_indices[tile.start_offset : tile.end_offset, rank : rank + 1])
            start = rank * tokens + tile.start_offset
            rows = load(received[start : start + tile.size], nl.float32)
            there = rows_at(total, index)
            nisa.dma_compute(there, [there, rows], nl.add, oob_mode=nisa.oob_mode.skip)


def unpermute_a2av_ref(outputs: list, send_indices: list, recv_counts: list) -> list[np.ndarray]:
    """Results of every rank of one group in float64, from the arguments of every rank."""
    ranks, tokens = len(outputs), len(send_indices[0])
    results = []
    for here in range(ranks):
        total = np.zeros((tokens, np.shape(outputs[0])[1]))
        for there in range(ranks):
            count = int(np.ravel(recv_counts[there])[here])
            rows = np.asarray(outputs[there])[here * tokens : here * tokens + count].astype(np.float64)
            np.add.at(total, send_indices[here][:count, there], rows)
        results.append(total)
    return results
