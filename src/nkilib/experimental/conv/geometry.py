"""Which input a tap of a convolution meets for which output, in boxes [batch, depth, height, width]."""

from __future__ import annotations

from dataclasses import dataclass

import nki.language as nl
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.tile_sizes import PMAX

BANK_POSITIONS = 512  # float32 sums in one PSUM bank, and the most columns of a moving operand
ENOUGH_POSITIONS = 128  # for one matmul to hide the load of its stationary operand


@dataclass
class ConvAxis(nl.NKIObject):
    """One spatial axis: output o meets input o * stride + tap * dilation - before."""

    size: int
    taps: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0


def output_size(axis: ConvAxis) -> int:
    """Count the positions where all taps lie inside the padded input."""
    reach = axis.dilation * (axis.taps - 1) + 1
    return (axis.size + axis.before + axis.after - reach) // axis.stride + 1


def input_of(axis: ConvAxis, output: int, tap: int) -> int:
    """Return the input index that a tap meets; outside 0 ... size - 1 it meets padding."""
    return output * axis.stride + tap * axis.dilation - axis.before


@dataclass
class OutputSpan(nl.NKIObject):
    """start ... end - 1"""

    start: int
    end: int


def size_of(span: OutputSpan) -> int:
    return span.end - span.start


def inside(axis: ConvAxis, tap: int, span: OutputSpan) -> OutputSpan:
    """Return the outputs of a span for which the tap meets input, not padding; empty if end <= start."""
    first = div_ceil(-input_of(axis, 0, tap), axis.stride)
    last = (axis.size - 1 - input_of(axis, 0, tap)) // axis.stride
    return OutputSpan(max(span.start, first), min(span.end, last + 1))


def inputs_for(axis: ConvAxis, span: OutputSpan) -> OutputSpan:
    """Return the inputs that the outputs of a span need, at least one."""
    first = min(max(0, input_of(axis, span.start, 0)), axis.size - 1)
    end = min(axis.size, input_of(axis, span.end - 1, axis.taps - 1) + 1)
    return OutputSpan(first, max(end, first + 1))


# ---- channels --------------------------------------------------------------------------------------


@dataclass
class ChannelTiles(nl.NKIObject):
    """Channels from `start` on, `tiles` neighbours in each partition: long runs of memory for DMA."""

    start: int
    partitions: int
    tiles: int


def channel_tiles(channels: int) -> list:
    """Divide all channels into tiles of at most 128, of equal size where possible."""
    tiles = div_ceil(channels, PMAX)
    if channels % tiles == 0:
        return [ChannelTiles(0, channels // tiles, tiles)]
    full = channels // PMAX
    rest = channels % PMAX
    return [ChannelTiles(0, PMAX, full), ChannelTiles(full * PMAX, rest, 1)]


# ---- boxes of outputs: [batch, depth, height, width] of spans ---------------------------------------


def positions(box: list) -> int:
    count = 1
    for span in box:
        count = count * size_of(span)
    return count


def split(box: list, sizes: list) -> list:
    """Return the boxes of at most these sizes that make up a box."""
    boxes: list[list] = [[]]
    for i in range(len(box)):
        longer = []
        for head in boxes:
            for start in range(box[i].start, box[i].end, sizes[i]):
                longer.append(head + [OutputSpan(start, min(start + sizes[i], box[i].end))])
        boxes = longer
    return boxes


def even_parts(size: int, most: int) -> int:
    """Return the size of equal parts, at most `most`."""
    return div_ceil(size, div_ceil(size, min(size, most)))


def block_sizes(box: list) -> list:
    """Return the sizes of boxes whose sums fill a PSUM bank.

    Planes and batches are joined only where one has few positions: a box in one plane can skip the taps that
    meet nothing but padding there.
    """
    sizes = [1, 1, 1, 1]
    filled = 1
    for i in range(3, -1, -1):
        if i >= 2 or filled < ENOUGH_POSITIONS:
            sizes[i] = even_parts(size_of(box[i]), BANK_POSITIONS // filled)
        if sizes[i] < size_of(box[i]):
            return sizes
        filled = filled * sizes[i]
    return sizes


# ---- taps ------------------------------------------------------------------------------------------


def tap_of(axes: list, number: int) -> list:
    """Return [depth, height, width] of a tap; width varies fastest, as in the filters."""
    rows = number // axes[2].taps
    return [rows // axes[1].taps, rows % axes[1].taps, number % axes[2].taps]


def taps_of(axes: list) -> int:
    return axes[0].taps * axes[1].taps * axes[2].taps


def covered(axes: list, number: int, box: list) -> list | None:
    """Return the outputs of a box for which the tap meets input in all axes, or None."""
    tap = tap_of(axes, number)
    part = [box[0]]
    for i in range(3):
        span = inside(axes[i], tap[i], box[i + 1])
        if span.end <= span.start:
            return None
        part.append(span)
    return part


def whole_tap(axes: list, box: list) -> int:
    """Return a tap that meets input for all outputs of a box; the middle one if there is none."""
    for number in range(taps_of(axes)):
        part = covered(axes, number, box)
        if part is not None and positions(part) == positions(box):
            return number
    return taps_of(axes) // 2
