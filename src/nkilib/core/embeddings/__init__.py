"""Position embeddings."""

from .rope import RoPE, RoPE_ref, RoPE_sbuf

__all__ = ["RoPE", "RoPE_ref", "RoPE_sbuf"]
