"""Rows of a matrix by number: one DMA for 128 rows reads each row at its index."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor
from nkilib.experimental.misc.indexed_rows import add_rows, check_index, load_index, rows_at


@nki.jit
def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """out[i] = input[index[i]], [K, D]: rows of a matrix by number, as PyTorch's `input[index]`.

    Args:
        input: [N, D] of any dtype.
        dim: 0.
        index: [K] int32 or uint32, each below N; an index outside is an error, as in PyTorch.

    Two cores share the indices, of which there must be an even number. The gradient is `gather_bwd`.

    >>> gather(np.arange(6, dtype=np.float32).reshape(3, 2), 0, np.array([2, 0, 2], np.int32)).tolist()
    [[4.0, 5.0], [0.0, 1.0], [4.0, 5.0]]
    """
    cores = get_verified_program_sharding_info("gather", (0, 1), 2)[1]
    assert_tensors((("input", input), ("index", index)))
    check_index(input, dim, index)
    count = index.shape[0]
    kernel_assert(count % cores == 0, f"index: got K = {count}, allowed are multiples of {cores} cores")
    out = nl.ndarray((count, input.shape[1]), input.dtype, buffer=nl.shared_hbm)
    first, end = program_share(count)
    numbers = load_index(index[first:end])
    for tile in TiledRange(end - first, PMAX):
        place = out[first + tile.start_offset : first + tile.end_offset]
        nisa.dma_copy(place, rows_at(input, numbers[0 : tile.size, tile.index : tile.index + 1]))
    return out


@nki.jit
def gather_bwd(grad_output: Tensor, input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the gradient of gather for its input, [N, D]: rows of grad_output added up at their indices.

    grad_output is [K, D] in float32, bfloat16 or float16; of input only the shape is read. Equal indices are
    added up wherever they are. Two cores share the columns. The documented library has no such kernel.

    >>> index = np.array([2, 0, 2], np.int32)
    >>> gather_bwd(np.ones((3, 1), np.float32), np.zeros((3, 1), np.float32), 0, index).tolist()
    [[1.0], [0.0], [2.0]]
    """
    get_verified_program_sharding_info("gather_bwd", (0, 1), 2)
    assert_tensors((("grad_output", grad_output), ("input", input), ("index", index)))
    check_index(input, dim, index)
    assert_shape(grad_output, (index.shape[0], input.shape[1]), "grad_output")
    result = nl.ndarray(input.shape, grad_output.dtype, buffer=nl.shared_hbm)
    start, end = program_share(input.shape[1])
    if start < end:
        clear(result[:, start:end], zero_tile(end - start, result.dtype))
        add_rows(result, index, grad_output, start, end)
    return result


def gather_ref(input: np.ndarray, dim: int, index: np.ndarray) -> np.ndarray:
    """Index in numpy."""
    return np.take(input, index, axis=dim)
