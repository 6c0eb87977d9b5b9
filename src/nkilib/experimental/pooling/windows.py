"""Windows of pooling: reduced along one axis after the other, or spread back."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.conv.geometry import (
    ConvAxis,
    OutputSpan,
    input_of,
    inputs_for,
    inside,
    output_size,
    size_of,
)
from nkilib.experimental.pooling.volumes import Pooling, Volume, jobs, load_block, store_block


def pool(
    out: Tensor, source: Tensor, p: Pooling, op: Any, start: float, dtype: DTypeLike, scale: float
) -> None:
    """out = scale * (op over each window), `start` being the neutral element."""
    axes = p.axes
    sizes = [output_size(axes[0]), output_size(axes[1])]
    reach = [(axes[0].taps, axes[0].stride), (axes[1].taps, axes[1].stride)]
    results, inputs = Volume(out, p.output_first), Volume(source, p.input_first)
    for job in jobs(p, sizes, axes[2].size, reach):
        depth, height = inputs_for(axes[0], job.depth), inputs_for(axes[1], job.height)
        tile = load_block(inputs, job, depth, height, source.dtype)
        wide = OutputSpan(0, output_size(axes[2]))
        tile = reduced(tile, axes[2], 3, wide, 0, op, start, dtype)
        tile = reduced(tile, axes[1], 2, job.height, height.start, op, start, dtype)
        tile = reduced(tile, axes[0], 1, job.depth, depth.start, op, start, dtype)
        if scale != 1.0:
            nisa.tensor_scalar(tile, tile, nl.multiply, scale)
        store_block(results, job, tile)


def reduced(
    tile: Tensor,
    axis: ConvAxis,
    dim: int,
    span: OutputSpan,
    first: int,
    op: Any,
    start: float,
    dtype: DTypeLike,
) -> Tensor:
    """Reduce the windows of one axis of a tile, whose index 0 there is input `first`."""
    shape = list(tile.shape)
    shape[dim] = size_of(span)
    result = nl.ndarray(tuple(shape), dtype, buffer=nl.sbuf)
    taps: list[int] = []
    for tap in range(axis.taps):
        part = inside(axis, tap, span)
        if size_of(part) == size_of(span):
            taps = [tap] + taps  # one that covers all outputs need not be added to anything
        elif part.start < part.end:
            taps.append(tap)
    started = len(taps) > 0 and size_of(inside(axis, taps[0], span)) == size_of(span)
    if not started:
        nisa.memset(result, start)
    for i in range(len(taps)):
        part = inside(axis, taps[i], span)
        place = result.slice(dim, part.start - span.start, part.end - span.start)
        view = inputs_of_tap(tile, axis, dim, taps[i], part, first)
        if i == 0 and started:
            nisa.tensor_copy(place, view)
        else:
            nisa.tensor_tensor(place, place, view, op=op)
    return result


def inputs_of_tap(tile: Tensor, axis: ConvAxis, dim: int, tap: int, span: OutputSpan, first: int) -> Any:
    """The inputs that a tap meets for the outputs of a span."""
    at = input_of(axis, span.start, tap) - first
    return tile.slice(dim, at, at + (size_of(span) - 1) * axis.stride + 1, axis.stride)


def outputs_for(axis: ConvAxis, span: OutputSpan) -> OutputSpan:
    """The outputs whose windows meet inputs of a span; one that does not, if none does."""
    first = max(0, -((axis.taps - 1 - span.start - axis.before) // axis.stride))
    first = min(first, output_size(axis) - 1)
    last = min(output_size(axis) - 1, (span.end - 1 + axis.before) // axis.stride)
    return OutputSpan(first, max(first, last) + 1)


def tiles_inputs(axis: ConvAxis, outputs: OutputSpan, inputs: OutputSpan) -> bool:
    """Return whether each input of a span is in one window of these outputs, and no other input is."""
    first, last = input_of(axis, outputs.start, 0), input_of(axis, outputs.end - 1, axis.taps - 1)
    return axis.stride == axis.taps and (first, last + 1) == (inputs.start, inputs.end)


def spread(tile: Tensor, axis: ConvAxis, dim: int, span: OutputSpan, first: int) -> Tensor:
    """Add each output of an axis, the first one being `first`, to the inputs of its window in a span."""
    shape = list(tile.shape)
    outputs = OutputSpan(first, first + shape[dim])
    shape[dim] = size_of(span)
    result = nl.ndarray(tuple(shape), tile.dtype, buffer=nl.sbuf)
    if tiles_inputs(axis, outputs, span):
        windows = result.reshape_dim(dim, (tile.shape[dim], axis.taps))
        nisa.tensor_copy(windows, tile.expand_dim(dim + 1).broadcast(dim + 1, axis.taps))
        return result
    nisa.memset(result, 0.0)
    shifted = ConvAxis(size_of(span), axis.taps, axis.stride, 1, axis.before + span.start)
    for tap in range(axis.taps):
        part = inside(shifted, tap, outputs)
        if part.start < part.end:
            place = inputs_of_tap(result, shifted, dim, tap, part, 0)
            source = tile.slice(dim, part.start - first, part.end - first)
            nisa.tensor_tensor(place, place, source, op=nl.add)
    return result
