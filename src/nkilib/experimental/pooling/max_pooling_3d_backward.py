"""The gradient of max pooling."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.geometry import OutputSpan, covered, inputs_for, tap_of, taps_of
from nkilib.experimental.pooling.max_pooling_3d import padded_shape, windows_ref, without_padding
from nkilib.experimental.pooling.volumes import (
    Volume,
    check_gradient,
    checked,
    input_jobs,
    load_block,
    store_block,
)
from nkilib.experimental.pooling.windows import inputs_of_tap, outputs_for, tiles_inputs


@nki.jit
def max_pooling_3d_backward(
    grad_output: Tensor,
    input_tensor: Tensor,
    output_tensor: Tensor,
    kernel_size: int | tuple,
    stride: int | tuple | None = None,
    padding: int | tuple = 0,
    data_format: str = "NCDHW",
    output_format: str | None = None,
) -> Tensor:
    """Gradient of max_pooling_3d for its input: each gradient goes to the first largest of its window.

    grad_output and output_tensor, the forward result, are in output_format, input_tensor in data_format, all
    in one dtype; the other arguments are those of the forward call. Of equal elements the first in the order
    (D, H, W) gets the gradient, as in torch (ours: the page's rule could not be read). Sums are float32. Two
    cores share channels and blocks.

    >>> x = np.array([1, 5, 5, 2], np.float32).reshape(1, 1, 1, 1, 4)
    >>> y, dy = np.array([[[[[5]]]]], np.float32), np.array([[[[[3]]]]], np.float32)
    >>> max_pooling_3d_backward(dy, x, y, (1, 1, 4)).ravel().tolist()
    [0.0, 3.0, 0.0, 0.0]
    """
    p = checked("input_tensor", input_tensor, kernel_size, stride, padding, data_format, output_format)
    check_gradient("grad_output", grad_output, p, input_tensor.dtype)
    check_gradient("output_tensor", output_tensor, p, input_tensor.dtype)
    axes = p.axes
    result = nl.ndarray(input_tensor.shape, input_tensor.dtype, buffer=nl.shared_hbm)
    apart = axes[0].stride >= axes[0].taps and axes[1].stride >= axes[1].taps
    apart = apart and axes[2].stride >= axes[2].taps  # each input gets the gradient of one window
    for job in input_jobs(p):
        outputs = [outputs_for(axes[0], job.depth), outputs_for(axes[1], job.height)]
        inputs = [
            around(inputs_for(axes[0], outputs[0]), job.depth),
            around(inputs_for(axes[1], outputs[1]), job.height),
        ]
        x = load_block(Volume(input_tensor, p.input_first), job, inputs[0], inputs[1], input_tensor.dtype)
        y = load_block(Volume(output_tensor, p.output_first), job, outputs[0], outputs[1], x.dtype)
        dy = load_block(Volume(grad_output, p.output_first), job, outputs[0], outputs[1], x.dtype)
        dx = like(x, x.dtype if apart else nl.float32)
        spans = inputs + [OutputSpan(0, axes[2].size)]
        box = [OutputSpan(0, 1)] + outputs + [OutputSpan(0, y.shape[3])]
        if not (
            tiles_inputs(axes[0], box[1], spans[0])
            and tiles_inputs(axes[1], box[2], spans[1])
            and tiles_inputs(axes[2], box[3], spans[2])
        ):
            nisa.memset(dx, 0.0)
        assign(dx, x, y, dy, axes, box, spans, apart)
        own = dx.slice(1, job.depth.start - inputs[0].start, job.depth.end - inputs[0].start)
        own = own.slice(2, job.height.start - inputs[1].start, job.height.end - inputs[1].start)
        store_block(Volume(result, p.input_first), job, own)
    return result


def around(one: OutputSpan, other: OutputSpan) -> OutputSpan:
    """The smallest span that holds both."""
    return OutputSpan(min(one.start, other.start), max(one.end, other.end))


def assign(
    dx: Tensor, x: Tensor, y: Tensor, dy: Tensor, axes: list, box: list, spans: list, apart: bool
) -> None:
    """Move each gradient from dy to the first input of its window that equals the maximum, tap by tap."""
    for number in range(taps_of(axes)):
        part = covered(axes, number, box)
        if part is not None:
            tap = tap_of(axes, number)
            views = [x, dx, y, dy]
            for i in range(3):
                span, first = part[i + 1], box[i + 1].start
                for v in range(2):
                    views[v] = inputs_of_tap(views[v], axes[i], i + 1, tap[i], span, spans[i].start)
                for v in range(2, 4):
                    views[v] = views[v].slice(i + 1, span.start - first, span.end - first)
            assign_tap(views[1], views[0], views[2], views[3], apart)


def assign_tap(dx: Tensor, x: Tensor, y: Tensor, dy: Tensor, apart: bool) -> None:
    """Give dy where x is y: dx gets it, and nothing of it remains in dy for later taps."""
    given = nl.ndarray(dy.shape, dy.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(given, x, y, op=nl.equal)
    nisa.tensor_tensor(given, given, dy, op=nl.multiply)
    nisa.tensor_tensor(dy, dy, given, op=nl.subtract)
    if apart:
        nisa.tensor_copy(dx, given)
    else:
        nisa.tensor_tensor(dx, dx, given, op=nl.add)


def max_pooling_3d_backward_ref(
    dy: np.ndarray, x: np.ndarray, kernel_size: tuple, stride: tuple, padding: tuple
) -> np.ndarray:
    """dy [B, C, Do, Ho, Wo] and x in float64, window by window."""
    views = windows_ref(x, kernel_size, stride, padding, -np.inf)
    first = views.reshape(*views.shape[:5], -1).argmax(-1)
    wide = np.zeros(padded_shape(x.shape, padding))
    for at in np.ndindex(*dy.shape):
        tap = np.unravel_index(first[at], kernel_size)
        d, h, w = (a * s + int(t) for a, s, t in zip(at[2:], stride, tap, strict=True))
        wide[at[0], at[1], d, h, w] += float(dy[at])
    return without_padding(wide, x.shape, padding)
