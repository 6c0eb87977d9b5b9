"""Quantisation to FP8."""

from nkilib.core.quantization.fp8_quantize import (
    pre_combine_dequant_scales,
    row_quantization,
    static_quantization,
)

__all__ = ["pre_combine_dequant_scales", "row_quantization", "static_quantization"]
