"""QKV projection of decode, in HBM or from SBUF to SBUF."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkilib.core.qkv.qkv import qkv_tkg
from nkilib.core.qkv.qkv_ref import qkv_ref
from nkilib.core.utils.common_types import NormType

__all__ = ["qkv_tkg", "qkv_tkg_ref"]


def qkv_tkg_ref(hidden: np.ndarray, qkv_w: np.ndarray, **options: Any) -> Any:
    """`qkv_ref` with the names of `qkv_tkg`: (y, hidden + mlp_prev + attn_prev)."""
    names = {
        "norm_w": "gamma_norm_weights",
        "fused_add": "fused_residual_add",
        "attn_prev": "attention_prev",
        "eps": "norm_eps",
        "norm_type": "fused_norm_type",
        "qkv_bias": "bias",
        "norm_bias": "layer_norm_bias",
    }
    renamed = {names.get(name, name): value for name, value in options.items()}
    renamed.setdefault("fused_norm_type", NormType.RMS_NORM)
    result = qkv_ref(hidden, qkv_w, **renamed)
    return result.out, result.added
