"""The gated MLP at the sizes of one rank of large language models: prefill, and decode of four tokens."""

from __future__ import annotations

from typing import Any

from nki import TensorSpec
from nkilib.core.mlp.mlp import mlp
from nkilib.core.utils.common_types import NormType, QuantizationType
from nkilib.experimental.mlp_train import mlp_bwd

from . import Case


def sized(shape: tuple[int, int, int, int], label: str, lnc: int = 1, **options: Any) -> Case:
    """Time hidden [B, S, H] with weights of intermediate size I in bfloat16, or in FP8 with column scales."""
    b, s, h, i = shape
    fp8 = options.get("quantization_type") == QuantizationType.ROW
    dtype, width = ("float8_e4m3", 1) if fp8 else ("bfloat16", 2)
    weights = {
        "hidden_tensor": TensorSpec((b, s, h), "bfloat16"),
        "gate_proj_weights_tensor": TensorSpec((h, i), dtype),
        "up_proj_weights_tensor": TensorSpec((h, i), dtype),
        "down_proj_weights_tensor": TensorSpec((i, h), dtype),
    }
    if fp8:
        columns = {"gate_w_scale": i, "up_w_scale": i, "down_w_scale": h}
        weights |= {name: TensorSpec((128, n), "float32") for name, n in columns.items()}
    return Case(
        "mlp",
        f"{b}x{s}x{h}, I {i} {label}",
        mlp,
        {**weights, **options},
        hbm_bytes=width * 3 * h * i + 2 * 2 * b * s * h,
        flops={dtype: 2 * 3 * b * s * h * i},
        lnc=lnc,
    )


def microscaled(shape: tuple[int, int, int, int], words: str, lnc: int = 1) -> Case:
    """Time MX weights of FP8 or FP4, four-packed, with a scale for every 32, on trn3."""
    b, s, h, i = shape
    shapes = {"gate": (128, h // 512, i), "up": (128, h // 512, i), "down": (128, i // 512, h)}
    tensors: dict[str, Any] = {"hidden_tensor": TensorSpec((b, s, h), "bfloat16")}
    for name, (rows, tiles, columns) in shapes.items():
        tensors[f"{name}_proj_weights_tensor"] = TensorSpec((rows, tiles, columns), words)
        tensors[f"{name}_w_scale"] = TensorSpec((rows // 8, tiles, columns), "uint8")
    halves = 1 if "float4" in words else 2  # bytes for two elements
    return Case(
        "mlp",
        f"{b}x{s}x{h}, I {i} {words}",
        mlp,
        {**tensors, "quantization_type": QuantizationType.MX},
        hbm_bytes=3 * h * i * halves // 2 + 3 * h * i // 32 + 2 * 2 * b * s * h,
        flops={"mxfp8": 2 * 3 * b * s * h * i},
        lnc=lnc,
        platform="trn3",
    )


def norm(width: int) -> dict[str, Any]:
    gamma = TensorSpec((1, width), "bfloat16")
    return {"normalization_type": NormType.RMS_NORM, "normalization_weights_tensor": gamma}


ROW = {"quantization_type": QuantizationType.ROW}


def gradient(tokens: int, h: int, i: int) -> Case:
    """Time the backward: gate and up again, and six products."""
    x, wide, down = (TensorSpec(shape, "bfloat16") for shape in ((tokens, h), (h, i), (i, h)))
    moved = 2 * (3 * tokens * h + 6 * h * i)
    label = f"{tokens}x{h}, I {i} bf16"
    return Case(
        "mlp_bwd", label, mlp_bwd, (x, x, wide, wide, down), moved, {"bfloat16": 16.0 * tokens * h * i}, lnc=2
    )


CASES = [
    sized((1, 1024, 4096, 3584), "bf16"),
    sized((1, 1024, 8192, 3584), "RMSNorm, bf16", lnc=2, **norm(8192)),
    sized((1, 1024, 4096, 3584), "fp8 rows", **ROW),
    sized((4, 1, 4096, 3584), "bf16"),
    sized((4, 1, 8192, 3584), "RMSNorm, bf16", lnc=2, **norm(8192)),
    sized((4, 1, 4096, 3584), "fp8 rows", **ROW),
    sized((4, 1, 4096, 1024), "bf16"),
    sized((64, 1, 8192, 2048), "bf16"),
    microscaled((4, 1, 4096, 3584), "float4_e2m1fn_x4"),
    microscaled((4, 1, 4096, 3584), "float8_e4m3fn_x4"),
    microscaled((1, 1024, 4096, 3584), "float8_e4m3fn_x4"),
    gradient(1024, 1024, 2048),
    gradient(1024, 2048, 2048),
]
