"""Blockwise experts in MXFP8, backward."""

from .blockwise_mm_backward_mxfp8 import blockwise_mm_bwd_mxfp8

__all__ = ["blockwise_mm_bwd_mxfp8"]
