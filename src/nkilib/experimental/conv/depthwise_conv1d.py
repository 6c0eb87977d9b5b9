"""Depthwise 1-D convolution: every channel with its own taps.

Channels are in the partitions, so a tap is one shifted view of all of them. TensorE multiplies by the tap's
filters on a diagonal, and PSUM accumulates the taps. VectorE takes a share of the outputs, multiplying and
adding tap by tap; the share keeps both engines equally busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import hardware_queue
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.conv.convolve import DTYPES, check_axis, check_numbers
from nkilib.experimental.conv.geometry import (
    BANK_POSITIONS,
    ConvAxis,
    OutputSpan,
    channel_tiles,
    even_parts,
    input_of,
    output_size,
    size_of,
)

UNIT_OUTPUTS = BANK_POSITIONS  # of each channel, computed by one engine
ROW_OUTPUTS = 4 * BANK_POSITIONS  # of each channel, loaded at once
ROW_BYTES = 32 * 1024  # in each partition, of inputs loaded at once
CACHED_DIAGONALS = 64  # taps whose diagonals are reused for all batches; the others are recomputed


@nki.jit
def depthwise_conv1d_implicit_gemm(
    img_ref: Tensor,
    filter_ref: Tensor,
    padding: tuple = ((0, 0), (0, 0)),
    stride: tuple = (1, 1),
    rhs_dilation: tuple = (1, 1),
    lhs_dilation: tuple = (1, 1),
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    in_perm: tuple[int, ...] | None = None,
    kern_perm: tuple[int, ...] | None = None,
    out_perm: tuple[int, ...] | None = None,
) -> Tensor:
    """Depthwise 1-D convolution: every channel with its own filter, as torch's conv1d with groups = C.

    out[n, c, 0, q] = sum over s of img[n, c, 0, q * stride_w + s - left] * filter[c, 0, 0, s]

    img_ref [N, C, 1, W] and filter_ref [C, 1, 1, S] have one dtype, bfloat16, float16 or float32; out
    [N, C, 1, Q] has the same, Q = (W + left + right - S) // stride_w + 1. Sums are float32. padding is
    ((0, 0), (left, right)) and stride (1, stride_w); both come from the release notes, not from the page.
    Dilations and batch groups are 1, permutations None, feature_group_count is C (or 1: not given). Cores
    share the channels.

    >>> x, f = np.arange(6, dtype=np.float32).reshape(1, 2, 1, 3), np.ones((2, 1, 1, 2), np.float32)
    >>> depthwise_conv1d_implicit_gemm(x, f)[0, :, 0]
    array([[1., 3.],
           [7., 9.]], dtype=float32)
    """
    sharding = get_verified_program_sharding_info("depthwise_conv1d_implicit_gemm", (0, 1), 2)
    assert_tensors((("img_ref", img_ref), ("filter_ref", filter_ref)))
    check_shapes(img_ref, filter_ref, sharding[1])
    check_options(padding, stride, rhs_dilation, lhs_dilation, batch_group_count)
    channels = img_ref.shape[1]
    kernel_assert(
        feature_group_count in (1, channels),
        f"feature_group_count: got {feature_group_count}, allowed is C = {channels} (or 1: not given)",
    )
    kernel_assert(
        in_perm is None and kern_perm is None and out_perm is None,
        f"in_perm, kern_perm, out_perm: got {in_perm}, {kern_perm}, {out_perm}, allowed is None",
    )
    axis = check_axis(img_ref.shape[3], filter_ref.shape[3], stride[1], 1, padding[1][0], padding[1][1])
    out = nl.ndarray((img_ref.shape[0], channels, 1, output_size(axis)), img_ref.dtype, buffer=nl.shared_hbm)
    x, f, y = img_ref.squeeze_dim(2), filter_ref.reshape((channels, axis.taps)), out.squeeze_dim(2)
    first, end = program_share(channels)
    for tiles in channel_tiles(end - first):
        convolve_rows(x, f, y, axis, first + tiles.start, tiles.partitions, tiles.tiles)
    return out


def check_shapes(img: Tensor, filters: Tensor, cores: int) -> None:
    kernel_assert(
        len(img.shape) == 4 and img.shape[2] == 1,
        f"img_ref: got shape {tuple(img.shape)}, expected (N, C, 1, W)",
    )
    kernel_assert(
        len(filters.shape) == 4, f"filter_ref: got shape {tuple(filters.shape)}, expected (C, 1, 1, S)"
    )
    channels = img.shape[1]
    assert_shape(filters, (channels, 1, 1, filters.shape[3]), "filter_ref")
    kernel_assert(img.dtype in DTYPES, f"img_ref: got {img.dtype}, allowed are {DTYPES}")
    kernel_assert(
        filters.dtype == img.dtype, f"filter_ref: got {filters.dtype}, expected {img.dtype} like img_ref"
    )
    kernel_assert(
        channels % cores == 0, f"img_ref: got C = {channels}, {cores} cores take multiples of {cores}"
    )


def check_options(padding: tuple, stride: tuple, rhs: tuple, lhs: tuple, batch_groups: int) -> None:
    check_numbers("padding", padding, 2, "((0, 0), (left, right))")
    check_numbers("padding", padding[0], 2, "((0, 0), (left, right))")
    check_numbers("padding", padding[1], 2, "((0, 0), (left, right))")
    check_numbers("stride", stride, 2, "(1, stride)")
    check_numbers("rhs_dilation", rhs, 2, "(1, 1)")
    check_numbers("lhs_dilation", lhs, 2, "(1, 1)")
    kernel_assert(
        tuple(padding[0]) == (0, 0), f"padding: got {padding}, allowed is (0, 0) in height, the first pair"
    )
    kernel_assert(stride[0] == 1, f"stride: got {stride}, allowed is 1 in height, the first number")
    kernel_assert(tuple(rhs) == (1, 1), f"rhs_dilation: got {rhs}, allowed is (1, 1)")
    kernel_assert(tuple(lhs) == (1, 1), f"lhs_dilation: got {lhs}, allowed is (1, 1)")
    kernel_assert(batch_groups == 1, f"batch_group_count: got {batch_groups}, allowed is 1")


# ---- rows of channels ---------------------------------------------------------------------------------


@dataclass
class Taps(nl.NKIObject):
    """The filters of the channels in the partitions: values [partitions, S] in float32, and diagonals."""

    values: Tensor
    identity: Tensor
    diagonals: list
    first: bool  # of all: the first matmuls wait for them


def convolve_rows(
    x: Tensor, f: Tensor, y: Tensor, axis: ConvAxis, channel: int, partitions: int, tiles: int
) -> None:
    """Convolve channels channel + p * tiles + j in tile j; small tiles hold several batches."""
    batches = x.shape[0]
    below = min(batches, PMAX // partitions) if tiles == 1 else 1
    identity = nl.shared_identity_matrix(below * partitions, x.dtype)
    end = channel + partitions * tiles
    filters = nl.ndarray((below * partitions, tiles, axis.taps), nl.float32, buffer=nl.sbuf)
    for b in range(below):
        place = filters[b * partitions : (b + 1) * partitions]
        nisa.dma_copy(place, f[channel:end].reshape_dim(0, (partitions, tiles)))
    unit = 0
    for j in range(tiles):
        taps = Taps(filters[:, j], identity, [], j == 0)
        for batch in TiledRange(batches, below):
            for q in TiledRange(y.shape[2], row_outputs(axis, x.dtype)):
                span = OutputSpan(q.start_offset, q.end_offset)
                rows = []  # of HBM, [partitions, W] and [partitions, Q]
                places = []
                for b in range(batch.start_offset, batch.end_offset):
                    rows.append(x[b, channel:end].reshape_dim(0, (partitions, tiles))[:, j])
                    places.append(y[b, channel:end].reshape_dim(0, (partitions, tiles))[:, j])
                last = j == tiles - 1 and batch.end_offset == batches and q.end_offset == y.shape[2]
                unit = convolve_span(rows, places, taps, axis, span, unit, last)


def row_outputs(axis: ConvAxis, dtype: DTypeLike) -> int:
    """Return how many outputs of a channel are computed from one load."""
    room = (ROW_BYTES // sizeinbytes(dtype) - axis.taps) // axis.stride
    return max(BANK_POSITIONS, min(ROW_OUTPUTS, room))


def convolve_span(
    rows: list, places: list, taps: Taps, axis: ConvAxis, span: OutputSpan, unit: int, last: bool
) -> int:
    """Compute the outputs of a span of all rows and return the number of the next unit of work.

    The first inputs use a separate queue, and the `last` outputs are stored as they become ready, as there is
    no other work to overlap with them.
    """
    x = load_span(rows, axis, span, unit == 0)
    result = nl.ndarray((x.shape[0], size_of(span)), x.dtype, buffer=nl.sbuf)
    for part in TiledRange(size_of(span), even_parts(size_of(span), UNIT_OUTPUTS)):
        out = result[:, part.start_offset : part.end_offset]
        if on_vector(unit, axis.taps, x.dtype):
            add_taps(out, x, taps, axis, part.start_offset)
        else:
            multiply_taps(out, x, taps, axis, part.start_offset)
        unit = unit + 1
        if last:
            store_rows(places, result, span.start, part.start_offset, part.end_offset, part.index % 2 == 1)
    if not last:
        store_rows(places, result, span.start, 0, size_of(span), False)
    return unit


def store_rows(places: list, result: Tensor, start: int, first: int, end: int, second_queue: bool) -> None:
    """Store outputs first ... end - 1 of the span that begins at `start`."""
    partitions = places[0].shape[0]
    queue = hardware_queue() if second_queue else nisa.dge_mode.unknown
    for b in range(len(places)):
        rows = result[b * partitions : (b + 1) * partitions, first:end]
        nisa.dma_copy(places[b][:, start + first : start + end], rows, dge_mode=queue)


def on_vector(unit: int, taps: int, dtype: DTypeLike) -> bool:
    """Return whether VectorE computes this unit; its share takes as long as TensorE's."""
    clock = 1.2 if nisa.get_nc_version() >= nisa.nc_version.gen4 else 0.96  # GHz; ScalarE does the first tap
    vector = (taps - 1) / clock
    tensor = taps * (4 if dtype == nl.float32 else 1) / 2.4
    share = tensor / (tensor + vector)
    return int((unit + 1) * share) > int(unit * share)


