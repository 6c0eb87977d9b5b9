"""Rows of tokens [tokens, K] as MX operands, where a block of 32 is 32 neighbours, and back to packed rows.

Partition p and lane q of tile t hold column 512 t + 4 p + q. A packed row has the K elements in this order,
which is that of the columns, then the scales: four tiles share 128 columns, tile t has those from
32 g + 4 (t % 4) on for quadrant g.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, interleave_copy
from nkilib.core.utils.mx_layout import LANES, TILE
from nkilib.core.utils.mx_projection import MxTokens
from nkilib.core.utils.mx_weight_loads import SCALE_ROWS, SHARING
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import rows_in, transpose_rows
from nkilib.core.utils.types import DTypeLike, Tensor

ELEMENTS = ((nl.float8_e4m3fn_x4, nl.float8_e4m3fn), (nl.float8_e5m2_x4, nl.float8_e5m2))


def check_mx(kernel: str) -> None:
    """Refuse generations without MX instructions."""
    kernel_assert(nisa.get_nc_version() >= nisa.nc_version.gen4, f"{kernel}: MX instructions need trn3")


def element_dtype(words: DTypeLike) -> Any:
    """The FP8 dtype of one lane of a four-packed one; None for others."""
    for known in ELEMENTS:
        if words == known[0]:
            return known[1]
    return None


def scale_columns(size: int, shared: bool = True) -> int:
    """Columns of a packed row that hold the scales of `size` elements."""
    tiles = size // TILE
    return PMAX * (div_ceil(tiles, SHARING) if shared else tiles)


# ---- rows to operands ----------------------------------------------------------------------------


def new_operand(
    size: int,
    tokens: int,
    ones: Tensor | None = None,
    dtype: DTypeLike = nl.float8_e4m3fn_x4,
    shared: bool = True,
) -> MxTokens:
    """Words [128, size / 512, tokens] and their scales, of which those of four tiles may share partitions."""
    tiles, sharing = size // TILE, SHARING if shared else 1
    words = nl.ndarray((PMAX, tiles, tokens), dtype, buffer=nl.sbuf)
    scales = nl.ndarray((PMAX, div_ceil(tiles, sharing), tokens), nl.uint8, buffer=nl.sbuf)
    nisa.memset(scales, 0)
    return MxTokens(words, scales, ones, sharing=sharing)


def rows_to_columns(rows: Tensor, count: int | None = None, adjacent: int = LANES) -> Tensor:
    """rows [n, K] in 16 bits, transposed: [128, K / 128, count], column 512 t + 4 p + q at [p, 4 t + q].

    The tokens from n up to `count` are zeros. With `adjacent` 1, column 512 t + 128 q + p is there.
    """
    count = rows.shape[0] if count is None else count
    columns = nl.ndarray((PMAX, rows.shape[1] // PMAX, count), rows.dtype, buffer=nl.sbuf)
    if count > rows.shape[0]:
        nisa.memset(columns[:, :, rows.shape[0] : count], 0.0)
    transpose_rows(columns, 0, 0, rows, adjacent)
    return columns


def quantize_into(x: MxTokens, tile: int, token: int, columns: Tensor) -> None:
    """Columns [128, 4 tiles, tokens] as tiles `tile` ... and tokens `token` ... of an operand."""
    tiles, tokens = columns.shape[1] // LANES, columns.shape[2]
    last = token + tokens
    lanes = columns.reshape((PMAX, tiles, LANES, tokens)).permute((0, 1, 3, 2))
    if x.sharing == 1:
        places = x.scales[:, tile : tile + tiles, token:last]
        nisa.quantize_mx(x.words[:, tile : tile + tiles, token:last], lanes, places)
        return
    for i in range(tiles):
        at = tile + i
        place = x.scales[SCALE_ROWS * (at % x.sharing) :, at // x.sharing, token:last]
        nisa.quantize_mx(x.words[:, at, token:last], lanes[:, i], place)


def quantize_rows_mx(rows: list, ones: Tensor, shared: bool = True) -> MxTokens:
    """Rows, tiles [n <= 128, K] in 16 bits, as an operand with an even number of tokens."""
    tokens = rows_in(rows)
    x = new_operand(rows[0].shape[1], tokens + tokens % 2, ones, shared=shared)
    for i in range(len(rows)):
        count = rows[i].shape[0]
        quantize_into(x, 0, i * PMAX, rows_to_columns(rows[i], count + count % 2))
    return x


# ---- packed rows ---------------------------------------------------------------------------------


def pack_rows(packed: Tensor, x: MxTokens) -> None:
    """Words and scales into rows [tokens, K + scale columns] of FP8 elements."""
    tiles, tokens = x.words.shape[1], x.words.shape[2]
    place = packed[:, 0 : tiles * TILE].view(nl.float32)
    for group in TiledRange(tiles, BANK_COLUMNS // PMAX):
        bank = nl.ndarray((tokens, group.size, PMAX), nl.float32, buffer=nl.psum)
        for i in range(group.size):
            nisa.nc_transpose(bank[:, i, :], x.words[:, group.start_offset + i, :].view(nl.float32))
        target = place[:, group.start_offset * PMAX : group.end_offset * PMAX]
        interleave_copy(target.reshape_dim(1, (group.size, PMAX)), bank, group.index)
    codes = packed[:, tiles * TILE :].view(nl.uint8)
    for block in range(x.scales.shape[1]):
        bank = nl.ndarray((tokens, PMAX), nl.uint16, buffer=nl.psum)
        nisa.nc_transpose(bank, x.scales[:, block, :])
        nisa.tensor_copy(codes[:, block * PMAX : (block + 1) * PMAX], bank)


def unpack_rows(packed: list, size: int, ones: Tensor) -> MxTokens:
    """Rows, tiles [n <= 128, K + scale columns] as an operand with an even number of tokens."""
    tokens = rows_in(packed)
    x = new_operand(size, tokens + tokens % 2, ones)
    if tokens % 2 == 1:
        nisa.memset(x.words.view(nl.uint32)[:, :, tokens : tokens + 1], 0)
    for i in range(len(packed)):
        rows, token = packed[i], i * PMAX
        transpose_rows(x.words.view(nl.float32), 0, token, rows[:, 0:size].view(nl.float32))
        codes = rows[:, size : size + scale_columns(size)].view(nl.uint8)
        for block in range(x.scales.shape[1]):
            bank = nl.ndarray((PMAX, rows.shape[0]), nl.uint16, buffer=nl.psum)
            nisa.nc_transpose(bank, codes[:, block * PMAX : (block + 1) * PMAX])
            nisa.tensor_copy(x.scales[:, block, token : token + rows.shape[0]], bank)
    return x
