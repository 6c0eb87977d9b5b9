"""Gradients of the biases of blockwise experts in MXFP8: sums over tokens, which nothing quantises."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_cte.routing import TokenUnit
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import new_column
from nkilib.core.utils.types import Tensor
from nkilib.experimental.moe.bwd.gradients import clear_vector
from nkilib.experimental.moe_mxfp8.expert_blocks import of_expert


class BiasGradients(nl.NKIObject):
    """The sums of all units in float32, of one core."""

    def __init__(self, experts: int, inner: int, size: int):
        self.gate_up = nl.ndarray((experts, 2 * inner, 1), nl.float32, buffer=nl.private_hbm)
        self.down = nl.ndarray((experts, 1, size), nl.float32, buffer=nl.private_hbm)
        clear_vector(self.gate_up)
        clear_vector(self.down)

    def add(self, unit: TokenUnit, sides: Tensor, rows: Tensor) -> None:
        """Add dg and du, sides [2 I, tokens], and dy, rows [tokens, H], times its affinity."""
        column = of_expert(self.gate_up, unit)
        for part in TiledRange(sides.shape[0], PMAX):
            total = new_column(part.size)
            features = slice(part.start_offset, part.end_offset)
            nisa.tensor_reduce(total, nl.add, load(sides[features]), axis=1)
            add_to(column[features], total)
        row = of_expert(self.down, unit)
        for span in TiledRange(rows.shape[1], BANK_COLUMNS):
            columns = slice(span.start_offset, span.end_offset)
            bank = nl.ndarray((1, span.size), nl.float32, buffer=nl.psum)
            for c in range(unit.size // PMAX):
                wide = nl.ndarray((PMAX, span.size), nl.float32, buffer=nl.sbuf)
                nisa.tensor_copy(wide, load(rows[c * PMAX : (c + 1) * PMAX, columns]))
                nisa.nc_matmul(bank, unit.affinity[:, c : c + 1], wide, accumulate=c > 0)
            add_to(row[:, columns], bank)

    def store(self, results: tuple) -> None:
        """Round the sums to the dtype of the results."""
        for pair in ((results[0], self.gate_up), (results[1], self.down)):
            nisa.dma_copy(pair[0], pair[1].reshape(tuple(pair[0].shape)))


def add_to(place: Tensor, sums: Tensor) -> None:
    """place, in HBM, += sums."""
    tile = nl.ndarray(place.shape, nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(tile, place)
    nisa.tensor_tensor(tile, tile, sums, op=nl.add)
    nisa.dma_copy(place, tile)
