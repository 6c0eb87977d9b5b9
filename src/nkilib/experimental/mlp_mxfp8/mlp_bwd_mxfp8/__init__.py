"""Backward pass of the gated MLP in MXFP8."""

from . import mlp_bwd_mxfp8_kernel
from .mlp_bwd_mxfp8_kernel import *  # noqa: F403

__all__ = mlp_bwd_mxfp8_kernel.__all__
