"""Rows of a matrix by number: gather and scatter-add, each the other's backward."""

from .gather import gather, gather_bwd, gather_ref
from .scatter_add import scatter_add, scatter_add_bwd, scatter_add_ref

__all__ = ["gather", "gather_bwd", "gather_ref", "scatter_add", "scatter_add_bwd", "scatter_add_ref"]
