"""Limits of a gated MLP's gate and up before the activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

import nki.language as nl
from nkilib.core.utils.types import DTypeLike

ClampBounds: TypeAlias = tuple[float | None, float | None]  # (lower, upper); None for an end that is open


@dataclass
class ClampLimits(nl.NKIObject):
    """The limits of the forward pass: of up (linear) and of gate (non-linear)."""

    linear_clamp_upper_limit: float | None = None
    linear_clamp_lower_limit: float | None = None
    non_linear_clamp_upper_limit: float | None = None
    non_linear_clamp_lower_limit: float | None = None


def gate_bounds(limits: ClampLimits | None) -> ClampBounds:
    """Return the bounds of the gate."""
    if limits is None:
        return None, None
    return limits.non_linear_clamp_lower_limit, limits.non_linear_clamp_upper_limit


def up_bounds(limits: ClampLimits | None) -> ClampBounds:
    """Return the bounds of up."""
    if limits is None:
        return None, None
    return limits.linear_clamp_lower_limit, limits.linear_clamp_upper_limit


class _Rounding:
    """Callable object instead of a function: the NKI compiler reads functions, and knows no numpy."""

    def __call__(self, bounds: ClampBounds, dtype: DTypeLike) -> ClampBounds:
        """Return bounds as a checkpoint of this dtype holds values that were clamped to them."""
        lower, upper = (
            None if bound is None else float(np.float32(bound).astype(np.dtype(dtype))) for bound in bounds
        )
        return lower, upper


rounded = _Rounding()
