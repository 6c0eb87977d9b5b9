"""Rows added to rows of a matrix by number."""

from __future__ import annotations

import numpy as np

import nki
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.types import Tensor
from nkilib.experimental.misc.gather import gather
from nkilib.experimental.misc.indexed_rows import add_rows, check_index


@nki.jit
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """input[index[i]] += src[i], in place: rows added by number, as PyTorch's `index_add_`; returns input.

    Args:
        input: [N, D] in float32, bfloat16 or float16.
        dim: 0.
        index: [K] int32 or uint32, each below N; an index outside is an error.
        src: [K, D] in the dtype of input.

    The page asks for indices that differ within each 128 rows. Here equal ones are added up too: TensorE sums
    the rows of a tile that share an index, in float32, before they are added. A row of infinities or NaN
    makes NaN of the 128 rows it is summed with. Each tile rounds its sums to the dtype of input. Two cores
    share the columns. The gradient is `scatter_add_bwd`.

    >>> table = np.zeros((3, 2), np.float32)
    >>> scatter_add(table, 0, np.array([2, 0, 2], np.int32), np.ones((3, 2), np.float32)).tolist()
    [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]
    """
    get_verified_program_sharding_info("scatter_add", (0, 1), 2)
    assert_tensors((("input", input), ("index", index), ("src", src)))
    check_index(input, dim, index)
    assert_shape(src, (index.shape[0], input.shape[1]), "src")
    start, end = program_share(input.shape[1])
    if start < end:
        add_rows(input, index, src, start, end)
    return input


@nki.jit
def scatter_add_bwd(grad_output: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the gradient of scatter_add for src, [K, D]: grad_output[index[i]].

    That for input is grad_output itself, [N, D]. Two cores share the indices. The documented
    library has no such kernel.

    >>> scatter_add_bwd(np.array([[3.0], [4.0]], np.float32), 0, np.array([1, 1], np.int32)).tolist()
    [[4.0], [4.0]]
    """
    return gather(grad_output, dim, index)


def scatter_add_ref(input: np.ndarray, dim: int, index: np.ndarray, src: np.ndarray) -> np.ndarray:
    """Add in numpy, in float64, row by row."""
    total = np.asarray(input, np.float64).copy()
    np.add.at(np.moveaxis(total, dim, 0), index, np.asarray(src, np.float64))
    return total
