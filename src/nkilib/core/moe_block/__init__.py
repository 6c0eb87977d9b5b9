"""A whole mixture-of-experts block."""

from .moe_block_tkg import moe_block_tkg, moe_block_tkg_ref

__all__ = ["moe_block_tkg", "moe_block_tkg_ref"]
