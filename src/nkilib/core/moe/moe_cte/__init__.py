"""Mixture of experts for prefill, block by block."""

from nkilib.core.moe.moe_cte.moe_cte import (
    BlockShardStrategy,
    MoECTEImplementation,
    MoECTESpec,
    QuantizationConfig,
    ShardOnBlockConfig,
    ShardOnIConfig,
    SkipMode,
    moe_cte,
    moe_cte_ref,
)

__all__ = [
    "BlockShardStrategy",
    "MoECTEImplementation",
    "MoECTESpec",
    "QuantizationConfig",
    "ShardOnBlockConfig",
    "ShardOnIConfig",
    "SkipMode",
    "moe_cte",
    "moe_cte_ref",
]
