"""A matrix as an operand of the MX kernels, and back."""

from __future__ import annotations

import numpy as np

from .arrays import Array, either
from .casting import dequantize_lanes, quantize_lanes
from .formats import FormatLike
from .layouts import swizzle, unswizzle
from .scales import from_hardware_scales, pack_scales, to_hardware_scales, unpack_scales

SCALE_LAYOUTS = ("packed", "hardware", "dense")


@either
def quantize_operand(
    x: Array,
    format: FormatLike = "float8_e4m3fn",
    layout: str = "wrapX",
    scale_layout: str = "packed",
    rule: str = "hardware",
) -> tuple[Array, Array]:
    """(data [K/4, 4F], scales) of x [F, K]: what quantize_block_mxfp8_kernel returns and matmul_mxfp8 takes.

    scale_layout: "packed" [128 ceil(K/2048), F], "hardware" [K/4, F] (unpacked) or "dense" [K/32, F].
    """
    if scale_layout not in SCALE_LAYOUTS:
        raise ValueError(f"scale_layout: {scale_layout!r} is none of {', '.join(SCALE_LAYOUTS)}")
    data, dense = quantize_lanes(swizzle(np.asarray(x), layout), format, rule)
    if scale_layout == "dense":
        return data, dense
    return data, pack_scales(dense) if scale_layout == "packed" else to_hardware_scales(dense)


@either
def dequantize_operand(
    data: Array,
    scales: Array,
    layout: str = "wrapX",
    scale_layout: str = "packed",
    format: FormatLike | None = None,
) -> Array:
    """The float32 matrix [F, K] of `quantize_operand`."""
    if scale_layout not in SCALE_LAYOUTS:
        raise ValueError(f"scale_layout: {scale_layout!r} is none of {', '.join(SCALE_LAYOUTS)}")
    if scale_layout == "packed":
        scales = unpack_scales(scales, 4 * data.shape[0])
    elif scale_layout == "hardware":
        scales = from_hardware_scales(scales)
    return unswizzle(dequantize_lanes(data, scales, format), layout)
