"""The backward pass of blockwise experts."""

from nkilib.experimental.moe.bwd.blockwise_mm_backward import blockwise_mm_bwd, blockwise_mm_bwd_ref

__all__ = ["blockwise_mm_bwd", "blockwise_mm_bwd_ref"]
