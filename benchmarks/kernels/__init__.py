"""Library kernels on the timing model, against their roofline. Each family's module has its CASES."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One kernel at one realistic size.

    `arguments` are what the kernel is called with (`nki.TensorSpec`s for tensors); a tuple of positional
    ones or a mapping of keywords. `flops` counts 2 per multiply-add of matmuls, by the dtype of the operands
    ({"bfloat16": 2 * M * N * K}); `hbm_bytes` what must be read and written at least once. A kernel held by
    another engine names it and the time that engine needs at its full rate: other=("Scalar", 123.4).
    """

    kernel_name: str
    label: str  # the size, e.g. "2048x8192 bf16"
    kernel: Callable
    arguments: tuple | Mapping[str, Any]
    hbm_bytes: int
    flops: Mapping[str, float] = field(default_factory=dict)
    other: tuple[str, float] | None = None  # engine, microseconds
    lnc: int = 1
