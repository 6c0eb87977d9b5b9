"""Norms fused with quantisation, at the widths of large language models."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.core.rmsnorm.rmsnorm_quant import RmsNormQuantKernelArgs, rmsnorm_quant_kernel

from . import Case

SCALAR_GHZ = 1.2  # elements per nanosecond in each partition, trn2


def rows(tokens: int, hidden: int, lnc: int = 1) -> Case:
    """Bound by ScalarE, which squares and casts every element."""
    return Case(
        "rmsnorm_quant_kernel",
        f"{tokens}x{hidden} bf16",
        rmsnorm_quant_kernel,
        (
            TensorSpec((1, tokens, hidden), "bfloat16"),
            TensorSpec((hidden,), "bfloat16"),
            RmsNormQuantKernelArgs(0.0),
        ),
        hbm_bytes=tokens * (3 * hidden + 4) + 2 * hidden,
        other=("Scalar", 2 * tokens * hidden / 128 / SCALAR_GHZ / 1e3 / lnc),
        lnc=lnc,
    )


CASES = [rows(2048, 8192), rows(2048, 16384), rows(2048, 8192, lnc=2)]
