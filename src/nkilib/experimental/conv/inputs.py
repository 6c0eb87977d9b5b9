"""The moving operands of a convolution: inputs with the contracted channels in the partitions.

Many channels fill the partitions alone: a box of inputs is loaded once and every tap is a view of it. Few
channels are loaded once for each tap, several taps in neighbouring partitions, so that one matmul contracts
them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.tile_io import hardware_queue
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.geometry import (
    ENOUGH_POSITIONS,
    OutputSpan,
    channel_tiles,
    covered,
    even_parts,
    input_of,
    inputs_for,
    positions,
    size_of,
    split,
    tap_of,
    taps_of,
)

DENSE_BYTES = 64 * 1024  # in each partition, of one region's inputs: the steps of a view have 16 bits
GATHERED_BYTES = 72 * 1024  # the same of all steps, a tile each: the next region fits too
REGION_POSITIONS = 1024  # outputs computed at once: they start early, and loads of the next overlap


@dataclass
class Convolution(nl.NKIObject):
    """x [B, Ci, D, H, W], filters [taps, Ci, Co], out [B, Co, Do, Ho, Wo] in HBM; bias [Co] or None."""

    x: Tensor
    filters: Tensor
    bias: Tensor | None
    out: Tensor
    axes: list  # depth, height, width
    activation: ActFnType | None  # ActFnType or None


@dataclass
class ChannelPart(nl.NKIObject):
    """Contracted rows with the same layout: `tiles` rows in each of `partitions` partitions.

    `rows` is [steps, partitions * tiles, Co] in HBM; partition p has rows p * tiles ... of a step. A step is
    a tap of all these channels, or (taps_below > 0) that many taps of `channels` channels from first_tap on.
    """

    rows: Tensor
    partitions: int
    tiles: int
    channel: int = 0
    channels: int = 0
    taps_below: int = 0
    first_tap: int = 0


def dense_parts(c: Convolution) -> list:
    """Return parts whose inputs are loaded once for all taps."""
    parts = []
    for channels in channel_tiles(c.x.shape[1]):
        end = channels.start + channels.partitions * channels.tiles
        rows = c.filters[:, channels.start : end]
        parts.append(ChannelPart(rows, channels.partitions, channels.tiles, channels.start))
    return parts


def gathered_parts(c: Convolution) -> list:
    """Return parts with a tile of inputs for each step."""
    taps, channels, columns = c.filters.shape
    if channels > PMAX // 2:
        parts = []
        for tile in TiledRange(channels, PMAX):
            rows = c.filters[:, tile.start_offset : tile.end_offset]
            parts.append(ChannelPart(rows, tile.size, 1, tile.start_offset, tile.size, 1))
        return parts
    below = min(taps, PMAX // channels)
    parts = []
    for run in ((0, taps // below), (taps // below * below, 1)):
        first, count = run[0], run[1]
        height = min(below, taps - first)
        if height > 0:
            rows = c.filters[first : first + count * height].reshape((count, height * channels, columns))
            parts.append(ChannelPart(rows, height * channels, 1, 0, channels, height, first))
    return parts


# ---- how much is loaded at once -----------------------------------------------------------------------


@dataclass
class InputPlan(nl.NKIObject):
    """How inputs are loaded. `resident`: all tiles of a region at once; otherwise each before its matmul."""

    parts: list
    sizes: list  # of a region
    resident: bool = True


def make_plan(c: Convolution, cores: int) -> InputPlan:
    """Choose dense parts if there are enough channels and their inputs fit; else gathered ones."""
    outputs = [c.out.shape[0], c.out.shape[2], c.out.shape[3], c.out.shape[4]]
    total = product(outputs)
    room = div_ceil(total, cores * div_ceil(total, cores * REGION_POSITIONS))
    dense, gathered = dense_parts(c), gathered_parts(c)
    plans = [InputPlan(gathered, region_sizes(c, gathered, outputs, room, True))]
    if 2 * c.x.shape[1] > PMAX or taps_of(c.axes) == 1:
        plans = [InputPlan(dense, region_sizes(c, dense, outputs, room, True))]
    plans.append(InputPlan(gathered, region_sizes(c, gathered, outputs, room, False), False))
    wanted = min(ENOUGH_POSITIONS, product(outputs))
    return plans[0] if product(plans[0].sizes) >= wanted else plans[1]


def region_sizes(c: Convolution, parts: list, outputs: list, room: int, resident: bool) -> list:
    """Return how many outputs of each axis a region has; outer axes are halved first until inputs fit."""
    sizes = [1, 1, 1, 1]
    for i in range(3, -1, -1):
        sizes[i] = even_parts(outputs[i], room)
        room = max(1, room // sizes[i])
    most = DENSE_BYTES if parts[0].taps_below == 0 else GATHERED_BYTES
    for i in range(4):
        while sizes[i] > 1 and input_bytes(c, parts, sizes, resident) > most:
            sizes[i] = div_ceil(sizes[i], 2)
    return sizes


def input_bytes(c: Convolution, parts: list, sizes: list, resident: bool) -> int:
    """Return the bytes that the inputs of so many outputs take in each partition."""
    total = 0
    for part in parts:
        count = sizes[0] * sizeinbytes(c.x.dtype)
        for i in range(3):
            axis = c.axes[i]
            if part.taps_below == 0:
                reach = (sizes[i + 1] - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1
                count = count * min(reach, axis.size)
            else:
                count = count * ((sizes[i + 1] - 1) * axis.stride + 1 if i == 2 else sizes[i + 1])
        tiles = part.tiles if part.taps_below == 0 else part.rows.shape[0]
        total = total + count * tiles if resident else max(total, count)
    return total


def product(sizes: list) -> int:
    total = 1
    for size in sizes:
        total = total * size
    return total


# ---- loading ------------------------------------------------------------------------------------------


@dataclass
class Inputs(nl.NKIObject):
    """The inputs of one part for a region of outputs. Dense: one tile, of these spans; else one per step."""

    part: ChannelPart
    region: list
    tiles: list
    spans: list


def load_inputs(c: Convolution, plan: InputPlan, region: list) -> list:
    """Return the Inputs of every part."""
    loaded = []
    for part in plan.parts:
        if part.taps_below == 0:
            loaded.append(load_dense(c, part, region))
        else:
            tiles = []
            for step in range(part.rows.shape[0] if plan.resident else 0):
                tiles.append(load_gathered(c, part, region, step))
            loaded.append(Inputs(part, region, tiles, []))
    return loaded


def load_dense(c: Convolution, part: ChannelPart, region: list) -> Inputs:
    """Load tile[p, b, j, :] = the box of inputs of channel p * tiles + j.

    One transfer for each j, so that the first products need not wait for all. The first uses a queue of its
    own, in parallel with the filters.
    """
    d, h, w = (
        inputs_for(c.axes[0], region[1]),
        inputs_for(c.axes[1], region[2]),
        inputs_for(c.axes[2], region[3]),
    )
    box = (size_of(d), size_of(h), size_of(w))
    batches = size_of(region[0])
    shape = (part.partitions, batches, part.tiles, box[0] * box[1] * box[2])
    tile = nl.ndarray(shape, c.x.dtype, buffer=nl.sbuf)
    end = part.channel + part.partitions * part.tiles
    for b in range(batches):
        source = c.x[
            region[0].start + b, part.channel : end, d.start : d.end, h.start : h.end, w.start : w.end
        ]
        place = tile[:, b].reshape_dim(2, box)
        by_tile = source.reshape_dim(0, (part.partitions, part.tiles))
        for j in range(part.tiles):
            queue = hardware_queue() if j == 0 else nisa.dge_mode.unknown
            nisa.dma_copy(place[:, j], by_tile[:, j], dge_mode=queue)
    return Inputs(part, region, [tile], [d, h, w])


def load_gathered(c: Convolution, part: ChannelPart, region: list, step: int) -> Tensor:
    """Load tile[t * channels + c, b, d, h, :] = the inputs that tap t of the step meets, 0 for padding.

    Depth and height have the outputs' steps already; in width all inputs between the first and the last.
    """
    width = (size_of(region[3]) - 1) * c.axes[2].stride + 1
    shape = (part.partitions, size_of(region[0]), size_of(region[1]), size_of(region[2]), width)
    tile = nl.ndarray(shape, c.x.dtype, buffer=nl.sbuf)
    first = part.first_tap + step * part.taps_below
    padded = False
    for t in range(part.taps_below):
        box = covered(c.axes, first + t, region)
        padded = padded or box is None or positions(box) < positions(region)
    if padded:
        nisa.memset(tile, 0.0)
    for t in range(part.taps_below):
        box = covered(c.axes, first + t, region)
        if box is not None:
            load_tap(c, part, tile, region, box, first + t, t * part.channels)
    return tile


def load_tap(
    c: Convolution, part: ChannelPart, tile: Tensor, region: list, box: list, number: int, lane: int
) -> None:
    """Load the inputs that one tap meets for the outputs of a box, from partition `lane` on.

    Many of these transfers are small: precomputed descriptors are triggered ten times as fast as others.
    """
    source = c.x[region[0].start : region[0].end, part.channel : part.channel + part.channels]
    place = tile[lane : lane + part.channels]
    tap = tap_of(c.axes, number)
    for i in range(3):
        axis, span = c.axes[i], box[i + 1]
        at = input_of(axis, span.start, tap[i])
        last = input_of(axis, span.end - 1, tap[i])
        source = source.slice(i + 2, at, last + 1, axis.stride if i < 2 else 1)
        begin = span.start - region[i + 1].start
        if i < 2:
            place = place.slice(i + 2, begin, begin + size_of(span))
        else:
            place = place.slice(4, begin * axis.stride, begin * axis.stride + last - at + 1)
    nisa.dma_copy(place, source.permute((1, 0, 2, 3, 4)), dge_mode=nisa.dge_mode.none)


# ---- views for one matmul -----------------------------------------------------------------------------


def moving(c: Convolution, inputs: Inputs, tile: Tensor, step: int, j: int, box: list) -> Tensor:
    """Return the inputs of a step for the outputs of a box, [partitions, b, d, h, w]."""
    region = inputs.region
    batch = box[0].start - region[0].start
    if inputs.part.taps_below == 0:
        spans = inputs.spans
        sizes = (size_of(spans[0]), size_of(spans[1]), size_of(spans[2]))
        view = tile[:, batch : batch + size_of(box[0]), j].reshape_dim(2, sizes)
        tap = tap_of(c.axes, step)
        for i in range(3):
            axis = c.axes[i]
            at = input_of(axis, box[i + 1].start, tap[i]) - spans[i].start
            view = view.slice(i + 2, at, at + (size_of(box[i + 1]) - 1) * axis.stride + 1, axis.stride)
        return view
    view = tile[:, batch : batch + size_of(box[0])]
    for i in range(3):
        stride = c.axes[2].stride if i == 2 else 1
        at = (box[i + 1].start - region[i + 1].start) * stride
        view = view.slice(i + 2, at, at + (size_of(box[i + 1]) - 1) * stride + 1, stride)
    return view


def regions_of(c: Convolution, plan: InputPlan) -> list:
    return split(whole_box(c), plan.sizes)


def whole_box(c: Convolution) -> list:
    """Return the box of all outputs."""
    shape = c.out.shape
    return [
        OutputSpan(0, shape[0]),
        OutputSpan(0, shape[2]),
        OutputSpan(0, shape[3]),
        OutputSpan(0, shape[4]),
    ]
