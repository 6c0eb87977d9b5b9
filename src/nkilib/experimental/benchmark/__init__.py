"""Variants of subkernels that AWS measures."""
