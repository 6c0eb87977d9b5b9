"""Cross entropy over the vocabularies of language models."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward

from . import Case

SCALAR_GHZ = 1.2  # elements per nanosecond in each partition, trn2


def forward(positions: int, vocabulary: int, chunk_size: int) -> Case:
    """Bound by the exponentials: VectorE and GpSimdE share the maximum, which takes less time."""
    return Case(
        "cross_entropy_forward",
        f"{positions} x {vocabulary} bf16",
        cross_entropy_forward,
        {
            "logits_hbm": TensorSpec((positions, vocabulary), "bfloat16"),
            "targets_hbm": TensorSpec((positions,), "int32"),
            "chunk_size": chunk_size,
        },
        hbm_bytes=positions * (2 * vocabulary + 4 + 2 * 2),
        other=("Scalar", positions / 128 * vocabulary / SCALAR_GHZ / 1e3),
    )


def backward(positions: int, vocabulary: int, chunk_size: int) -> Case:
    """Bound by memory: logits in, gradient out."""
    return Case(
        "cross_entropy_backward",
        f"{positions} x {vocabulary} bf16",
        cross_entropy_backward,
        {
            "logits_hbm": TensorSpec((positions, vocabulary), "bfloat16"),
            "targets_hbm": TensorSpec((positions,), "int32"),
            "lse_state_hbm": TensorSpec((positions,), "bfloat16"),
            "chunk_size": chunk_size,
        },
        hbm_bytes=positions * (2 * 2 * vocabulary + 4 + 2),
    )


CASES = [
    forward(512, 128256, 32768),  # Llama 3
    forward(2048, 151936, 40960),  # Qwen
    backward(512, 128256, 32768),
    backward(2048, 151936, 40960),
]
