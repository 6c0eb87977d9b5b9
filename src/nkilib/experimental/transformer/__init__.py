"""Fused kernels of transformer layers for decode."""
