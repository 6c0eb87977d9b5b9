"""Decode attention over a cache in MXFP8."""

from .attention_mxfp8_tkg import attention_mxfp8_tkg, attention_mxfp8_tkg_ref
from .kv_blocks import chunk_masks, pack_keys, pack_values

__all__ = ["attention_mxfp8_tkg", "attention_mxfp8_tkg_ref", "chunk_masks", "pack_keys", "pack_values"]
