"""Gradients of g and u from that of m = silu(g) * u, computed as phase 1 drains its sums from PSUM."""

from __future__ import annotations

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor
from nkilib.experimental.clamp_limits import ClampBounds, ClampLimits, gate_bounds, rounded, up_bounds
from nkilib.experimental.mlp_mxfp8.gate_up import clamped

PIECE = 512  # columns of a step, so that engines work on different pieces


@dataclass
class GateGradients(nl.NKIObject):
    """dm becomes [dg | du] in rows first_row + row: du = dm silu(g), dg = dm u silu'(g).

    gate_act may be None: silu(g) is then computed. Where `products` is given it receives m.
    """

    gate_pre: Tensor
    gate_act: Tensor | None
    up: Tensor
    gradients: Tensor  # [S, 2I]
    limits: ClampLimits | None
    first_row: int
    products: Tensor | None = None

    def finish(self, sums: list, row: int, rows: int, column: int, columns: int) -> None:
        first = self.first_row + row
        for part in TiledRange(columns, PIECE):
            self.step(sums[0][:, part.start_offset : part.end_offset], first, column + part.start_offset)

    def step(self, sums: Tensor, row: int, column: int) -> None:
        rows, columns = sums.shape
        place = (slice(row, row + rows), slice(column, column + columns))
        inner = self.gradients.shape[1] // 2
        gate, up = load(self.gate_pre[place[0], place[1]]), load(self.up[place[0], place[1]])
        inside = clamped(gate, gate_bounds(self.limits))
        factor = clamped(up, up_bounds(self.limits))
        act = self.activated(inside, place)
        if self.products is not None:
            m = nl.ndarray((rows, columns), self.products.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(m, act, factor, nl.multiply)
            nisa.dma_copy(self.products[place[0], place[1]], m)
        slope = nl.ndarray((rows, columns), nl.float32, buffer=nl.sbuf)
        nisa.activation(slope, nl.silu_dx, inside)
        nisa.tensor_tensor(slope, slope, factor, nl.multiply, engine=nisa.gpsimd_engine)
        d_gate = self.product(sums, slope, gate, gate_bounds(self.limits))
        nisa.dma_copy(self.gradients[place[0], place[1]], d_gate)
        d_up = self.product(sums, act, up, up_bounds(self.limits))
        nisa.dma_copy(self.gradients[place[0], inner + column : inner + column + columns], d_up)

    def activated(self, gate: Tensor, place: tuple[slice, slice]) -> Tensor:
        """Return silu(g): load the checkpoint, or compute it."""
        if self.gate_act is not None:
            return load(self.gate_act[place[0], place[1]])
        act = nl.ndarray(gate.shape, nl.float32, buffer=nl.sbuf)
        nisa.activation(act, nl.silu, gate)
        return act

    def product(self, sums: Tensor, factor: Tensor, value: Tensor, bounds: ClampBounds) -> Tensor:
        """Return sums * factor, 0 where the value is not inside its open interval."""
        masked_factor = factor
        lower, upper = rounded(bounds, value.dtype)  # the checkpoint was clamped, then rounded
        for bound in ((lower, nl.greater), (upper, nl.less)):
            if bound[0] is not None:
                masked = nl.ndarray(sums.shape, nl.float32, buffer=nl.sbuf)
                nisa.scalar_tensor_tensor(masked, value, bound[1], bound[0], nl.multiply, masked_factor)
                masked_factor = masked
        result = nl.ndarray(sums.shape, self.gradients.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(result, sums, masked_factor, nl.multiply)
        return result


def transpose_rows_to(dst: Tensor, source: Tensor, row: int, rows: int) -> None:
    """Set dst[c, row + r] = source[row + r, c], through SBUF, 128 columns at a time."""
    for columns in TiledRange(source.shape[1], PMAX):
        for part in TiledRange(rows, 2048):
            first = row + part.start_offset
            tile = nl.ndarray((columns.size, part.size), source.dtype, buffer=nl.sbuf)
            nisa.dma_transpose(
                tile, source[first : first + part.size, columns.start_offset : columns.end_offset]
            )
            nisa.dma_copy(
                dst[columns.start_offset : columns.end_offset, first : first + part.size],
                tile,
            )
