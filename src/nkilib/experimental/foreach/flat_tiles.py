"""Walking a tensor of any shape as tiles of 128 partitions, its ragged end included."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import kernel_assert, program_share
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange

DTYPES = (nl.float32, nl.bfloat16, nl.float16)


class FlatTile(nl.NKIObject):
    """Elements start .. start + partitions * columns of a flattened tensor, row by row."""

    def __init__(self, start: int, partitions: int, columns: int):
        self.start = start
        self.partitions = partitions
        self.columns = columns
        self.end = start + partitions * columns


def flat_tiles(numel: int, columns: int) -> list[FlatTile]:
    """The tiles of this program's part of `numel` elements.

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


def elements(tensor: Any, tile: FlatTile) -> Any:
    """The view [partitions, columns] of an HBM tensor that a tile stands for."""
    flat = tensor.reshape((tensor.size,))
    return flat[tile.start : tile.end].reshape((tile.partitions, tile.columns))


def new_tile(tile: FlatTile, dtype: Any) -> Any:
    return nl.ndarray((tile.partitions, tile.columns), dtype, buffer=nl.sbuf)


def load_tile(tensor: Any, tile: FlatTile) -> Any:
    loaded = new_tile(tile, tensor.dtype)
    nisa.dma_copy(loaded, elements(tensor, tile))
    return loaded


def store_tile(tensor: Any, tile: FlatTile, values: Any) -> None:
    nisa.dma_copy(elements(tensor, tile), values)


def load_scalar(tensor: Any) -> Any:
    """A [128, 1] scalar of any float dtype in SBUF, as float32: what the engines take as an operand."""
    scalar = nl.ndarray((PMAX, 1), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(scalar, tensor)
    return scalar


def check_data(tensor: Any, like: Any, numel: int, name: str) -> None:
    """A float tensor of numel elements, shaped as the first one."""
    kernel_assert(
        tensor.dtype in DTYPES, f"{name}: got dtype {tensor.dtype}, allowed are float32, bfloat16 and float16"
    )
    kernel_assert(
        tuple(tensor.shape) == tuple(like.shape),
        f"{name}: got shape {tuple(tensor.shape)}, expected {tuple(like.shape)}",
    )
    kernel_assert(numel == tensor.size, f"numel: got {numel}, expected {tensor.size}, the size of {name}")


def check_scalar(tensor: Any, name: str) -> None:
    """The same float in each of 128 rows."""
    kernel_assert(
        tensor.dtype in DTYPES, f"{name}: got dtype {tensor.dtype}, allowed are float32, bfloat16 and float16"
    )
    kernel_assert(
        tuple(tensor.shape) == (PMAX, 1),
        f"{name}: got shape {tuple(tensor.shape)}, expected {(PMAX, 1)}",
    )
