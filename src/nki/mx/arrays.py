"""NumPy arrays and torch tensors: functions here are written for NumPy and serve both."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar, Union

import ml_dtypes
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

# What the functions of nki.mx take: a NumPy array or a torch tensor, which they see as a NumPy array.
Array: TypeAlias = Union[np.ndarray, Any]  # noqa: UP007  Python 3.10 has no `|` for Any

# dtypes that torch cannot exchange with numpy: the same bytes go as unsigned integers
_EXCHANGED = {"bfloat16": ml_dtypes.bfloat16} | {
    name: getattr(ml_dtypes, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
}


def is_torch(value: object) -> bool:
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "numpy")


def to_numpy(value: Any) -> Any:
    """Return a tensor as an array that shares its bytes where it can; other values as they are."""
    if not is_torch(value):
        return value
    import torch

    tensor = value.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "float4_e2m1fn_x2":
        return tensor.view(torch.uint8).numpy()
    if name in _EXCHANGED:
        whole = torch.uint8 if tensor.itemsize == 1 else torch.uint16
        return tensor.view(whole).numpy().view(_EXCHANGED[name])
    return tensor.numpy()


def to_torch(value: Any, like: Any) -> Any:
    """Return arrays, also in tuples, as tensors on the device of `like`; FP4 elements as codes, uint8."""
    import torch

    if isinstance(value, tuple):
        return tuple(to_torch(part, like) for part in value)
    if not isinstance(value, np.ndarray):
        return value
    name, array = value.dtype.name, np.ascontiguousarray(value)
    if name == "float4_e2m1fn":
        array = array.view(np.uint8)
    elif name in _EXCHANGED:
        array = array.view(np.uint8 if array.itemsize == 1 else np.uint16)
    tensor = torch.from_numpy(array)
    if name in _EXCHANGED:
        tensor = tensor.view(getattr(torch, name))
    return tensor.to(like.device)


def either(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function of arrays also take torch tensors, and then return them."""

    @functools.wraps(function)
    def serve(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = [value for value in (*args, *kwargs.values()) if is_torch(value)]
        if not tensors:
            return function(*args, **kwargs)
        named = {name: to_numpy(value) for name, value in kwargs.items()}
        return to_torch(function(*map(to_numpy, args), **named), tensors[0])  # type: ignore[arg-type, no-any-return]

    return serve
