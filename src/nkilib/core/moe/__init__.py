"""Mixtures of experts."""

from .moe_tkg.moe_tkg import moe_tkg

__all__ = ["moe_tkg"]
