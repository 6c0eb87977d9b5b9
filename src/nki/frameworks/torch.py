"""PyTorch tensors as kernel arguments and results: the same bytes, whatever the dtype (frameworks.md 3)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from .. import dtypes
from ..errors import error

name = "torch"

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# dtypes numpy does not have travel as integers of their size; torch has no IEEE-style e4m3, and the
# e4m3fn tensors that trn1 and trn2 read as e4m3 come back under the name they arrived with
_NARROW = {
    getattr(torch, dtype): np.dtype(getattr(ml_dtypes, dtype))
    for dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
    if hasattr(torch, dtype)
}
_TORCH = {storage: dtype for dtype, storage in _NARROW.items()}
_TORCH[dtypes.float8_e4m3.storage] = torch.float8_e4m3fn


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def to_numpy(value: torch.Tensor) -> np.ndarray:
    """The tensor's own memory as an array; a copy only for tensors of another device."""
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise error(
            "framework",
            f"a kernel needs a dense tensor with values, got {_kind(value)}",
            help="pass x.to_dense() of a sparse tensor, x.dequantize() of a quantized one",
        )
    if value.requires_grad and torch.is_grad_enabled():
        raise error(
            "no-backward",
            "a kernel has no backward, and this tensor requires a gradient",
            notes=[f"the tensor: {_kind(value)}"],
            help="pass x.detach(), call it under torch.no_grad(), or wrap it in torch.autograd.Function",
        )
    plain = value.detach().cpu().resolve_neg()
    narrow = _NARROW.get(plain.dtype)
    return plain.numpy() if narrow is None else plain.view(_BITS[narrow.itemsize]).numpy().view(narrow)


def from_numpy(array: np.ndarray, like: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor on the memory of the array, or its copy on the device of `like`."""
    narrow = _TORCH.get(array.dtype)
    if narrow is None:
        tensor = torch.from_numpy(array)
    else:
        tensor = torch.from_numpy(dtypes.bits(array).view(f"i{array.itemsize}")).view(narrow)
    return tensor if like is None else tensor.to(like.device)


def write_back(value: torch.Tensor, array: np.ndarray, name: str) -> None:
    """The new contents of an argument; torch's version counter advances."""
    value.copy_(from_numpy(np.ascontiguousarray(array)))


def _kind(value: torch.Tensor) -> str:
    layout = str(value.layout).removeprefix("torch.")
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}, {layout}"
