"""Volumes [B, C, D, H, W] or [B, D, H, W, C] in HBM, in blocks of SBUF with channels in the partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.conv.geometry import ConvAxis, OutputSpan, div_ceil, output_size, size_of, split

FORMATS = ("NCDHW", "NDHWC")
FLOATS = (nl.float32, nl.bfloat16, nl.float16)
BLOCK_ELEMENTS = 4096  # of a channel that are pooled at a time


@dataclass
class Volume(nl.NKIObject):
    """A tensor and where its channels are."""

    tensor: Tensor
    channels_first: bool

    def planes(self, batch: int, channel: int, channels: int) -> Any:
        """[channels, D, H, W] or [D, H, W, channels] of one batch."""
        if self.channels_first:
            return self.tensor[batch, channel : channel + channels]
        return self.tensor[batch, :, :, :, channel : channel + channels]


@dataclass
class PoolJob(nl.NKIObject):
    """Channels of one batch, and a box [depth, height] of spans of the result."""

    batch: int
    channel: int
    channels: int
    depth: OutputSpan
    height: OutputSpan


@dataclass
class Pooling(nl.NKIObject):
    """Checked arguments: axes of depth, height and width, sizes of batch and channels."""

    batches: int
    channels: int
    axes: list
    input_first: bool
    output_first: bool

    def output_shape(self) -> tuple:
        sizes = (output_size(self.axes[0]), output_size(self.axes[1]), output_size(self.axes[2]))
        if self.output_first:
            return (self.batches, self.channels) + sizes
        return (self.batches,) + sizes + (self.channels,)


def checked(
    name: str,
    tensor: Tensor,
    kernel_size: int | tuple,
    stride: int | tuple | None,
    padding: int | tuple,
    data_format: str,
    output_format: str | None,
) -> Pooling:
    """Check the arguments that all kernels have; `name` is that of the forward input."""
    get_verified_program_sharding_info("pooling", (0, 1), 2)
    assert_tensors(((name, tensor),))
    shape = tuple(tensor.shape)
    kernel_assert(data_format in FORMATS, f"data_format: got {data_format}, allowed are {FORMATS}")
    kernel_assert(
        output_format is None or output_format in FORMATS,
        f"output_format: got {output_format}, allowed are None and {FORMATS}",
    )
    kernel_assert(len(shape) == 5, f"{name}: got shape {shape}, expected the five axes of {data_format}")
    kernel_assert(
        tensor.dtype in FLOATS, f"{name}: got {tensor.dtype}, allowed are float32, bfloat16, float16"
    )
    first = data_format == "NCDHW"
    sizes = shape[2:5] if first else shape[1:4]
    windows, pads = triple("kernel_size", kernel_size, 1), triple("padding", padding, 0)
    steps = windows if stride is None else triple("stride", stride, 1)
    axes = []
    for i in range(3):
        kernel_assert(
            2 * pads[i] <= windows[i],
            f"padding: got {pads[i]} for a window of {windows[i]}, allowed is up to half of it",
        )
        kernel_assert(
            windows[i] <= sizes[i] + 2 * pads[i],
            f"kernel_size: got {windows[i]}, allowed is up to the padded size {sizes[i] + 2 * pads[i]}",
        )
        axes.append(ConvAxis(sizes[i], windows[i], steps[i], 1, pads[i], pads[i]))
    given = first if output_format is None else output_format == "NCDHW"
    return Pooling(shape[0], shape[1] if first else shape[4], axes, first, given)


def triple(name: str, value: int | tuple, least: int) -> tuple:
    """A number for each axis, as a tuple."""
    whole = (value, value, value) if isinstance(value, int) else value
    good = isinstance(whole, (tuple, list)) and len(whole) == 3
    for number in whole if good else ():
        good = good and isinstance(number, int) and number >= least
    kernel_assert(good, f"{name}: got {value}, expected a number of {least} or more, or three")
    return whole  # type: ignore[return-value]


def check_gradient(name: str, tensor: Tensor, p: Pooling, dtype: DTypeLike) -> None:
    assert_tensors(((name, tensor),))
    assert_shape(tensor, p.output_shape(), name)
    kernel_assert(tensor.dtype == dtype, f"{name}: got {tensor.dtype}, expected {dtype} like input_tensor")


def jobs(p: Pooling, sizes: list, width: int, reach: list) -> list:
    """This core's jobs: boxes of [depth, height] of these sizes, so that a block of inputs fits.

    `reach` says how many inputs the first result of depth and height needs, and each one after it.
    """
    rows = sizes[1]
    while rows > 1 and elements(1, rows, width, reach) > BLOCK_ELEMENTS:
        rows = div_ceil(rows, 2)
    depth = sizes[0]
    while depth > 1 and elements(depth, rows, width, reach) > BLOCK_ELEMENTS:
        depth = div_ceil(depth, 2)
    found = []
    for batch in range(p.batches):
        for part in TiledRange(p.channels, PMAX):
            for box in split([OutputSpan(0, sizes[0]), OutputSpan(0, sizes[1])], [depth, rows]):
                found.append(PoolJob(batch, part.start_offset, part.size, box[0], box[1]))
    first, end = program_share(len(found))
    return found[first:end]


def input_jobs(p: Pooling) -> list:
    """This core's jobs over inputs: windows that do not overlap others lie in one box."""
    counts, reach = [], []
    for axis in p.axes[0:2]:
        apart = axis.stride >= axis.taps
        counts.append(div_ceil(axis.size + axis.before, axis.stride) if apart else axis.size)
        reach.append((axis.stride, axis.stride) if apart else (2 * axis.taps - 1, 1))
    found = []
    for job in jobs(p, counts, p.axes[2].size, reach):
        depth, height = own_inputs(p.axes[0], job.depth), own_inputs(p.axes[1], job.height)
        found.append(PoolJob(job.batch, job.channel, job.channels, depth, height))
    return found


