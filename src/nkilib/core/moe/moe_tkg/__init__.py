"""The experts of a mixture in decode."""

from .moe_tkg import moe_tkg, moe_tkg_ref

__all__ = ["moe_tkg", "moe_tkg_ref"]
