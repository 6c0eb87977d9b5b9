"""Padding of the last one to three dimensions, as torch.nn.functional.pad does it.

>>> x = np.arange(4, dtype=np.float32).reshape(2, 2)
>>> pad(x, (1, 2))  # replicate: x[0], x..., x[-1], x[-1] along the last axis
array([[0., 0., 1., 1., 1.],
       [2., 2., 3., 3., 3.]], dtype=float32)
>>> pad(x, (1, 1, 2, 2), mode="constant", value=3).shape  # the last two axes
(6, 4)
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, program_share
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.pad.pad_axes import (
    AxisPiece,
    PaddedAxis,
    merged_axes,
    one_by_one,
    pieces_from,
    pieces_into,
    unpadded,
)

MODES = ("constant", "replicate", "reflect", "circular")
TILE_BYTES = 4096  # of a tile in one partition: what saturates DMA; longer rows never come to SBUF
INTEGERS = (nl.bool_, nl.int8, nl.uint8, nl.int16, nl.uint16, nl.int32, nl.uint32)


@nki.jit
def pad(x_ref: Tensor, padding: tuple[int, ...], mode: str = "replicate", value: float = 0) -> Tensor:
    """Return x_ref with its last dimensions extended: a new tensor of the same dtype.

    `padding` is (last_left, last_right, previous_left, previous_right, ...) for one to three dimensions.
    constant fills with `value`, and negative paddings crop; replicate repeats the edge; reflect mirrors
    without repeating the edge (padding < size); circular wraps around (padding <= size).
    """
    check_arguments(x_ref, padding, mode, value)
    axes = merged_axes(x_ref.shape, padding, mode)
    result = nl.ndarray(padded_shape(x_ref.shape, padding), x_ref.dtype, buffer=nl.shared_hbm)
    for part in lead_parts(axes, x_ref.dtype):
        four = four_axes(axes, part)
        order = walk_order(four)
        walk = [four[order[0]], four[order[1]], four[order[2]], four[order[3]]]
        source = block_of(x_ref, part[0], axes[0].size, four, False).permute(order)
        target = block_of(result, part[0], axes[0].size, four, True).permute(order)
        copy_all(target, source, walk, value)
        fill_all(target, walk, value)
    return result


# ---- arguments -------------------------------------------------------------------------------------


def check_arguments(x: Tensor, padding: tuple, mode: str, value: float) -> None:
    assert_tensors((("x_ref", x),))
    kernel_assert(isinstance(padding, (tuple, list)), f"padding: got {padding}, expected pairs of numbers")
    for number in padding:
        kernel_assert(isinstance(number, int), f"padding: got {padding}, expected ints")
    count = len(padding)
    kernel_assert(mode in MODES, f"mode: got {mode}, allowed are {MODES}")
    kernel_assert(count % 2 == 0, f"padding: got {count} numbers, allowed are pairs")
    kernel_assert(
        2 <= count <= 6, f"padding: got {count} numbers, allowed are 2, 4 or 6 for one to three axes"
    )
    kernel_assert(
        count <= 2 * len(x.shape),
        f"padding: got {count} numbers, allowed are {2 * len(x.shape)} for shape {tuple(x.shape)}",
    )
    for i in range(count // 2):
        dim = len(x.shape) - 1 - i
        check_axis(x.shape[dim], padding[2 * i], padding[2 * i + 1], mode, dim)
    kernel_assert(
        mode != "constant" or isinstance(value, int) or x.dtype not in INTEGERS,
        f"value: got {value}, allowed is an int for dtype {x.dtype}",
    )


def check_axis(size: int, left: int, right: int, mode: str, dim: int) -> None:
    got = f"padding: got ({left}, {right}) for dimension {dim} of size {size}"
    if mode == "constant":
        remaining = size - max(0, -left) - max(0, -right)
        kernel_assert(remaining > 0, f"{got}, allowed is to crop at most {size - 1} elements")
        return
    kernel_assert(min(left, right) >= 0, f"{got}, negative paddings are allowed with mode constant only")
    if mode != "replicate":
        limit = size - 1 if mode == "reflect" else size
        kernel_assert(max(left, right) <= limit, f"{got}, allowed are at most {limit} with mode {mode}")


def padded_shape(shape: tuple, padding: tuple) -> tuple:
    padded = []
    for dim in range(len(shape)):
        after = 2 * (len(shape) - 1 - dim)
        extra = padding[after] + padding[after + 1] if after < len(padding) else 0
        padded.append(shape[dim] + extra)
    return tuple(padded)


# ---- four axes: partitions, planes and rows of a tile, columns --------------------------------------


def lead_parts(axes: list, dtype: DTypeLike) -> list:
    """Return [start, items, planes] of the leading axis: small planes share a partition."""
    lead, planes = axes[0].size, 1
    if len(axes) < 4:
        plane = sizeinbytes(dtype)
        for axis in axes[1:]:
            plane = plane * axis.output
        planes = max(1, min(TILE_BYTES // plane, lead // PMAX))
    parts = [[0, lead // planes, planes]]
    if lead % planes > 0:
        parts.append([lead - lead % planes, lead % planes, 1])
    return parts


def four_axes(axes: list, part: list) -> list:
    """Return the axes of a part of the leading axis: items, planes if there is room, the other axes."""
    items, planes, others = [unpadded(part[1])], [unpadded(part[2])], axes[1:]
    if len(axes) == 4:
        return items + others
    return items + planes + others if len(axes) == 3 else items + planes + [unpadded(1)] + others


def walk_order(four: list) -> tuple:
    """Return the order of axes, the partitions' first: one of 128 elements or more, else the longest."""
    first = 0
    for i in range(3):
        if four[first].size < PMAX and four[i].size > four[first].size:
            first = i
    order = [first]
    for i in range(4):
        if i != first:
            order.append(i)
    return tuple(order)


