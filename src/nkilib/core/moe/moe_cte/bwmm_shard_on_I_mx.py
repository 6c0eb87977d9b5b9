"""Entry points for microscaling weights, which are not built."""

from __future__ import annotations

from nkilib.core.moe.moe_cte.bwmm_shard_on_block_mx import UnbuiltKernel

blockwise_mm_shard_intermediate_mx = UnbuiltKernel("blockwise_mm_shard_intermediate_mx")
blockwise_mm_shard_intermediate_mx_hybrid = UnbuiltKernel("blockwise_mm_shard_intermediate_mx_hybrid")

__all__ = ["blockwise_mm_shard_intermediate_mx", "blockwise_mm_shard_intermediate_mx_hybrid"]
