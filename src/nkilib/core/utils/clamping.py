"""Clamping of tiles to limits of which either may be absent."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.types import Tensor


def has_limits(upper: float | None, lower: float | None) -> bool:
    """Return whether `clamp` has anything to do."""
    return upper is not None or lower is not None


def clamp(dst: Tensor, x: Tensor, upper: float | None, lower: float | None) -> None:
    """Write max(min(x, upper), lower) to `dst` in one instruction. At least one limit is given."""
    if lower is None:
        nisa.tensor_scalar(dst, x, nl.minimum, upper)
    elif upper is None:
        nisa.tensor_scalar(dst, x, nl.maximum, lower)
    else:
        nisa.tensor_scalar(dst, x, nl.minimum, upper, op1=nl.maximum, operand1=lower)
