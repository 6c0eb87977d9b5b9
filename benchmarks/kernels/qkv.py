"""The projection to queries, keys and values: prefill by tokens, decode by weights."""

from __future__ import annotations

from typing import Any

from nki import TensorSpec
from nkilib.core.qkv.qkv_cte import qkv_cte
from nkilib.core.qkv.qkv_tkg import qkv_tkg
from nkilib.core.utils.common_types import NormType

from . import Case


def tensor(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "bfloat16")


def prefill(s: int, h: int, q_heads: int, kv_heads: int, label: str, lnc: int = 1, **options: Any) -> Case:
    d = 128
    columns = (q_heads + 2 * kv_heads) * d
    return Case(
        "qkv_cte",
        f"1x{s}, H {h}, {q_heads}+2x{kv_heads} heads of {d} bf16{label}",
        qkv_cte,
        {
            "input": tensor(1, s, h),
            "fused_qkv_weights": tensor(h, columns),
            "d_head": d,
            "num_q_heads": q_heads,
            "num_kv_heads": kv_heads,
            **options,
        },
        hbm_bytes=2 * (s * h + h * columns + s * columns),
        flops={"bfloat16": 2 * s * h * columns},
        lnc=lnc,
    )


def decode(b: int, h: int, q_heads: int, kv_heads: int, lnc: int = 1) -> Case:
    d = 128
    columns = (q_heads + 2 * kv_heads) * d
    return Case(
        "qkv_tkg",
        f"{b}x1, H {h}, {q_heads}+2x{kv_heads} heads of {d} bf16, norm",
        qkv_tkg,
        {"hidden": tensor(b, 1, h), "qkv_w": tensor(h, columns), "norm_w": tensor(1, h)},
        hbm_bytes=2 * (b * h + h * columns + b * columns),
        flops={"bfloat16": 2 * b * h * columns},
        lnc=lnc,
    )


def rope(s: int, d: int = 128) -> dict[str, Any]:
    return {"fused_rope": True, "cos_cache": tensor(1, s, d), "sin_cache": tensor(1, s, d)}


def norm(h: int) -> dict[str, Any]:
    return {"fused_norm_type": NormType.RMS_NORM, "gamma_norm_weights": tensor(1, h)}


CASES = [
    prefill(2048, 4096, 32, 8, ""),
    prefill(2048, 4096, 32, 8, ", norm, RoPE", **norm(4096), **rope(2048)),
    prefill(1024, 8192, 8, 1, ", norm, RoPE", lnc=2, **norm(8192), **rope(1024)),
    decode(4, 4096, 32, 8),
    decode(4, 8192, 8, 1, lnc=2),
    decode(4, 8192, 1, 1, lnc=2),
]
