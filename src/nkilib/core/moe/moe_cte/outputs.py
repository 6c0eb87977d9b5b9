"""Where the results of blockwise experts stand in HBM: made, and parts of two cores added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_cte.moe_cte_parameters import (
    ExpertsParameters,
    block_count,
    hidden_size,
    intermediate_size,
)
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor

SUM_ROWS = 2  # neighbouring rows in a partition while parts are added: a long transfer


@dataclass
class Outputs(nl.NKIObject):
    """Where results go. `gate_up` and `down` are checkpoints, or None."""

    result: Tensor  # what is returned: the total, or [T, 2, H] of the total and of zeros
    total: Tensor  # [T + 1, H] or [T, H]
    zeros: Any  # the second slice of the result, or None
    rows: Any  # what this core adds to: the total, or its part of it
    partial: Tensor  # [2, T + 1, H], a part of each core, to be added; or None
    gate_up: Tensor  # [N, 2, I, B]
    down: Tensor  # [N, B, H]


def new_outputs(p: ExpertsParameters, alternates: bool, core: int) -> Outputs:
    """The rows of the result, and the checkpoints that are asked for: the caller's or new ones.

    `alternates`: each of two cores adds to a part of its own.
    """
    dtype = p.hidden.dtype
    rows, size = p.hidden.shape
    shape: tuple = (rows, size) if p.slices == 1 else (rows, p.slices, size + p.affinity_columns)
    result = nl.ndarray(shape, dtype, buffer=nl.shared_hbm)
    total, zeros = (result, None) if p.slices == 1 else (result[:, 0, 0:size], result[:, 1, 0:size])
    own, partial = total, None
    if alternates:
        partial = nl.ndarray((2, rows, size), dtype, buffer=nl.shared_hbm)
        own = partial[core]
    gate_up, down = new_checkpoints(p)
    return Outputs(result, total, zeros, own, partial, gate_up, down)


def new_checkpoints(p: ExpertsParameters) -> tuple:
    """(gate and up, down), None for what is not asked for."""
    if not p.checkpoint:
        return None, p.down_checkpoint
    blocks, dtype = block_count(p), p.hidden.dtype
    gate_up, down = p.gate_up_checkpoint, p.down_checkpoint
    if gate_up is None:
        shape = (blocks, 2, intermediate_size(p), p.block_size)
        gate_up = nl.ndarray(shape, dtype, buffer=nl.shared_hbm)
        if p.skip_gate and nl.program_id(0) == 0:
            for block in range(blocks):  # nothing is written to the place of the gate
                clear(gate_up[block, 0], zero_tile(p.block_size, dtype))
    if not p.checkpoint_down:
        return gate_up, None
    if down is None:
        down = nl.ndarray((blocks, p.block_size, hidden_size(p)), dtype, buffer=nl.shared_hbm)
    return gate_up, down


def copy_affinities(place: Tensor, affinities: Tensor) -> None:
    """The affinities of each row's token, [rows, E] in HBM; zeros for a row of padding without any."""
    rows, experts = place.shape
    count = min(rows, affinities.size // experts)
    nisa.dma_copy(place[0:count], affinities.reshape((affinities.size // experts, experts))[0:count])
    if count < rows:
        clear(place[count:rows], zero_tile(experts, place.dtype))


def add_parts(out: Outputs, core: int) -> None:
    """total = sum of the parts, when both cores have finished theirs: each adds half of the rows."""
    nisa.core_barrier(out.partial, (0, 1))
    count = out.total.shape[0]
    half = count // (2 * PMAX) * PMAX
    first, last = (0, half) if core == 0 else (half, count)
    full = (last - first) // (SUM_ROWS * PMAX) * SUM_ROWS * PMAX
    for rows in TiledRange(full, SUM_ROWS * PMAX):
        add_rows(out, first + rows.start_offset, rows.size, SUM_ROWS)
    for rows in TiledRange(last - first - full, PMAX):
        add_rows(out, first + full + rows.start_offset, rows.size, 1)


def add_rows(out: Outputs, first: int, count: int, adjacent: int) -> None:
    """The same of some rows, so many neighbours to a partition."""
    columns = out.total.shape[1]
    shape = (count // adjacent, adjacent * columns)
    tiles = []
    for core in range(2):
        tile = nl.ndarray(shape, out.partial.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, out.partial[core][first : first + count].reshape(shape))
        tiles.append(tile)
    nisa.tensor_tensor(tiles[0], tiles[0], tiles[1], op=nl.add)
    rows = out.total[first : first + count].reshape_dim(0, (count // adjacent, adjacent))
    nisa.dma_copy(rows, tiles[0].reshape_dim(1, (adjacent, columns)))
