"""What the passes of blockwise experts in MXFP8 share: units of tokens, and rows of results.

A unit is up to 512 positions of a block. Its tokens are gathered to HBM once, where products read them in
either orientation. Rows of results are loaded, added to and written as a whole.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_cte.routing import ExpertRouting, Repeats, RoutingSource, TokenUnit
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.projection_results import new_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor
from nkilib.experimental.mxfp_utils.mxfp8_utils.common_dataclasses import TensorDescriptor
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import as_packed
from nkilib.experimental.mxfp_utils.mxfp8_utils.products import evict

UNIT = 512  # positions, at most


class Units(nl.NKIObject):
    """The units of all blocks; ids -1 and T are padding, whose affinity is 0."""

    def __init__(self, position_to_id: Tensor, block_to_expert: Tensor, affinities: Tensor, sizes: tuple):
        tokens, experts, block_size = sizes
        source = RoutingSource(
            position_to_id,
            block_to_expert,
            affinities,
            None,
            tokens,
            experts,
            block_size,
            min(UNIT, block_size),
            True,
        )
        self.routing = ExpertRouting(source)
        self.repeats = Repeats(source)

    def all(self) -> list:
        units = []
        for block in range(self.routing.blocks):
            for number in range(self.routing.passes):
                unit = self.routing.unit(block, number)
                nisa.tensor_tensor(unit.affinity, unit.affinity, unit.is_real, op=nl.multiply)
                units.append(unit)
        return units


def direct_units(affinities: Tensor, tokens: int, block_size: int) -> list:
    """Units of tokens that stand one after the other, all of expert 0."""
    size = min(UNIT, block_size)
    units = []
    for start in range(0, tokens, size):
        tile = nl.ndarray((PMAX, size // PMAX), affinities.dtype, buffer=nl.sbuf)
        column = affinities.reshape((affinities.size,))[start : start + size]
        nisa.dma_copy(tile, column.reshape((size // PMAX, PMAX)).permute((1, 0)))
        wide = nl.ndarray(tile.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(wide, tile)
        block, first = start // block_size, start % block_size
        units.append(TokenUnit(block, first, size, None, None, None, None, None, None, wide))
    return units


def gather_tokens(table: Tensor, units: list) -> list:
    """The rows of each unit's tokens, [size, H] in HBM; padding has those of token 0."""
    found: list = []
    for unit in units:
        if unit.valid_rows is None:
            start = len(found) * unit.size
            found.append(table[start : start + unit.size])
            continue
        rows = nl.ndarray((unit.size, table.shape[1]), table.dtype, buffer=nl.private_hbm)
        for c in range(unit.size // PMAX):
            tile = nl.ndarray((PMAX, table.shape[1]), table.dtype, buffer=nl.sbuf)
            nisa.dma_copy(tile, table.vector_select(0, unit.valid_rows[:, c : c + 1]))
            nisa.dma_copy(rows[c * PMAX : (c + 1) * PMAX], tile)
        found.append(rows)
    return found


def of_expert(tensor: Tensor, unit: TokenUnit) -> Any:
    """The part of [E, ...] that belongs to a unit's expert."""
    return tensor[0] if unit.expert is None else tensor.select(0, unit.expert)


def positions_of(checkpoint: Tensor, unit: TokenUnit) -> Any:
    """The columns [.., tokens] of a unit in the last dimension of a block's checkpoint [N, F, B]."""
    return checkpoint[unit.block][:, unit.first : unit.first + unit.size]


class ExpertWeights(nl.NKIObject):
    """A weight [E, F, K], its transpose by f_by_k=False, swizzled or with scales [E, ...]."""

    def __init__(self, name: str, tensor: Tensor, scales: Tensor | None, swizzled: bool, dtype: Any):
        self.tensor = tensor if scales is None else as_packed(name, tensor, dtype)
        self.scales = scales
        self.swizzled = swizzled
        kernel_assert(
            scales is None or len(scales.shape) == len(tensor.shape),
            f"{name}: got scales of shape {None if scales is None else tuple(scales.shape)}, expected "
            f"{len(tensor.shape)} dimensions",
        )

    def of(self, unit: TokenUnit, f_by_k: bool = True) -> TensorDescriptor:
        scales = None if self.scales is None else of_expert(self.scales, unit)
        return TensorDescriptor(of_expert(self.tensor, unit), scales, f_by_k, self.swizzled)


class AddedRows(nl.NKIObject):
    """Results of a unit's tokens: sums are added to rows of out [T, columns], or stored if it is direct."""

    def __init__(self, out: Tensor, unit: TokenUnit, repeats: Any, adds: bool, start: int):
        self.out = out
        self.unit = unit
        self.direct = unit.valid_rows is None
        self.adds = adds and not self.direct
        self.start = start  # row of a direct unit
        self.rows = new_rows(unit.size, out.shape[1], out.dtype)
        self.count = 0
        self.counts: Any = None
        self.targets: Any = None
        if not self.direct:
            counts, targets = repeats.of(unit)
            self.counts = counts
            self.targets = targets
        for c in range(len(self.rows)):
            if self.adds:
                nisa.dma_copy(self.rows[c], out.vector_select(0, unit.valid_rows[:, c : c + 1]))

    def finish(self, sums: list, row: int, rows: int, column: int, columns: int) -> None:
        c = row // PMAX
        place = self.rows[c][:, column : column + columns]
        if self.direct:
            evict(place, sums[0], self.count)
        elif self.adds:
            often = self.counts[:, c : c + 1]
            nisa.scalar_tensor_tensor(place, sums[0], nl.multiply, often, nl.add, place)
        else:
            nisa.tensor_scalar(place, sums[0], nl.multiply, self.counts[:, c : c + 1])
        self.count = self.count + 1

    def store(self) -> None:
        for c in range(len(self.rows)):
            if self.direct:
                first = self.start + c * PMAX
                nisa.dma_copy(self.out[first : first + PMAX], self.rows[c])
            else:
                place = self.out.vector_select(0, self.targets[:, c : c + 1])
                nisa.dma_copy(place, self.rows[c], oob_mode=nisa.oob_mode.skip)
