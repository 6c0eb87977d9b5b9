"""Microscaling (MX) on the host: numbers of 4 or 8 bits that share a scale, and the layouts kernels take.

    elements, scales = nki.mx.quantize(x, "float8_e4m3fn")       # one scale for 32 of the last axis
    y = nki.mx.dequantize(elements, scales)
    data, scales = nki.mx.quantize_operand(weights)              # [F, K] as matmul_mxfp8 takes it

Everything takes and returns NumPy arrays or torch tensors. docs/mx.md is the guide.
"""

from .casting import dequantize, dequantize_lanes, quantize, quantize_lanes
from .formats import BLOCK, FORMATS, RULES, Format
from .layouts import (
    LAYOUTS,
    contraction_index,
    pack_pairs,
    pack_x4,
    swizzle,
    unpack_pairs,
    unpack_x4,
    unswizzle,
    x4_dtype,
)
from .operands import dequantize_operand, quantize_operand
from .scales import from_hardware_scales, pack_scales, to_hardware_scales, unpack_scales

__all__ = [
    "BLOCK",
    "FORMATS",
    "LAYOUTS",
    "RULES",
    "Format",
    "contraction_index",
    "dequantize",
    "dequantize_lanes",
    "dequantize_operand",
    "from_hardware_scales",
    "pack_pairs",
    "pack_scales",
    "pack_x4",
    "quantize",
    "quantize_lanes",
    "quantize_operand",
    "swizzle",
    "to_hardware_scales",
    "unpack_pairs",
    "unpack_scales",
    "unpack_x4",
    "unswizzle",
    "x4_dtype",
]


def __dir__() -> list[str]:
    return __all__
