"""FlashAttention-2 of long sequences without a mask."""

from .flash_attention_2 import FlashAttentionConfig, flash_attention_2, flash_attention_2_ref

__all__ = ["FlashAttentionConfig", "flash_attention_2", "flash_attention_2_ref"]
