"""Type names that kernels and their helpers annotate parameters with, see docs/kernel-helpers.md."""

from __future__ import annotations

from typing import Any, TypeAlias, Union

from nki.language import DType
from nki.typing import Tensor

# A dtype of nki.language; for a caller also one of numpy, ml_dtypes, torch or jax, or its name.
DTypeLike: TypeAlias = Union[DType, Any]  # noqa: UP007  Python 3.10 has no `|` for Any

__all__ = ["DType", "DTypeLike", "Tensor"]
