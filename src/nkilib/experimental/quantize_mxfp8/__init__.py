"""bfloat16 to MXFP8."""

from .quantize_mxfp8 import (
    quantize_block_mxfp8_kernel,
    quantize_block_mxfp8_kernel_ref,
    should_store_packed_scales,
)

__all__ = ["quantize_block_mxfp8_kernel", "quantize_block_mxfp8_kernel_ref", "should_store_packed_scales"]
