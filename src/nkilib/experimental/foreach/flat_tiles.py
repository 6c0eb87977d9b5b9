"""A tensor of any shape as tiles of 128 partitions, its ragged end included."""

from __future__ import annotations

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor

DTYPES = (nl.float32, nl.bfloat16, nl.float16)


@dataclass
class FlatTile(nl.NKIObject):
    """Consecutive elements of a flattened tensor, from `start` on, as rows [partitions, columns]."""

    start: int
    partitions: int
    columns: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return this tile's part of an HBM tensor, [partitions, columns]."""
        flat = tensor.reshape((tensor.size,))
        end = self.start + self.partitions * self.columns
        return flat[self.start : end].reshape((self.partitions, self.columns))

    def new(self, dtype: DTypeLike) -> Tensor:
        """Allocate an SBUF tile of this size."""
        return nl.ndarray((self.partitions, self.columns), dtype, buffer=nl.sbuf)

    def load(self, tensor: Tensor) -> Tensor:
        """Load this tile's part of a tensor."""
        loaded = self.new(tensor.dtype)
        nisa.dma_copy(loaded, self.of(tensor))
        return loaded

    def store(self, tensor: Tensor, values: Tensor) -> None:
        """Store values to this tile's part of a tensor."""
        nisa.dma_copy(self.of(tensor), values)


def flat_tiles(numel: int, columns: int) -> list[FlatTile]:
    """Return the tiles of this core's part of `numel` elements.

    Each is one contiguous run of HBM: [128, columns] while that lasts, then one narrower tile, then a
    single partition with the fewer than 128 elements that are left.
    """
    start, end = program_share(numel, PMAX)
    whole = (end - start) // PMAX
    tiles = []
    for part in TiledRange(whole, columns):
        tiles.append(FlatTile(start + part.start_offset * PMAX, PMAX, part.size))
    rest = start + whole * PMAX
    if rest < end:
        tiles.append(FlatTile(rest, 1, end - rest))
    return tiles


def load_scalar(tensor: Tensor) -> Tensor:
    """Load a [128, 1] scalar of any float dtype as float32, which the engines take as an operand."""
    scalar = nl.ndarray((PMAX, 1), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(scalar, tensor)
    return scalar


def check_data(tensor: Tensor, like: Tensor, numel: int, name: str) -> None:
    """Check that a tensor has a float dtype, numel elements and the shape of the first one."""
    assert_tensors(((name, tensor),))
    kernel_assert(
        tensor.dtype in DTYPES, f"{name}: got dtype {tensor.dtype}, allowed are float32, bfloat16 and float16"
    )
    kernel_assert(
        tuple(tensor.shape) == tuple(like.shape),
        f"{name}: got shape {tuple(tensor.shape)}, expected {tuple(like.shape)}",
    )
    kernel_assert(numel == tensor.size, f"numel: got {numel}, expected {tensor.size}, the size of {name}")


def check_scalar(tensor: Tensor, name: str) -> None:
    """Check that a tensor is a float [128, 1]."""
    assert_tensors(((name, tensor),))
    kernel_assert(
        tensor.dtype in DTYPES, f"{name}: got dtype {tensor.dtype}, allowed are float32, bfloat16 and float16"
    )
    kernel_assert(
        tuple(tensor.shape) == (PMAX, 1),
        f"{name}: got shape {tuple(tensor.shape)}, expected {(PMAX, 1)}",
    )
