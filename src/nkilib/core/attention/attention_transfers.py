"""Transfers of attention_cte between HBM and tiles of 128 rows."""

from __future__ import annotations

import nki.isa as nisa
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor


def load_transposed(tile: Tensor, hbm: Tensor, start: int, size: int, by_rows: bool) -> None:
    """Rows start .. start + size - 1 as the columns of a tile; by_rows: HBM holds them as rows."""
    if by_rows:
        nisa.dma_transpose(tile, hbm[start : start + size, :])
    else:
        nisa.dma_copy(tile, hbm[:, start : start + size])


def move_rows(tile: Tensor, hbm: Tensor, start: int, rows: int, to_hbm: bool) -> None:
    """Between [128, tiles, columns] in SBUF and rows of an HBM matrix; the last tile may be short."""
    whole, columns = rows // PMAX, hbm.shape[1]
    if whole > 0:
        matrix = hbm[start : start + whole * PMAX, :].reshape((whole, PMAX, columns)).permute((1, 0, 2))
        move(tile[:, 0:whole, :], matrix, to_hbm)
    if rows % PMAX > 0:
        move(tile[0 : rows % PMAX, whole, :], hbm[start + whole * PMAX : start + rows, :], to_hbm)


def move(tile: Tensor, hbm: Tensor, to_hbm: bool) -> None:
    if to_hbm:
        nisa.dma_copy(hbm, tile)
    else:
        nisa.dma_copy(tile, hbm)
