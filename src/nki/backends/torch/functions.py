"""numpy's functions on tensors, in one table.

Where torch's function gives numpy's bits, it is listed by name. Functions that the two libraries
approximate differently are computed in float64 and rounded once, so that they are exact to the last place;
`exp` is torch's own in float32. Sums, running ones too, are torch's: their order differs from numpy's,
within the bound of float32 summation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from .device import Unsupported
from .lanes import ACCUMULATIONS, FUNCTIONS, REDUCTIONS, UFUNCS, Lanes, shares_memory

if TYPE_CHECKING:
    from torch import Tensor


# whose kernels take a number as an argument, which is faster; a division by one would be a multiplication
_TAKE_NUMBERS = ("add", "subtract", "multiply", "eq", "ne", "lt", "le", "gt", "ge")


class _named:
    """torch's function of this name, which can also write directly to a tensor."""

    def __init__(self, name: str):
        self.name = name
        self.takes_numbers = name in _TAKE_NUMBERS

    def __call__(self, torch: object, *args: object) -> Any:
        return getattr(torch, self.name)(*args)


def _rounded_once(name: str) -> Callable[..., Any]:
    """Return torch's function computed in float64 and rounded once."""

    def form(torch: ModuleType, *args: Any) -> Any:
        result = getattr(torch, name)(*(a.to(torch.float64) for a in args))
        return result.to(args[0].dtype)

    return form


def _sign(torch: ModuleType, x: Tensor) -> Any:
    return torch.where(torch.isnan(x), x, torch.sign(x))  # in torch the sign of NaN is 0


def _mod(torch: ModuleType, a: Tensor, b: Tensor) -> Any:
    """Return the remainder with the sign of the divisor, bit for bit numpy's."""
    rest = torch.fmod(a, b)
    other = (rest != 0) & ((b < 0) != (rest < 0))
    zero = torch.copysign(torch.zeros_like(rest), b)
    return torch.where(other, rest + b, torch.where(rest == 0, zero, rest))


def _matmul(torch: ModuleType, a: Tensor, b: Tensor) -> Any:
    return torch.matmul(a, b)


_SAME_NAME = (
    *("add", "subtract", "multiply", "true_divide", "maximum", "minimum", "fmod", "copysign"),
    *("logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor"),
    *("reciprocal", "floor", "ceil", "trunc", "isnan", "isfinite", "signbit", "exp"),
)
_OTHER_NAME = {
    **{"equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt"},
    **{"greater_equal": "ge", "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift"},
    **{"invert": "bitwise_not", "absolute": "abs", "negative": "neg", "rint": "round"},
}
_ROUNDED_ONCE = ("sqrt", "log", "log1p", "tanh", "sin", "cos", "tan", "arctan")

UFUNCS.update({getattr(np, name): _named(name) for name in _SAME_NAME})
UFUNCS.update({getattr(np, name): _named(theirs) for name, theirs in _OTHER_NAME.items()})
UFUNCS.update({getattr(np, name): _rounded_once(name) for name in _ROUNDED_ONCE})
UFUNCS.update(
    {
        np.mod: _mod,
        np.square: lambda torch, x: x * x,
        np.sign: _sign,
        np.power: _rounded_once("pow"),
        np.matmul: _matmul,
    }
)


# ---- reductions ---------------------------------------------------------------------------------------


def _prod(torch: ModuleType, x: Tensor, dims: list[int], keep: bool) -> Any:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, keepdim=keep)
    return x


def _differences(torch: ModuleType, x: Tensor, dims: list[int], keep: bool) -> Any:
    """Return x0 - x1 - x2 - ..."""
    (dim,) = dims
    rest = x.narrow(dim, 1, x.shape[dim] - 1).sum(dim, keepdim=keep)
    first = x.narrow(dim, 0, 1)
    return (first if keep else first.squeeze(dim)) - rest


REDUCTIONS.update(
    {
        np.add: lambda torch, x, dims, keep: torch.sum(x, dims, keepdim=keep),
        np.subtract: _differences,
        np.multiply: _prod,
        np.maximum: lambda torch, x, dims, keep: torch.amax(x, dims, keepdim=keep),
        np.minimum: lambda torch, x, dims, keep: torch.amin(x, dims, keepdim=keep),
        np.logical_and: lambda torch, x, dims, keep: torch.all(x != 0, dims, keepdim=keep),
        np.logical_or: lambda torch, x, dims, keep: torch.any(x != 0, dims, keepdim=keep),
    }
)


ACCUMULATIONS.update(
    {
        np.add: lambda torch, x, dim: torch.cumsum(x, dim),
        np.multiply: lambda torch, x, dim: torch.cumprod(x, dim),
        np.maximum: lambda torch, x, dim: torch.cummax(x, dim).values,
        np.minimum: lambda torch, x, dim: torch.cummin(x, dim).values,
    }
)


# ---- functions that are not ufuncs ----------------------------------------------------------------


