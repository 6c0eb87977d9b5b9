"""The passes of blockwise_mm_bwd_mxfp8: gradients of the middle, of affinities, of an expert's weights."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_cte.experts import affinity_row
from nkilib.core.moe.moe_cte.routing import Repeats, TokenUnit
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor
from nkilib.experimental.clamp_limits import ClampLimits, gate_bounds, rounded, up_bounds
from nkilib.experimental.moe.bwd.stages import affinity_targets, stop_at
from nkilib.experimental.moe_mxfp8.expert_blocks import positions_of

STORES_TOGETHER = 16  # tiles of an expert's gradients


class Middle(nl.NKIObject):
    """What the first pass leaves in HBM, a block after the other, features by tokens."""

    def __init__(self, checkpoint: Tensor, cores: int):
        blocks, _, inner, size = checkpoint.shape
        dtype = checkpoint.dtype
        self.inner = inner
        self.saved = checkpoint.reshape((blocks, 2 * inner, size))
        self.grad = nl.ndarray((blocks, inner, size), nl.float32, buffer=nl.shared_hbm)  # dy Wd^T
        self.sides = nl.ndarray((blocks, 2 * inner, size), dtype, buffer=nl.shared_hbm)  # dg, then du
        self.scaled = nl.ndarray((blocks, inner, size), dtype, buffer=nl.shared_hbm)  # silu(g) u affinity
        self.by_token = nl.ndarray((cores, blocks, size), nl.float32, buffer=nl.shared_hbm)

    def split(self, unit: TokenUnit, own: TiledRangeIterator, limits: ClampLimits | None, core: int) -> None:
        """Gradients of gate and up of some features, their part of that of the affinities, and the middle."""
        row = affinity_row(unit)
        saved, sides = positions_of(self.saved, unit), positions_of(self.sides, unit)
        bank = nl.ndarray((1, unit.size), nl.float32, buffer=nl.psum)
        one = nl.ndarray((PMAX, 1), nl.float32, buffer=nl.sbuf)
        nisa.memset(one, 1.0)
        for part in TiledRange(own, PMAX):
            first, end = part.start_offset, part.end_offset
            grad = load(positions_of(self.grad, unit)[first:end])
            gate, up = load(saved[first:end]), load(saved[self.inner + first : self.inner + end])
            active, slope = like(grad), like(grad)
            nisa.activation(active, nl.silu, gate)
            nisa.activation(slope, nl.silu_dx, gate)
            product, summed = like(grad), like(grad)
            nisa.tensor_tensor(product, active, up, op=nl.multiply)
            nisa.tensor_tensor(summed, product, grad, op=nl.multiply)
            nisa.nc_matmul(bank, one[0 : part.size], summed, accumulate=part.index > 0)
            scaled = like(gate)
            nisa.tensor_tensor(scaled, product, row[0 : part.size], op=nl.multiply)
            nisa.dma_copy(positions_of(self.scaled, unit)[first:end], scaled)
            nisa.tensor_tensor(grad, grad, row[0 : part.size], op=nl.multiply)
            up_grad, gate_grad = like(up), like(gate)
            nisa.tensor_tensor(up_grad, grad, active, op=nl.multiply)
            nisa.tensor_tensor(grad, grad, up, op=nl.multiply)
            nisa.tensor_tensor(gate_grad, grad, slope, op=nl.multiply)
            stop_at(gate_grad, gate, rounded(gate_bounds(limits), gate.dtype))
            stop_at(up_grad, up, rounded(up_bounds(limits), up.dtype))
            nisa.dma_copy(sides[first:end], gate_grad)
            nisa.dma_copy(sides[self.inner + first : self.inner + end], up_grad)
        sums = nl.ndarray((1, unit.size), nl.float32, buffer=nl.sbuf)
        if own.size > 0:
            nisa.tensor_copy(sums, bank)
        else:
            nisa.memset(sums, 0.0)
        place = self.by_token[core, unit.block, unit.first : unit.first + unit.size]
        nisa.dma_copy(place.reshape((1, unit.size)), sums)


def add_affinities(out: Tensor, middle: Middle, unit: TokenUnit, repeats: Repeats) -> None:
    """Add the sums of all cores to the gradients of the affinities."""
    columns = unit.size // PMAX
    total = nl.ndarray((PMAX, columns), nl.float32, buffer=nl.sbuf)
    nisa.memset(total, 0.0)
    for core in range(middle.by_token.shape[0]):
        part = nl.ndarray((PMAX, columns), nl.float32, buffer=nl.sbuf)
        row = middle.by_token[core, unit.block, unit.first : unit.first + unit.size]
        nisa.dma_copy(part, row.reshape((columns, PMAX)).permute((1, 0)))
        nisa.tensor_tensor(total, total, part, op=nl.add)
    counts, targets = repeats.of(unit)
    nisa.tensor_tensor(total, total, counts, op=nl.multiply)
    index = affinity_targets(unit, targets)
    table = out.reshape((out.size, 1))
    for c in range(columns):
        place = table.vector_select(0, index[:, c : c + 1])
        nisa.dma_compute(place, [place, total[:, c : c + 1]], nl.add, oob_mode=nisa.oob_mode.skip)


class AddedMatrix(nl.NKIObject):
    """Adds sums to a matrix in HBM, from a row and a column on.

    Its place is known at run time, so a load waits for all earlier stores: these come several at a time.
    """

    def __init__(self, out: Any, row: int, column: int):
        self.out = out
        self.row = row
        self.column = column
        self.waiting: list = []

    def finish(self, sums: list, row: int, rows: int, column: int, columns: int) -> None:
        first, left = self.row + row, self.column + column
        place = self.out[first : first + rows, left : left + columns]
        tile = nl.ndarray((rows, columns), self.out.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, place)
        nisa.tensor_tensor(tile, sums[0], tile, op=nl.add)
        self.waiting.append((place, tile))
        if len(self.waiting) == STORES_TOGETHER:
            self.store()

    def store(self) -> None:
        for pair in self.waiting:
            nisa.dma_copy(pair[0], pair[1])
        self.waiting = []
