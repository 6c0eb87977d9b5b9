"""Cumulative sum along the last axis."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.row_scan import scan_rows
from nkilib.core.utils.types import Tensor

MAX_B, MAX_S, MAX_H = 2048, 10, 8192
FLOATS = (nl.float32, nl.bfloat16, nl.float16, nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2)


@nki.jit
def cumsum(x: Tensor, axis: int = -1):
    """out[..., i] = sum of x[..., j] over j <= i: summed in float32, each element rounded once.

    Args:
        x: [B, H] or [B, S, H] of a float dtype; B <= 2048, S <= 10, H <= 8192.
        axis: the last one, as -1 or by its number.

    Returns:
        A new tensor of the shape and dtype of x.

    On two cores each takes half of the rows.

    >>> cumsum(np.ones((1, 4), np.float32))
    array([[1., 2., 3., 4.]], dtype=float32)
    """
    check_arguments(x, axis)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    matrix = (x.size // x.shape[-1], x.shape[-1])
    scan_rows(out.reshape(matrix), x.reshape(matrix))
    return out


def check_arguments(x: Tensor, axis: int):
    assert_tensors((("x", x),))
    shape, last = tuple(x.shape), len(x.shape) - 1
    kernel_assert(last in (1, 2), f"x: got shape {shape}, expected [B, H] or [B, S, H]")
    kernel_assert(x.dtype in FLOATS, f"x: got dtype {x.dtype}, allowed are float dtypes")
    kernel_assert(axis in (-1, last), f"axis: got {axis}, allowed are -1 and {last} for x of shape {shape}")
    kernel_assert(shape[0] <= MAX_B, f"x: got B = {shape[0]}, allowed are at most {MAX_B}")
    kernel_assert(last == 1 or shape[1] <= MAX_S, f"x: got S = {shape[1]}, allowed are at most {MAX_S}")
    kernel_assert(shape[-1] <= MAX_H, f"x: got H = {shape[-1]}, allowed are at most {MAX_H}")


def cumsum_ref(x: np.ndarray) -> np.ndarray:
    """In float64."""
    return np.cumsum(np.asarray(x, np.float64), axis=-1)
