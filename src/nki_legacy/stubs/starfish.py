"""`neuronxcc.starfish.support`: the few helpers that public tests import."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..old_api.types import bfloat16, float8_e4m3, float8_e5m2


def static_cast(array: ArrayLike, dtype: DTypeLike) -> np.ndarray:
    """Return the array in another dtype."""
    return np.asarray(array).astype(dtype)


def allclose(
    a: ArrayLike, b: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, verbose: int = 0, **_: object
) -> bool:
    """Of any dtype, ml_dtypes' included."""
    return bool(np.allclose(np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64), rtol, atol))


__all__ = ["allclose", "bfloat16", "float8_e4m3", "float8_e5m2", "static_cast"]
