"""Mixtures of experts."""

from nkilib.core.moe.moe_cte.moe_cte import (
    MoECTEImplementation,
    MoECTESpec,
    QuantizationConfig,
    ShardOnBlockConfig,
    ShardOnIConfig,
    moe_cte,
)
from nkilib.core.moe.moe_tkg.moe_tkg import moe_tkg

__all__ = [
    "MoECTEImplementation",
    "MoECTESpec",
    "QuantizationConfig",
    "ShardOnBlockConfig",
    "ShardOnIConfig",
    "moe_cte",
    "moe_tkg",
]
