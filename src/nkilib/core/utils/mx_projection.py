"""Products of tokens with microscaling (MX) weights that stream from HBM four-packed, in either order.

Weights [rows, tiles, columns]: a word holds four elements of a column, a tile of the contraction is `rows`
partitions x 4 lanes. Their scales [rows / 8, tiles, columns] serve 8 rows each. Tokens stand in SBUF
likewise, [rows, tiles, tokens]; the caller decides which index of the contraction is where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.mx_layout import LANES, ONE
from nkilib.core.utils.mx_weight_loads import SCALE_ROWS, MxWeights, WeightScales, WeightStream
from nkilib.core.utils.projection import BANK_COLUMNS, ProductBlock
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import Tiles, new_tile
from nkilib.core.utils.types import Tensor

LARGEST_FP8 = 448.0


@dataclass
class MxTokens(nl.NKIObject):
    """Tokens in SBUF, words [rows, tiles, tokens]. `scales`, of the same shape, or None: all are 1.

    `sharing` n: scales of n tiles share a quadrant, four partitions each: [rows, tiles / n, tokens].
    """

    words: Any
    scales: Any
    ones: Tensor  # [128, columns] of the scale 1, for the operand that has none
    tiles: Any = None  # where further tiles come from, see tiles.py
    factors: Any = None  # what every token is to be multiplied by still, as its caller wants them
    sharing: int = 1


# ---- tokens --------------------------------------------------------------------------------------


def ones_tile(columns: int, tiles: Tiles | None = None) -> Any:
    tile = new_tile(tiles, (PMAX, columns), nl.uint8)
    nisa.memset(tile, ONE)
    return tile


def quantize_tokens(lanes: Tensor, ones: Tensor, tiles: Tiles | None = None) -> MxTokens:
    """lanes [rows, tiles, tokens, 4] in 16 bits, as MXFP8."""
    shape = (lanes.shape[0], lanes.shape[1], lanes.shape[2])
    words = new_tile(tiles, shape, nl.float8_e4m3fn_x4)
    scales = new_tile(tiles, shape, nl.uint8)
    nisa.quantize_mx(words, lanes, scales)
    return MxTokens(words, scales, ones, tiles)


def round_tokens(lanes: Tensor, inverse: Tensor, ones: Tensor, tiles: Tiles | None = None) -> MxTokens:
    """lanes * inverse [128, 1], clipped, in FP8 whose scales are 1."""
    rows, count, tokens = lanes.shape[0], lanes.shape[1], lanes.shape[2]
    scaled = new_tile(tiles, lanes.shape, nl.bfloat16)
    narrow = new_tile(tiles, (rows, count, LANES * tokens), nl.float8_e4m3fn)
    nisa.tensor_scalar(scaled, lanes, nl.multiply, inverse[0:rows], op1=nl.minimum, operand1=LARGEST_FP8)
    place = narrow.reshape((rows, count, tokens, LANES))
    nisa.tensor_scalar(place, scaled, nl.maximum, -LARGEST_FP8)
    return MxTokens(narrow.view(nl.float8_e4m3fn_x4), None, ones, tiles)


def narrow_tokens(lanes: Tensor, ones: Tensor, tiles: Tiles | None = None) -> MxTokens:
    """lanes in 16 bits that hold FP8 numbers, as FP8 whose scales are 1."""
    rows, count, tokens = lanes.shape[0], lanes.shape[1], lanes.shape[2]
    narrow = new_tile(tiles, (rows, count, LANES * tokens), nl.float8_e4m3fn)
    nisa.tensor_copy(narrow.reshape((rows, count, tokens, LANES)), lanes)
    return MxTokens(narrow.view(nl.float8_e4m3fn_x4), None, ones, tiles)


def token_scales(x: MxTokens, tile: int, start: int, end: int) -> Any:
    if x.scales is None:
        return x.ones[:, 0 : end - start]
    return x.scales[SCALE_ROWS * (tile % x.sharing) :, tile // x.sharing, start:end]


# ---- products ------------------------------------------------------------------------------------


def project_features_mx(
    x: MxTokens, weights: MxWeights, sums: list, column: int, width: int, stream: WeightStream | None = None
) -> None:
    """sums[i][c, t] = tokens x columns column + width i ...: weights stationary, so few tokens cost little.

    All of them are in PSUM at once; each chunk of weights serves them all and is gone. `stream`: the weights,
    if the caller has loaded them.
    """
    columns = 0
    for block in sums:
        columns = columns + block.shape[0]
    if stream is None:
        stream = WeightStream(weights, column, columns, x.tiles)
    tokens = x.words.shape[2]
    for tile in range(stream.count):
        stream.load(tile)
        for i in range(len(sums)):
            start, end = i * width, i * width + sums[i].shape[0]
            nisa.nc_matmul_mx(
                sums[i],
                stream.words_of(tile, start, end),
                x.words[:, tile, :],
                stream.scales_of(tile, start, end, x.ones),
                token_scales(x, tile, 0, tokens),
            )


def project_rows_mx(
    x: MxTokens,
    weights: MxWeights,
    blocks: list,
    column: int,
    columns: int,
    scales: WeightScales | None = None,
) -> None:
    """Token-major sums of columns column ... column + columns: tokens, an even number, stationary.

    `scales`: of these and perhaps more columns, if they are in SBUF already.
    """
    stream = WeightStream(weights, column, columns, x.tiles, scales)
    for tile in range(stream.count):
        stream.load(tile)
        for block in blocks:
            add_rows(block, x, stream, tile)


def add_rows(block: ProductBlock, x: MxTokens, stream: WeightStream, tile: int) -> None:
    first, last = block.token, block.token + block.tokens
    start, end = block.column, block.column + block.columns
    nisa.nc_matmul_mx(
        block.sums,
        x.words[:, tile, first:last],
        stream.words_of(tile, start, end),
        token_scales(x, tile, first, last),
        stream.scales_of(tile, start, end, x.ones),
    )


def sums_of_features(rows: int, count: int, tokens: int) -> list:
    """PSUM for `count` blocks [rows, tokens]: banks [rows, blocks, tokens], as many as there is room for."""
    banks = []
    for some in TiledRange(count, BANK_COLUMNS // tokens):
        banks.append(nl.ndarray((rows, some.size, tokens), nl.float32, buffer=nl.psum))
    return banks