def own_inputs(axis: ConvAxis, span: OutputSpan) -> OutputSpan:
    """The inputs from the first of a span of windows to that of the next; of overlapping ones, the span."""
    if axis.stride < axis.taps:
        return span
    start, end = span.start * axis.stride - axis.before, span.end * axis.stride - axis.before
    return OutputSpan(max(0, start), min(axis.size, end))


def elements(depth: int, rows: int, width: int, reach: list) -> int:
    return (reach[0][0] + (depth - 1) * reach[0][1]) * (reach[1][0] + (rows - 1) * reach[1][1]) * width


def load_block(v: Volume, job: PoolJob, depth: OutputSpan, height: OutputSpan, dtype: DTypeLike) -> Tensor:
    """[channels, depth, height, W] of a job's channels."""
    planes = v.planes(job.batch, job.channel, job.channels)
    if v.channels_first:
        view = planes[:, depth.start : depth.end, height.start : height.end, :]
        tile = nl.ndarray(view.shape, dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, view)
        return tile
    width = planes.shape[2]
    tile = nl.ndarray((job.channels, size_of(depth), size_of(height), width), dtype, buffer=nl.sbuf)
    for d in range(size_of(depth)):
        rows = planes[depth.start + d, height.start : height.end].flatten_dims(0, 1)
        place = tile[:, d].flatten_dims(1, 2)
        for part in TiledRange(rows.shape[0], PMAX):
            some = nl.ndarray((part.size, job.channels), v.tensor.dtype, buffer=nl.sbuf)
            nisa.dma_copy(some, rows[part.start_offset : part.end_offset])
            bank = nl.ndarray((job.channels, part.size), v.tensor.dtype, buffer=nl.psum)
            nisa.nc_transpose(bank, some, engine=nisa.tensor_engine)
            nisa.tensor_copy(place[:, part.start_offset : part.end_offset], bank)
    return tile


def store_block(v: Volume, job: PoolJob, tile: Tensor) -> None:
    """Write [channels, depth, height, W] of a job's box."""
    planes = v.planes(job.batch, job.channel, job.channels)
    ready = tile
    if tile.dtype != v.tensor.dtype:
        ready = nl.ndarray(tile.shape, v.tensor.dtype, buffer=nl.sbuf)
        nisa.activation(ready, nl.copy, tile)
    if v.channels_first:
        place = planes[:, job.depth.start : job.depth.end, job.height.start : job.height.end, :]
        nisa.dma_copy(place, ready)
        return
    for d in range(size_of(job.depth)):
        rows = planes[job.depth.start + d, job.height.start : job.height.end].flatten_dims(0, 1)
        source = ready[:, d].flatten_dims(1, 2)
        for part in TiledRange(rows.shape[0], PMAX):
            bank = nl.ndarray((part.size, job.channels), ready.dtype, buffer=nl.psum)
            nisa.nc_transpose(bank, source[:, part.start_offset : part.end_offset], engine=nisa.tensor_engine)
            some = nl.ndarray((part.size, job.channels), ready.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(some, bank)
            nisa.dma_copy(rows[part.start_offset : part.end_offset], some)
