"""The experts of DeepSeek V3.2 for prefill."""

from .bwmm_block_mx import bwmm_block_mx

__all__ = ["bwmm_block_mx"]
