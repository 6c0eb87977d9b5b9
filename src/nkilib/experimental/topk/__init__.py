"""Top-k on GpSimd."""

from .chunked_topk import ChunkedTopkConfig, chunked_topk, chunked_topk_ref, create_chunked_topk_config
from .gpsimd_topk import GpsimdTopkConfig, create_gpsimd_topk_config, gpsimd_topk, gpsimd_topk_ref

__all__ = [
    "ChunkedTopkConfig",
    "GpsimdTopkConfig",
    "chunked_topk",
    "chunked_topk_ref",
    "create_chunked_topk_config",
    "create_gpsimd_topk_config",
    "gpsimd_topk",
    "gpsimd_topk_ref",
]
