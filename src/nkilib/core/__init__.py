"""Kernels with a stable interface."""