def block_of(tensor: Tensor, start: int, lead: int, four: list, padded: bool) -> Tensor:
    """Return the four axes of a tensor that begin at item `start` of `lead`."""
    sizes, count = [], 1
    for axis in four:
        sizes.append(axis.output if padded else axis.size)
        count = count * sizes[-1]
    offset = start * (tensor.size // lead)
    return tensor.reshape((tensor.size,))[offset : offset + count].reshape(tuple(sizes))


# ---- copies ----------------------------------------------------------------------------------------


def copy_all(target: Tensor, source: Tensor, walk: list, value: float) -> None:
    """Copy every input to all its outputs. Rows that fit into a tile are padded there, and so are planes."""
    parts, planes, rows, columns = walk[0], walk[1], walk[2], walk[3]
    if not row_fits(walk, source.dtype):
        copy_long_rows(target, source, walk)
    for c in column_spans(walk, source.dtype):
        row_step = max(1, TILE_BYTES // sizeinbytes(source.dtype) // (c[1] - c[0]))
        plane_step = max(1, row_step // rows.output)
        for p in partition_spans(parts.first, parts.last):
            for i in spans(planes.first, planes.last, plane_step):
                for r in spans(rows.first, rows.last, row_step):
                    block = source[p[0] : p[1], i[0] : i[1], r[0] : r[1]]
                    tile, places = padded_rows(block, columns, c, value), pieces_from(rows, r[0], r[1])
                    if rows.padded and plane_fits(walk, source.dtype):
                        tile = padded(tile, 2, rows.first, rows, [0, rows.output], value)
                        places = [AxisPiece(0, 0, rows.output)]
                    outer = [pieces_from(parts, p[0], p[1]), pieces_from(planes, i[0], i[1]), places]
                    store(target[:, :, :, c[0] : c[1]], tile, outer)


def row_fits(walk: list, dtype: DTypeLike) -> bool:
    return walk[3].output * sizeinbytes(dtype) <= TILE_BYTES


def plane_fits(walk: list, dtype: DTypeLike) -> bool:
    return walk[2].output * walk[3].output * sizeinbytes(dtype) <= TILE_BYTES


def column_spans(walk: list, dtype: DTypeLike) -> list:
    """Return [start, end] of outputs that tiles hold: whole rows, or the pads of rows that do not fit."""
    columns = walk[3]
    if row_fits(walk, dtype):
        return [[0, columns.output]]
    if len(columns.pieces) == 1:
        return []
    step, end = TILE_BYTES // sizeinbytes(dtype), columns.start + columns.size
    return spans(0, columns.start, step) + spans(end, columns.output, step)


def spans(start: int, end: int, step: int) -> list:
    """Return [start, end] of steps that cover a range."""
    found = []
    for part in TiledRange(end - start, step):
        found.append([start + part.start_offset, start + part.end_offset])
    return found


def partition_spans(start: int, end: int) -> list:
    """Return this core's share of the partition axis, in tiles of nearly equal size."""
    share = program_share(end - start)
    count = share[1] - share[0]
    if count == 0:
        return []
    return spans(start + share[0], start + share[1], div_ceil(count, div_ceil(count, PMAX)))


def padded_rows(block: Tensor, columns: PaddedAxis, c: list, value: float) -> Tensor:
    """Return output columns c of a block of rows in SBUF; one transfer loads the inputs they need."""
    low, high = columns.size, 0
    for piece in pieces_into(columns, c[0], c[1]):
        low = min(low, piece.source)
        high = max(high, piece.source + (1 if piece.repeat else piece.length))
    block = block[:, :, :, low:high]
    tile = nl.ndarray(block.shape, block.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, block)
    return padded(tile, 3, low, columns, c, value) if columns.padded else tile


def padded(tile: Tensor, dim: int, first: int, axis: PaddedAxis, span: list, value: float) -> Tensor:
    """Return the outputs of an axis in a span, along dimension `dim` of a tile of inputs from `first` on."""
    shape = []
    for i in range(4):
        shape.append(span[1] - span[0] if i == dim else tile.shape[i])
    result = nl.ndarray(tuple(shape), tile.dtype, buffer=nl.sbuf)
    for piece in pieces_into(axis, span[0], span[1]):
        taken = AxisPiece(0, piece.source - first, piece.length, piece.repeat)
        place = result.slice(dim, piece.start, piece.start + piece.length)
        nisa.tensor_copy(place, spread(tile, dim, taken))
    for fill in axis.fills:
        nisa.memset(result.slice(dim, fill[0], fill[1]), value)
    return result


def spread(tile: Tensor, dim: int, piece: AxisPiece) -> Tensor:
    """Return what a piece takes from a tile along one dimension."""
    if piece.repeat:
        return tile.slice(dim, piece.source, piece.source + 1).broadcast(dim, piece.length)
    return tile.slice(dim, piece.source, piece.source + piece.length)


def store(target: Tensor, tile: Tensor, outer: list) -> None:
    """Store a tile to every combination of its positions along partitions, planes and rows."""
    for p in one_by_one(outer[0]):
        for i in outer[1]:
            for r in outer[2]:
                values = spread(spread(tile[p.source : p.source + p.length], 1, i), 2, r)
                place = target[p.start : p.start + p.length, i.start : i.start + i.length]
                nisa.dma_copy(place[:, :, r.start : r.start + r.length], values)


# ---- rows that do not fit into a tile: their inputs need no SBUF ------------------------------------


def copy_long_rows(target: Tensor, source: Tensor, walk: list) -> None:
    """Copy the inputs of all rows from HBM to HBM."""
    parts, planes, rows, columns = walk[0], walk[1], walk[2], walk[3]
    source = source[:, :, :, columns.first : columns.last]
    target = target[:, :, :, columns.start : columns.start + columns.last - columns.first]
    for p in partition_spans(parts.first, parts.last):
        for i in range(planes.first, planes.last):
            for r in range(rows.first, rows.last):
                outer = [pieces_from(parts, p[0], p[1]), pieces_from(planes, i, i + 1)]
                outer.append(pieces_from(rows, r, r + 1))
                copy_block(target, source[p[0] : p[1], i, r], outer)


def copy_block(target: Tensor, block: Tensor, outer: list) -> None:
    """Copy a block [partitions, columns] of HBM to all its positions."""
    for p in one_by_one(outer[0]):
        for i in one_by_one(outer[1]):
            for r in one_by_one(outer[2]):
                place = target[p.start : p.start + p.length, i.start, r.start]
                copy_in_runs(place, block[p.source : p.source + p.length])


def copy_in_runs(place: Tensor, block: Tensor) -> None:
    """Copy a block, splitting few rows so that all DMA engines take part."""
    count, length = block.shape[0], block.shape[1]
    runs = min(PMAX, length) if count < PMAX else 1
    cut = length // runs * runs
    for row in range(count if runs > 1 else 0):
        long = (runs, cut // runs)
        nisa.dma_copy(place[row, 0:cut].reshape(long), block[row, 0:cut].reshape(long))
    if runs == 1:
        nisa.dma_copy(place, block)
    elif cut < length:
        nisa.dma_copy(place[:, cut:length], block[:, cut:length])


# ---- constants beyond the inputs -------------------------------------------------------------------


def fill_all(target: Tensor, walk: list, value: float) -> None:
    """Fill the constants: along the partitions, then along the planes where partitions have inputs, and so
    on."""
    in_tiles = [False, False, plane_fits(walk, target.dtype), row_fits(walk, target.dtype)]
    box = []
    for axis in walk:
        box.append([0, axis.output])
    for i in range(4):
        if not in_tiles[i]:
            for fill in walk[i].fills:
                box[i] = fill
                fill_box(target, box, value)
            box[i] = [walk[i].start, walk[i].start + walk[i].last - walk[i].first]


def fill_box(target: Tensor, box: list, value: float) -> None:
    """Fill target[box] with the value, from one tile."""
    elements = TILE_BYTES // sizeinbytes(target.dtype)
    width = min(box[3][1] - box[3][0], elements)
    height = min(box[2][1] - box[2][0], max(1, elements // width))
    planes = box[1][1] - box[1][0]
    filler = nl.ndarray((PMAX, 1, height, width), target.dtype, buffer=nl.sbuf)
    nisa.memset(filler, value)
    for p in partition_spans(box[0][0], box[0][1]):
        for r in spans(box[2][0], box[2][1], height):
            for c in spans(box[3][0], box[3][1], width):
                place = target[p[0] : p[1], box[1][0] : box[1][1], r[0] : r[1], c[0] : c[1]]
                values = filler[0 : p[1] - p[0], :, 0 : r[1] - r[0], 0 : c[1] - c[0]]
                nisa.dma_copy(place, values.broadcast(1, planes))


# ---- reference -------------------------------------------------------------------------------------


def pad_ref(
    x_ref: np.ndarray, padding: tuple[int, ...], mode: str = "replicate", value: float = 0
) -> np.ndarray:
    """Pad each axis by the input index of every output, innermost first."""
    x = np.asarray(x_ref)
    for i in range(len(padding) // 2):
        axis, left, right = x.ndim - 1 - i, padding[2 * i], padding[2 * i + 1]
        size = x.shape[axis]
        index = np.arange(-left, size + right)
        inside = (index >= 0) & (index < size)
        if mode == "reflect":
            index = np.abs(index)
            index = np.where(index >= size, 2 * (size - 1) - index, index)
        elif mode == "circular":
            index = index % size
        x = x.take(np.clip(index, 0, size - 1), axis)
        if mode == "constant":
            outside = ~inside.reshape((-1,) + (1,) * i)
            x = np.where(outside, np.asarray(value).astype(x.dtype), x)
    return x
