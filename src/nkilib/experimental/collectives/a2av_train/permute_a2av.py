"""Tokens to the ranks of their experts."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.kernel_assert import assert_shape
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.a2av_train.packing import (
    Counts,
    check_exchange,
    exchange,
    load_counts,
)
from nkilib.experimental.collectives.rings import ReplicaGroups, named_tensor
from nkilib.experimental.misc.indexed_rows import rows_at


@nki.jit
def permute_a2av(
    hidden_states: Tensor, send_indices: Tensor, send_counts: Tensor, replica_group: ReplicaGroups
) -> tuple[Tensor, Tensor]:
    """Send tokens to ranks; return what arrives, packed by sender, [EP T, H], and the metadata [4, EP]
    uint32.

    Args:
        hidden_states: [T, H] in bfloat16, float16 or float32.
        send_indices: [T, EP] int32: column d lists the tokens for rank d; T stands for none, and is behind.
        send_counts: [1, EP] int32 or uint32: how many tokens each column lists.
        replica_group: one or more groups of EP ranks.

    Rows of the metadata, in elements: sent to each rank, where that begins in the packed buffer, received
    from each rank, and where that begins in the result. Rows behind the last that arrived are zero. The
    collective delivers slots of T rows; the kernel packs them. Two cores share the ranks.

    >>> x, places = np.array([[1.0], [2.0]], np.float32), np.array([[1], [2]], np.int32)
    >>> rows, table = permute_a2av(x, places, np.array([[1]], np.int32), ((0,),))
    >>> rows.tolist(), table.tolist()
    ([[2.0], [0.0]], [[1], [0], [1], [0]])
    """
    get_verified_program_sharding_info("permute_a2av", (0, 1), 2)
    ranks = check_exchange(
        ("hidden_states", hidden_states), send_indices, ("send_counts", send_counts), replica_group
    )
    tokens, width = hidden_states.shape
    assert_shape(send_indices, (tokens, ranks), "send_indices")
    counts = load_counts(send_counts)
    send = named_tensor((ranks * tokens, width), hidden_states.dtype, "send")
    first, end = program_share(ranks)
    for rank in range(first, end):
        for tile in TiledRange(tokens, PMAX):
            index = load(send_indices[tile.start_offset : tile.end_offset, rank : rank + 1])
            used, inside = new_column(tile.size), like(index)
            nisa.tensor_scalar(used, index, nl.less, float(tokens))
            nisa.tensor_scalar(inside, index, nl.minimum, float(tokens - 1))
            rows = nl.ndarray((tile.size, width), send.dtype, buffer=nl.sbuf)
            nisa.dma_copy(rows, rows_at(hidden_states, inside))
            place = counts.places(rank, tile, used)
            nisa.dma_copy(rows_at(send, place), rows, oob_mode=nisa.oob_mode.skip)
    received, metadata = exchange(send, counts, replica_group)
    arrived = arrived_counts(metadata, width)
    out = nl.ndarray(send.shape, send.dtype, buffer=nl.shared_hbm)
    table = nl.ndarray((4, ranks), nl.uint32, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        clear(out, zero_tile(width, out.dtype))
        arrived.store(table, 2, width)
        counts.store(table, 0, width)
    if nl.num_programs(0) > 1:
        nisa.core_barrier(out, (0, 1))
    for rank in range(first, end):
        for tile in TiledRange(tokens, PMAX):
            start = rank * tokens + tile.start_offset
            rows = load(received[start : start + tile.size])
            place = arrived.places(rank, tile)
            nisa.dma_copy(rows_at(out, place), rows, oob_mode=nisa.oob_mode.skip)
    return out, table


def arrived_counts(metadata: Tensor, width: int) -> Counts:
    """How many rows each rank has sent here."""
    elements = load(metadata[2:3], nl.float32)
    nisa.tensor_scalar(elements, elements, nl.multiply, 1.0 / width, op1=nl.add, operand1=0.25)
    whole = like(elements, nl.int32)
    nisa.tensor_copy(whole, elements)  # rounds to the nearest: the division may be a little off
    nisa.tensor_copy(elements, whole)
    return Counts(elements)


def permute_a2av_ref(
    hidden_states: list, send_indices: list, send_counts: list
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Results and metadata of every rank of one group, from the arguments of every rank."""
    ranks, (tokens, width) = len(hidden_states), np.shape(hidden_states[0])
    results, tables = [], []
    for here in range(ranks):
        rows = np.zeros((ranks * tokens, width), np.asarray(hidden_states[0]).dtype)
        arrived = [int(np.ravel(counts)[here]) for counts in send_counts]
        chosen = [send_indices[there][: arrived[there], here] for there in range(ranks)]
        packed = [np.asarray(hidden_states[there])[chosen[there]] for there in range(ranks)]
        rows[: sum(arrived)] = np.concatenate(packed)
        sent = np.ravel(send_counts[here]).astype(np.int64)
        received = np.array(arrived)
        begins = [np.cumsum(counts) - counts for counts in (sent, received)]
        results.append(rows)
        tables.append(width * np.stack([sent, begins[0], received, begins[1]]))
    return results, tables
