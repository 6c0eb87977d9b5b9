"""Blockwise experts whose intermediate dimension is divided among cores."""

from nkilib.core.moe.moe_cte.bwmm import (
    blockwise_mm_baseline_shard_intermediate,
    blockwise_mm_baseline_shard_intermediate_hybrid,
    blockwise_mm_shard_intermediate_dropping,
)
from nkilib.core.moe.moe_cte.moe_cte_utils import SkipMode

__all__ = [
    "SkipMode",
    "blockwise_mm_baseline_shard_intermediate",
    "blockwise_mm_baseline_shard_intermediate_hybrid",
    "blockwise_mm_shard_intermediate_dropping",
]
