"""Small kernels that larger ones are made of."""

from .find_nonzero_indices import find_nonzero_indices

__all__ = ["find_nonzero_indices"]
