"""The output projection of attention: prefill by tokens, decode by weights."""

from __future__ import annotations

from typing import Any

from nki import TensorSpec
from nkilib.core.output_projection.output_projection_cte import output_projection_cte
from nkilib.core.output_projection.output_projection_tkg import output_projection_tkg

from . import Case


def prefill(b: int, n: int, d: int, s: int, h: int, lnc: int = 1) -> Case:
    return Case(
        "output_projection_cte",
        f"{b}x{n}x{d}x{s}, H {h} bf16",
        output_projection_cte,
        (TensorSpec((b, n, d, s), "bfloat16"), TensorSpec((n * d, h), "bfloat16")),
        hbm_bytes=2 * (b * n * d * s + n * d * h + b * s * h),
        flops={"bfloat16": 2 * b * s * n * d * h},
        lnc=lnc,
    )


def decode(d: int, b: int, n: int, s: int, h: int, label: str = "", **options: Any) -> Case:
    return Case(
        "output_projection_tkg",
        f"{d}x{b}x{n}x{s}, H {h} bf16{label}",
        output_projection_tkg,
        {
            "attention": TensorSpec((d, b, n, s), "bfloat16"),
            "weight": TensorSpec((n * d, h), "bfloat16"),
            **options,
        },
        hbm_bytes=2 * (n * d * b * s + n * d * h + b * s * h),
        flops={"bfloat16": 2 * b * s * n * d * h},
    )


CASES = [
    prefill(1, 8, 128, 2048, 8192),
    prefill(2, 5, 128, 640, 5120, lnc=2),
    decode(128, 4, 8, 1, 8192),
    decode(128, 4, 8, 1, 8192, " transposed", TRANSPOSE_OUT=True),
    prefill(1, 8, 128, 2048, 4096, lnc=2),
    decode(128, 4, 8, 1, 4096),
]
