"""Blockwise experts in MXFP8, forward."""

from .blockwise_mm_forward_mxfp8 import (
    MXFP8MOECheckpointConfig,
    blockwise_mm_fwd_mxfp8,
    blockwise_mm_fwd_mxfp8_ref,
)

__all__ = ["MXFP8MOECheckpointConfig", "blockwise_mm_fwd_mxfp8", "blockwise_mm_fwd_mxfp8_ref"]
