"""Losses over a vocabulary, and their gradients."""

from .cross_entropy import (
    cross_entropy_backward,
    cross_entropy_backward_ref,
    cross_entropy_forward,
    cross_entropy_forward_ref,
)

__all__ = [
    "cross_entropy_backward",
    "cross_entropy_backward_ref",
    "cross_entropy_forward",
    "cross_entropy_forward_ref",
]
