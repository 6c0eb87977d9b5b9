"""Mixture of experts."""

from nkilib.core.moe.moe_cte.moe_cte import (
    MoECTEImplementation,
    MoECTESpec,
    QuantizationConfig,
    ShardOnBlockConfig,
    ShardOnIConfig,
    moe_cte,
)

__all__ = [
    "MoECTEImplementation",
    "MoECTESpec",
    "QuantizationConfig",
    "ShardOnBlockConfig",
    "ShardOnIConfig",
    "moe_cte",
]
