"""Padding."""

from nkilib.experimental.pad.pad import pad, pad_ref

__all__ = ["pad", "pad_ref"]
