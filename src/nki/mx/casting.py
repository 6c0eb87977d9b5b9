"""Numbers to MX and back: blocks of 32 along an axis, or of 8 rows x 4 lanes as the hardware has them."""

from __future__ import annotations

import numpy as np

from .arrays import Array, either
from .formats import (
    BLOCK,
    Format,
    FormatLike,
    find_format,
    format_of,
    rounded,
    scale_codes,
    scale_values,
    values,
)

ROWS, LANES = 8, 4  # of a hardware block


@either
def quantize(
    x: Array, format: FormatLike = "float8_e4m3fn", axis: int = -1, rule: str = "ocp"
) -> tuple[Array, Array]:
    """(elements, scales) of x: each 32 neighbours along `axis` share a power of two.

    x is any float array. Elements have its shape: float8_e4m3fn, float8_e5m2, or float4_e2m1fn, one to a byte
    (torch has no such dtype: codes in uint8; `pack_pairs` gives torch's own packing). Scales are E8M0 codes,
    uint8, `axis` 32 times shorter. rule "ocp" is the algorithm of the OCP specification (torchao's FLOOR),
    "hardware" that of nisa.quantize_mx: twice the scale, so that no element saturates.

    >>> elements, scales = quantize(np.full(32, 3.0, np.float32), "mxfp4")
    >>> elements[0], scales
    (6, array([126], dtype=uint8))
    """
    form = find_format(format)
    numbers = np.moveaxis(np.asarray(x).astype(np.float32), axis, -1)
    if numbers.shape[-1] % BLOCK:
        raise ValueError(f"x: axis {axis} has {numbers.shape[-1]} elements, a multiple of {BLOCK} is needed")
    blocks = numbers.reshape(*numbers.shape[:-1], -1, BLOCK)
    elements, codes = _quantized(blocks, (-1,), form, rule)
    elements = elements.reshape(numbers.shape)
    return np.moveaxis(elements, -1, axis), np.moveaxis(codes.reshape(blocks.shape[:-1]), -1, axis)


@either
def dequantize(elements: Array, scales: Array, axis: int = -1, format: FormatLike | None = None) -> Array:
    """The float32 numbers of `quantize`. Codes in uint8 need their format; scales may be float8_e8m0fnu."""
    numbers = np.moveaxis(values(elements, format_of(elements, format)), axis, -1)
    factors = np.repeat(np.moveaxis(scale_values(scales), axis, -1), BLOCK, axis=-1)
    if factors.shape != numbers.shape:
        raise ValueError(
            f"scales: got shape {np.shape(scales)}, elements of {elements.shape} need one for each {BLOCK} "
            f"of axis {axis}"
        )
    return np.moveaxis((numbers * factors).astype(np.float32), -1, axis)


@either
def quantize_lanes(
    x: Array, format: FormatLike = "float8_e4m3fn", rule: str = "hardware"
) -> tuple[np.ndarray, np.ndarray]:
    """(elements [P, 4N], scales [P/8, N]) of a tile x [P, 4N]: blocks are 8 rows x 4 neighbours.

    With the rule "hardware" this is nisa.quantize_mx bit for bit, MXFP4 included, which that cannot give.
    """
    form = find_format(format)
    numbers = np.asarray(x).astype(np.float32)
    if numbers.ndim != 2 or numbers.shape[0] % ROWS or numbers.shape[1] % LANES:
        raise ValueError(f"x: got shape {numbers.shape}, expected [P, 4N] with P a multiple of {ROWS}")
    blocks = numbers.reshape(-1, ROWS, numbers.shape[1] // LANES, LANES)
    elements, codes = _quantized(blocks, (1, 3), form, rule)
    return elements.reshape(numbers.shape), codes.reshape(blocks.shape[0], -1)


@either
def dequantize_lanes(elements: Array, scales: Array, format: FormatLike | None = None) -> Array:
    """The float32 numbers of `quantize_lanes`."""
    numbers = values(elements, format_of(elements, format))
    factors = np.repeat(np.repeat(scale_values(scales), ROWS, axis=0), LANES, axis=1)
    if factors.shape != numbers.shape:
        raise ValueError(f"scales: got shape {np.shape(scales)}, elements of {numbers.shape} need [P/8, N/4]")
    return (numbers * factors).astype(np.float32)


def _quantized(
    blocks: np.ndarray, axes: tuple[int, ...], form: Format, rule: str
) -> tuple[np.ndarray, np.ndarray]:
    """Elements of blocks that lie along `axes`, and the codes of their scales."""
    with np.errstate(all="ignore"):
        codes = scale_codes(np.abs(blocks).max(axis=axes, keepdims=True), form, rule)
        return rounded((blocks / scale_values(codes)).astype(np.float32), form, rule), codes
