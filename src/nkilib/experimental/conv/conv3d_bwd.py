"""The gradients of a 3-D convolution.

That of the input is a transposed convolution of dy. That of the filters is a product over positions: TensorE
transposes up to 128 positions of dy, and of the inputs that each tap of height and width meets, and adds up
their products for all taps of depth in PSUM.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.conv3d_transpose import convolve_phases
from nkilib.experimental.conv.convolve import check_axis, check_numbers, check_operands
from nkilib.experimental.conv.geometry import (
    BANK_POSITIONS,
    ConvAxis,
    OutputSpan,
    even_parts,
    input_of,
    inputs_for,
    output_size,
    size_of,
    split,
    tap_of,
)
from nkilib.experimental.conv.inputs import Convolution

TAPS_TOGETHER = 5  # of height and width, whose sums fill a PSUM bank each
TAPS_LOADED = 32  # of the filters at a time
PLANES = 64  # of dy at a time
INPUT_ELEMENTS = 4096  # of a channel at a time
CHUNK = 4096  # positions whose gradients are summed for the bias at a time


@nki.jit
def conv3d_bwd(
    dy: Tensor,
    x_in: Tensor,
    filters: Tensor,
    stride: tuple[int, int, int] = (1, 1, 1),
    padding: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0),
    dilation: tuple[int, int, int] = (1, 1, 1),
    compute_dx: bool = True,
    compute_dw: bool = True,
    compute_db: bool = True,
) -> tuple:
    """Return those of (dx, dw, db) that are asked for: the gradients of conv3d for x_in, filters and bias.

    dy is [B, C_out, D_out, H_out, W_out], x_in [B, C_in, D, H, W], filters [K_d, K_h, K_w, C_in, C_out], all
    in one dtype: bfloat16, float16 or float32; stride, padding and dilation are those of the forward call.
    Sums are float32; the results have the dtype and shape of what they are the gradients of, db is [C_out].
    Two cores share all three. Read of the page: signature, shapes, the subset; the way is ours.

    >>> shapes = (1, 1, 1, 1, 2), (1, 1, 1, 1, 3), (1, 1, 2, 1, 1)
    >>> dy, x, f = (np.ones(shape, np.float32) for shape in shapes)
    >>> [gradient.ravel().tolist() for gradient in conv3d_bwd(dy, x, f)]
    [[1.0, 2.0, 1.0], [2.0, 2.0], [2.0]]
    """
    get_verified_program_sharding_info("conv3d_bwd", (0, 1), 2)
    axes = check(dy, x_in, filters, stride, padding, dilation)
    kernel_assert(
        compute_dx or compute_dw or compute_db, "compute_dx: got False like the others, one must be asked for"
    )
    results = []
    if compute_dx:
        dx = nl.ndarray(x_in.shape, x_in.dtype, buffer=nl.shared_hbm)
        before = (padding[0], padding[2], padding[4])
        c = Convolution(dy, flipped(filters), None, dx, [], None)
        convolve_phases(dx, c, stride, before, dilation, True)
        results.append(dx)
    if compute_dw:
        dw = nl.ndarray(filters.shape, filters.dtype, buffer=nl.shared_hbm)
        in_planes = axes[1].taps * axes[2].taps
        first, end = program_share(in_planes)
        flat = dw.reshape((axes[0].taps, in_planes) + tuple(filters.shape[3:5]))
        for part in TiledRange(filters.shape[3], PMAX):
            for column in TiledRange(filters.shape[4], min(PMAX, max(1, BANK_POSITIONS // axes[0].taps))):
                for some in TiledRange(end - first, TAPS_TOGETHER):
                    taps = range(first + some.start_offset, first + some.end_offset)
                    FilterGradients(axes, part, column, taps).add_up(flat, dy, x_in)
        results.append(dw)
    if compute_db:
        db = nl.ndarray((dy.shape[1],), filters.dtype, buffer=nl.shared_hbm)
        bias_gradients(db, dy)
        results.append(db)
    return tuple(results)


def flipped(filters: Tensor) -> Any:
    """[K_d, K_h, K_w, C_out, C_in] with the taps in reverse order, in HBM."""
    channels, columns = filters.shape[3:5]
    taps = filters.size // channels // columns
    rows = filters.reshape((taps, channels, columns)).permute((1, 0, 2))
    result = nl.ndarray((taps, columns, channels), filters.dtype, buffer=nl.private_hbm)
    for row in TiledRange(channels, PMAX):
        for column in TiledRange(columns, PMAX):
            for part in TiledRange(taps, TAPS_LOADED):
                own = slice(taps - part.end_offset, taps - part.start_offset)
                some = load(rows[row.start_offset : row.end_offset, own, column_slice(column)])
                tile = nl.ndarray((column.size, part.size, row.size), filters.dtype, buffer=nl.sbuf)
                views = []
                for tap in range(part.size):
                    views.append(some[:, part.size - 1 - tap, :])
                transpose_into(tile, views)
                place = result[part.start_offset : part.end_offset, column_slice(column)].permute((1, 0, 2))
                nisa.dma_copy(place[:, :, row.start_offset : row.end_offset], tile)
    return result.reshape(filters.shape[0:3] + (columns, channels))


def column_slice(part: Any) -> slice:
    return slice(part.start_offset, part.end_offset)


class FilterGradients(nl.NKIObject):
    """Sums over all positions for some channels and columns, and taps of height and width: in a bank each."""

    def __init__(self, axes: list, channels: Any, columns: Any, taps: Any):
        self.axes = axes
        self.channels = channels
        self.columns = columns
        self.taps = taps
        self.sums: list = []
        self.started: list = []  # for each tap of depth
        for _ in taps:
            shape = (channels.size, axes[0].taps, columns.size)
            self.sums.append(nl.ndarray(shape, nl.float32, buffer=nl.psum))
        for _ in range(axes[0].taps):
            self.started.append(False)

    def add_up(self, dw: Tensor, dy: Tensor, x: Tensor) -> None:
        """dw [K_d, K_h K_w, C_in, C_out] of these taps, from boxes of up to 128 positions of a plane."""
        wide = even_parts(dy.shape[4], PMAX)
        high = even_parts(dy.shape[3], max(1, PMAX // wide))
        whole = [OutputSpan(0, dy.shape[0]), OutputSpan(0, dy.shape[2]), OutputSpan(0, dy.shape[3])]
        for box in split(whole + [OutputSpan(0, dy.shape[4])], [1, PLANES, high, wide]):
            gradients = self.gradients(dy[box[0].start, column_slice(self.columns)], box)
            self.add_box(gradients, x[box[0].start, column_slice(self.channels)], box)
        for number in range(len(self.taps)):
            result = nl.ndarray(self.sums[number].shape, dw.dtype, buffer=nl.sbuf)
            for k in range(self.axes[0].taps):
                if self.started[k]:
                    nisa.tensor_copy(result[:, k, :], self.sums[number][:, k, :])
                else:
                    nisa.memset(result[:, k, :], 0.0)
            place = dw[:, self.taps[number], column_slice(self.channels), column_slice(self.columns)]
            nisa.dma_copy(place.permute((1, 0, 2)), result)

    def gradients(self, dy: Tensor, box: list) -> Tensor:
        """dy [columns, D, H, W] of a box, transposed: [positions, planes, columns]."""
        view = dy[:, box[1].start : box[1].end, box[2].start : box[2].end, box[3].start : box[3].end]
        tile, count = load(view), size_of(box[2]) * size_of(box[3])
        rows = tile.reshape((tile.shape[0], tile.shape[1], count))
        result = nl.ndarray((count, tile.shape[1], tile.shape[0]), dy.dtype, buffer=nl.sbuf)
        views = []
        for plane in range(tile.shape[1]):
            views.append(rows[:, plane, :])
        transpose_into(result, views)
        return result

    def add_box(self, gradients: Tensor, x: Tensor, box: list) -> None:
        """Add the products with all inputs x [channels, D, H, W] that a box meets."""
        axes, planes = self.axes, inputs_for(self.axes[0], box[1])
        spans = [reached(axes[1], box[2]), reached(axes[2], box[3])]
        size = size_of(spans[0]) * size_of(spans[1])
        for part in TiledRange(size_of(planes), max(1, INPUT_ELEMENTS // size)):
            first = planes.start + part.start_offset
            inputs = self.padded(x[:, first : first + part.size], spans)
            for plane in range(part.size):
                self.add_plane(gradients, inputs[:, plane], first + plane, box)

    def padded(self, x: Tensor, spans: list) -> Tensor:
        """Planes x [channels, planes, H, W] of spans that may begin before the input or end behind it."""
        inner = [inside_of(self.axes[1], spans[0]), inside_of(self.axes[2], spans[1])]
        tile = load(x[:, :, inner[0].start : inner[0].end, inner[1].start : inner[1].end])
        if size_of(inner[0]) == size_of(spans[0]) and size_of(inner[1]) == size_of(spans[1]):
            return tile
        sizes = (tile.shape[0], tile.shape[1], size_of(spans[0]), size_of(spans[1]))
        result = nl.ndarray(sizes, tile.dtype, buffer=nl.sbuf)
        nisa.memset(result, 0.0, engine=nisa.gpsimd_engine)
        place = result.slice(2, inner[0].start - spans[0].start, inner[0].end - spans[0].start)
        place = place.slice(3, inner[1].start - spans[1].start, inner[1].end - spans[1].start)
        nisa.tensor_copy(place, tile)
        return result

    def add_plane(self, gradients: Tensor, x: Tensor, plane: int, box: list) -> None:
        """Add the products of one plane of inputs [channels, height, width]."""
        axis, count = self.axes[0], gradients.shape[0]
        met = []  # (tap of depth, plane of dy in the box)
        for k in range(axis.taps):
            at = plane - input_of(axis, 0, k)
            if at % axis.stride == 0 and box[1].start <= at // axis.stride < box[1].end:
                met.append((k, at // axis.stride - box[1].start))
        if len(met) == 0:
            return
        views = []
        for number in self.taps:
            tap = tap_of(self.axes, number)
            views.append(met_by(met_by(x, self.axes[1], 1, tap[1], box[2]), self.axes[2], 2, tap[2], box[3]))
        rows = nl.ndarray((count, len(views), self.channels.size), x.dtype, buffer=nl.sbuf)
        transpose_into(rows, views)
        for pair in met:
            for number in range(len(views)):
                place, moving = self.sums[number][:, pair[0], :], gradients[:, pair[1], :]
                nisa.nc_matmul(place, rows[:, number, :], moving, accumulate=self.started[pair[0]])
            self.started[pair[0]] = True


def transpose_into(place: Tensor, views: list) -> None:
    """place[:, i, :] = the transpose of views[i], several in one bank."""
    rows, columns = place.shape[0], place.shape[2]
    words = columns if place.dtype == nl.float32 else div_ceil(columns, 2)
    for part in TiledRange(len(views), max(1, BANK_POSITIONS // words)):
        bank = nl.ndarray((rows, part.size, columns), place.dtype, buffer=nl.psum)
        for i in range(part.size):
            nisa.nc_transpose(bank[:, i, :], views[part.start_offset + i], engine=nisa.tensor_engine)
        nisa.tensor_copy(place[:, part.start_offset : part.end_offset, :], bank)


def reached(axis: ConvAxis, span: OutputSpan) -> OutputSpan:
    """The inputs that outputs of a span meet, with those in padding."""
    return OutputSpan(input_of(axis, span.start, 0), input_of(axis, span.end - 1, axis.taps - 1) + 1)


def inside_of(axis: ConvAxis, span: OutputSpan) -> OutputSpan:
    """The part of a span that is not padding, at least one input."""
    start = min(max(0, span.start), axis.size - 1)
    return OutputSpan(start, max(start + 1, min(axis.size, span.end)))


def met_by(view: Tensor, axis: ConvAxis, dim: int, tap: int, span: OutputSpan) -> Any:
    """The inputs that a tap meets for the outputs of a span; index 0 of the view is the first one reached."""
    at = tap * axis.dilation
    return view.slice(dim, at, at + (size_of(span) - 1) * axis.stride + 1, axis.stride)


def bias_gradients(db: Tensor, dy: Tensor) -> None:
    """db[o] = sum of dy[:, o], this core's channels."""
    batches, columns = dy.shape[0], dy.shape[1]
    count = dy.size // batches // columns
    flat = dy.reshape((batches, columns, count))
    first, end = program_share(columns)
    for tile in TiledRange(end - first, PMAX):
        rows = (first + tile.start_offset, first + tile.end_offset)
        total = new_column(tile.size)
        nisa.memset(total, 0.0)
        for batch in range(batches):
            for part in TiledRange(count, CHUNK):
                some = load(flat[batch, rows[0] : rows[1], part.start_offset : part.end_offset])
                here = new_column(tile.size)
                nisa.activation_reduce(like(some), nl.copy, some, nl.add, here)
                nisa.tensor_tensor(total, total, here, op=nl.add)
        store(db[rows[0] : rows[1]].expand_dim(1), total)


