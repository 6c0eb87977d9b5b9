"""Gradients of batch normalisation."""

from .batch_norm_bwd import batch_norm_bwd, batch_norm_bwd_ref

__all__ = ["batch_norm_bwd", "batch_norm_bwd_ref"]