def load_span(rows: list, axis: ConvAxis, span: OutputSpan, second_queue: bool) -> Tensor:
    """Load the inputs that the outputs of a span meet, 0 where that is padding."""
    queue = hardware_queue() if second_queue else nisa.dge_mode.unknown
    first, end = input_of(axis, span.start, 0), input_of(axis, span.end - 1, axis.taps - 1) + 1
    partitions = rows[0].shape[0]
    tile = nl.ndarray((len(rows) * partitions, end - first), rows[0].dtype, buffer=nl.sbuf)
    begin, stop = max(0, first), min(axis.size, end)
    if begin > first:
        nisa.memset(tile[:, 0 : min(begin, end) - first], 0.0)
    if stop < end:
        nisa.memset(tile[:, max(stop, first) - first : end - first], 0.0)
    for b in range(len(rows) if begin < stop else 0):
        place = tile[b * partitions : (b + 1) * partitions, begin - first : stop - first]
        nisa.dma_copy(place, rows[b][:, begin:stop], dge_mode=queue)
    return tile


def tap_view(x: Tensor, axis: ConvAxis, tap: int, start: int, outputs: int) -> Tensor:
    """Return the inputs that a tap meets for outputs start ... of the tile."""
    at = start * axis.stride + tap
    return x[:, at : at + (outputs - 1) * axis.stride + 1 : axis.stride]