def check(dy: Tensor, x: Tensor, filters: Tensor, stride: tuple, padding: tuple, dilation: tuple) -> list:
    """Check the arguments; return the axes of depth, height and width."""
    assert_tensors((("dy", dy), ("x_in", x), ("filters", filters)))
    kernel_assert(len(x.shape) == 5, f"x_in: got shape {tuple(x.shape)}, expected (B, C_in, D, H, W)")
    kernel_assert(
        len(filters.shape) == 5,
        f"filters: got shape {tuple(filters.shape)}, expected (K_d, K_h, K_w, C_in, C_out)",
    )
    check_numbers("stride", stride, 3, "three numbers")
    check_numbers("padding", padding, 6, "six numbers")
    check_numbers("dilation", dilation, 3, "three numbers")
    check_operands(x, filters, None, None)
    axes = []
    for i in range(3):
        before, after = padding[2 * i], padding[2 * i + 1]
        axes.append(check_axis(x.shape[i + 2], filters.shape[i], stride[i], dilation[i], before, after))
    sizes = (output_size(axes[0]), output_size(axes[1]), output_size(axes[2]))
    assert_shape(dy, (x.shape[0], filters.shape[4]) + sizes, "dy")
    kernel_assert(dy.dtype == x.dtype, f"dy: got {dy.dtype}, expected {x.dtype} like x_in")
    return axes


