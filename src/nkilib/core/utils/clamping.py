"""Clamping of tiles to limits of which either may be absent."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.types import Tensor


def has_limits(upper: float | None, lower: float | None) -> bool:
    """Return whether `clamp` has anything to do."""
    return upper is not None or lower is not None


def check_limits(gate: tuple, up: tuple) -> None:
    """Check the limits (upper, lower) of gate and up: each is a number or None."""
    for limit in (
        ("gate_clamp_upper_limit", gate[0]),
        ("gate_clamp_lower_limit", gate[1]),
        ("up_clamp_upper_limit", up[0]),
        ("up_clamp_lower_limit", up[1]),
    ):
        kernel_assert(
            limit[1] is None or isinstance(limit[1], (int, float)),
            f"{limit[0]}: got {limit[1]}, expected a number",
        )


def clamp(dst: Tensor, x: Tensor, upper: float | None, lower: float | None) -> None:
    """Write max(min(x, upper), lower) to `dst` in one instruction. At least one limit is given."""
    if lower is None:
        nisa.tensor_scalar(dst, x, nl.minimum, upper)
    elif upper is None:
        nisa.tensor_scalar(dst, x, nl.maximum, lower)
    else:
        nisa.tensor_scalar(dst, x, nl.minimum, upper, op1=nl.maximum, operand1=lower)