# ---- the two engines ------------------------------------------------------------------------------------


def multiply_taps(out: Tensor, x: Tensor, taps: Taps, axis: ConvAxis, start: int) -> None:
    """Compute out = sum over taps of diagonal(filter) @ x, [partitions, outputs], on TensorE."""
    partitions, outputs = out.shape
    sums = nl.ndarray((partitions, outputs), nl.float32, buffer=nl.psum)
    for s in range(axis.taps):
        diagonal = tap_diagonal(taps, s, partitions)
        for part in TiledRange(outputs, BANK_POSITIONS):
            moving = tap_view(x, axis, s, start + part.start_offset, part.size)
            place = sums[:, part.start_offset : part.end_offset]
            nisa.nc_matmul(place, diagonal, moving, accumulate=s > 0)
    nisa.activation(out, nl.copy, sums)


def tap_diagonal(taps: Taps, s: int, partitions: int) -> Tensor:
    """Return the filters of a tap on the diagonal of a square."""
    if s < len(taps.diagonals):
        return taps.diagonals[s][0:partitions, 0:partitions]
    diagonal = nl.ndarray(taps.identity.shape, taps.identity.dtype, buffer=nl.sbuf)
    engine = nisa.vector_engine if taps.first else nisa.gpsimd_engine  # slow but otherwise idle
    values = taps.values[:, s : s + 1].broadcast(1, diagonal.shape[1])
    nisa.tensor_tensor(diagonal, taps.identity, values, op=nl.multiply, engine=engine)
    if s < CACHED_DIAGONALS:
        taps.diagonals.append(diagonal)
    return diagonal[0:partitions, 0:partitions]


def add_taps(out: Tensor, x: Tensor, taps: Taps, axis: ConvAxis, start: int) -> None:
    """Compute out = x * filter + out tap by tap in float32 on VectorE; ScalarE does the first tap."""
    partitions, outputs = out.shape
    sums = out
    for s in range(axis.taps):
        value = taps.values[0:partitions, s : s + 1]
        view = tap_view(x, axis, s, start, outputs)
        result = out
        if s < axis.taps - 1:
            result = nl.ndarray((partitions, outputs), nl.float32, buffer=nl.sbuf)
        if s == 0:
            nisa.activation(result, nl.copy, view, scale=value)
        else:
            nisa.scalar_tensor_tensor(result, view, nl.multiply, value, nl.add, sums)
        sums = result


# ---- reference ------------------------------------------------------------------------------------------


def depthwise_conv1d_implicit_gemm_ref(
    img_ref: np.ndarray, filter_ref: np.ndarray, padding: tuple = ((0, 0), (0, 0)), stride: tuple = (1, 1)
) -> np.ndarray:
    """Compute the same in float64."""
    x = np.pad(np.asarray(img_ref, np.float64), ((0, 0), (0, 0), *padding))
    f = np.asarray(filter_ref, np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(x, f.shape[3], axis=3)
    return np.einsum("nchqs,cs->nchq", windows[:, :, :, :: stride[1]], f[:, 0, 0])
