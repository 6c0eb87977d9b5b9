"""Products of tokens with microscaling (MX) weights that stream from HBM four-packed, in either operand order.

Weights [rows, tiles, columns]: a word holds four elements of a column, a tile of the contraction is `rows`
partitions x 4 lanes. Their scales [rows / 8, tiles, columns] serve 8 rows each. Tokens stand in SBUF likewise,
[rows, tiles, tokens]; which index of the contraction stands where is the caller's affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.projection import BANK_COLUMNS, CHUNK_BYTES, PARTITIONS, Block
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import new_tile, stream_tile

LANES, GROUP, QUADRANT = 4, 8, 32  # elements of a word; partitions that share a scale; a quadrant
SCALE_ROWS = QUADRANT // GROUP  # the first partitions of a quadrant hold its scales
TILE = PARTITIONS * LANES  # of the contraction
ONE = 127  # the code of the scale 1
SCALE_BYTES = 24 * 1024  # in each partition, of scales that come at once
LARGEST_FP8 = 448.0
SCALE_DTYPES = (nl.uint8, nl.float8_e8m0fnu)
WORDS = (nl.float8_e4m3fn_x4, nl.float8_e5m2_x4, nl.float4_e2m1fn_x4)


@dataclass
class MxWeights(nl.NKIObject):
    """Four-packed weights in HBM. Without `scales`, all of them are 1."""

    words: Any
    scales: Any = None


@dataclass
class MxTokens(nl.NKIObject):
    """Tokens in SBUF, words [rows, tiles, tokens]. `scales`, of the same shape, or None: all are 1."""

    words: Any
    scales: Any
    ones: Any  # [128, columns] of the scale 1, for the operand that has none
    tiles: Any = None  # where further tiles come from, see tiles.py


def as_words(name: str, tensor: Any) -> Any:
    """A tensor seen as four-packed: it is so, holds words without a type, or FP8 with four lanes innermost."""
    if tensor.dtype in WORDS:
        return tensor
    if tensor.dtype == nl.uint16:
        return tensor.view(nl.float4_e2m1fn_x4)
    if tensor.dtype == nl.uint32:
        return tensor.view(nl.float8_e4m3fn_x4)
    kernel_assert(
        tensor.dtype in (nl.float8_e4m3fn, nl.float8_e5m2),
        f"{name}: got {tensor.dtype}, expected a four-packed FP8 or FP4 dtype, uint16, uint32, float8_e4m3fn "
        "or float8_e5m2",
    )
    return tensor.view(nl.float8_e4m3fn_x4 if tensor.dtype == nl.float8_e4m3fn else nl.float8_e5m2_x4)


def word_bytes(words: Any) -> int:
    return 2 if words.dtype == nl.float4_e2m1fn_x4 else 4


def filled(rows: int) -> int:
    """Partitions of whole quadrants, which is what MX instructions work on."""
    return div_ceil(rows, QUADRANT) * QUADRANT


# ---- tokens --------------------------------------------------------------------------------------


def ones_tile(columns: int, tiles: Any = None) -> Any:
    tile = new_tile(tiles, (PARTITIONS, columns), nl.uint8)
    nisa.memset(tile, ONE)
    return tile


def quantize_tokens(lanes: Any, ones: Any, tiles: Any = None) -> MxTokens:
    """lanes [rows, tiles, tokens, 4] in 16 bits, as MXFP8."""
    shape = (lanes.shape[0], lanes.shape[1], lanes.shape[2])
    words = new_tile(tiles, shape, nl.float8_e4m3fn_x4)
    scales = new_tile(tiles, shape, nl.uint8)
    nisa.quantize_mx(words, lanes, scales)
    return MxTokens(words, scales, ones, tiles)


def round_tokens(lanes: Any, inverse: Any, ones: Any, tiles: Any = None) -> MxTokens:
    """lanes * inverse [128, 1], clipped, in FP8 whose scales are 1."""
    rows, count, tokens = lanes.shape[0], lanes.shape[1], lanes.shape[2]
    scaled = new_tile(tiles, lanes.shape, nl.bfloat16)
    narrow = new_tile(tiles, (rows, count, LANES * tokens), nl.float8_e4m3fn)
    nisa.tensor_scalar(scaled, lanes, nl.multiply, inverse[0:rows], op1=nl.minimum, operand1=LARGEST_FP8)
    place = narrow.reshape((rows, count, tokens, LANES))
    nisa.tensor_scalar(place, scaled, nl.maximum, -LARGEST_FP8)
    return MxTokens(narrow.view(nl.float8_e4m3fn_x4), None, ones, tiles)


def token_scales(x: MxTokens, tile: int, start: int, end: int) -> Any:
    return x.ones[:, 0 : end - start] if x.scales is None else x.scales[:, tile, start:end]


# ---- weights -------------------------------------------------------------------------------------


def load_scales(weights: MxWeights, first: int, count: int, column: int, columns: int, tiles: Any) -> Any:
    """Scales of some tiles where instructions want them: four rows at the start of each quadrant."""
    if weights.scales is None:
        return None
    rows = weights.scales.shape[0]
    tile = stream_tile(tiles, (PARTITIONS, count, columns), nl.uint8)
    source = weights.scales if weights.scales.dtype == nl.uint8 else weights.scales.view(nl.uint8)
    for group in TiledRange(rows, SCALE_ROWS):
        part = source[group.start_offset : group.end_offset, first : first + count, column : column + columns]
        if group.size < SCALE_ROWS:  # rows of the quadrant that only pad: any number will do
            nisa.memset(tile[QUADRANT * group.index : QUADRANT * group.index + SCALE_ROWS], ONE)
        nisa.dma_copy(tile[QUADRANT * group.index : QUADRANT * group.index + group.size], part)
    return tile


def load_words(weights: MxWeights, first: int, count: int, column: int, columns: int, tiles: Any) -> Any:
    """Some tiles in SBUF, [whole quadrants, tiles, columns]; partitions that only pad hold zeros."""
    rows = weights.words.shape[0]
    tile = stream_tile(tiles, (filled(rows), count, columns), weights.words.dtype)
    if filled(rows) > rows:
        start = rows // QUADRANT * QUADRANT
        plain = nl.uint16 if word_bytes(weights.words) == 2 else nl.uint32
        nisa.memset(tile.view(plain)[start:], 0)
    part = weights.words[:, first : first + count, column : column + columns]
    nisa.dma_copy(tile[0:rows], part)
    return tile


class WeightStream(nl.NKIObject):
    """Tiles of the weights one after another: `at(tile)` returns its words and scales, loading what is next."""

    def __init__(self, weights: MxWeights, column: int, columns: int, tiles: Any):
        self.weights = weights
        self.column, self.columns, self.tiles = column, columns, tiles
        self.count = weights.words.shape[1]
        self.step = max(1, CHUNK_BYTES // (columns * word_bytes(weights.words)))
        self.scale_step = max(self.step, SCALE_BYTES // columns // self.step * self.step)
        self.words, self.scales = None, None

    def load(self, tile: int) -> None:
        if tile % self.scale_step == 0:
            count = min(self.scale_step, self.count - tile)
            self.scales = load_scales(self.weights, tile, count, self.column, self.columns, self.tiles)
        if tile % self.step == 0:
            count = min(self.step, self.count - tile)
            self.words = load_words(self.weights, tile, count, self.column, self.columns, self.tiles)

    def words_of(self, tile: int, start: int, end: int) -> Any:
        return self.words[:, tile % self.step, start:end]

    def scales_of(self, tile: int, start: int, end: int, ones: Any) -> Any:
        if self.scales is None:
            return ones[:, 0 : end - start]
        return self.scales[:, tile % self.scale_step, start:end]


# ---- products ------------------------------------------------------------------------------------


def project_features_mx(x: MxTokens, weights: MxWeights, sums: list, column: int, width: int) -> None:
    """sums[i][c, t] = tokens x columns column + width i ...: weights stationary, so few tokens cost little.

    All of them are in PSUM at once; each chunk of weights serves them all and is gone.
    """
    columns = 0
    for block in sums:
        columns = columns + block.shape[0]
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


def project_rows_mx(x: MxTokens, weights: MxWeights, blocks: list, column: int, columns: int) -> None:
    """Token-major sums of columns column ... column + columns: tokens, an even number, stationary."""
    stream = WeightStream(weights, column, columns, x.tiles)
    for tile in range(stream.count):
        stream.load(tile)
        for block in blocks:
            add_rows(block, x, stream, tile)


def add_rows(block: Block, x: MxTokens, stream: WeightStream, tile: int) -> None:
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
    """PSUM for `count` blocks [rows, tokens], banks [rows, blocks, tokens] with as many as there is room for."""
    banks = []
    for some in TiledRange(count, BANK_COLUMNS // tokens):
        banks.append(nl.ndarray((rows, some.size, tokens), nl.float32, buffer=nl.psum))
    return banks
