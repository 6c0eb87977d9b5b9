"""The attention block of decode, under the path of its page."""

from nkilib.experimental.transformer.attention_block_tkg import attention_block_tkg, attention_block_tkg_ref

__all__ = ["attention_block_tkg", "attention_block_tkg_ref"]
