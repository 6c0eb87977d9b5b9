"""Cumulative sums and the scans of state-space models."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.core.cumsum import cumsum
from nkilib.experimental.scan import linear_scan, selective_scan, ssd

from . import Case

BYTES = {"float32": 4, "bfloat16": 2}
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
VECTOR_GHZ = 0.96  # trn2; a scan takes two cycles per element


def scan_us(rows: int, length: int) -> float:
    """Return the time VectorE needs to scan so many rows."""
    return -(-rows // 128) * 2 * length / VECTOR_GHZ / 1e3


def cumulative(rows: int, length: int, dtype: str) -> Case:
    return Case(
        "cumsum",
        f"{rows} x {length} {SHORT[dtype]}",
        cumsum,
        (TensorSpec((rows, length), dtype),),
        hbm_bytes=2 * rows * length * BYTES[dtype],
        other=("Vector", scan_us(rows, length)),
    )


def linear(batch: int, channels: int, length: int, dtype: str) -> Case:
    spec = TensorSpec((batch, channels, length), dtype)
    return Case(
        "linear_scan",
        f"{batch} x {channels} x {length} {SHORT[dtype]}",
        linear_scan,
        (spec, spec),
        hbm_bytes=batch * channels * (3 * length * BYTES[dtype] + 4),
        other=("Vector", scan_us(batch * channels, length)),
    )


def selective(batch: int, channels: int, states: int, length: int, dtype: str) -> Case:
    """The bound counts the scan alone; VectorE and GpSimdE also multiply by B and C."""
    x = TensorSpec((batch, channels, length), dtype)
    b = TensorSpec((batch, states, length), dtype)
    elements = 3 * batch * channels * length + 2 * batch * states * length + channels * (states + 1)
    return Case(
        "selective_scan",
        f"{batch} x {channels} x {states} x {length} {SHORT[dtype]}",
        selective_scan,
        (x, x, TensorSpec((channels, states), dtype), b, b, TensorSpec((channels,), dtype)),
        hbm_bytes=elements * BYTES[dtype] + 4 * batch * channels * states,
        other=("Vector", scan_us(batch * channels * states, length)),
    )


def chunked(batch: int, heads: int, length: int, d: int, n: int, dtype: str, q: int = 128) -> Case:
    """The other bound: VectorE computes the weights, y and the new state, a cycle for each column."""
    x, b = TensorSpec((batch, heads, length, d), dtype), TensorSpec((batch, length, n), dtype)
    head, mask = TensorSpec((heads,), dtype), TensorSpec((q, q), "float32")
    elements = batch * (heads * length * (2 * d + 1) + 2 * length * n) + 2 * heads
    flops = 2 * batch * length * (q * n + heads * d * (q + 2 * n))
    return Case(
        "ssd",
        f"{batch} x {heads} x {length} x {d} x {n} {SHORT[dtype]}",
        ssd,
        (x, TensorSpec((batch, heads, length), dtype), head, b, b, q, head, None, mask),
        hbm_bytes=elements * BYTES[dtype] + 4 * batch * heads * n * d,
        flops={dtype: flops},
        other=("Vector", batch * heads * length / q * (q + 2 * d) / VECTOR_GHZ / 1e3),
    )


CASES = [
    cumulative(2048, 8192, "float32"),
    cumulative(2048, 8192, "bfloat16"),
    linear(4, 1536, 1024, "bfloat16"),
    linear(2, 5120, 4096, "float32"),
    selective(2, 1536, 16, 2048, "bfloat16"),  # Mamba 130M
    selective(1, 2560, 16, 1000, "float32"),
    chunked(2, 24, 512, 64, 128, "bfloat16"),  # Mamba-2 130M
    chunked(1, 80, 1024, 64, 128, "bfloat16"),  # Mamba-2 2.7B
]
