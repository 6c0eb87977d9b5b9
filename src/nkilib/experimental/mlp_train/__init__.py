"""Gated MLP for training: its gradients."""

from .mlp_bwd import mlp_bwd, mlp_bwd_ref

__all__ = ["mlp_bwd", "mlp_bwd_ref"]
