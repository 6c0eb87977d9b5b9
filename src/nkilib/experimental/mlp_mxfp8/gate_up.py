"""m = silu(x Wg) * (x Wu) in MXFP8: what the forward pass begins with and the backward pass recomputes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import Operand, part_of
from nkilib.experimental.mxfp_utils.mxfp8_utils.products import multiply


@dataclass
class Checkpoints(nl.NKIObject):
    """Matrices [S, I] in HBM that receive what the gate and up projections give; None where not wanted."""

    gate_pre: Any = None
    gate_act: Any = None
    up: Any = None
    products: Any = None  # a list: m may go to several places


@dataclass
class Limits(nl.NKIObject):
    """Bounds (lower, upper) of gate and up before the activation; None for an end that is open."""

    gate_lower: Any = None
    gate_upper: Any = None
    up_lower: Any = None
    up_upper: Any = None


def limits_of(clamp_limits: Any) -> Limits:
    """From an object with the four fields of ClampLimits, or None."""
    if clamp_limits is None:
        return Limits()
    return Limits(
        clamp_limits.non_linear_clamp_lower_limit,
        clamp_limits.non_linear_clamp_upper_limit,
        clamp_limits.linear_clamp_lower_limit,
        clamp_limits.linear_clamp_upper_limit,
    )


def clamped(tile: Any, lower: Any, upper: Any) -> Any:
    """Return a float32 copy of a tile clamped to its bounds; the tile itself if it has none."""
    if lower is None and upper is None:
        return tile
    inside = nl.ndarray(tile.shape, nl.float32, buffer=nl.sbuf)
    if lower is None:
        nisa.tensor_scalar(inside, tile, nl.minimum, upper)
    elif upper is None:
        nisa.tensor_scalar(inside, tile, nl.maximum, lower)
    else:
        nisa.tensor_scalar(inside, tile, nl.minimum, upper, op1=nl.maximum, operand1=lower)
    return inside


@dataclass
class Gated(nl.NKIObject):
    """Sums of gate and up become m = silu(gate) * up in rows first_row + row of the checkpoints."""

    places: Checkpoints
    limits: Limits
    first_row: int

    def finish(self, sums: list, row: int, rows: int, column: int, columns: int) -> None:
        first = self.first_row + row
        place = (slice(first, first + rows), slice(column, column + columns))
        gate = clamped(sums[0], self.limits.gate_lower, self.limits.gate_upper)
        up = clamped(sums[1], self.limits.up_lower, self.limits.up_upper)
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


def gate_up_rows(hidden: Operand, gate_up: Operand, places: Checkpoints, limits: Limits, row: int) -> None:
    """Compute m for all rows of `hidden`, which are rows `row` and following of the checkpoints."""
    half = gate_up.features // 2
    gate, up = part_of(gate_up, 0, half), part_of(gate_up, half, half)
    multiply(hidden, [gate, up], Gated(places, limits, row))


def check_checkpoint(name: str, tensor: Any, rows: int, columns: int) -> None:
    """Check that a checkpoint, if given, is a matrix [S, I] of floats."""
    if tensor is not None:
        assert_shape(tensor, (rows, columns), name)
        kernel_assert(
            tensor.dtype in (nl.bfloat16, nl.float16, nl.float32),
            f"{name}: got dtype {tensor.dtype}, expected bfloat16, float16 or float32",
        )
