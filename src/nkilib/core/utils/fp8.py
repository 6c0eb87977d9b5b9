"""FP8 quantisation of tiles that stand in SBUF, and the scales that undo it."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tiles import Tiles, new_tile
from nkilib.core.utils.types import Tensor

MIN_ROW_SCALE = 1e-5


def load_scalar(scale: Tensor, tiles: Tiles | None = None) -> Any:
    """A scale [128, 1] in SBUF, float32; None stays None."""
    if scale is None:
        return None
    tile = new_tile(tiles, scale.shape, nl.float32)
    nisa.dma_copy(tile, scale)
    return tile


def reciprocal_of(scale: Tensor, tiles: Tiles | None = None) -> Any:
    """1 / scale."""
    tile = new_tile(tiles, scale.shape, nl.float32)
    nisa.reciprocal(tile, scale)
    return tile


def product_of(a: Tensor | None, b: Tensor, tiles: Tiles | None = None) -> Any:
    """a * b of two scales; one that is None counts as 1."""
    if a is None or b is None:
        return b if a is None else a
    tile = new_tile(tiles, a.shape, nl.float32)
    nisa.tensor_tensor(tile, a, b, op=nl.multiply)
    return tile


def quantize_static(
    dst: Tensor, x: Tensor, inverse: Tensor, largest: float, tiles: Tiles | None = None
) -> None:
    """dst = fp8(clip(x * inverse, -largest, largest)), inverse [128, 1]."""
    scaled = new_tile(tiles, x.shape, nl.float32)
    factor = inverse[0 : x.shape[0]]
    nisa.tensor_scalar(scaled, x, op0=nl.multiply, operand0=factor, op1=nl.minimum, operand1=largest)
    nisa.tensor_scalar(dst, scaled, op0=nl.maximum, operand0=-largest)


def row_maximum(x: Tensor, tiles: Tiles | None = None) -> Any:
    """max|x| of each row, [rows, 1]."""
    largest = new_tile(tiles, (x.shape[0], 1), nl.float32)
    put_row_maximum(largest, x, tiles)
    return largest


def put_row_maximum(dst: Tensor, x: Tensor, tiles: Tiles | None = None) -> None:
    """dst[:, 0] = max|x| of each row."""
    magnitude = new_tile(tiles, x.shape, nl.bfloat16)
    nisa.tensor_scalar_reduce(magnitude, x, nl.abs, None, nl.maximum, reduce_res=dst)


def largest_of(maxima: Tensor, tiles: Tiles | None = None) -> Any:
    """The largest of some maxima of each row, [rows, 1]."""
    largest = new_tile(tiles, (maxima.shape[0], 1), nl.float32)
    nisa.tensor_reduce(largest, nl.maximum, maxima, 1)
    return largest


def row_scale(
    dst: Tensor, maximum: Tensor, largest: float, bound: float = 0.0, tiles: Tiles | None = None
) -> None:
    """dst = max(maximum / largest, 1e-5); a bound > 0 is the most that a maximum counts."""
    bounded = maximum
    if bound > 0.0:
        bounded = new_tile(tiles, maximum.shape, nl.float32)
        nisa.tensor_scalar(bounded, maximum, op0=nl.minimum, operand0=bound)
    nisa.tensor_scalar(dst, bounded, nl.multiply, 1.0 / largest, op1=nl.maximum, operand1=MIN_ROW_SCALE)


def quantize_rows(
    dst: Tensor, x: Tensor, maximum: Tensor, largest: float, bound: float = 0.0, tiles: Tiles | None = None
) -> Any:
    """dst = fp8(x / s), s = max(maximum / largest, 1e-5) a row, which is returned. A bound > 0 clips x."""
    scale = new_tile(tiles, maximum.shape, nl.float32)
    clipped = x
    if bound > 0.0:
        clipped = new_tile(tiles, x.shape, nl.float32)
        nisa.tensor_scalar(clipped, x, op0=nl.minimum, operand0=bound, op1=nl.maximum, operand1=-bound)
    row_scale(scale, maximum, largest, bound, tiles)
    nisa.tensor_scalar(dst, clipped, op0=nl.multiply, operand0=reciprocal_of(scale, tiles))
    return scale
