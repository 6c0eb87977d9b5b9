"""First-order linear recurrence along the last axis."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.row_scan import scan_rows
from nkilib.core.utils.types import Tensor


@nki.jit
def linear_scan(decay: Tensor, data: Tensor, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """result[..., t] = decay[..., t] * result[..., t - 1] + data[..., t], carried in float32.

    Args:
        decay, data: [..., P, L] of equal shape and any float dtypes.
        initial: [..., P, 1], the result before t = 0; 0 without it.

    Returns:
        result [..., P, L] in the dtype of data, final_state [..., P, 1] float32: the last result, not
        rounded to that dtype.

    On two cores each takes half of the rows.

    >>> decay, data = np.full((1, 4), 0.5, np.float32), np.ones((1, 4), np.float32)
    >>> result, final_state = linear_scan(decay, data)
    >>> result
    array([[1.   , 1.5  , 1.75 , 1.875]], dtype=float32)
    """
    check_arguments(decay, data, initial)
    shape = tuple(data.shape)
    matrix, column = (data.size // shape[-1], shape[-1]), (data.size // shape[-1], 1)
    result = nl.ndarray(shape, data.dtype, buffer=nl.shared_hbm)
    final_state = nl.ndarray(shape[0 : len(shape) - 1] + (1,), nl.float32, buffer=nl.shared_hbm)
    scan_rows(
        result.reshape(matrix),
        data.reshape(matrix),
        decay=decay.reshape(matrix),
        initial=None if initial is None else initial.reshape(column),
        final=final_state.reshape(column),
    )
    return result, final_state


def check_arguments(decay: Tensor, data: Tensor, initial: Tensor | None) -> None:
    assert_tensors((("decay", decay), ("data", data)), (("initial", initial),))
    shape = tuple(data.shape)
    kernel_assert(len(shape) >= 2, f"data: got shape {shape}, expected [..., P, L]")
    assert_shape(decay, shape, "decay")
    if initial is not None:
        assert_shape(initial, shape[0 : len(shape) - 1] + (1,), "initial")


def linear_scan_ref(
    decay: np.ndarray, data: np.ndarray, initial: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return result and final_state in float64, step by step."""
    decay, data = np.asarray(decay, np.float64), np.asarray(data, np.float64)
    state = np.zeros(data.shape[:-1]) if initial is None else np.asarray(initial, np.float64)[..., 0]
    result = np.empty_like(data)
    for t in range(data.shape[-1]):
        result[..., t] = state = decay[..., t] * state + data[..., t]
    return result, state[..., None]
