"""Tokens normalised in rows, stored with their columns in the partitions: [128, tokens, H/128]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, is_hbm_buffer
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import spread_rows_into, transpose_rows
from nkilib.core.utils.types import Tensor


@dataclass
class NormTile(nl.NKIObject):
    """Up to 128 tokens, and their normalised rows in the dtype of the output."""

    rows: Tensor | None
    result: Tensor
    start: int


def check_norm(input: Tensor, gamma: Tensor, output: Tensor) -> None:
    get_verified_program_sharding_info("norm", (0, 1), 2)
    assert_tensors((("input", input), ("gamma", gamma), ("output", output)))
    shape = tuple(input.shape)
    if input.buffer == nl.sbuf:
        kernel_assert(
            len(shape) == 3 and shape[0] == PMAX, f"input: got shape {shape}, expected (128, T, H/128)"
        )
        shape = (1, shape[1], PMAX * shape[2])
    kernel_assert(
        len(shape) == 3 and shape[2] % PMAX == 0,
        f"input: got shape {shape}, expected (B, S, H) with H a multiple of 128",
    )
    assert_shape(gamma, (1, shape[2]), "gamma")
    assert_shape(output, (PMAX, shape[0] * shape[1], shape[2] // PMAX), "output")


def normalized_tiles(input: Tensor, output: Tensor) -> list:
    """The tokens in tiles, loaded, each with a tile for its result."""
    tokens, size = input.shape[0] * input.shape[1], input.shape[2]
    tiles = []
    for part in TiledRange(tokens, PMAX):
        rows = load(input.reshape((tokens, size))[part.start_offset : part.end_offset])
        result = nl.ndarray(rows.shape, output.dtype, buffer=nl.sbuf)
        tiles.append(NormTile(rows, result, part.start_offset))
    return tiles


def put(output: Tensor, tile: NormTile, hidden_dim_tp: bool = False, one_core: bool = False) -> None:
    """Store normalised rows: the layouts of rmsnorm_tkg."""
    rows, size = tile.result.shape
    columns = size // PMAX
    halves = 1 if one_core or hidden_dim_tp or columns % 2 == 1 else get_verified_program_sharding_info()[1]
    spread: Any = output[:, tile.start : tile.start + rows, :]
    if is_hbm_buffer(output):
        spread = nl.ndarray((PMAX, rows, columns), output.dtype, buffer=nl.sbuf)
    by_column = spread.permute((0, 2, 1))
    if hidden_dim_tp:
        transpose_rows(by_column, 0, 0, tile.result)
    else:
        for half in TiledRange(size, size // halves):
            place = by_column[:, half.start_offset // PMAX : half.end_offset // PMAX, :]
            spread_rows_into(place, [tile.result[:, half.start_offset : half.end_offset]])
    if is_hbm_buffer(output) and get_verified_program_sharding_info()[2] == 0:
        nisa.dma_copy(output[:, tile.start : tile.start + rows, :], spread)
