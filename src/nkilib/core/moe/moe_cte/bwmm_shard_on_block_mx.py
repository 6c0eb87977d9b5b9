"""Blockwise experts with microscaling weights."""

from nkilib.core.moe.moe_cte.bwmm import bwmm_shard_on_block_mx

__all__ = ["bwmm_shard_on_block_mx"]
