"""Where the results of blockwise experts stand in HBM: made, cleared, and slices of two cores added."""

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
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange

ZERO_BYTES = 16 * 1024  # of zeros that each partition stores at a time
SUM_ROWS = 2  # neighbouring rows in a partition while slices are added: a long transfer


@dataclass
class Outputs(nl.NKIObject):
    """Where results go. `gate_up` and `down` are checkpoints, or None."""

    result: Any  # what is returned: the rows, or several slices of them
    slices: list  # [T + 1, H] or [T, H] each
    rows: Any  # the slice that this core adds to
    partial: Any  # [2, T + 1, H], where slices stand that are not returned; or None
    gate_up: Any  # [N, 2, I, B]
    down: Any  # [N, B, H]


def new_outputs(p: ExpertsParameters, dealt: bool, core: int) -> Outputs:
    """The rows of the result, and the checkpoints that are asked for: the caller's or new ones.

    `dealt`: each of two cores has a slice of its own.
    """
    dtype = p.hidden.dtype
    rows, size = p.hidden.shape
    shape: tuple = (rows, size) if p.slices == 1 else (rows, p.slices, size)
    result = nl.ndarray(shape, dtype, buffer=nl.shared_hbm)
    partial: Any = None
    if p.slices == 2:
        slices = [result[:, 0, :], result[:, 1, :]]
    elif dealt:
        partial = nl.ndarray((2, rows, size), dtype, buffer=nl.shared_hbm)
        slices = [partial[0], partial[1]]
    else:
        slices = [result]
    own = slices[core] if dealt else slices[0]
    gate_up, down = new_checkpoints(p)
    return Outputs(result, slices, own, partial, gate_up, down)


def new_checkpoints(p: ExpertsParameters) -> tuple:
    """(gate and up, down), None for what is not asked for."""
    if not p.checkpoint:
        return None, None
    blocks, dtype = block_count(p), p.hidden.dtype
    gate_up, down = p.gate_up_checkpoint, p.down_checkpoint
    if gate_up is None:
        shape = (blocks, 2, intermediate_size(p), p.block_size)
        gate_up = nl.ndarray(shape, dtype, buffer=nl.shared_hbm)
    if not p.checkpoint_down:
        return gate_up, None
    if down is None:
        down = nl.ndarray((blocks, p.block_size, hidden_size(p)), dtype, buffer=nl.shared_hbm)
    return gate_up, down


def zero_tile(columns: int, dtype: Any) -> Any:
    """Zeros to `clear` rows of up to so many columns with."""
    zeros = nl.ndarray((PMAX, columns), dtype, buffer=nl.sbuf)
    nisa.memset(zeros, 0.0)
    return zeros


def clear(rows: Any, zeros: Any) -> None:
    """Zeros in all rows of a part of HBM."""
    count, columns = rows.shape
    source = zeros[:, 0:columns]
    full = count // PMAX
    for group in TiledRange(full, max(1, ZERO_BYTES // (2 * columns))):
        part = rows[group.start_offset * PMAX : group.end_offset * PMAX]
        place = part.reshape_dim(0, (group.size, PMAX)).permute((1, 0, 2))
        nisa.dma_copy(place, source.expand_dim(1).broadcast(1, group.size))
    if count % PMAX != 0:
        nisa.dma_copy(rows[full * PMAX :], source[0 : count % PMAX])


def add_slices(out: Outputs, core: int) -> None:
    """result = sum of the slices, when both cores have finished theirs: each adds half of the rows."""
    nisa.core_barrier(out.partial, (0, 1))
    count = out.result.shape[0]
    half = count // (2 * PMAX) * PMAX
    first, last = (0, half) if core == 0 else (half, count)
    full = (last - first) // (SUM_ROWS * PMAX) * SUM_ROWS * PMAX
    for rows in TiledRange(full, SUM_ROWS * PMAX):
        add_rows(out, first + rows.start_offset, rows.size, SUM_ROWS)
    for rows in TiledRange(last - first - full, PMAX):
        add_rows(out, first + full + rows.start_offset, rows.size, 1)


def add_rows(out: Outputs, first: int, count: int, adjacent: int) -> None:
    """The same of some rows, so many neighbours to a partition."""
    columns = out.result.shape[1]
    shape = (count // adjacent, adjacent * columns)
    tiles = []
    for rows in out.slices:
        tile = nl.ndarray(shape, rows.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, rows[first : first + count].reshape(shape))
        tiles.append(tile)
    nisa.tensor_tensor(tiles[0], tiles[0], tiles[1], op=nl.add)
    nisa.dma_copy(out.result[first : first + count].reshape(shape), tiles[0])
