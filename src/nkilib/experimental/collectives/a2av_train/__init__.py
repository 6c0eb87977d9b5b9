"""Tokens to the ranks of their experts and back, for training."""

from .permute_a2av import permute_a2av
from .unpermute_a2av import unpermute_a2av

__all__ = ["permute_a2av", "unpermute_a2av"]
