"""Rows that move between slots of T rows for each rank and places packed one after the other."""

from __future__ import annotations

from typing import Any

import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups, named_tensor

FLOATS = (nl.bfloat16, nl.float16, nl.float32)
BEYOND = float(2**24)  # a row that no tensor has: rows are counted in float32
MAX_RANKS = 512  # of a PSUM bank


class Counts(nl.NKIObject):
    """The rows of each rank and where they begin when packed: both in every partition, [128, EP] float32."""

    def __init__(self, counts: Tensor):
        """counts: [1, EP] in SBUF, float32."""
        ranks = counts.shape[1]
        both = nl.ndarray((1, 2, ranks), nl.float32, buffer=nl.sbuf)
        ends, zeros = like(counts), like(counts)
        nisa.memset(zeros, 0.0)
        nisa.tensor_tensor_scan(ends, counts, zeros, 0.0, nl.add, nl.add)
        nisa.tensor_copy(both[:, 0, :], counts)
        nisa.tensor_tensor(both[:, 1, :], ends, counts, nl.subtract)
        self.row = both
        ones = nl.ndarray((1, PMAX), nl.float32, buffer=nl.sbuf)
        nisa.memset(ones, 1.0)
        self.every = nl.ndarray((PMAX, 2, ranks), nl.float32, buffer=nl.sbuf)
        for i in range(2):
            bank = nl.ndarray((PMAX, ranks), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(bank, ones, both[:, i, :])
            nisa.tensor_copy(self.every[:, i, :], bank)

    def store(self, metadata: Tensor, first: int, width: int) -> None:
        """Counts and beginnings, in elements, to rows `first` and `first + 1` of the metadata."""
        table = nl.ndarray(self.row.shape, nl.uint32, buffer=nl.sbuf)
        nisa.tensor_scalar(table, self.row, nl.multiply, float(width))
        nisa.dma_copy(metadata[first : first + 2].expand_dim(0), table)

    def places(self, rank: int, tile: Any, is_used: Tensor | None = None) -> Tensor:
        """Where rows of a rank's slot go, [n, 1] int32; beyond all where there is no row.

        Without `is_used`, [n, 1], the first rows of the slot are used, as many as are counted.
        """
        row, used = new_column(tile.size), new_column(tile.size)
        nisa.iota(row, [[1, 1]], offset=tile.start_offset, channel_multiplier=1)
        if is_used is None:
            nisa.tensor_tensor(used, row, self.every[0 : tile.size, 0, rank : rank + 1], nl.less)
        else:
            nisa.tensor_copy(used, is_used)
        begin = self.every[0 : tile.size, 1, rank : rank + 1]
        nisa.tensor_tensor(row, row, begin, nl.add)
        nisa.tensor_scalar(used, used, nl.multiply, -BEYOND, op1=nl.add, operand1=BEYOND)
        place = nl.ndarray((tile.size, 1), nl.int32, buffer=nl.sbuf)
        nisa.tensor_tensor(place, row, used, nl.add)
        return place


def load_counts(counts: Tensor) -> Counts:
    return Counts(load(counts, nl.float32))


def exchange(send: Tensor, counts: Counts, group: ReplicaGroups) -> tuple[Tensor, Tensor]:
    """Send packed rows to all ranks; return slots of as many rows for each rank, and the metadata [3, EP]."""
    ranks, width = counts.row.shape[2], send.shape[1]
    metadata = named_tensor((3, ranks), nl.uint32, "metadata")
    received = named_tensor(send.shape, send.dtype, "received")
    if nl.program_id(0) == 0:
        clear(received, zero_tile(width, received.dtype))  # no slot need be full
        counts.store(metadata, 0, width)
        zeros = nl.ndarray((1, ranks), nl.uint32, buffer=nl.sbuf)
        nisa.memset(zeros, 0)
        nisa.dma_copy(metadata[2:3], zeros)
    if nl.num_programs(0) > 1:
        nisa.core_barrier(metadata, (0, 1))
        nisa.core_barrier(received, (0, 1))
        nisa.core_barrier(send, (0, 1))
    ncc.all_to_all_v([send], [received], group, metadata)
    return received, metadata


def check_exchange(tokens: tuple, indices: Tensor, counts: tuple, group: ReplicaGroups) -> int:
    """Check the arguments that both directions have, of which two with names; return the number of ranks."""
    assert_tensors((tokens, ("send_indices", indices), counts))
    ranks = len(group[0])
    kernel_assert(ranks <= MAX_RANKS, f"replica_group: got {ranks} ranks, allowed are up to {MAX_RANKS}")
    kernel_assert(
        len(indices.shape) == 2 and indices.shape[1] == ranks and indices.dtype == nl.int32,
        f"send_indices: got {indices.dtype} of shape {tuple(indices.shape)}, expected int32 [T, {ranks}]",
    )
    kernel_assert(
        len(tokens[1].shape) == 2 and tokens[1].dtype in FLOATS,
        f"{tokens[0]}: got {tokens[1].dtype} of shape {tuple(tokens[1].shape)}, expected rows in bfloat16, "
        "float16 or float32",
    )
    assert_shape(counts[1], (1, ranks), counts[0])
    return ranks
