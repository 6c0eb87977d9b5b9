"""The gradients of a 3-D convolution.

That of the input is a transposed convolution of dy. That of the filters is a product over positions: TensorE
transposes up to 128 positions of dy, and of the inputs that each tap meets, and multiplies them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import new_column
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.conv3d_transpose import convolve_phases
from nkilib.experimental.conv.convolve import check_axis, check_numbers, check_operands
from nkilib.experimental.conv.geometry import (
    BANK_POSITIONS,
    OutputSpan,
    covered,
    even_parts,
    input_of,
    inputs_for,
    output_size,
    positions,
    size_of,
    split,
    tap_of,
    taps_of,
)
from nkilib.experimental.conv.inputs import Convolution

SUM_BYTES = 64 * 1024  # in each partition, of the filters' gradients that are summed at a time
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
        taps, channels, columns = taps_of(axes), filters.shape[3], filters.shape[4]
        first, end = program_share(taps)
        flat = dw.reshape((taps, channels, columns))
        for part in TiledRange(channels, PMAX):
            for group in TiledRange(end - first, max(1, SUM_BYTES // (4 * columns))):
                numbers = (first + group.start_offset, first + group.end_offset)
                filter_gradients(flat, dy, x_in, axes, part, numbers)
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
    rows = filters.reshape((taps, channels, columns))
    result = nl.ndarray((taps, columns, channels), filters.dtype, buffer=nl.private_hbm)
    for tap in range(taps):
        for row in TiledRange(channels, PMAX):
            for column in TiledRange(columns, PMAX):
                some = load(
                    rows[
                        taps - 1 - tap,
                        row.start_offset : row.end_offset,
                        column.start_offset : column.end_offset,
                    ]
                )
                place = result[
                    tap, column.start_offset : column.end_offset, row.start_offset : row.end_offset
                ]
                nisa.dma_copy(place, transposed(some))
    return result.reshape(filters.shape[0:3] + (columns, channels))


def transposed(tile: Tensor) -> Tensor:
    """A tile of up to 128 x 128, transposed by TensorE."""
    bank = nl.ndarray((tile.shape[1], tile.shape[0]), tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(bank, tile, engine=nisa.tensor_engine)
    result = nl.ndarray(bank.shape, tile.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(result, bank)
    return result


def filter_gradients(dw: Tensor, dy: Tensor, x: Tensor, axes: list, channels: Any, taps: tuple) -> None:
    """dw[tap, channels] of some taps: sums over all positions, up to 128 at a time."""
    columns = dy.shape[1]
    sums = nl.ndarray((channels.size, taps[1] - taps[0], columns), nl.float32, buffer=nl.sbuf)
    nisa.memset(sums, 0.0)
    wide = even_parts(dy.shape[4], PMAX)
    high = even_parts(dy.shape[3], max(1, PMAX // wide))
    whole = [OutputSpan(0, dy.shape[0]), OutputSpan(0, dy.shape[2]), OutputSpan(0, dy.shape[3])]
    for box in split(whole + [OutputSpan(0, dy.shape[4])], [1, 1, high, wide]):
        gradients = nl.ndarray((positions(box), columns), dy.dtype, buffer=nl.sbuf)
        for column in TiledRange(columns, PMAX):
            view = dy[box[0].start, column.start_offset : column.end_offset]
            some = load_box(view, box[1], box[2], box[3])
            place = gradients[:, column.start_offset : column.end_offset]
            nisa.tensor_copy(place, transposed(some.reshape((column.size, positions(box)))))
        spans = [inputs_for(axes[0], box[1]), inputs_for(axes[1], box[2]), inputs_for(axes[2], box[3])]
        view = x[box[0].start, channels.start_offset : channels.end_offset]
        inputs = load_box(view, spans[0], spans[1], spans[2])
        for tap in range(taps[0], taps[1]):
            part = covered(axes, tap, box)
            if part is not None:
                rows = transposed(met(inputs, spans, axes, tap, box, part))
                add_products(sums[:, tap - taps[0], :], rows, gradients)
    for tap in range(taps[0], taps[1]):
        store(dw[tap, channels.start_offset : channels.end_offset], sums[:, tap - taps[0], :])


def load_box(view: Tensor, d: OutputSpan, h: OutputSpan, w: OutputSpan) -> Tensor:
    return load(view[:, d.start : d.end, h.start : h.end, w.start : w.end])


def met(inputs: Tensor, spans: list, axes: list, number: int, box: list, part: list) -> Any:
    """The inputs that a tap meets for all outputs of a box, [channels, positions]; 0 for padding."""
    sizes = (size_of(box[1]), size_of(box[2]), size_of(box[3]))
    tile = nl.ndarray((inputs.shape[0],) + sizes, inputs.dtype, buffer=nl.sbuf)
    if positions(part) < positions(box):
        nisa.memset(tile, 0.0)
    view, place, tap = inputs, tile, tap_of(axes, number)
    for i in range(3):
        span, axis = part[i + 1], axes[i]
        at = input_of(axis, span.start, tap[i]) - spans[i].start
        view = view.slice(i + 1, at, at + (size_of(span) - 1) * axis.stride + 1, axis.stride)
        place = place.slice(i + 1, span.start - box[i + 1].start, span.end - box[i + 1].start)
    nisa.tensor_copy(place, view)
    return tile.reshape((inputs.shape[0], positions(box)))


def add_products(sums: Tensor, rows: Tensor, gradients: Tensor) -> None:
    """sums [channels, columns] += rows^T gradients, over the positions in the partitions."""
    for part in TiledRange(gradients.shape[1], BANK_POSITIONS):
        some = (slice(None), slice(part.start_offset, part.end_offset))
        bank = nl.ndarray((rows.shape[1], part.size), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(bank, rows, gradients[some])
        nisa.tensor_tensor(sums[some], sums[some], bank, op=nl.add)


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
                nisa.tensor_reduce(here, nl.add, some, 1)
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
