"""Cumulative sums."""

from .cumsum import cumsum, cumsum_ref

__all__ = ["cumsum", "cumsum_ref"]
