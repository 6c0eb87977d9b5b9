"""Kernels with a settled interface."""
