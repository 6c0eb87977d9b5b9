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
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import Tiles, stream_tile
from nkilib.core.utils.types import DTypeLike, Tensor

BANK_COLUMNS = 512  # float32 in one PSUM bank, and the most columns of a moving operand
SUM_BANKS = 4  # one set of sums: half of PSUM, so that the other half can be drained meanwhile
CHUNK_BYTES = 8 * 1024  # of weights in each partition: 1 MiB for one transfer
MAX_CHUNK_TILES = 64
MAX_SPAN = 4096  # columns: long rows for DMA, yet little left to do when the last one has come
FP8 = (nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2)


@dataclass
class Activations(nl.NKIObject):
    """x[t, partitions k + p] at tile[p, k, t], `size` elements a token; the weights' rows start at `row`.

    With `adjacent` a > 1, of every a tiles partition p has a neighbouring elements:
    x[t, a (partitions k + p) + j] at tile[p, a k + j, t], fewer of what is left at the end.
    Rows of the weights then come in longer runs.
    """

    tile: Any
    size: int
    row: int = 0
    scales: Tensor = None  # what a token was divided by when quantised: [tokens, 1] for each 128 tokens
    partitions: int = PMAX  # that a tile of the contraction fills
    spread: int = 0  # K: x[t, K p + k] at tile[p, k, t] instead, K tiles of 128: rows of a partition adjacent
    adjacent: int = 1
    tiles: Any = None  # where further tiles come from, see tiles.py


@dataclass
class ProductBlock(nl.NKIObject):
    """Sums of some tokens and columns in PSUM; token-major ones may start at a later partition, `lane`."""

    sums: Any
    token: int
    tokens: int
    column: int
    columns: int
    lane: int = 0
    lane_size: int = PMAX
    tiles: Any = None
    bank: int = 0


def span_columns(x: Activations, weight: Tensor) -> int:
    """How many columns of sums to work on at once, so that a set fits into SUM_BANKS."""
    return span_of(x.tile.shape[2], not doubles(x.tile, weight))


