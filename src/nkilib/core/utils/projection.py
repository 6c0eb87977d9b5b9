"""Products of tokens with a weight matrix whose rows stream from HBM, in either operand order.

Activations stand in SBUF with the contracted dimension in the partitions, [128, tiles, tokens]. Either order
takes them so: token-major keeps them stationary and gives [tokens, columns], feature-major keeps the weights
stationary and gives [columns, tokens], which is what the next projection contracts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.tiled_range import TiledRange

PARTITIONS = 128
BANK_COLUMNS = 512  # float32 in one PSUM bank, and the most columns of a moving operand
SUM_BANKS = 4  # one set of sums: half of PSUM, so that the other half can be drained meanwhile
CHUNK_BYTES = 8 * 1024  # of weights in each partition: 1 MiB for one transfer
MAX_SPAN = 4096  # columns: long rows for DMA, yet little left to do when the last one has come
FP8 = (nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2)


@dataclass
class Activations(nl.NKIObject):
    """x[t, partitions k + p] at tile[p, k, t], `size` elements a token; the weights' rows start at `row`."""

    tile: Any
    size: int
    row: int = 0
    scales: Any = None  # what a token was divided by when quantised: [tokens, 1] for each 128 tokens
    partitions: int = PARTITIONS  # that a tile of the contraction fills


@dataclass
class Block(nl.NKIObject):
    """Sums of some tokens and columns in PSUM; token-major ones may start at a later partition, `lane`."""

    sums: Any
    token: int
    tokens: int
    column: int
    columns: int
    lane: int = 0
    lane_size: int = PARTITIONS


