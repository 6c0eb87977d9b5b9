"""Convolutions at the sizes of Whisper, of a video autoencoder and of Mamba."""

from __future__ import annotations

from math import prod
from typing import Any

from nki import TensorSpec
from nkilib.core.utils.common_types import ActFnType
from nkilib.experimental.conv.conv1d import conv1d
from nkilib.experimental.conv.conv3d import conv3d
from nkilib.experimental.conv.conv3d_bwd import conv3d_bwd
from nkilib.experimental.conv.conv3d_temporal_unroll import conv3d_temporal_unroll
from nkilib.experimental.conv.conv3d_transpose import conv3d_transpose
from nkilib.experimental.conv.depthwise_conv1d import depthwise_conv1d_implicit_gemm

from . import Case

TENSOR_GHZ, VECTOR_GHZ = 2.4, 0.96


def spec(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "bfloat16")


def dense(
    kernel: Any, x: tuple, taps: tuple, columns: int, inside: int, lnc: int = 1, **options: Any
) -> Case:
    """x [B, C_in, ...]; `inside` counts the outputs of all taps that meet input, not padding."""
    channels, filters = x[1], (*taps, x[1], columns)
    lost = 0 if "padding" in options else 1  # padding preserves the size
    outputs = prod((n - lost * (k - 1)) // options.get("stride", 1) for n, k in zip(x[2:], taps, strict=True))
    sizes = prod(x) + prod(filters) + x[0] * columns * outputs
    arguments = {"x_in": spec(*x), "filters": spec(*filters), "bias": spec(columns), **options}
    label = f"{'x'.join(map(str, x))}, K {'x'.join(map(str, taps))}, C_out {columns} bf16"
    label += ", padded" if "padding" in options else ""
    label += f", stride {options['stride']}" if "stride" in options else ""
    flops = {"bfloat16": 2 * x[0] * channels * columns * inside}
    return Case(kernel.__name__, label, kernel, arguments, 2 * sizes, flops, lnc=lnc)


def depthwise(n: int, channels: int, width: int, taps: int, lnc: int = 1) -> Case:
    """For 128 channels TensorE needs a pass for each tap, VectorE for all but one; they share the outputs."""
    outputs = width - taps + 1
    tensor, vector = taps / TENSOR_GHZ, (taps - 1) / VECTOR_GHZ
    together = n * channels / 128 * outputs * tensor * vector / (tensor + vector) / 1e3 / lnc
    return Case(
        "depthwise_conv1d_implicit_gemm",
        f"{n}x{channels}x{width}, S {taps} bf16",
        depthwise_conv1d_implicit_gemm,
        (spec(n, channels, 1, width), spec(channels, 1, 1, taps)),
        hbm_bytes=2 * n * channels * (width + outputs),
        other=("Tensor, Vector", together),
        lnc=lnc,
    )


def upsampled(x: tuple, taps: tuple, columns: int, stride: tuple) -> Case:
    """Each input meets every tap once."""
    outputs = prod((n - 1) * s + k for n, s, k in zip(x[2:], stride, taps, strict=True))
    filters = (*taps, x[1], columns)
    return Case(
        "conv3d_transpose",
        f"{'x'.join(map(str, x))}, K {'x'.join(map(str, taps))}, C_out {columns}, stride {stride} bf16",
        conv3d_transpose,
        {"x_in": spec(*x), "filters": spec(*filters), "stride": stride, "lnc_shard": True},
        hbm_bytes=2 * (prod(x) + prod(filters) + x[0] * columns * outputs),
        flops={"bfloat16": 2.0 * prod(x) * prod(taps) * columns},
        lnc=2,
    )


def gradients(x: tuple, columns: int) -> Case:
    """dx and dw take as many products as the forward call each; 3 x 3 x 3 taps, padded to the same size."""
    filters, y = (3, 3, 3, x[1], columns), (x[0], columns, *x[2:])
    inside = prod(3 * n - 2 for n in x[2:])
    return Case(
        "conv3d_bwd",
        f"{'x'.join(map(str, x))}, K 3x3x3, C_out {columns} bf16",
        conv3d_bwd,
        {"dy": spec(*y), "x_in": spec(*x), "filters": spec(*filters), "padding": (1,) * 6},
        hbm_bytes=2 * (2 * prod(x) + 2 * prod(filters) + prod(y)),
        flops={"bfloat16": 4.0 * x[0] * x[1] * columns * inside},
        lnc=2,
    )


SAME, GELU = (1, 1), ActFnType.GELU
CASES = [
    gradients((4, 128, 8, 28, 28), 128),  # R3D-18, second and third group of layers
    gradients((4, 256, 4, 14, 14), 256),
    upsampled((1, 256, 16, 16, 16), (2, 2, 2), 128, (2, 2, 2)),  # 3D U-Net
    upsampled((1, 128, 8, 64, 64), (3, 3, 3), 128, (1, 2, 2)),
    dense(
        conv3d_temporal_unroll, (1, 64, 4, 32, 1026), (3, 3, 3), 16, 27 * 2 * 30 * 1024, lnc=2, lnc_shard=True
    ),
    dense(conv3d_temporal_unroll, (1, 128, 3, 16, 770), (3, 3, 3), 3, 27 * 14 * 768, lnc=2, lnc_shard=True),
    dense(conv1d, (1, 80, 3000), (3,), 384, 3 * 3000 - 2, padding=SAME, activation_fn=GELU),
    dense(conv1d, (1, 384, 3000), (3,), 384, 3 * 1500 - 1, padding=SAME, stride=2, activation_fn=GELU),
    dense(conv1d, (1, 384, 3000), (3,), 384, 3 * 3000 - 2, padding=SAME),
    dense(conv1d, (1, 384, 3000), (3,), 384, 3 * 3000 - 2, lnc=2, padding=SAME, lnc_shard=True),
    dense(conv3d, (1, 384, 3, 16, 16), (3, 3, 3), 384, 7 * 46 * 46, padding=SAME * 3),
    dense(conv3d, (1, 384, 3, 16, 16), (3, 3, 3), 384, 7 * 46 * 46, lnc=2, padding=SAME * 3, lnc_shard=True),
    dense(conv3d, (1, 384, 3, 16, 16), (3, 3, 3), 384, 27 * 14 * 14),
    depthwise(1, 1536, 2051, 4),
    depthwise(2, 512, 500, 31),
    depthwise(1, 1536, 2051, 4, lnc=2),
]
