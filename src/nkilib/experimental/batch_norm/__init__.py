"""Batch normalisation and its gradients."""

from .batch_norm import batch_norm, batch_norm_ref
from .batch_norm_bwd import batch_norm_bwd, batch_norm_bwd_ref

__all__ = ["batch_norm", "batch_norm_bwd", "batch_norm_bwd_ref", "batch_norm_ref"]
