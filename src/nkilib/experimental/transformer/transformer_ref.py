"""Layers of a transformer in decode, in numpy, float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkilib.core.mlp.mlp import mlp_ref
from nkilib.core.utils.common_types import ComputationMode, NormType, QuantizationType
from nkilib.experimental.transformer.attention_block_ref import attention_block_tkg_ref


def transformer_tkg_ref(X: np.ndarray, **o: Any) -> tuple:
    """(hidden states [B, S, H], new keys, new values), the latter lists of [B, S, d] for each layer.

    The keywords of `transformer_tkg`; caches are not written. Sums are rounded to the dtype of X.
    """
    x, keys, values = X, [], []
    for layer in range(o["num_layers"]):
        update, k, v = attention_block_tkg_ref(
            x,
            o["W_qkvs"][layer],
            o["V_caches"][layer],
            K_cache=o["K_caches"][layer],
            K_cache_transposed=True,
            W_out=o["W_outs"][layer],
            rmsnorm_X_enabled=True,
            rmsnorm_X_gamma=o["W_gamma_qkvs"][layer],
            rmsnorm_X_eps=o.get("eps", 1e-6),
            cos=o["RoPE_cos"],
            sin=o["RoPE_sin"],
            rope_contiguous_layout=True,
            attention_mask=o["attention_mask"],
        )
        x = (x.astype(np.float64) + update.reshape(x.shape)).astype(X.dtype)
        keys.append(k)
        values.append(v)
        x = (x.astype(np.float64) + mlp_of_layer(x, layer, o)).astype(X.dtype)
    return x, keys, values


def mlp_of_layer(x: np.ndarray, layer: int, o: dict) -> np.ndarray:
    options = {
        "normalization_type": NormType.RMS_NORM,
        "normalization_weights_tensor": o["W_gamma_mlps"][layer],
        "eps": o.get("eps", 1e-6),
        "mode": ComputationMode.DECODE,
    }
    if np.dtype(o["W_gates"][layer].dtype).itemsize == 1:
        options |= {f"{name}_w_scale": o[f"W_{name}_scales"][layer] for name in ("gate", "up", "down")}
        options |= {"quantization_type": QuantizationType.ROW}
        options |= {"quant_clipping_bound": o.get("clamp_bound", 0.0)}
        if o.get("dtype_mode") is not None:
            options["dtype_mode"] = o["dtype_mode"]
    return mlp_ref(x, o["W_gates"][layer], o["W_ups"][layer], o["W_downs"][layer], **options)[0]
