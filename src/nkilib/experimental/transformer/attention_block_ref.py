"""The attention block of decode in numpy, float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nkilib.core.qkv.qkv_ref import qkv_ref
from nkilib.core.utils.common_types import NormType, QKNormConfig


def attention_block_tkg_ref(X: np.ndarray, W_qkv: np.ndarray, V_cache: np.ndarray, **o: Any) -> tuple:
    """(out, new keys [B, S, d], new values [B, S, d]) of X [B, S, H]; the keywords of `attention_block_tkg`.

    Flat caches, masks [S_ctx, B, N, S]. out is [B S, H], without W_out [B, N, d, S].
    """
    batch, sequence, depth = *X.shape[:2], V_cache.shape[-1]
    heads = W_qkv.shape[1] // depth - 2
    q, k, v = new_tokens(X, W_qkv, depth, heads, o)
    for scale, name in (("k_scale", "k"), ("v_scale", "v")):
        if o.get(scale) is not None:
            largest = float(ml_dtypes.finfo(V_cache.dtype).max)
            quantised = np.clip({"k": k, "v": v}[name] * float(o[scale].flat[0]), -largest, largest)
            quantised = quantised.astype(np.float32).astype(V_cache.dtype).astype(np.float64)
            k, v = (quantised, v) if name == "k" else (k, quantised)
    scale = depth**-0.5 if o.get("softmax_scale") is None else o["softmax_scale"]
    q = q.reshape(batch, sequence, heads, depth).transpose(0, 2, 1, 3) * scale
    out = q if o.get("skip_attention") else attended(q, k, v, V_cache, o)
    if o.get("W_out") is None:
        return out.transpose(0, 1, 3, 2), k, v
    rows = out.transpose(0, 2, 1, 3).reshape(batch * sequence, heads * depth)
    rows = rows @ np.asarray(o["W_out"], np.float64)
    if o.get("bias_out") is not None:
        rows = rows + np.asarray(o["bias_out"], np.float64)
    return rows, k, v


def new_tokens(X: np.ndarray, W_qkv: np.ndarray, depth: int, heads: int, o: dict) -> tuple:
    """Return q [B, S, N d], k and v [B, S, d] of the new tokens."""
    norm = NormType.RMS_NORM if o.get("rmsnorm_X_enabled") else NormType.NO_NORM
    options = {
        "fused_norm_type": norm,
        "gamma_norm_weights": o.get("rmsnorm_X_gamma"),
        "norm_eps": 1e-3 if o.get("rmsnorm_X_eps") is None else o["rmsnorm_X_eps"],
        "hidden_actual": o.get("X_hidden_dim_actual"),
        "bias": o.get("bias_qkv"),
        "d_head": depth,
        "num_q_heads": heads,
        "num_kv_heads": 1,
    }
    options |= {name: o[f"{old}_qkv"] for name, old in QUANTISED if o.get(f"{old}_qkv") is not None}
    for when in ("pre", "post"):
        if o.get(f"rmsnorm_QK_{when}_rope_enabled"):
            options[f"qk_norm_{when}_rope"] = QKNormConfig(eps=o[f"rmsnorm_QK_{when}_rope_eps"])
            for name in "qk":
                gamma = o.get(f"rmsnorm_QK_{when}_rope_W_{name.upper()}")
                options[f"qk_norm_{when}_rope_{name}_gamma"] = gamma
    contiguous = o.get("rope_contiguous_layout")
    if o.get("cos") is not None:
        tables = [np.asarray(o[name], np.float64).transpose(1, 2, 0) for name in ("cos", "sin")]
        options |= {
            "fused_rope": True,
            "cos_cache": np.concatenate([tables[0]] * 2, -1),
            "sin_cache": tables[1],
        }
    order = np.arange(depth)
    if o.get("cos") is not None and not contiguous:
        # pairs (2 i, 2 i + 1): reorder, rotate halves, reorder back
        order = np.concatenate([order[0::2], order[1::2]])
    return permuted(X, W_qkv, options, order, heads)


QUANTISED = (
    ("quantization_type", "quantization_type"),
    ("qkv_w_scale", "weight_dequant_scale"),
    ("qkv_in_scale", "input_dequant_scale"),
)


def permuted(X: np.ndarray, W_qkv: np.ndarray, options: dict, order: np.ndarray, heads: int) -> tuple:
    """Run qkv_ref with elements of query and key heads in another order; results are in the old order."""
    depth = len(order)
    columns = np.concatenate([depth * head + order for head in range(heads + 1)])
    columns = np.concatenate([columns, np.arange(depth) + (heads + 1) * depth])
    options = dict(options)
    if options["bias"] is not None:
        options["bias"] = np.asarray(options["bias"]).reshape(1, -1)[:, columns]
    for name in [name for name in options if name.endswith("_gamma") and options[name] is not None]:
        options[name] = np.asarray(options[name]).reshape(1, -1)[:, order]
    if options.get("qkv_w_scale") is not None and options["qkv_w_scale"].shape[1] == len(columns):
        options["qkv_w_scale"] = options["qkv_w_scale"][:, columns]
    result = qkv_ref(X, W_qkv[:, columns], **options)
    back = np.argsort(order)
    q = result.q.reshape(*X.shape[:2], heads, depth)[..., back].reshape(result.q.shape)
    return q, result.k[..., back], result.v


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, V_cache: np.ndarray, o: dict) -> np.ndarray:
    """Return softmax(q K^T) V, [B, N, S, d]; the new tokens are the last of the window."""
    batch, sequence, depth = k.shape
    mask = np.asarray(o["attention_mask"]) != 0
    window = mask.shape[0]
    values = np.asarray(V_cache, np.float64).reshape(-1, *V_cache.shape[-2:])[:batch, :window].copy()
    keys = np.asarray(o["K_cache"], np.float64)
    keys = keys.reshape(-1, *keys.shape[-2:])
    keys = (keys.swapaxes(1, 2) if o.get("K_cache_transposed") else keys)[:batch, :window].copy()
    keys[:, window - sequence :], values[:, window - sequence :] = k, v
    scores = np.einsum("bnsd,bkd->bnsk", q, keys)
    scores = np.where(mask.transpose(1, 2, 3, 0), scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    sink = o.get("sink")
    if sink is not None:
        sink = np.asarray(sink, np.float64).reshape(1, -1, 1, 1)
        largest = np.maximum(largest, sink)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True) + (0.0 if sink is None else np.exp(sink - largest))
    return np.einsum("bnsk,bkd->bnsd", weights / total, values)
