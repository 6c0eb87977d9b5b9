"""Values of the new tokens that are in SBUF already: to their places among those of the cache, without DMA.

A transfer would wait in its queue behind all of the cache that is on its way. TensorE moves rows to other
partitions instead, and VectorE puts them in among the values of a unit where a predicate is true.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

from ..utils.allocator import sizeinbytes
from ..utils.kernel_helpers import interleave_copy, is_hbm_buffer
from ..utils.tiled_range import TiledRange
from .attention_tkg_plan import BANK, DecodeCall, DecodeSection, DecodeUnit, TokenRun, value_dtype

QUADRANT = 32  # partitions: operands that have no more begin at a multiple of it


def values_on_chip(call: DecodeCall) -> bool:
    return not is_hbm_buffer(call.v_active)


class NewValues(nl.NKIObject):
    """v_active [B s, d] of SBUF: each run of new tokens of the last section, in the partitions it goes to."""

    def __init__(self, call: DecodeCall, section: DecodeSection):
        self.call = call
        self.runs = section.runs
        self.rows: list = []  # of each run: [128, batches, tiles, d]
        self.here: list = []  # of each run: 1 in its partitions, [128, 1]
        if len(section.runs) == 0:
            return
        chooser = diagonal(call)
        for run in section.runs:
            self.rows.append(self.moved(run, chooser))
            self.here.append(partitions_of(call, run))

    def moved(self, run: TokenRun, chooser: Tensor) -> Any:
        """The tokens of a run, of all batches: rows of v_active that a matmul with ones and zeros picks."""
        call = self.call
        depth, tokens = call.cfg.d_head, call.cfg.s_active
        tile = call.tile((PMAX, call.batches, run.tiles, depth), value_dtype(call))
        places = tile.reshape((PMAX, call.batches * run.tiles, depth))
        for group in TiledRange(call.batches * run.tiles, BANK // depth):
            bank = nl.ndarray((PMAX, group.size, depth), nl.float32, buffer=nl.psum)
            for i in range(group.size):
                place = group.start_offset + i
                token = (call.first_batch + place // run.tiles) * tokens + run.active + place % run.tiles
                rows = chosen_rows(call, chooser, run, token)
                nisa.nc_matmul(bank[:, i, :], rows, call.v_active, accumulate=False)
            interleave_copy(places[:, group.start_offset : group.end_offset], bank, group.index)
        return tile

    def place(self, unit: DecodeUnit) -> None:
        """Write them over what the cache holds there."""
        for i in range(len(self.runs)):
            run = self.runs[i]
            first = run.partition // QUADRANT * QUADRANT
            while first < run.partition + run.partitions:
                rows = slice(first, min(first + QUADRANT, self.call.rows))
                new = self.rows[i][rows, unit.first : unit.first + unit.batches]
                here = self.here[i][rows].expand_dim(2).expand_dim(3)
                here = here.broadcast(1, unit.batches).broadcast(2, run.tiles).broadcast(3, new.shape[3])
                place = unit.values[rows, 0 : unit.batches, run.tile : run.tile + run.tiles, :]
                nisa.tensor_copy_predicated(place, new, here)
                first += QUADRANT


def diagonal(call: DecodeCall) -> Any:
    """[B s, 128 + c] with ones at [t, 128 + t]: windows of 128 columns choose rows for partitions."""
    tokens = call.cfg.bs * call.cfg.s_active
    dtype = nl.bfloat16 if sizeinbytes(call.v_active.dtype) == 1 else call.v_active.dtype
    tile = call.tile((tokens, 2 * PMAX + tokens), dtype)
    nisa.memset(tile, 1.0)
    nisa.affine_select(tile, [[-1, 2 * PMAX + tokens]], 1, tile, 0.0, cmp_op=nl.equal, offset=PMAX)
    return tile


def chosen_rows(call: DecodeCall, chooser: Tensor, run: TokenRun, token: int) -> Any:
    """[B s, 128], the stationary operand: `token` for every partition, or from the run's partition on."""
    if not run.down:
        return chooser[:, PMAX + token : PMAX + token + 1].broadcast(1, PMAX)
    first = PMAX + token - run.partition
    return chooser[:, first : first + PMAX]


def partitions_of(call: DecodeCall, run: TokenRun) -> Any:
    """[128, 1] uint8: 1 in the partitions of a run."""
    tile = call.tile((PMAX, 1), nl.uint8)
    nisa.memset(tile, 1)
    last = run.partition + run.partitions - 1
    nisa.affine_select(tile, [[0, 1]], 1, tile, 0, cmp_op=nl.greater_equal, offset=-run.partition)
    nisa.affine_select(tile, [[0, 1]], -1, tile, 0, cmp_op=nl.greater_equal, offset=last)
    return tile