Array = Lanes | np.ndarray | float  # what numpy's functions are called with


def _among(*values: object) -> Lanes:
    return next(value for value in values if isinstance(value, Lanes))


def _where(mask: Array, a: Array, b: Array) -> Lanes:
    one = _among(mask, a, b)
    dtype = np.result_type(*(x.dtype if isinstance(x, Lanes) else x for x in (a, b)))
    rank = max(np.ndim(x) if not isinstance(x, Lanes) else x.ndim for x in (mask, a, b))
    picked = one._operand(mask, np.dtype(np.bool_), rank)
    tensors = [one._operand(x, dtype, rank) for x in (a, b)]
    return one.like(one.narrow(one.device.torch.where(picked, *tensors), dtype), dtype)


def _copyto(target: Array, source: Array, where: Array = True) -> None:
    if not isinstance(target, Lanes):
        raise Unsupported("a copy to the host")
    if where is True:
        target[...] = source
        return
    mask = target._operand(where, np.dtype(np.bool_), target.ndim)
    chosen = target.device.torch.where(mask, target.fitting(source), target.tensor)
    if target.lent:
        target.tensor.copy_(chosen)
    else:
        target.tensor = chosen


def _concatenate(parts: Sequence[Lanes], axis: int = 0) -> Lanes:
    one = _among(*parts)
    if any(not isinstance(part, Lanes) or part.dtype != one.dtype for part in parts):
        raise Unsupported("numpy.concatenate of different arrays")
    dim = one.lead + axis % one.ndim
    return one.like(one.device.torch.cat([part.tensor for part in parts], dim), one.dtype)


def _empty_like(array: Lanes, dtype: DTypeLike | None = None, shape: Sequence[int] | None = None) -> Lanes:
    target = np.dtype(dtype or array.dtype)
    held = array.held(target)
    size = array.shape if shape is None else shape
    made = array.device.torch.empty((*array.front, *size), dtype=held, device=array.device.where)
    return Lanes(made, array.lead, target, array.device, lent=False)


def _zeros_like(array: Lanes, dtype: DTypeLike | None = None, shape: Sequence[int] | None = None) -> Lanes:
    made = _empty_like(array, dtype, shape)
    made.tensor.zero_()
    return made


def _broadcast_to(array: Lanes, shape: Sequence[int]) -> Lanes:
    wide = array.reshape(*(1,) * (len(shape) - array.ndim), *array.shape)
    return array.like(wide.tensor.expand(*array.front, *shape), array.dtype)


def _places(x: Lanes, indices: Lanes, axis: int) -> tuple[Any, int]:
    """Return indices along an axis, all in bounds, and the dimension; what is not was reported before."""
    dim = x.lead + axis % x.ndim
    return indices.as_type(np.dtype(np.int64)).clamp(0, x.tensor.shape[dim] - 1), dim


def _take_along_axis(x: Lanes, indices: Lanes, axis: int) -> Lanes:
    return x.like(x.device.torch.take_along_dim(x.tensor, *_places(x, indices, axis)), x.dtype)


def _put_along_axis(x: Lanes, indices: Lanes, values: Lanes, axis: int) -> None:
    places, dim = _places(x, indices, axis)
    x.tensor.scatter_(dim, places, x.fitting(values))


def _argsort(x: Lanes, axis: int = -1, kind: str = "stable") -> Lanes:
    """Return the order of the elements, NaN last, equal ones as they are."""
    numbers = x.numbers().to(x.device.torch.uint8) if x.dtype == np.bool_ else x.numbers()
    found = x.device.torch.sort(numbers, dim=x.lead + axis % x.ndim, stable=True)
    return x.like(found.indices, np.dtype(np.int64))


def _count_nonzero(x: Lanes, axis: int, keepdims: bool = False) -> Lanes:
    count = (x.numbers() != 0).sum(x.lead + axis % x.ndim, keepdim=keepdims)
    return x.like(count, np.dtype(np.int64))


FUNCTIONS.update(
    {
        np.take_along_axis: _take_along_axis,
        np.put_along_axis: _put_along_axis,
        np.argsort: _argsort,
        np.count_nonzero: _count_nonzero,
        np.flip: lambda x, axis: x.like(x.tensor.flip(x.lead + axis % x.ndim), x.dtype),
        np.repeat: lambda x, n, axis: x.like(x.tensor.repeat_interleave(n, x.lead + axis % x.ndim), x.dtype),
        np.where: _where,
        np.copyto: _copyto,
        np.concatenate: _concatenate,
        np.partition: lambda x, kth, axis=-1: x.sorted(axis),
        np.empty_like: _empty_like,
        np.zeros_like: _zeros_like,
        np.broadcast_to: _broadcast_to,
        np.clip: lambda x, low, high: x.clip(low, high),
        np.may_share_memory: lambda a, b: shares_memory(a.tensor, b.tensor),
        np.ndim: lambda x: x.ndim,
        np.shape: lambda x: x.shape,
    }
)