def span_columns(x: Activations, weight: Any) -> int:
    """How many columns of sums to work on at once, so that a set fits into SUM_BANKS."""
    tokens = x.tile.shape[2]
    in_a_bank = BANK_COLUMNS * (PARTITIONS // lane_size(tokens, not doubles(x.tile, weight)))
    return min(MAX_SPAN, in_a_bank * max(1, SUM_BANKS // div_ceil(tokens, PARTITIONS)))


def lane_size(tokens: int, packed: bool) -> int:
    """Partitions that a token-major block takes: with few tokens, several stand side by side."""
    if not packed or tokens > 64:
        return PARTITIONS
    return 32 if tokens <= 32 else 64


# ---- where sums stand ----------------------------------------------------------------------------


def token_major_blocks(tokens: int, columns: int, packed: bool) -> list[Block]:
    """Blocks [tokens <= 128, columns <= 512]; of few tokens, several in a bank, side by side in the array."""
    size = lane_size(tokens, packed)
    blocks = []
    bank = None
    for column in TiledRange(columns, BANK_COLUMNS):
        for token in TiledRange(tokens, PARTITIONS):
            lane = size * (len(blocks) % (PARTITIONS // size))
            if lane == 0:
                bank = nl.ndarray((PARTITIONS, BANK_COLUMNS), nl.float32, buffer=nl.psum)
            sums = bank[lane : lane + token.size, 0 : column.size]
            blocks.append(
                Block(sums, token.start_offset, token.size, column.start_offset, column.size, lane, size)
            )
    return blocks


def feature_major_blocks(tokens: int, columns: int) -> list[Block]:
    """Blocks [columns <= 128, tokens], as many to a bank as there is room for."""
    room = BANK_COLUMNS // tokens
    blocks = []
    bank = None
    for column in TiledRange(columns, PARTITIONS):
        slot = column.index % room
        if slot == 0:
            bank = nl.ndarray((PARTITIONS, room, tokens), nl.float32, buffer=nl.psum)
        sums = bank[0 : column.size, slot, :]
        blocks.append(Block(sums, 0, tokens, column.start_offset, column.size))
    return blocks


# ---- multiplying ---------------------------------------------------------------------------------


def project(x: Activations, weight: Any, column: int, columns: int, feature_major: bool) -> list[Block]:
    """The sums of all tokens and some columns; each chunk of weights serves every block and is gone."""
    return project_parts([x], weight, column, columns, feature_major)


def project_parts(parts: list, weight: Any, column: int, columns: int, feature_major: bool) -> list[Block]:
    """The same of activations that come in parts, each with its own rows of the weights."""
    tokens = parts[0].tile.shape[2]
    if feature_major:
        blocks = feature_major_blocks(tokens, columns)
    else:
        blocks = token_major_blocks(tokens, columns, packed=not doubles(parts[0].tile, weight))
    for x in parts:
        for chunk in weight_chunks(x, columns, weight):
            tile = load_weights(weight, chunk, column, columns, x.tile)
            multiply(blocks, x.tile, tile, chunk.tile, feature_major)
    return blocks


@dataclass
class Chunk(nl.NKIObject):
    """Some tiles of weight rows: row + partitions k + p at [p, k]. The last one of a matrix may be short."""

    tile: int
    row: int
    tiles: int
    partitions: int


def weight_chunks(x: Activations, columns: int, weight: Any) -> list[Chunk]:
    """What is loaded at once of the rows that x is contracted with."""
    chunks = []
    full = x.size // x.partitions
    for tiles in TiledRange(full, chunk_tiles(columns * bytes_of(weight))):
        row = x.row + tiles.start_offset * x.partitions
        chunks.append(Chunk(tiles.start_offset, row, tiles.size, x.partitions))
    if x.size % x.partitions != 0:
        chunks.append(Chunk(full, x.row + full * x.partitions, 1, x.size % x.partitions))
    return chunks


def chunk_tiles(tile_bytes: int) -> int:
    """How many tiles make a chunk: a power of two, so that chunks are alike and FP8 rows come in pairs."""
    tiles = 1
    while 2 * tiles * tile_bytes <= CHUNK_BYTES:
        tiles = 2 * tiles
    return tiles


def load_weights(weight: Any, chunk: Chunk, column: int, columns: int, x: Any = None) -> Any:
    """A chunk in SBUF, [partitions, tiles, columns]; in the dtype of x, if given, unless it is FP8."""
    dtype = weight.dtype if x is None or weight.dtype in FP8 else x.dtype
    tile = nl.ndarray((chunk.partitions, chunk.tiles, columns), dtype, buffer=nl.sbuf)
    rows = weight[chunk.row : chunk.row + chunk.tiles * chunk.partitions, column : column + columns]
    nisa.dma_copy(tile, rows.reshape_dim(0, (chunk.tiles, chunk.partitions)).permute((1, 0, 2)))
    return tile


def multiply(blocks: list, x: Any, weights: Any, first: int, feature_major: bool) -> None:
    """Add the products of one chunk, whose first tile is `first`, to every block."""
    partitions, tiles = weights.shape[0], weights.shape[1]
    step = 2 if doubles(x, weights) else 1
    for k in range(0, tiles, step):
        end = min(tiles, k + step)
        for block in blocks:
            tokens = x[0:partitions, first + k : first + end, block.token : block.token + block.tokens]
            features = weights[:, k:end, block.column : block.column + block.columns]
            if feature_major:
                add_product(block, features, tokens)
            else:
                add_product(block, tokens, features)


def add_product(block: Block, stationary: Any, moving: Any) -> None:
    """One matmul: of two tiles of FP8 rows at once, or in the columns of the PE array that the block has."""
    if stationary.shape[1] == 2:
        double_row = nisa.matmul_perf_mode.double_row
        nisa.nc_matmul(block.sums, stationary, moving, perf_mode=double_row)
    elif block.lane_size < PARTITIONS:
        place, size = (0, block.lane), (PARTITIONS, block.lane_size)
        nisa.nc_matmul(block.sums, stationary, moving, tile_position=place, tile_size=size)
    else:
        nisa.nc_matmul(block.sums, stationary, moving)


def doubles(x: Any, weights: Any) -> bool:
    """TensorE takes two FP8 rows in the time of one, when both operands are FP8."""
    return x.dtype in FP8 and weights.dtype in FP8 and nisa.get_nc_version() >= nisa.nc_version.gen3


def bytes_of(tensor: Any) -> int:
    """Bytes of one element."""
    if tensor.dtype in FP8:
        return 1
    return 4 if tensor.dtype == nl.float32 else 2
