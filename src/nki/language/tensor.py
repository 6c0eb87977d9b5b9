"""nki.language.tensor: where public code looks for the tensors' class."""

from ..ir.tensor import NkiTensor

__all__ = ["NkiTensor"]
