"""Where a row is not zero, and how often: one instruction of GpSimdE."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

PADDING_VALUE = -1
MAX_TOKENS = 16384  # of a row in one partition, twice


@nki.jit
def find_nonzero_indices_with_count(input_tensor: Tensor) -> Tensor:
    """Return [1, T + 1] int32 of input_tensor [1, T]: the indices of what is not zero, -1, then their number.

    input_tensor is float32 or int32, T <= 16384. One core does all. A helper without a page; the function is
    that which public tests describe.

    >>> find_nonzero_indices_with_count(np.array([[0, 3, 0, 1]], np.float32)).tolist()
    [[1, 3, -1, -1, 2]]
    """
    core = get_verified_program_sharding_info("find_nonzero_indices_with_count")[2]
    assert_tensors((("input_tensor", input_tensor),))
    shape = tuple(input_tensor.shape)
    kernel_assert(
        len(shape) == 2 and shape[0] == 1 and shape[1] <= MAX_TOKENS,
        f"input_tensor: got shape {shape}, expected [1, T] with T <= {MAX_TOKENS}",
    )
    kernel_assert(
        input_tensor.dtype in (nl.float32, nl.int32),
        f"input_tensor: got {input_tensor.dtype}, allowed are float32 and int32",
    )
    out = nl.ndarray((1, shape[1] + 1), nl.int32, buffer=nl.shared_hbm)
    if core == 0:
        row = nl.ndarray((PMAX, shape[1]), input_tensor.dtype, buffer=nl.sbuf)
        nisa.memset(row, 0)
        nisa.dma_copy(row[0:1], input_tensor)
        found = nl.ndarray((PMAX, shape[1] + 1), nl.int32, buffer=nl.sbuf)
        nisa.nonzero_with_count(found, row, padding_val=PADDING_VALUE)
        nisa.dma_copy(out, found[0:1])
    return out


def find_nonzero_indices_with_count_ref(input_tensor: np.ndarray) -> np.ndarray:
    """Search in numpy."""
    found = np.flatnonzero(np.asarray(input_tensor)[0])
    out = np.full((1, input_tensor.shape[1] + 1), PADDING_VALUE, np.int32)
    out[0, : len(found)], out[0, -1] = found, len(found)
    return out
