"""Kernels whose amount of work is known at run time."""

from nkilib.experimental.dynamic_shapes.dynamic_elementwise_add import (
    dynamic_elementwise_add,
    dynamic_elementwise_add_ref,
)

__all__ = ["dynamic_elementwise_add", "dynamic_elementwise_add_ref"]
