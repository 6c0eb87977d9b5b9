"""The older import path of nkilib.core.embeddings.rope."""

from .embeddings.rope import RoPE, RoPE_ref, RoPE_sbuf

__all__ = ["RoPE", "RoPE_ref", "RoPE_sbuf"]
