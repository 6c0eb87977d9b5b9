"""find_nonzero_indices under its older name."""

from nkilib.core.subkernels.find_nonzero_indices import find_nonzero_indices, find_nonzero_indices_ref

__all__ = ["find_nonzero_indices", "find_nonzero_indices_ref"]
