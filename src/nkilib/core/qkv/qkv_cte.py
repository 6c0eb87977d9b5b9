"""QKV projection of prefill, with everything that can be fused to it."""

from nkilib.core.qkv.qkv import qkv_cte
from nkilib.core.qkv.qkv_ref import qkv_ref as qkv_cte_ref

__all__ = ["qkv_cte", "qkv_cte_ref"]
