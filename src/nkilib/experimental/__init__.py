"""Kernels whose interface may still change."""
