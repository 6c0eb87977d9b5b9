"""Blockwise experts whose blocks are divided among cores."""

from nkilib.core.moe.moe_cte.bwmm import bwmm_shard_on_block
from nkilib.core.moe.moe_cte.moe_cte_utils import BlockShardStrategy, SkipMode

__all__ = ["BlockShardStrategy", "SkipMode", "bwmm_shard_on_block"]
