"""RMSNorm and LayerNorm for training."""

from __future__ import annotations

from typing import Any

from nki import TensorSpec
from nkilib.experimental.norm import layer_norm, layer_norm_bwd, rms_norm, rms_norm_bwd

from . import Case


def norm(kernel: Any, rows: int, columns: int) -> Case:
    x, weight = TensorSpec((rows, columns), "bfloat16"), TensorSpec((columns,), "float32")
    backward = kernel in (rms_norm_bwd, layer_norm_bwd)
    given = (x, x, weight) if backward else (x, weight, weight) if kernel is layer_norm else (x, weight)
    moved = rows * columns * 2 * (3 if backward else 2)
    return Case(kernel.__name__, f"{rows}x{columns} bf16", kernel, given, moved, lnc=2)


KERNELS = (rms_norm, rms_norm_bwd, layer_norm, layer_norm_bwd)
CASES = [norm(kernel, *size) for kernel in KERNELS for size in ((4096, 2048), (2048, 4096))]
