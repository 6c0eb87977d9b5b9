"""Optimizer steps over the weights of language models."""

from __future__ import annotations

from math import prod

from nki import TensorSpec
from nkilib.experimental.optimizer import fused_adam

from . import Case

BYTES = {"float32": 4, "bfloat16": 2}
SHORT = {"float32": "fp32", "bfloat16": "bf16"}


def step(name: str, shape: tuple[int, ...], dtype: str, amsgrad: bool = False, lnc: int = 1) -> Case:
    """Read four tensors and write three; one more of each with amsgrad."""
    tensor, rate = TensorSpec(shape, dtype), TensorSpec((128, 1), "float32")
    state = (*[tensor] * 4, tensor if amsgrad else None)
    return Case(
        name,
        f"{' x '.join(map(str, shape))} {SHORT[dtype]}{' amsgrad' if amsgrad else ''}",
        getattr(fused_adam, name),
        (*state, rate, rate, rate, prod(shape), 0.9, 0.999, 1e-8, amsgrad),
        hbm_bytes=(9 if amsgrad else 7) * prod(shape) * BYTES[dtype],
        lnc=lnc,
    )


CASES = [
    step("adam_kernel", (4096, 4096), "bfloat16"),
    step("adam_kernel", (4096, 11008), "float32"),
    step("adam_kernel", (4096, 4096), "bfloat16", amsgrad=True),
    step("adamw_kernel", (4096, 4096), "bfloat16"),
    step("adamw_kernel", (4096, 11008), "float32"),
    step("adamw_kernel", (4096, 4096), "bfloat16", amsgrad=True),
    step("adamw_kernel", (4096, 4096), "bfloat16", lnc=2),
]
