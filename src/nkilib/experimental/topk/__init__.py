"""Top-k on GpSimd."""

from .gpsimd_topk import GpsimdTopkConfig, create_gpsimd_topk_config, gpsimd_topk, gpsimd_topk_ref

__all__ = ["GpsimdTopkConfig", "create_gpsimd_topk_config", "gpsimd_topk", "gpsimd_topk_ref"]