def conv3d_bwd_ref(
    dy: np.ndarray,
    x_in: np.ndarray,
    filters: np.ndarray,
    stride: tuple[int, int, int] = (1, 1, 1),
    padding: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0),
    dilation: tuple[int, int, int] = (1, 1, 1),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(dx, dw, db) in float64, tap by tap."""
    pads = [(0, 0), (0, 0)] + [(padding[2 * i], padding[2 * i + 1]) for i in range(3)]
    g, x, f = (np.asarray(v, np.float64) for v in (dy, np.pad(x_in, pads), filters))
    dx, dw = np.zeros(x.shape), np.zeros(f.shape)
    for tap in np.ndindex(f.shape[:3]):
        at = [tap[i] * dilation[i] for i in range(3)]
        cut = [slice(at[i], at[i] + (g.shape[i + 2] - 1) * stride[i] + 1, stride[i]) for i in range(3)]
        dw[tap] = np.einsum("bcdhw,bodhw->co", x[:, :, cut[0], cut[1], cut[2]], g)
        dx[:, :, cut[0], cut[1], cut[2]] += np.einsum("bodhw,co->bcdhw", g, f[tap])
    ends = [slice(padding[2 * i], padding[2 * i] + x_in.shape[i + 2]) for i in range(3)]
    return dx[:, :, ends[0], ends[1], ends[2]], dw, g.sum((0, 2, 3, 4))
