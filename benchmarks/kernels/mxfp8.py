"""MXFP8 on trn3: quantisation, matmul with operands in several forms, and the MLP of training."""

from __future__ import annotations

from typing import Any

from nki import TensorSpec
from nkilib.experimental.matmul_mxfp8 import matmul_mxfp8, matmul_mxfp8_backward
from nkilib.experimental.mlp_mxfp8.mlp_bwd_mxfp8 import mlp_backward_mxfp8_nki
from nkilib.experimental.mlp_mxfp8.mlp_fwd_mxfp8 import mlp_forward_mxfp8_nki
from nkilib.experimental.quantize_mxfp8 import quantize_block_mxfp8_kernel

from . import Case

FP8 = "float8_e4m3fn"


def bf16(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "bfloat16")


def quantized(features: int, k: int) -> tuple[TensorSpec, TensorSpec]:
    """Return elements and packed scales."""
    return TensorSpec((k // 4, 4 * features), FP8), TensorSpec((128 * -(-k // 2048), features), "uint8")


def quantise(features: int, k: int, lnc: int = 1) -> Case:
    return Case(
        "quantize_block_mxfp8_kernel",
        f"{features}x{k}",
        quantize_block_mxfp8_kernel,
        (bf16(features, k), FP8, lnc == 2),
        hbm_bytes=3 * features * k + 128 * -(-k // 2048) * features,
        lnc=lnc,
        platform="trn3",
    )


def matmul(m: int, k: int, n: int, form: str, lnc: int = 1) -> Case:
    """Time one form of operands: "quantised", "swizzled", "plain" or "K by F"."""
    flags: dict[str, Any] = {"float8_dtype": FP8}
    if form == "quantised":
        operands: tuple = (quantized(m, k), quantized(n, k))
    elif form == "swizzled":
        operands = (bf16(k // 4, 4 * m), bf16(k // 4, 4 * n))
    else:
        by_k = form == "plain"
        operands = (bf16(m, k), bf16(n, k)) if by_k else (bf16(k, m), bf16(k, n))
        flags |= {"lhs_is_swizzled": False, "rhs_is_swizzled": False}
        flags |= {"lhs_is_f_by_k": by_k, "rhs_is_f_by_k": by_k}
    return Case(
        "matmul_mxfp8",
        f"{m}x{k}x{n} {form}",
        matmul_mxfp8,
        {"lhs": operands[0], "rhs": operands[1], **flags},
        hbm_bytes=(1 if form == "quantised" else 2) * k * (m + n) + 2 * m * n,
        flops={"mxfp8": 2 * m * k * n},
        lnc=lnc,
        platform="trn3",
    )


def matmul_backward(m: int, n: int, k: int, lnc: int = 1) -> Case:
    return Case(
        "matmul_mxfp8_backward",
        f"{m}x{n}x{k}",
        matmul_mxfp8_backward,
        (bf16(m, n), bf16(n, k), bf16(m, k)),
        hbm_bytes=2 * (m * n + 2 * n * k + 2 * m * k),
        flops={"mxfp8": 4 * m * n * k},
        lnc=lnc,
        platform="trn3",
    )


def forward(s: int, h: int, i: int, lnc: int = 1) -> Case:
    return Case(
        "mlp_forward_mxfp8_nki",
        f"{s}x{h}x{i}",
        mlp_forward_mxfp8_nki,
        (bf16(s, h), bf16(2 * i, h), bf16(h, i), bf16(s, i)),
        hbm_bytes=2 * (2 * s * h + 3 * h * i),
        flops={"mxfp8": 6 * s * h * i},
        lnc=lnc,
        platform="trn3",
    )


def backward(s: int, h: int, i: int, checkpoints: bool, lnc: int = 1) -> Case:
    saved = ("gate_pre", "gate_act", "up", "intermediate") if checkpoints else ()
    return Case(
        "mlp_backward_mxfp8_nki",
        f"{s}x{h}x{i}" + ("" if checkpoints else ", recomputes"),
        mlp_backward_mxfp8_nki,
        {
            "output_grad": bf16(s, h),
            "hidden_states": bf16(s, h),
            "down_proj_weight": bf16(i, h),
            "gate_up_weights": bf16(2 * i, h),
            **{name: bf16(s, i) for name in saved},
        },
        hbm_bytes=2 * (3 * s * h + 6 * h * i + len(saved) * s * i),
        flops={"mxfp8": (12 if checkpoints else 16) * s * h * i},
        lnc=lnc,
        platform="trn3",
    )


CASES = [
    quantise(4096, 4096),
    quantise(7168, 4096, lnc=2),
    matmul(2048, 4096, 4096, "quantised"),
    matmul(2048, 4096, 4096, "swizzled"),
    matmul(2048, 4096, 4096, "plain"),
    matmul(2048, 4096, 4096, "K by F"),
    matmul(4096, 8192, 8192, "plain", lnc=2),
    matmul_backward(2048, 4096, 4096),
    matmul_backward(4096, 8192, 8192, lnc=2),
    forward(2048, 4096, 3584),
    forward(4096, 4096, 3072, lnc=2),
    backward(2048, 4096, 3584, checkpoints=True),
    backward(2048, 4096, 3584, checkpoints=False),
    backward(4096, 4096, 3072, checkpoints=True, lnc=2),
]
