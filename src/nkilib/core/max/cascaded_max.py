"""The largest element of each row and where it is: greedy sampling."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.topk.largest import as_rows, top_of_rows
from nkilib.core.topk.rotational_topk import FLOATS, MAX_COLUMNS
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.types import Tensor


@nki.jit
def cascaded_max(input_tensor: Tensor) -> tuple:
    """Return (max [..., 1], argmax int32 [..., 1]) over the last axis; the first of equal ones.

    input_tensor is [R, V] or [B, S, V] in float32, bfloat16 or float16, of values above -3e38. Long rows are
    spread over partitions, and what their pieces find is searched again. Two cores share the rows. The
    original has no page: name, module and the argument are what callers use.

    >>> value, place = cascaded_max(np.array([[1, 7, 7], [0, -1, -2]], np.float32))
    >>> value.tolist(), place.tolist()
    ([[7.0], [0.0]], [[1], [0]])
    """
    get_verified_program_sharding_info("cascaded_max", (0, 1), 2)
    assert_tensors((("input_tensor", input_tensor),))
    shape = tuple(input_tensor.shape)
    kernel_assert(len(shape) in (2, 3), f"input_tensor: got shape {shape}, expected [R, V] or [B, S, V]")
    kernel_assert(
        input_tensor.dtype in FLOATS,
        f"input_tensor: got {input_tensor.dtype}, allowed are float32, bfloat16 and float16",
    )
    kernel_assert(
        shape[-1] <= MAX_COLUMNS, f"input_tensor: got V = {shape[-1]}, allowed is up to {MAX_COLUMNS}"
    )
    reduced = shape[:-1] + (1,)
    values = nl.ndarray(reduced, input_tensor.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray(reduced, nl.int32, buffer=nl.shared_hbm)
    top_of_rows(as_rows(values), as_rows(index), as_rows(input_tensor))
    return values, index


def cascaded_max_ref(input_tensor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reduce in numpy."""
    index = np.argmax(np.asarray(input_tensor, np.float64), axis=-1)[..., None]
    return np.take_along_axis(input_tensor, index, -1), index.astype(np.int32)
