"""m = silu(x Wg) * (x Wu) in MXFP8: what the forward pass begins with and the backward pass recomputes."""

from __future__ import annotations

from dataclasses import dataclass, field

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.clamping import clamp, has_limits
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.types import Tensor
from nkilib.experimental.clamp_limits import ClampBounds, ClampLimits, gate_bounds, up_bounds
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import MxOperand, part_of
from nkilib.experimental.mxfp_utils.mxfp8_utils.products import multiply


@dataclass
class GateUpCheckpoints(nl.NKIObject):
    """Matrices [S, I] in HBM that receive what the gate and up projections give; None where not wanted."""

    gate_pre: Tensor = None
    gate_act: Tensor = None
    up: Tensor = None
    products: list[Tensor] = field(default_factory=list)  # m may have several destinations


def clamped(tile: Tensor, bounds: ClampBounds) -> Tensor:
    """Return a float32 copy of a tile clamped to its bounds; the tile itself if it has none."""
    lower, upper = bounds
    if not has_limits(upper, lower):
        return tile
    inside = nl.ndarray(tile.shape, nl.float32, buffer=nl.sbuf)
    clamp(inside, tile, upper, lower)
    return inside


@dataclass
class Gated(nl.NKIObject):
    """Sums of gate and up become m = silu(gate) * up in rows first_row + row of the checkpoints."""

    places: GateUpCheckpoints
    limits: ClampLimits | None
    first_row: int

    def finish(self, sums: list, row: int, rows: int, column: int, columns: int) -> None:
        first = self.first_row + row
        place = (slice(first, first + rows), slice(column, column + columns))
        gate = clamped(sums[0], gate_bounds(self.limits))
        up = clamped(sums[1], up_bounds(self.limits))
        act = nl.ndarray((rows, columns), nl.float32, buffer=nl.sbuf)
        nisa.activation(act, nl.silu, gate)
        wanted = ((self.places.gate_pre, gate), (self.places.gate_act, act), (self.places.up, up))
        for item in wanted:
            if item[0] is not None:
                copy = nl.ndarray((rows, columns), item[0].dtype, buffer=nl.sbuf)
                nisa.activation(copy, nl.copy, item[1])
                nisa.dma_copy(item[0][place[0], place[1]], copy)
        product = nl.ndarray((rows, columns), self.places.products[0].dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(product, act, up, nl.multiply)
        for target in self.places.products:
            nisa.dma_copy(target[place[0], place[1]], product)


def gate_up_rows(
    hidden: MxOperand, gate_up: MxOperand, places: GateUpCheckpoints, limits: ClampLimits | None, row: int
) -> None:
    """Compute m for all rows of `hidden`, which are rows `row` and following of the checkpoints."""
    half = gate_up.features // 2
    gate, up = part_of(gate_up, 0, half), part_of(gate_up, half, half)
    multiply(hidden, [gate, up], Gated(places, limits, row))


def check_checkpoint(name: str, tensor: Tensor | None, rows: int, columns: int) -> None:
    """Check that a checkpoint, if given, is a matrix [S, I] of floats."""
    if tensor is not None:
        assert_shape(tensor, (rows, columns), name)
        kernel_assert(
            tensor.dtype in (nl.bfloat16, nl.float16, nl.float32),
            f"{name}: got dtype {tensor.dtype}, expected bfloat16, float16 or float32",
        )
