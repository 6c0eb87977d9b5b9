"""Transposed 3-D convolution as convolutions with a part of the taps each.

Outputs whose depth and height leave the same remainder modulo the stride meet the same taps: each of these
phases is a convolution of stride 1 whose outputs are every stride-th row. Along the width, zeros between the
inputs do the same, so that rows of outputs are written whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import SbufManager
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_io import load, piece
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.convolve import check_numbers, check_operands, convolve
from nkilib.experimental.conv.geometry import ConvAxis
from nkilib.experimental.conv.inputs import Convolution

SPREAD_COLUMNS = 4096  # of a channel, zeros between them, at a time
LAYOUTS = ("KDHW_CI_CO", "KDHW_CO_CI")


@nki.jit
def conv3d_transpose(
    x_in: Tensor,
    filters: Tensor,
    bias: Tensor | None = None,
    stride: tuple[int, int, int] = (1, 1, 1),
    padding: tuple[int, int, int] = (0, 0, 0),
    dilation: tuple[int, int, int] = (1, 1, 1),
    activation_fn: ActFnType | None = None,
    lnc_shard: bool = False,
    filter_shape: str = "KDHW_CI_CO",
    sbm: SbufManager | None = None,
    use_auto_allocation: bool = False,
) -> Tensor:
    """Transposed 3-D convolution, as torch's conv_transpose3d with filters flipped along K_d, K_h and K_w.

    out[b, o, d, h, w] = act(sum of filters[i, j, k, c, o] * x[b, c, d', h', w'] + bias[o]) over taps whose
    d' = (d + i * dilation[0] - dilation[0] (K_d - 1) + padding[0]) / stride[0] is a whole number inside x, h'
    and w' in the same way. The size of each axis is (n - 1) stride + dilation (K - 1) - 2 padding + 1.

    x_in [B, C_in, D, H, W], filters [K_d, K_h, K_w, C_in, C_out] (filter_shape KDHW_CI_CO) or [..., C_out,
    C_in] (KDHW_CO_CI) and bias [C_out] have one dtype: bfloat16, float16 or float32. activation_fn is as for
    conv3d. lnc_shard: cores share the work; without it core 0 does all. sbm is accepted if its allocation is
    automatic, as use_auto_allocation must say; the compiler places all tiles.

    >>> x, f = np.ones((1, 1, 1, 2, 2), np.float32), np.ones((1, 2, 2, 1, 1), np.float32)
    >>> conv3d_transpose(x, f, stride=(1, 1, 2))[0, 0, 0].tolist()
    [[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0]]
    """
    core = get_verified_program_sharding_info("conv3d_transpose", (0, 1), 2)[2]
    rows = check(x_in, filters, bias, stride, padding, dilation, activation_fn, filter_shape)
    check_manager(sbm, use_auto_allocation)
    sizes = []
    for i in range(3):
        sizes.append(check_size(x_in.shape[i + 2], rows.shape[i], stride[i], padding[i], dilation[i]))
    columns = rows.shape[4]
    out = nl.ndarray((x_in.shape[0], columns, sizes[0], sizes[1], sizes[2]), x_in.dtype, buffer=nl.shared_hbm)
    if core == 0 or lnc_shard:
        convolve_phases(
            out, Convolution(x_in, rows, bias, out, [], activation_fn), stride, padding, dilation, lnc_shard
        )
    return out


def convolve_phases(
    out: Tensor, c: Convolution, stride: tuple, padding: tuple, dilation: tuple, lnc_shard: bool
) -> None:
    """Fill out with the transposed convolution of c.x by c.filters [K_d, K_h, K_w, C_in, C_out]."""
    taps, sizes = c.filters.shape, out.shape[2:5]
    source = widened(c.x, stride[2])
    width = ConvAxis(source.shape[4], taps[2], 1, dilation[2], dilation[2] * (taps[2] - 1) - padding[2])
    for deep in phases(c.x.shape[2], taps[0], stride[0], padding[0], dilation[0], sizes[0]):
        for high in phases(c.x.shape[3], taps[1], stride[1], padding[1], dilation[1], sizes[1]):
            place = out.slice(2, deep.first, sizes[0], stride[0]).slice(3, high.first, sizes[1], stride[1])
            some = chosen(c.filters, deep, high)
            axes = [deep.axis, high.axis, width]
            convolve(Convolution(source, some, c.bias, place, axes, c.activation), lnc_shard)


@dataclass
class Phase(nl.NKIObject):
    """Outputs first, first + stride, ... of an axis: the taps they meet, and their convolution."""

    first: int
    taps: list
    axis: ConvAxis


def phases(size: int, count: int, stride: int, padding: int, dilation: int, outputs: int) -> list:
    """All phases of an axis that have outputs; one that meets no tap has an axis of one tap, for zeros."""
    before = dilation * (count - 1) - padding
    common = math.gcd(stride, dilation)
    found = []
    for first in range(min(stride, outputs)):
        taps = []
        for tap in range(count):
            if (first + tap * dilation - before) % stride == 0:
                taps.append(tap)
        axis = ConvAxis(size, 1)
        if len(taps) > 0:
            start = (first + taps[0] * dilation - before) // stride
            axis = ConvAxis(size, len(taps), 1, dilation // common, -1 * start)
        found.append(Phase(first, taps, axis))
    return found


def chosen(rows: Tensor, deep: Phase, high: Phase) -> Tensor:
    """The filters of a phase, [taps, C_in, C_out] in HBM."""
    wide, channels, columns = rows.shape[2:5]
    count = deep.axis.taps * high.axis.taps
    some = nl.ndarray((count * wide, channels, columns), rows.dtype, buffer=nl.private_hbm)
    if len(deep.taps) == 0 or len(high.taps) == 0:
        clear(some.reshape((count * wide * channels, columns)), zero_tile(columns, rows.dtype))
        return some
    if len(deep.taps) == rows.shape[0] and len(high.taps) == rows.shape[1]:
        nisa.dma_copy(some, rows.flatten_dims(0, 1).flatten_dims(0, 1))
        return some
    place = 0
    for i in deep.taps:
        for j in high.taps:
            nisa.dma_copy(some[place : place + wide], rows[i, j])
            place = place + wide
    return some


def widened(x: Tensor, stride: int) -> Tensor:
    """x with stride - 1 zeros between neighbours of its last axis."""
    if stride == 1:
        return x
    width, lines = x.shape[4], x.shape[2] * x.shape[3]
    wide = (width - 1) * stride + 1
    channels = x.shape[0] * x.shape[1]
    result = nl.ndarray(x.shape[0:4] + (wide,), x.dtype, buffer=nl.private_hbm)
    source, target = x.reshape((channels, lines, width)), result.reshape((channels, lines, wide))
    for rows in TiledRange(channels, PMAX):
        for part in TiledRange(lines, max(1, SPREAD_COLUMNS // wide)):
            tile = nl.ndarray((rows.size, part.size, wide), x.dtype, buffer=nl.sbuf)
            nisa.memset(tile, 0.0)
            some = load(piece(source, rows, part))
            nisa.tensor_copy(tile.slice(2, 0, wide, stride), some)
            nisa.dma_copy(piece(target, rows, part), tile)
    return result


def check(
    x: Tensor,
    filters: Tensor,
    bias: Tensor | None,
    stride: tuple,
    padding: tuple,
    dilation: tuple,
    activation_fn: ActFnType | None,
    filter_shape: str,
) -> Any:
    """Check the operands; return the filters as [K_d, K_h, K_w, C_in, C_out]."""
    assert_tensors((("x_in", x), ("filters", filters)), (("bias", bias),))
    kernel_assert(len(x.shape) == 5, f"x_in: got shape {tuple(x.shape)}, expected (B, C_in, D, H, W)")
    kernel_assert(
        len(filters.shape) == 5,
        f"filters: got shape {tuple(filters.shape)}, expected five axes, {filter_shape}",
    )
    kernel_assert(filter_shape in LAYOUTS, f"filter_shape: got {filter_shape}, allowed are {LAYOUTS}")
    check_numbers("stride", stride, 3, "three numbers")
    check_numbers("padding", padding, 3, "three numbers")
    check_numbers("dilation", dilation, 3, "three numbers")
    rows = filters if filter_shape == LAYOUTS[0] else filters.permute((0, 1, 2, 4, 3))
    check_operands(x, rows, bias, activation_fn)
    return rows


def check_size(size: int, taps: int, stride: int, padding: int, dilation: int) -> int:
    """The size of the result along an axis."""
    for step in (("stride", stride, 1), ("dilation", dilation, 1), ("padding", padding, 0)):
        kernel_assert(
            isinstance(step[1], int) and step[1] >= step[2],
            f"{step[0]}: got {step[1]}, allowed are {step[2]} and more",
        )
    outputs = (size - 1) * stride + dilation * (taps - 1) - 2 * padding + 1
    kernel_assert(outputs >= 1, f"padding: got {padding}, which leaves {outputs} outputs")
    return outputs


def check_manager(sbm: SbufManager | None, use_auto_allocation: bool) -> None:
    if sbm is not None:
        kernel_assert(
            sbm.is_auto_alloc(), "sbm: got manual allocation, allowed is a manager that is automatic"
        )
        kernel_assert(use_auto_allocation, "use_auto_allocation: got False, expected True like sbm")


def conv3d_transpose_ref(
    x_in: np.ndarray,
    filters: np.ndarray,
    stride: tuple[int, int, int] = (1, 1, 1),
    padding: tuple[int, int, int] = (0, 0, 0),
    dilation: tuple[int, int, int] = (1, 1, 1),
) -> np.ndarray:
    """Each input is added to the outputs it meets, in float64; filters are [K_d, K_h, K_w, C_in, C_out]."""
    x, taps = np.asarray(x_in, np.float64), np.asarray(filters, np.float64)[::-1, ::-1, ::-1]
    reach = [dilation[i] * (taps.shape[i] - 1) + 1 for i in range(3)]
    sizes = [(x.shape[i + 2] - 1) * stride[i] + reach[i] for i in range(3)]
    total = np.zeros((x.shape[0], taps.shape[4], *sizes))
    for tap in np.ndindex(taps.shape[:3]):
        at = [tap[i] * dilation[i] for i in range(3)]
        cut = [slice(at[i], at[i] + (x.shape[i + 2] - 1) * stride[i] + 1, stride[i]) for i in range(3)]
        total[:, :, cut[0], cut[1], cut[2]] += np.einsum("bcdhw,co->bodhw", x, taps[tap])
    ends = [slice(padding[i], sizes[i] - padding[i]) for i in range(3)]
    return total[:, :, ends[0], ends[1], ends[2]]
