"""The projection of tokens to queries, keys and values."""

from .qkv import qkv
from .qkv_ref import qkv_ref

__all__ = ["qkv", "qkv_ref"]
