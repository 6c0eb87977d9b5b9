"""Blockwise experts with microscaling weights: one kernel by a second name, and its hybrid."""

from nkilib.core.moe.moe_cte.bwmm import blockwise_mm_shard_intermediate_mx_hybrid, bwmm_shard_on_block_mx

blockwise_mm_shard_intermediate_mx = bwmm_shard_on_block_mx  # sizes decide how cores share the work

__all__ = ["blockwise_mm_shard_intermediate_mx", "blockwise_mm_shard_intermediate_mx_hybrid"]
