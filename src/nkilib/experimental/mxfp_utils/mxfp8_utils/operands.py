"""Matrices [F, K] of any form as MXFP8 in SBUF: K over partitions and lanes, one scale for 8 x 4 elements.

A tile of the contraction is 128 partitions x 4 lanes: k = 512 t + 128 q + p ("wrapX") or 512 t + 4 p + q
("1x32"). The remainder of K by 512 is one tile of fewer partitions, with sub-tiles of 256 and 128 in wrapX.
"""

from __future__ import annotations

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.mxfp_utils.mxfp8_utils.common_dataclasses import TensorDescriptor

PMAX, LANES = 128, 4
TILE = PMAX * LANES  # of the contraction
PACKED_TILES, PACKED_STEP = 4, 4  # tiles that share a block of scales, and the partitions between them
STAGE_BYTES = 16 * 1024  # of 16-bit numbers in each partition, the input of quantize_mx
WIDE = (nl.bfloat16, nl.float16)
FP8 = ((nl.float8_e4m3fn, nl.float8_e4m3fn_x4), (nl.float8_e5m2, nl.float8_e5m2_x4))
SCHEMES = ("wrapX", "1x32")


@dataclass
class MxOperand(nl.NKIObject):
    """[features, contraction] in HBM. form: "f_by_k", "k_by_f", "swizzled" or "quantized"."""

    source: Tensor
    scales: Tensor
    form: str
    packed_scales: bool
    features: int
    contraction: int
    dtype: DTypeLike  # four-packed, of the elements in SBUF
    scheme: str = "wrapX"
    first: int = 0  # where the features of this operand begin in the source


@dataclass
class MxBlock(nl.NKIObject):
    """Some features of an operand in SBUF: data [128, tiles, features] four-packed, and their scales."""

    data: Tensor
    scales: Tensor  # [128, tiles, features], or four tiles to a block
    packed_scales: bool
    start: int
    features: int
    contraction: int


# ---- arguments -----------------------------------------------------------------------------------


