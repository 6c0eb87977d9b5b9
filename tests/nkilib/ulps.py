"""Comparing floats by how many representable numbers lie between them."""

from __future__ import annotations

import numpy as np


def within_ulps(actual: np.ndarray, expected: np.ndarray, ulps: int = 1, absolute: float = 0.0) -> None:
    """Same shape and dtype, NaN where NaN is expected, elsewhere at most `ulps` steps or `absolute` away."""
    assert actual.dtype == expected.dtype, f"{actual.dtype} instead of {expected.dtype}"
    assert actual.shape == expected.shape, f"{actual.shape} instead of {expected.shape}"
    missing = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(actual.astype(np.float32)), missing)
    actual, expected = actual[~missing], expected[~missing]
    steps = np.abs(_ordinal(actual) - _ordinal(expected))
    far = steps > ulps
    far[far] = np.abs(actual[far].astype(np.float64) - expected[far].astype(np.float64)) > absolute
    assert not far.any(), f"{far.sum()} elements differ by up to {steps[far].max()} ulps"


def _ordinal(x: np.ndarray) -> np.ndarray:
    """Neighbouring floats as neighbouring integers; both zeros are 0."""
    bits = np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}").astype(np.int64)
    lowest = -(1 << (8 * x.dtype.itemsize - 1))
    return np.where(bits < 0, lowest - bits, bits)
