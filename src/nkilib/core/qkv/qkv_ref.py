"""The QKV projection in numpy, float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from nkilib.core.utils.common_types import (
    DtypeMode,
    NormType,
    QKNormConfig,
    QKVOutputLayout,
    QuantizationType,
)


class Result(NamedTuple):
    """What a projection yields: in the layout asked for, then by section, [B, S, heads d] each."""

    out: np.ndarray
    added: np.ndarray  # the input with its residuals
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    square_sums: tuple  # of q, k and v before norms, [B, S] each


def qkv_ref(input: np.ndarray, fused_qkv_weights: np.ndarray, **options: Any) -> Result:
    """The keywords of `qkv`; without heads all columns are queries. `cached_ref` has the layout of caches."""
    x = np.asarray(input, np.float64)
    given = 1.0
    if input.shape[-1] == fused_qkv_weights.shape[0] + 4 and input.dtype.itemsize == 1:
        x, given = x[..., :-4], input[..., -4:].copy().view(np.float32).astype(np.float64)
    if options.get("fused_residual_add"):
        x = (
            x
            + np.asarray(options["mlp_prev"], np.float64)
            + np.asarray(options["attention_prev"], np.float64)
        )
    x = x.swapaxes(1, 2) if options.get("transposed_in") else x
    y = projected(normed(x, options), np.asarray(fused_qkv_weights, np.float64), options) * given
    if options.get("bias") is not None:
        y = y + np.asarray(options["bias"], np.float64).reshape(-1)
    q, k, v = sections(y, options)
    sums = tuple(np.square(part).sum(-1) for part in (q, k, v))
    q, k = heads(q, "q", options), heads(k, "k", options)
    return Result(laid_out(np.concatenate([q, k, v], -1), options), x, q, k, v, sums)


def normed(x: np.ndarray, options: dict) -> np.ndarray:
    norm = options.get("fused_norm_type", NormType.NO_NORM)
    n = options.get("hidden_actual") or x.shape[-1]
    if norm == NormType.NO_NORM:
        return x
    mean = x.sum(-1, keepdims=True) / n if norm == NormType.LAYER_NORM else 0.0
    power = np.square(x).sum(-1, keepdims=True) / n - np.square(mean)
    x = (x - mean) / np.sqrt(power + options.get("norm_eps", 1e-6))
    if norm != NormType.RMS_NORM_SKIP_GAMMA:
        x = x * np.asarray(options["gamma_norm_weights"], np.float64).reshape(-1)
    if norm == NormType.LAYER_NORM and options.get("layer_norm_bias") is not None:
        x = x + np.asarray(options["layer_norm_bias"], np.float64).reshape(-1)
    return x


def projected(x: np.ndarray, w: np.ndarray, options: dict) -> np.ndarray:
    kind = options.get("quantization_type", QuantizationType.NONE)
    if kind == QuantizationType.ROW:
        return x @ w * np.asarray(options["qkv_w_scale"], np.float64)[0]
    if kind != QuantizationType.STATIC:
        return x @ w
    ocp = options.get("dtype_mode", DtypeMode.NON_OCP) == DtypeMode.OCP
    fp8, largest = (ml_dtypes.float8_e4m3fn, 448.0) if ocp else (ml_dtypes.float8_e4m3, 240.0)
    scale, by_section = (
        float(options["qkv_in_scale"].flat[0]),
        np.asarray(options["qkv_w_scale"], np.float64)[0],
    )
    quantised = np.clip(x / scale, -largest, largest).astype(np.float32).astype(fp8).astype(np.float64)
    parts = sections(quantised @ w, options)
    by_section = np.broadcast_to(by_section, (3,))
    return np.concatenate([part * factor for part, factor in zip(parts, by_section, strict=True)], -1) * scale


def sections(y: np.ndarray, options: dict) -> list[np.ndarray]:
    depth, q_heads, kv_heads = (options.get(name) for name in ("d_head", "num_q_heads", "num_kv_heads"))
    if depth is None or q_heads is None or kv_heads is None:
        return np.split(y, [y.shape[-1]] * 2, -1)
    return np.split(y, [q_heads * depth, (q_heads + kv_heads) * depth], -1)


def heads(y: np.ndarray, name: str, options: dict) -> np.ndarray:
    """Norm, RoPE, norm of queries or keys."""
    if y.shape[-1] == 0:
        return y
    depth = options.get("d_head") or y.shape[-1]
    x = y.reshape(*y.shape[:2], -1, depth)
    x = head_norm(x, f"qk_norm_pre_rope_{name}", name, options.get("qk_norm_pre_rope"), options)
    if options.get("fused_rope"):
        own = name == "k" and options.get("k_cos_cache") is not None
        cos = np.asarray(options["k_cos_cache" if own else "cos_cache"], np.float64)[:, :, None, :]
        own = name == "k" and options.get("k_sin_cache") is not None
        sin = np.asarray(options["k_sin_cache" if own else "sin_cache"], np.float64)[:, :, None, : depth // 2]
        lower, upper = np.split(x, 2, -1)
        x = x * cos + np.concatenate([-upper * sin, lower * sin], -1)
    x = head_norm(x, f"qk_norm_post_rope_{name}", name, options.get("qk_norm_post_rope"), options)
    return x.reshape(y.shape)


def head_norm(
    x: np.ndarray, prefix: str, name: str, config: QKNormConfig | None, options: dict
) -> np.ndarray:
    if config is None:
        return x
    norm = getattr(config, f"{name}_norm")
    if norm in (None, NormType.NO_NORM):
        return x
    shape = x.shape
    if norm == NormType.RMS_NORM_ACROSS_HEADS:
        x = x.reshape(*shape[:2], 1, -1)
    if norm == NormType.LAYER_NORM:
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + config.eps)
    gamma = options.get(f"{prefix}_gamma")
    gamma = getattr(config, f"{name}_gamma_norm_weights") if gamma is None else gamma
    if gamma is not None and norm != NormType.RMS_NORM_SKIP_GAMMA:
        x = x * np.asarray(gamma, np.float64).reshape(-1)
    beta = options.get(f"{prefix}_beta")
    x = x if beta is None else x + np.asarray(beta, np.float64).reshape(-1)
    return x.reshape(shape)


def laid_out(y: np.ndarray, options: dict) -> np.ndarray:
    layout = options.get("output_layout", QKVOutputLayout.BSD)
    if layout == QKVOutputLayout.BSD:
        return y
    by_head = y.reshape(*y.shape[:2], -1, options["d_head"])
    return by_head.transpose(2, 0, 1, 3) if layout == QKVOutputLayout.NBSd else by_head.transpose(2, 0, 3, 1)


def cached_ref(
    cache: np.ndarray, values: np.ndarray, slots: np.ndarray | None = None, **options: Any
) -> np.ndarray:
    """A copy of a cache with k or v, [B, S, Nkv d], written to it. `scale`, `limits`, `depth`, `form`.

    form: "rows", or for keys "transposed" or "packed".
    """
    cache = cache.copy()
    limits: Any
    scale, limits, form = options.get("scale"), options.get("limits"), options.get("form", "rows")
    if scale is not None:
        values = np.clip(values / float(scale.flat[0]), *limits)
    values = values.astype(np.float32).astype(cache.dtype)
    batches, sequence, width = values.shape
    if slots is None:
        view = cache.swapaxes(1, 2) if form == "transposed" else cache
        view[:, :sequence] = values
        return cache
    depth = options["depth"]
    size = {"rows": lambda: cache.shape[1], "transposed": lambda: cache.shape[2]}.get(
        form, lambda: 2 * cache.shape[1]
    )()
    blocks = cache.shape[0] * depth // width if form == "transposed" else cache.shape[0]
    for slot, row in zip(np.asarray(slots).ravel(), values.reshape(-1, width), strict=True):
        block, position = divmod(int(slot), size)
        if not 0 <= slot < blocks * size:
            continue
        if form == "transposed":
            n = width // depth
            cache[block * n : (block + 1) * n, :, position] = row.reshape(n, depth)
        elif form == "packed":
            cache[block, position // 2, :, position % 2] = row
        else:
            cache[block, position] = row
    return cache