def describe(name: str, td: TensorDescriptor, dtype: DTypeLike, scheme: str = "wrapX") -> MxOperand:
    """Check a descriptor and return its operand. dtype is the four-packed dtype to quantise to."""
    assert_tensors(((name, td.tensor),))
    shape = tuple(td.tensor.shape)
    kernel_assert(len(shape) == 2, f"{name}: got shape {shape}, expected a matrix")
    if td.scales is not None:
        return quantized_operand(name, td, dtype, scheme)
    kernel_assert(
        td.tensor.dtype in WIDE, f"{name}: got dtype {td.tensor.dtype}, expected bfloat16 or float16"
    )
    rows, columns = shape
    if td.is_swizzled:
        kernel_assert(
            columns % LANES == 0, f"{name}: got shape {shape}, expected [K/4, 4F] as it is swizzled"
        )
        operand = MxOperand(td.tensor, None, "swizzled", False, columns // LANES, rows * LANES, dtype, scheme)
    elif td.is_f_by_k:
        operand = MxOperand(td.tensor, None, "f_by_k", False, rows, columns, dtype, scheme)
    else:
        operand = MxOperand(td.tensor, None, "k_by_f", False, columns, rows, dtype, scheme)
    check_sizes(name, operand)
    return operand


def quantized_operand(name: str, td: TensorDescriptor, dtype: DTypeLike, scheme: str) -> MxOperand:
    """Return the operand of elements that come with scales, packed or not, as their shape says."""
    data = as_packed(name, td.tensor, dtype)
    features, contraction = data.shape[1], data.shape[0] * LANES
    tiles = div_ceil(contraction, TILE)
    packed_rows = PMAX * div_ceil(tiles, PACKED_TILES)
    rows = td.scales.shape[0]
    kernel_assert(
        tuple(td.scales.shape) in ((data.shape[0], features), (packed_rows, features)),
        f"{name}: got scales of shape {tuple(td.scales.shape)}, expected {(data.shape[0], features)} "
        f"or packed {(packed_rows, features)}",
    )
    kernel_assert(
        td.scales.dtype in (nl.uint8, nl.float8_e8m0fnu),
        f"{name}: got scales of dtype {td.scales.dtype}, expected uint8 or float8_e8m0fnu",
    )
    packed = rows == packed_rows
    operand = MxOperand(data, td.scales, "quantized", packed, features, contraction, data.dtype, scheme)
    check_sizes(name, operand)
    return operand


def as_packed(name: str, tensor: Tensor, dtype: DTypeLike) -> Tensor:
    """View elements as four-packed: they are packed, one to a byte, or untyped words of four."""
    if tensor.dtype == nl.uint32 or tensor.dtype == nl.uint8:
        return tensor.view(dtype)
    packed: DTypeLike = None
    for known in FP8:
        if tensor.dtype == known[0] or tensor.dtype == known[1]:
            packed = known[1]
    kernel_assert(
        packed is not None,
        f"{name}: got dtype {tensor.dtype} with scales, expected float8_e4m3fn or float8_e5m2, packed or not",
    )
    return tensor if tensor.dtype == packed else tensor.view(packed)


def check_sizes(name: str, operand: MxOperand) -> None:
    kernel_assert(
        operand.contraction % PMAX == 0 and operand.contraction > 0,
        f"{name}: the contraction K is {operand.contraction}, it must be a multiple of {PMAX}",
    )
    kernel_assert(
        operand.features % 8 == 0, f"{name}: has {operand.features} features, a multiple of 8 is needed"
    )
    kernel_assert(
        operand.scheme in SCHEMES, f"quant_scheme: got {operand.scheme}, allowed are wrapX and 1x32"
    )


def packed_dtype(name: str, dtype: DTypeLike) -> DTypeLike:
    """Return the four-packed dtype of "float8_e4m3fn" or "float8_e5m2", packed or not."""
    packed: DTypeLike = None
    for known in FP8:
        if str(dtype) == str(known[0]) or str(dtype) == str(known[1]):
            packed = known[1]
    kernel_assert(packed is not None, f"{name}: got {dtype}, allowed are float8_e4m3fn and float8_e5m2")
    return packed


def element_dtype(packed: DTypeLike) -> DTypeLike:
    """Return the dtype of one element of a four-packed dtype."""
    return FP8[0][0] if packed == FP8[0][1] else FP8[1][0]


def part_of(operand: MxOperand, first: int, features: int) -> MxOperand:
    """Return some features of an operand as an operand."""
    return MxOperand(
        operand.source,
        operand.scales,
        operand.form,
        operand.packed_scales,
        features,
        operand.contraction,
        operand.dtype,
        operand.scheme,
        operand.first + first,
    )


# ---- into SBUF -----------------------------------------------------------------------------------


def tile_count(operand: MxOperand) -> int:
    return div_ceil(operand.contraction, TILE)


def load_quantized(
    operand: MxOperand, start: int, features: int, tiles: TiledRangeIterator | None = None
) -> MxBlock:
    """Load features [start, start + features) as MXFP8: all tiles of the contraction, or a range of them.

    A range begins at a multiple of four tiles, so that it has whole blocks of packed scales.
    """
    if tiles is None:
        tiles = TiledRange(tile_count(operand), tile_count(operand))[0]
    rest = min(operand.contraction - tiles.start_offset * TILE, tiles.size * TILE)
    block = new_block(operand, start, features, tiles.size, rest)
    if operand.form == "quantized":
        load_elements(block, operand, tiles.start_offset)
        return block
    for group in TiledRange(tiles, max(1, STAGE_BYTES // (2 * LANES * features))):
        stage = load_stage(operand, start, features, group)
        for i in range(group.size):
            tile = group.start_offset - tiles.start_offset + i
            rows = tile_rows(block, tile)
            numbers = stage[0:rows, i]
            if operand.form == "k_by_f":
                numbers = numbers.permute((0, 2, 1))
            nisa.quantize_mx(block.data[0:rows, tile, :], numbers, scale_view(block, tile))
    return block


def new_block(operand: MxOperand, start: int, features: int, tiles: int, contraction: int) -> MxBlock:
    """Allocate a block. Scales of numbers quantised here are packed: a quarter of the space."""
    packed = operand.packed_scales or operand.form != "quantized"
    blocks = div_ceil(tiles, PACKED_TILES) if packed else tiles
    data = nl.ndarray((PMAX, tiles, features), operand.dtype, buffer=nl.sbuf)
    scales = nl.ndarray((PMAX, blocks, features), nl.uint8, buffer=nl.sbuf)
    return MxBlock(data, scales, packed, start, features, contraction)


def tile_rows(block: MxBlock, tile: int) -> int:
    """Return how many partitions a tile of the contraction fills."""
    return min(TILE, block.contraction - tile * TILE) // LANES


def scale_view(block: MxBlock, tile: int) -> Tensor:
    """Return the scales of a tile, from the partition of its first one on."""
    if not block.packed_scales:
        return block.scales[:, tile, :]
    return block.scales[PACKED_STEP * (tile % PACKED_TILES) : PMAX, tile // PACKED_TILES, :]


def load_elements(block: MxBlock, operand: MxOperand, first_tile: int) -> None:
    """Load elements and scales unchanged."""
    columns = slice(operand.first + block.start, operand.first + block.start + block.features)
    copy_rows(block.data, operand.source, first_tile * PMAX, block.contraction // LANES, columns)
    if block.packed_scales:
        row = first_tile // PACKED_TILES * PMAX
        copy_rows(block.scales, operand.scales, row, block.scales.shape[1] * PMAX, columns)
    else:
        copy_rows(block.scales, operand.scales, first_tile * PMAX, block.contraction // LANES, columns)


def copy_rows(dst: Tensor, source: Tensor, row: int, rows: int, columns: slice) -> None:
    """Copy bytes: dst[p, t] = source[row + 128 t + p]; the last tile may be short."""
    full = rows // PMAX
    if source.dtype != dst.dtype:
        source = source.view(dst.dtype)
    if full > 0:
        part = source[row : row + full * PMAX, columns]
        nisa.dma_copy(dst[:, 0:full], part.reshape_dim(0, (full, PMAX)).permute((1, 0, 2)))
    rest = rows - full * PMAX
    if rest > 0:
        nisa.dma_copy(dst[0:rest, full], source[row + full * PMAX : row + rows, columns])


# ---- numbers to quantise -------------------------------------------------------------------------


def load_stage(operand: MxOperand, start: int, features: int, tiles: TiledRangeIterator) -> Tensor:
    """Load 16-bit numbers of some tiles: [128, tiles, 4 features], for k_by_f [128, tiles, 4, features]."""
    first = operand.first + start
    columns = slice(first, first + features)
    end = min(tiles.end_offset * TILE, operand.contraction)
    k = tiles.start_offset * TILE
    if operand.form == "swizzled":
        stage = nl.ndarray((PMAX, tiles.size, LANES * features), operand.source.dtype, buffer=nl.sbuf)
        columns = slice(LANES * first, LANES * (first + features))
        copy_rows(stage, operand.source, k // LANES, (end - k) // LANES, columns)
        return stage
    lanes = (features, LANES) if operand.form == "f_by_k" else (LANES, features)
    stage = nl.ndarray((PMAX, tiles.size) + lanes, operand.source.dtype, buffer=nl.sbuf)
    full = (end - k) // TILE
    if full > 0:
        load_lanes(stage[:, 0:full], operand, columns, k, full, PMAX)
    k = k + full * TILE
    partition = 0
    for rows in remainders(operand, end - k):
        load_lanes(stage[partition : partition + rows, full : full + 1], operand, columns, k, 1, rows)
        k = k + rows * LANES
        partition = partition + rows
    return stage if operand.form == "k_by_f" else stage.reshape((PMAX, tiles.size, LANES * features))


def remainders(operand: MxOperand, k: int) -> list:
    """Return the partitions of the sub-tiles of a short tile."""
    if operand.scheme == "1x32":
        return [k // LANES] if k > 0 else []
    sizes = []
    for size in (256, 128):
        if k >= size:
            sizes.append(size // LANES)
            k = k - size
    return sizes


def load_lanes(dst: Tensor, operand: MxOperand, columns: slice, k: int, tiles: int, rows: int) -> None:
    """Load tiles of `rows` partitions from contraction index k on; the operand's scheme orders the lanes."""
    neighbours = operand.scheme == "1x32"
    split = (tiles, rows, LANES) if neighbours else (tiles, LANES, rows)
    end = k + tiles * rows * LANES
    if operand.form == "f_by_k":
        part = operand.source[columns, k:end].reshape_dim(1, split)  # (f, tile, lane, row)
        nisa.dma_transpose(dst, part.permute((3, 1, 0, 2) if neighbours else (2, 1, 0, 3)))
    else:
        part = operand.source[k:end, columns].reshape_dim(0, split)  # (tile, lane, row, f)
        nisa.dma_copy(dst, part.permute((1, 0, 2, 3) if neighbours else (2, 0, 1, 3)))
