"""Operands in MXFP8 and their products."""

from .common_dataclasses import TensorDescriptor

__all__ = ["TensorDescriptor"]
