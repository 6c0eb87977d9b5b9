"""The attention block of decode in float64, one query at a time, written from its page."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from options.qkv_reference import normalized, rounded, wide

from nkilib.core.utils.common_types import NormType, QuantizationType

B, A, H, N, D, S, ROOM = (
    2,
    2,
    256,
    3,
    32,
    128,
    160,
)  # sequences, new tokens, hidden, heads, depth, keys, cache
NONE, ROW, STATIC = QuantizationType.NONE, QuantizationType.ROW, QuantizationType.STATIC


def block(**o: Any) -> tuple:
    """(out, keys, values), written from the page: X to heads, heads to attention, attention to W_out."""
    x, w = wide(o["X"]), wide(o["W_qkv"])
    if o["rmsnorm_X_enabled"]:
        eps = 1e-3 if o["rmsnorm_X_eps"] is None else o["rmsnorm_X_eps"]
        x = normalized(x, NormType.RMS_NORM, o["rmsnorm_X_gamma"], None, eps, o["X_hidden_dim_actual"] or H)
    y = quantised(x, w, o["W_qkv"].dtype.type, o, "qkv")
    if o["bias_qkv"] is not None:
        y = y + wide(o["bias_qkv"])
    heads = y.reshape(B, A, N + 2, D)
    q, k, v = (
        changed(heads[:, :, :N], "Q", o),
        changed(heads[:, :, N : N + 1], "K", o)[:, :, 0],
        heads[:, :, N + 1],
    )
    k, v = kept(k, o.get("k_scale"), o["K_cache"].dtype), kept(v, o.get("v_scale"), o["V_cache"].dtype)
    scale = D**-0.5 if o.get("softmax_scale") is None else o["softmax_scale"]
    q = q * scale
    found = q if o.get("skip_attention") else attention(q, k, v, o)  # [B, A, N, D]
    if o["W_out"] is None:
        out = found.transpose(0, 2, 3, 1)
    else:
        out = quantised(found.reshape(B * A, N * D), wide(o["W_out"]), o["W_out"].dtype.type, o, "out")
        out = out if o["bias_out"] is None else out + wide(o["bias_out"])
        if o["transposed_out"]:
            out = out.reshape(B * A, 1, 128, H // 128).transpose(2, 1, 3, 0)
    if not o["update_cache"]:
        return out, k.transpose(2, 0, 1), v
    return out, written(o["K_cache"], k, o, True), written(o["V_cache"], v, o, False)


def quantised(x: np.ndarray, w: np.ndarray, dtype: Any, o: dict, name: str) -> np.ndarray:
    kind, w_scale = o[f"quantization_type_{name}"], o[f"weight_dequant_scale_{name}"]
    if kind == ROW:
        return x @ w * wide(w_scale)[0]
    if kind != STATIC:
        return x @ w
    s = float(wide(o[f"input_dequant_scale_{name}"]).flat[0])
    y = rounded(np.clip(x / s, -240, 240), dtype) @ w * s
    widths = [N * D, D, D] if name == "qkv" else [y.shape[-1]]
    return y * np.repeat(np.broadcast_to(wide(w_scale)[0], (len(widths),)), widths)


def changed(x: np.ndarray, part: str, o: dict) -> np.ndarray:
    """Norm, RoPE, norm of [B, A, heads, D]."""
    for when in ("pre", "post"):
        if when == "post" and o["cos"] is not None:
            x = rope(x, wide(o["cos"]), wide(o["sin"]), o["rope_contiguous_layout"])
        name = f"rmsnorm_QK_{when}_rope"
        if o[f"{name}_enabled"]:
            x = normalized(x, NormType.RMS_NORM, o[f"{name}_W_{part}"], None, o[f"{name}_eps"], D)
    return x


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, contiguous: bool) -> np.ndarray:
    out = x.copy()
    for i in range(D // 2):
        low, high = (i, i + D // 2) if contiguous else (2 * i, 2 * i + 1)
        c, s = cos[i][..., None], sin[i][..., None]
        out[..., low] = x[..., low] * c - x[..., high] * s
        out[..., high] = x[..., high] * c + x[..., low] * s
    return out


def kept(x: np.ndarray, scale: Any, dtype: Any) -> np.ndarray:
    """What a cache stores, which attention also uses."""
    if scale is None:
        return x
    limit = float(ml_dtypes.finfo(dtype).max)
    return rounded(np.clip(x * float(wide(scale).flat[0]), -limit, limit), dtype)


def cached(cache: np.ndarray, b: int, o: dict, keys: bool) -> np.ndarray:
    table = o["active_blocks_table"]
    if table is not None:
        blocks = wide(cache)
        if keys and o.get("fp8_packed"):
            blocks = blocks.swapaxes(2, 3).reshape(len(blocks), -1, D)
        return blocks[table[b]].reshape(-1, D)
    own = wide(cache).reshape(len(cache), *cache.shape[-2:])[b]
    return (own.T if keys and o["K_cache_transposed"] else own).copy()


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, o: dict) -> np.ndarray:
    window = o.get("S_ctx") or (
        o["attention_mask"].shape[0] if o["attention_mask"] is not None else o["V_cache"].shape[-2]
    )
    if o["active_blocks_table"] is not None:
        window = o["active_blocks_table"].shape[1] * o["V_cache"].shape[1]
    out, at = np.zeros((B, A, N, D)), np.arange(window)
    for b, i, n in np.ndindex(B, A, N):
        keys, values = (cached(o[name], b, o, name == "K_cache")[:window] for name in ("K_cache", "V_cache"))
        keys[window - A :], values[window - A :] = k[b], v[b]
        if o.get("bound_min") is not None:
            seen = (at >= o["bound_min"][b, i]) & (at < o["bound_max"][b, i])
        elif o.get("pos_ids") is None:
            seen = o["attention_mask"][:, b, n, i] != 0
        else:
            end = o["pos_ids"][b, i if o.get("swa_start_pos_ids") is not None else 0]
            seen = at < end
            if o.get("swa_start_pos_ids") is not None:
                seen = seen & (at >= o["swa_start_pos_ids"][b, i])
        if o.get("max_context_len") is not None:
            seen = seen & ((at < int(o["max_context_len"].flat[0])) | (at >= window - A))
        if o.get("pos_ids") is not None:
            seen[window - A :] = np.arange(A) <= i
        if o.get("bound_min") is not None:
            same = o["bound_min"][b] == o["bound_min"][b, i]
            seen[window - A :] = same & (np.arange(A) <= i)
        sink = -np.inf if o["sink"] is None else float(o["sink"][n, 0])
        scores = np.where(seen, keys @ q[b, i, n], -np.inf)
        top = max(scores.max(), sink)
        weights = np.exp(scores - top)
        out[b, i, n] = weights @ values / (weights.sum() + np.exp(sink - top))
    return out


def written(cache: np.ndarray, x: np.ndarray, o: dict, keys: bool) -> np.ndarray:
    cache, x = cache.copy(), x.astype(np.float32).astype(cache.dtype)
    for b, i in np.ndindex(B, A):
        first = int(o["kv_cache_update_idx"].astype(np.int32)[b, 0])
        at = first + i
        if first < 0:
            continue
        if o["active_blocks_table"] is not None:
            size = o["V_cache"].shape[1]
            if keys and o.get("fp8_packed"):
                cache[at // size, at % size // 2, :, at % 2] = x[b, i]
            else:
                cache[at // size, at % size] = x[b, i]
        elif at < ROOM:
            view = cache.reshape(len(cache), *cache.shape[-2:])
            (view.swapaxes(1, 2) if keys and o["K_cache_transposed"] else view)[b, at] = x[b, i]
    return cache
