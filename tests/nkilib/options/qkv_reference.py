"""The QKV projection in float64, head by head, written from its page."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nkilib.core.utils.common_types import NormType, QKNormConfig, QKVOutputLayout, QuantizationType

LARGEST = {ml_dtypes.float8_e4m3: 240.0, ml_dtypes.float8_e4m3fn: 448.0, ml_dtypes.float8_e5m2: 57344.0}


def wide(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def rounded(x: np.ndarray, dtype: Any) -> np.ndarray:
    return x.astype(np.float32).astype(dtype).astype(np.float64)


def normalized(x: np.ndarray, kind: Any, gamma: Any, beta: Any, eps: float, count: int) -> np.ndarray:
    """The last axis divided by its RMS or its standard deviation, over `count` elements."""
    if kind in (None, NormType.NO_NORM):
        return x
    if kind == NormType.LAYER_NORM:
        mean = x.sum(-1, keepdims=True) / count
        x = (x - mean) / np.sqrt((x * x).sum(-1, keepdims=True) / count - mean * mean + eps)
    else:
        x = x / np.sqrt((x * x).sum(-1, keepdims=True) / count + eps)
    x = x if gamma is None else x * wide(gamma).reshape(-1)
    return x if beta is None else x + wide(beta).reshape(-1)


def projection(o: dict) -> tuple[np.ndarray, np.ndarray]:
    """(y [B, S, I], the tokens with their residuals)."""
    x, w = wide(o["input"]), wide(o["fused_qkv_weights"])
    row_scale = 1.0
    if x.shape[-1] == len(w) + 4:
        row_scale = o["input"][..., -4:].copy().view(np.float32).astype(np.float64)
        x = x[..., :-4]
    if o.get("transposed_in"):
        x = x.transpose(0, 2, 1)
    if o.get("fused_residual_add"):
        parts = [wide(o[name]) for name in ("mlp_prev", "attention_prev")]
        x = x + sum(part.transpose(0, 2, 1) if o.get("transposed_in") else part for part in parts)
    added = x
    kind = o.get("fused_norm_type", NormType.NO_NORM)
    count = o.get("hidden_actual") or x.shape[-1]
    gamma, beta = o.get("gamma_norm_weights"), o.get("layer_norm_bias")
    x = normalized(x, kind, gamma, beta, o.get("norm_eps", 1e-6), count)
    quantization = o.get("quantization_type", QuantizationType.NONE)
    if quantization == QuantizationType.STATIC:
        scale, dtype = float(wide(o["qkv_in_scale"]).flat[0]), o["fused_qkv_weights"].dtype.type
        limit = LARGEST[dtype]
        y = rounded(np.clip(x / scale, -limit, limit), dtype) @ w * scale
        widths = [heads * o["d_head"] for heads in (o["num_q_heads"], o["num_kv_heads"], o["num_kv_heads"])]
        y = y * np.repeat(np.broadcast_to(wide(o["qkv_w_scale"])[0], (3,)), widths)
    else:
        y = x @ w * row_scale
        if quantization == QuantizationType.ROW:
            y = y * wide(o["qkv_w_scale"])[0]
    return (y if o.get("bias") is None else y + wide(o["bias"]).reshape(-1)), added


def head_norm(x: np.ndarray, name: str, part: str, o: dict) -> np.ndarray:
    """x [B, S, heads, d] of queries ("q") or keys ("k")."""
    config: QKNormConfig | None = o.get(name)
    if config is None:
        return x
    kind = getattr(config, f"{part}_norm")
    gamma, beta = o.get(f"{name}_{part}_gamma"), o.get(f"{name}_{part}_beta")
    if gamma is None:
        gamma = getattr(config, f"{part}_gamma_norm_weights")
    if kind == NormType.RMS_NORM_ACROSS_HEADS:
        flat = x.reshape(*x.shape[:2], -1)
        return normalized(flat, kind, gamma, beta, config.eps, flat.shape[-1]).reshape(x.shape)
    return normalized(x, kind, gamma, beta, config.eps, x.shape[-1])


def rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """RoPE of halves: x [B, S, heads, d], tables [B, S, d]."""
    half = x.shape[-1] // 2
    out = np.empty_like(x)
    for i in range(half):
        c1, c2, s = cos[:, :, None, i], cos[:, :, None, i + half], sin[:, :, None, i]
        out[..., i] = x[..., i] * c1 - x[..., i + half] * s
        out[..., i + half] = x[..., i + half] * c2 + x[..., i] * s
    return out


def sections(y: np.ndarray, o: dict) -> list[np.ndarray]:
    """q, k and v as [B, S, heads, d], after norms and RoPE."""
    d, q_heads, kv_heads = o["d_head"], o["num_q_heads"], o["num_kv_heads"]
    by_head = y.reshape(*y.shape[:2], -1, d)
    q, k, v = np.split(by_head, [q_heads, q_heads + kv_heads], 2)
    done = []
    for part, x in (("q", q), ("k", k)):
        x = head_norm(x, "qk_norm_pre_rope", part, o)
        if o.get("fused_rope"):
            own = part == "k"
            cos = o["k_cos_cache"] if own and o.get("k_cos_cache") is not None else o["cos_cache"]
            sin = o["k_sin_cache"] if own and o.get("k_sin_cache") is not None else o["sin_cache"]
            x = rotated(x, wide(cos), wide(sin))
        done.append(head_norm(x, "qk_norm_post_rope", part, o))
    return [*done, v]


def stored(cache: np.ndarray, x: np.ndarray, scale: Any, keys: bool, o: dict) -> np.ndarray:
    """The cache after keys or values x [B, S, heads, d] are written to it."""
    cache = cache.copy()
    if scale is not None:
        largest = o.get("fp8_max")
        largest = float(ml_dtypes.finfo(cache.dtype).max) if largest is None else largest
        smallest = -largest if o.get("fp8_min") is None else o["fp8_min"]
        x = np.clip(x / float(wide(scale).flat[0]), smallest, largest)
    x = x.astype(np.float32).astype(cache.dtype)
    batches, sequence, heads, d = x.shape
    for b in range(batches):
        for s in range(sequence):
            row = x[b, s].reshape(-1)
            if not o.get("use_block_kv"):
                if keys and o.get("transpose_k_cache"):
                    cache[b, :, s] = row
                else:
                    cache[b, s] = row
                continue
            slot = int(o["slot_mapping"].reshape(-1)[b * sequence + s])
            block, at = divmod(slot, o["block_size"])
            if slot < 0 or block >= len(o["v_cache"]):
                continue
            if keys and o.get("transpose_k_cache"):
                cache[block * heads : (block + 1) * heads, :, at] = x[b, s]
            elif keys and o.get("fp8_packed"):
                cache[block, at // 2, :, at % 2] = row
            else:
                cache[block, at] = row
    return cache


def qkv_in_float64(**o: Any) -> Any:
    """The results of `qkv_cte`: y in its layout, or (q, keys, values) where caches are written."""
    y, _ = projection(o)
    if o.get("d_head") is not None and o.get("num_q_heads") is not None:
        q, k, v = sections(y, o)
        if o.get("k_cache") is not None:
            keys = stored(o["k_cache"], k, o.get("k_scale"), True, o)
            values = stored(o["v_cache"], v, o.get("v_scale"), False, o)
            return (q.reshape(*y.shape[:2], -1), keys, values)[0 if o["num_q_heads"] else 1 :]
        y = np.concatenate([q, k, v], 2).reshape(y.shape)
    layout = o.get("output_layout", QKVOutputLayout.BSD)
    if layout == QKVOutputLayout.BSD:
        return y
    by_head = y.reshape(*y.shape[:2], -1, o["d_head"])
    return by_head.transpose((2, 0, 1, 3) if layout == QKVOutputLayout.NBSd else (2, 0, 3, 1))