def span_of(tokens: int, packed: bool) -> int:
    in_a_bank = BANK_COLUMNS * (PMAX // lane_size(tokens, packed))
    return min(MAX_SPAN, in_a_bank * max(1, SUM_BANKS // div_ceil(tokens, PMAX)))


def tapered(columns: int) -> list:
    """Pieces of columns, each half of what is left: when the weights of the last one come, little remains."""
    pieces: list = []
    start = 0
    while start < columns:
        left = columns - start
        size = min(left, max(BANK_COLUMNS, div_ceil(left // 2, BANK_COLUMNS) * BANK_COLUMNS))
        pieces.append(TiledRangeIterator(size, len(pieces), start, start + size))
        start += size
    return pieces


def lane_size(tokens: int, packed: bool) -> int:
    """Partitions that a token-major block takes: with few tokens, several stand side by side."""
    if not packed or tokens > 64:
        return PMAX
    return 32 if tokens <= 32 else 64


# ---- where sums stand ----------------------------------------------------------------------------


def token_major_blocks(tokens: int, columns: int, packed: bool) -> list[ProductBlock]:
    """Blocks [tokens <= 128, columns <= 512]; of few tokens, several in a bank, side by side in the array."""
    size = lane_size(tokens, packed)
    lanes, count = PMAX // size, div_ceil(columns, BANK_COLUMNS) * div_ceil(tokens, PMAX)
    banks: list = []
    for _ in range(max(min(2, count), div_ceil(count, lanes))):
        banks.append(nl.ndarray((PMAX, BANK_COLUMNS), nl.float32, buffer=nl.psum))
    blocks: list[ProductBlock] = []
    for column in TiledRange(columns, BANK_COLUMNS):
        for token in TiledRange(tokens, PMAX):
            i = len(blocks)
            lane, bank = size * (i % lanes), (i // lanes + i % lanes) % len(banks)
            sums = banks[bank][lane : lane + token.size, 0 : column.size]
            block = ProductBlock(
                sums, token.start_offset, token.size, column.start_offset, column.size, lane, size
            )
            block.bank = bank  # neighbours in different ones: VectorE and ScalarE drain them together
            blocks.append(block)
    return blocks


def feature_major_blocks(tokens: int, columns: int) -> list[ProductBlock]:
    """Blocks [columns <= 128, tokens], as many to a bank as there is room for."""
    room = BANK_COLUMNS // tokens
    blocks: list[ProductBlock] = []
    bank: Any = None
    for column in TiledRange(columns, PMAX):
        slot = column.index % room
        if slot == 0:
            bank = nl.ndarray((PMAX, room, tokens), nl.float32, buffer=nl.psum)
        sums = bank[0 : column.size, slot, :]
        blocks.append(ProductBlock(sums, 0, tokens, column.start_offset, column.size))
    return blocks


# ---- multiplying ---------------------------------------------------------------------------------


def project(
    x: Activations,
    weight: Tensor,
    column: int,
    columns: int,
    feature_major: bool,
    dtype: DTypeLike | None = None,
) -> list[ProductBlock]:
    """The sums of all tokens and some columns; each chunk of weights serves every block and is gone."""
    return project_parts([x], weight, column, columns, feature_major, dtype)


def project_parts(
    parts: list,
    weight: Tensor,
    column: int,
    columns: int,
    feature_major: bool,
    dtype: DTypeLike | None = None,
    taper: bool = False,
) -> list[ProductBlock]:
    """The same of activations that come in parts, each with its own rows of the weights.

    `dtype` is what the weights are rounded to on their way, None if they stay as they are. `taper`: nothing
    comes after these columns, so the last chunk is loaded in ever smaller pieces.
    """
    tokens = parts[0].tile.shape[2]
    if feature_major:
        blocks = feature_major_blocks(tokens, columns)
    else:
        blocks = token_major_blocks(tokens, columns, packed=not doubles(parts[0].tile, weight))
    for block in blocks:
        block.tiles = parts[0].tiles
    for number in range(len(parts)):
        x = parts[number]
        wanted = matching_dtype(weight, x.tile) if dtype is None else dtype
        chunks = weight_chunks(x, columns, weight)
        for i in range(len(chunks)):
            last = taper and number == len(parts) - 1 and i == len(chunks) - 1
            for piece in tapered(columns) if last else TiledRange(columns, columns):
                tile = load_weights(
                    weight, chunks[i], column + piece.start_offset, piece.size, x.tiles, wanted
                )
                some = blocks_within(blocks, piece)
                multiply(some, x.tile, tile, chunks[i].tile, feature_major, piece.start_offset)
    return blocks


def blocks_within(blocks: list, piece: TiledRangeIterator) -> list:
    found = []
    for block in blocks:
        if piece.start_offset <= block.column < piece.end_offset:
            found.append(block)
    return found


@dataclass
class WeightChunk(nl.NKIObject):
    """Some tiles of weight rows, in the order of Activations. The last one of a matrix may be short."""

    tile: int
    row: int
    tiles: int
    partitions: int
    adjacent: int = 1
    spread: int = 0  # K: row + K p + tile + k at [p, k] instead


def weight_chunks(
    x: Activations, columns: int, weight: Tensor, most: int = MAX_CHUNK_TILES
) -> list[WeightChunk]:
    """What is loaded at once of the rows that x is contracted with; `most` tiles of them."""
    chunks = []
    full = x.size // x.partitions
    step = min(most, chunk_tiles(columns * bytes_of(weight)))
    if x.spread > 0:
        for tiles in TiledRange(full, step):
            chunks.append(WeightChunk(tiles.start_offset, x.row, tiles.size, x.partitions, 1, x.spread))
        return chunks
    grouped = full // x.adjacent * x.adjacent
    for tiles in TiledRange(grouped, max(x.adjacent, step)):
        row = x.row + tiles.start_offset * x.partitions
        chunks.append(WeightChunk(tiles.start_offset, row, tiles.size, x.partitions, x.adjacent))
    if grouped < full:
        row = x.row + grouped * x.partitions
        chunks.append(WeightChunk(grouped, row, full - grouped, x.partitions, full - grouped))
    if x.size % x.partitions != 0:
        chunks.append(WeightChunk(full, x.row + full * x.partitions, 1, x.size % x.partitions))
    return chunks


def adjacent_tiles(tokens: int, dtype: DTypeLike, weight: Tensor, columns: int) -> int:
    """`adjacent` for activations of this dtype: where whole rows of the weights are loaded, as in a chunk."""
    packed = not (dtype in FP8 and weight.dtype in FP8)
    if columns < weight.shape[1] or columns > span_of(tokens, packed):
        return 1
    return chunk_tiles(columns * bytes_of(weight))


def chunk_tiles(tile_bytes: int) -> int:
    """How many tiles make a chunk: a power of two, so that chunks are equal and FP8 rows come in pairs."""
    tiles = 1
    while 2 * tiles * tile_bytes <= CHUNK_BYTES:
        tiles = 2 * tiles
    return tiles


def matching_dtype(weight: Tensor, x: Tensor) -> Any:
    """The dtype in which weights are multiplied with x: that of x, unless they are FP8."""
    return weight.dtype if weight.dtype in FP8 else x.dtype


def load_weights(
    weight: Tensor,
    chunk: WeightChunk,
    column: int,
    columns: int,
    tiles: Tiles | None = None,
    dtype: DTypeLike | None = None,
) -> Any:
    """A chunk in SBUF, [partitions, tiles, columns], in the dtype of the weights unless another is given."""
    dtype = weight.dtype if dtype is None else dtype
    tile = stream_tile(tiles, (chunk.partitions, chunk.tiles, columns), dtype)
    if chunk.spread > 0:
        rows = weight[chunk.row : chunk.row + chunk.spread * chunk.partitions, column : column + columns]
        by_partition = rows.reshape_dim(0, (chunk.partitions, chunk.spread))
        nisa.dma_copy(tile, by_partition[:, chunk.tile : chunk.tile + chunk.tiles, :])
        return tile
    rows = weight[chunk.row : chunk.row + chunk.tiles * chunk.partitions, column : column + columns]
    groups = chunk.tiles // chunk.adjacent
    by_group = rows.reshape_dim(0, (groups, chunk.partitions, chunk.adjacent))
    nisa.dma_copy(tile.reshape_dim(1, (groups, chunk.adjacent)), by_group.permute((1, 0, 2, 3)))
    return tile


def multiply(
    blocks: list, x: Tensor, weights: Tensor, first: int, feature_major: bool, origin: int = 0
) -> None:
    """Add the products of one chunk, whose first tile is `first`, to every block; it begins at `origin`."""
    partitions, tiles = weights.shape[0], weights.shape[1]
    step = 2 if doubles(x, weights) else 1
    for k in range(0, tiles, step):
        end = min(tiles, k + step)
        for block in blocks:
            tokens = x[0:partitions, first + k : first + end, block.token : block.token + block.tokens]
            at = block.column - origin
            features = weights[:, k:end, at : at + block.columns]
            if feature_major:
                add_product(block, features, tokens)
            else:
                add_product(block, tokens, features)


def add_product(block: ProductBlock, stationary: Tensor, moving: Tensor) -> None:
    """One matmul: of two tiles of FP8 rows at once, or in the columns of the PE array that the block has."""
    if stationary.shape[1] == 2:
        double_row = nisa.matmul_perf_mode.double_row
        nisa.nc_matmul(block.sums, stationary, moving, perf_mode=double_row)
    elif block.lane_size < PMAX:
        place, size = (0, block.lane), (PMAX, block.lane_size)
        nisa.nc_matmul(block.sums, stationary, moving, tile_position=place, tile_size=size)
    else:
        nisa.nc_matmul(block.sums, stationary, moving)


def doubles(x: Tensor, weights: Tensor) -> bool:
    """TensorE takes two FP8 rows in the time of one, when both operands are FP8."""
    return x.dtype in FP8 and weights.dtype in FP8 and nisa.get_nc_version() >= nisa.nc_version.gen3


def bytes_of(tensor: Tensor) -> int:
    """Bytes of one element."""
    return sizeinbytes(tensor.dtype)
