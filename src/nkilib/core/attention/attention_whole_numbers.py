"""Floor and ceiling, and the position of a key whose blocks are distributed round-robin.

>>> @nki.jit
... def floor(x):
...     tile = nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)
...     whole = nl.ndarray(x.shape, nl.int32, buffer=nl.sbuf)
...     nisa.dma_copy(tile, x)
...     floor_nisa_kernel(tile, whole, x.shape[0], x.shape[1], None)
...     out = nl.ndarray(x.shape, nl.int32, buffer=nl.shared_hbm)
...     nisa.dma_copy(out, whole)
...     return out
>>> floor(np.array([[-1.5, -1.0, 0.7, 2.5]], np.float32)).tolist()
[[-2, -1, 0, 2]]
"""

from __future__ import annotations

from typing import Any

import nki  # noqa: F401  for the example
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import BufferManager
from nkilib.core.utils.types import DTypeLike, Tensor


def scratch(allocator: BufferManager | None, shape: tuple, dtype: DTypeLike) -> Any:
    return nl.ndarray(shape, dtype, buffer=nl.sbuf) if allocator is None else allocator.alloc(shape, dtype)


def floor_nisa_kernel(
    src_t: Tensor, dst_t: Tensor, p_size: int, f_size: int, allocator: BufferManager | None
) -> None:
    """dst_t = the largest whole number not above src_t: float32 to int32, both [p_size, f_size] in SBUF.

    A cast rounds to the nearest: where that is above src_t, 1 is taken off. `allocator` (alloc(shape, dtype))
    gives the temporary tiles; None leaves them to the compiler.
    """
    nearest = scratch(allocator, (p_size, f_size), nl.int32)
    above = scratch(allocator, (p_size, f_size), nl.float32)
    nisa.tensor_copy(nearest, src_t)
    nisa.tensor_tensor(above, nearest, src_t, nl.greater)
    nisa.tensor_tensor(dst_t, nearest, above, nl.subtract)


def ceil_nisa_kernel(
    src_t: Tensor, dst_t: Tensor, p_size: int, f_size: int, allocator: BufferManager | None
) -> None:
    """dst_t = the smallest whole number not below src_t, -floor(-src_t). Arguments as floor_nisa_kernel."""
    negated = scratch(allocator, (p_size, f_size), nl.float32)
    below = scratch(allocator, (p_size, f_size), nl.int32)
    nisa.tensor_scalar(negated, src_t, nl.multiply, -1.0)
    floor_nisa_kernel(negated, below, p_size, f_size, allocator)
    nisa.tensor_scalar(dst_t, below, nl.multiply, -1.0)


class RoundRobin(nl.NKIObject):
    """Block j of a rank is block j * ranks + rank of all: how many of its keys stand before a position."""

    def __init__(self, rank: Tensor, ranks: int, block_size: int):
        self.rank = rank  # [128, 1] float32
        self.ranks = ranks
        self.block_size = block_size

    def local(self, positions: Tensor) -> None:
        """positions [128, n], in place: x to the number of this rank's keys at positions below x."""
        shape, size = positions.shape, float(self.block_size)
        every = size * self.ranks
        first = nl.ndarray((shape[0], 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(first, self.rank, nl.multiply, size)
        nisa.tensor_scalar(positions, positions, nl.subtract, first, op1=nl.maximum, operand1=0.0)
        turns = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(turns, positions, nl.multiply, 1.0 / every)
        whole = nl.ndarray(shape, nl.int32, buffer=nl.sbuf)
        floor_nisa_kernel(turns, whole, shape[0], shape[1], None)
        nisa.tensor_copy(turns, whole)
        nisa.scalar_tensor_tensor(positions, turns, nl.multiply, -every, nl.add, positions)
        nisa.tensor_scalar(positions, positions, nl.minimum, size)
        nisa.scalar_tensor_tensor(positions, turns, nl.multiply, size, nl.add, positions)
