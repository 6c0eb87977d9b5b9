"""Lanes: one array for the operands of many equal instructions, on a torch device.

An instruction is defined once, by its `compute`, with numpy's functions. These dispatch to arrays of another
kind (`__array_ufunc__`, `__array_function__`), and `Lanes` is one: a torch tensor with leading dimensions
that the instruction does not see, one element of them for each instruction of a step.
So `compute` of one instruction does the work of all, on a GPU. `functions` is the table of numpy's functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from .device import FLOATS, SAME, Device, Lengthy, Unsupported, held_as

if TYPE_CHECKING:
    from torch import Tensor


_UNSIGNED = {np.dtype(np.uint16): ("int32", 0xFFFF), np.dtype(np.uint32): ("int64", 0xFFFFFFFF)}
FLOAT32 = np.dtype(np.float32)


class Lanes(NDArrayOperatorsMixin):
    """An array with leading dimensions that the code which computes with it does not see."""

    __slots__ = ("tensor", "lead", "dtype", "device", "lent")

    def __init__(self, tensor: Tensor, lead: int, dtype: np.dtype, device: Device, lent: bool = True):
        self.tensor, self.lead, self.dtype, self.device = tensor, lead, dtype, device
        self.lent = lent  # its memory is shared: results are copied there

    def like(self, tensor: Tensor, dtype: np.dtype) -> Lanes:
        return Lanes(tensor, self.lead, dtype, self.device)

    # ---- properties of arrays --------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[self.lead :])

    @property
    def ndim(self) -> int:
        return int(self.tensor.dim()) - self.lead

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def T(self) -> Lanes:
        return self.transpose()

    def __len__(self) -> int:
        return int(self.tensor.shape[self.lead])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(f"numpy.ndarray.{name}")

    def __bool__(self) -> bool:
        return bool(self.__array__())

    def __float__(self) -> float:
        return float(self.__array__())

    def __int__(self) -> int:
        return int(self.__array__())

    __index__ = __int__

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        if not self.device.reads:
            raise Unsupported("Python or numpy reads a value")
        return self.on_host().reshape(self.shape)

    # ---- views -----------------------------------------------------------------------------------

    @property
    def front(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[: self.lead])

    def reshape(self, *shape: Any) -> Lanes:
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return self.like(self.tensor.reshape((*self.front, *wanted)), self.dtype)

    def transpose(self, *order: Any) -> Lanes:
        axes = order[0] if len(order) == 1 and isinstance(order[0], (tuple, list)) else order
        axes = axes or tuple(reversed(range(self.ndim)))
        moved = self.tensor.permute(*range(self.lead), *(self.lead + a for a in axes))
        return self.like(moved, self.dtype)

    def view(self, dtype: Any) -> Lanes:
        target = np.dtype(dtype)
        if target.itemsize != self.itemsize and (self.tensor.stride(-1) != 1 or not self.ndim):
            raise Unsupported("a view of elements of another size")
        held = self.held(target)
        return self.like(self.tensor if self.tensor.dtype == held else self.tensor.view(held), target)

    def copy(self) -> Lanes:
        return self.like(self.tensor.clone(memory_format=self.device.torch.contiguous_format), self.dtype)

    def __iter__(self) -> Iterator[Lanes]:
        if self.device.compiles:
            raise Lengthy
        if self.device.reads:  # no graph is captured: a launch for each function takes longer than a copy
            raise Unsupported("one element after the other")
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Lanes:
        return self.like(self.tensor[self._key(key)], self.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        if not self.lent and 0 in self.tensor.stride():
            self.tensor = self.tensor.contiguous()  # it was filled
        if _has_arrays(key):
            if isinstance(key, np.ndarray) and key.dtype != np.bool_ and _has_overlapping_rows(self.tensor):
                for row, values in zip(
                    key.reshape(-1), self.fitting(value), strict=True
                ):  # the last one wins
                    self.tensor[int(row)].copy_(values)
                return
            key, value = _without_repeats(key, value)
            self.tensor[self._key(key)] = self.fitting(value)
            return
        target = self if key is Ellipsis else self[key]
        if self.device.reads and isinstance(value, Lanes) and shares_memory(target.tensor, value.tensor):
            value = value.copy()  # as numpy does where the two overlap
        if isinstance(value, Lanes) and target.dtype in FLOATS and value.dtype in FLOATS:
            target.tensor.copy_(aligned(value, target.ndim).tensor)  # which casts
        else:
            target.tensor.copy_(target.fitting(value))

    def _key(self, key: object) -> tuple:
        parts = key if isinstance(key, tuple) else (key,)
        if any(isinstance(part, slice) and (part.step or 1) < 0 for part in parts):
            raise Unsupported("a slice that goes backwards")
        if any(isinstance(part, (Lanes, list)) for part in parts):
            raise Unsupported("indices that are tiles")
        if _has_arrays(key):
            if not all(isinstance(part, np.ndarray) for part in parts):
                raise Unsupported("indices of several kinds")
            kinds = [p.dtype if p.dtype == np.bool_ else np.int64 for p in parts]
            parts = tuple([self.device.constant(p.astype(k)) for p, k in zip(parts, kinds, strict=True)])
        return (*[slice(None)] * self.lead, *parts)

    # ---- values ----------------------------------------------------------------------------------

    def numbers(self) -> Any:
        """Return a tensor to compute with: small unsigned integers in a wider signed type."""
        wider = _UNSIGNED.get(self.dtype)
        if wider is not None:
            return self.tensor.to(getattr(self.device.torch, wider[0])) & wider[1]
        if self.dtype not in SAME:
            raise Unsupported(f"arithmetic of {self.dtype.name}")
        return self.tensor

    def as_type(self, dtype: np.dtype) -> Any:
        """Return a tensor to compute with whose numbers are those of `dtype`."""
        if dtype == self.dtype:
            return self.numbers()
        return self._to(self.numbers(), dtype)

    def _to(self, tensor: Tensor, dtype: np.dtype) -> Any:
        wider = _UNSIGNED.get(dtype)
        name = held_as(dtype) if wider is None else wider[0]
        if dtype not in SAME and wider is None:
            raise Unsupported(f"arithmetic of {dtype.name}")
        if tensor.is_floating_point() and dtype.kind in "iu" and dtype.itemsize < 8:
            tensor = tensor.to(self.device.torch.int64)  # C casts of what fits, as numpy does them
        return tensor.to(getattr(self.device.torch, name))

    def astype(self, dtype: Any, copy: bool = True) -> Lanes:
        target = np.dtype(dtype)
        if target == self.dtype:
            return self.copy() if copy else self
        return self.like(self.narrow(self.as_type(target), target), target)

    def narrow(self, tensor: Tensor, dtype: np.dtype) -> Any:
        """Return a computed tensor as one that holds elements of `dtype`."""
        held = self.held(dtype)
        return tensor if tensor.dtype == held else tensor.to(held)

    def fitting(self, value: object) -> Any:
        """Return a value as a tensor of elements of this dtype, to be copied into the array."""
        if isinstance(value, Lanes):
            value = aligned(value, self.ndim)
            return value.tensor if value.dtype == self.dtype else value.astype(self.dtype, False).tensor
        array = np.asarray(value)
        return self.device.constant(array if array.dtype == self.dtype else array.astype(self.dtype))

    def held(self, dtype: np.dtype) -> Any:
        """Return the torch dtype of tensors that hold elements of `dtype`."""
        return getattr(self.device.torch, held_as(dtype))

    def fill(self, value: object) -> None:
        if self.lent:
            self[...] = value
        else:
            self.tensor = self.fitting(value).expand(self.tensor.shape)

    def doubt(self, mask: Lanes) -> None:
        """Record a mask; if it holds anywhere, the host runs the program, or the instruction, and reports."""
        if not self.device.reads:
            self.device.doubts.append(mask.tensor.any())
        elif mask.tensor.any():
            raise Unsupported("its values are out of the usual range")

    def on_host(self) -> np.ndarray:
        """Return a copy as numpy's array, with the leading dimensions."""
        torch = self.device.torch
        tensor = self.tensor.view(torch.int16) if self.tensor.dtype == torch.bfloat16 else self.tensor
        return np.array(tensor.cpu().numpy()).view(self.dtype)

    def take_from(self, values: np.ndarray) -> None:
        """Write what `on_host` returned, and was changed there."""
        self.tensor.copy_(self.device.tensor(values).reshape(self.tensor.shape))

    def entries_of(self, table: np.ndarray) -> Lanes:
        """Return table[self], for a small table."""
        return self.like(self.device.constant(table)[self.numbers().long()], table.dtype)

    # ---- as methods of numpy's arrays ------------------------------------------------------------

    def clip(self, low: Any, high: Any, out: object = None) -> Lanes:
        number = int if self.dtype.kind in "iu" else float
        return self.like(self.numbers().clamp(number(low), number(high)), self.dtype)

    def sum(self, axis: object = None, keepdims: bool = False) -> Lanes:
        return np.add.reduce(self, axis=axis, keepdims=keepdims)  # type: ignore[call-overload, no-any-return]

    def mean(self, axis: object = None, keepdims: bool = False, dtype: object = None) -> Lanes:
        total = self.sum(axis, keepdims)
        return total / self.dtype.type(self.size // total.size)  # type: ignore[no-any-return]

    def sorted(self, axis: int = -1) -> Lanes:
        """Return the elements in ascending order, NaN last."""
        dim = self.lead + axis % self.ndim
        return self.like(self.device.torch.sort(self.numbers(), dim).values, self.dtype)

    def sort(self, axis: int = -1) -> None:
        self[...] = self.sorted(axis)

    def argmax(self, axis: int) -> Lanes:
        """Return where a mask first holds along an axis; 0 where it does not."""
        if self.dtype != np.bool_:
            raise Unsupported("numpy.ndarray.argmax of numbers")
        torch, dim = self.device.torch, self.lead + axis % self.ndim
        count = self.tensor.shape[dim]
        shape = [-1 if d == dim else 1 for d in range(self.tensor.dim())]
        places = self.device.constant(np.arange(count)).reshape(shape)
        found = torch.where(self.tensor, places, count).amin(dim)
        return self.like(torch.where(found < count, found, 0), np.dtype(np.int64))

    def all(self, axis: object = None) -> Lanes:
        return np.logical_and.reduce(self, axis=axis)  # type: ignore[call-overload, no-any-return]

    def any(self, axis: object = None) -> Lanes:
        return np.logical_or.reduce(self, axis=axis)  # type: ignore[call-overload, no-any-return]

    # ---- numpy's functions -----------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", None)
        if out is not None and not any(isinstance(x, Lanes) for x in inputs):
            result = getattr(ufunc, method)(*inputs, **options)
        elif method == "__call__":
            result = self._call(ufunc, inputs, None if out is None else out[0], **options)
        elif method == "reduce":
            result = self._reduce(ufunc, *inputs, **options)
        elif method == "accumulate" and ufunc in ACCUMULATIONS:
            result = self._accumulate(ufunc, *inputs, **options)
        else:
            raise Unsupported(f"{ufunc.__name__}.{method}")
        if out is None or result is out[0]:
            return result
        if out[0].lent:
            out[0][...] = result
        else:
            out[0].tensor = out[0].fitting(result)
        return out[0]

    def _call(
        self, ufunc: np.ufunc, inputs: Sequence[Any], out: Any, dtype: Any = None, **options: Any
    ) -> Lanes:
        form = UFUNCS.get(ufunc)
        if form is None or options:
            raise Unsupported(f"numpy.{ufunc.__name__}")
        types = resolved(ufunc, tuple(_type(x) for x in inputs), None if dtype is None else np.dtype(dtype))
        rank = max(x.ndim for x in inputs if isinstance(x, Lanes))
        rank = max(rank, *(x.ndim for x in inputs if isinstance(x, np.ndarray)), 0)
        on_host = getattr(form, "takes_numbers", False)
        tensors = [self._operand(x, t, rank, on_host) for x, t in zip(inputs, types, strict=False)]
        if out is not None and _takes(out, form, types[-1], tensors):
            getattr(self.device.torch, form.name)(*tensors, out=out.tensor)
            return out  # type: ignore[no-any-return]
        return self.like(self.narrow(form(self.device.torch, *tensors), types[-1]), types[-1])

    def _operand(self, value: object, dtype: np.dtype, rank: int, on_host: bool = False) -> Any:
        if isinstance(value, Lanes):
            return aligned(value, rank).as_type(dtype)
        if isinstance(value, np.ndarray) and value.ndim:
            lanes = self.like(self.device.constant(value.astype(dtype, copy=False)), dtype)
            return lanes.numbers()
        wider = _UNSIGNED.get(dtype)
        held = getattr(self.device.torch, held_as(dtype) if wider is None else wider[0])
        return self.device.number(np.asarray(value, dtype)[()].item(), held, on_host)

    def _reduce(
        self, ufunc: np.ufunc, array: Lanes, axis: Any = 0, keepdims: bool = False, dtype: Any = None
    ) -> Lanes:
        form = REDUCTIONS.get(ufunc)
        if form is None or dtype is not None:
            raise Unsupported(f"numpy.{ufunc.__name__}.reduce")
        axes = range(array.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        dims = [self.lead + a % array.ndim for a in axes]
        logical = ufunc in (np.logical_and, np.logical_or)
        if array.dtype.kind != "f" and not logical:
            raise Unsupported(f"numpy.{ufunc.__name__}.reduce of integers")
        result = form(self.device.torch, array.numbers(), dims, keepdims)
        return self.like(result, np.dtype(np.bool_) if logical else array.dtype)

    def _accumulate(self, ufunc: np.ufunc, array: Lanes, axis: int = 0) -> Lanes:
        form = ACCUMULATIONS[ufunc]
        return self.like(form(self.device.torch, array.numbers(), self.lead + axis % array.ndim), array.dtype)

    def __array_function__(self, function: Any, types: object, args: tuple, kwargs: dict) -> Any:
        form = FUNCTIONS.get(function)
        if form is None:
            raise Unsupported(f"numpy.{function.__name__}")
        return form(*args, **kwargs)


def _has_arrays(key: object) -> bool:
    return any(isinstance(part, np.ndarray) for part in (key if isinstance(key, tuple) else (key,)))


def _has_overlapping_rows(tensor: Tensor) -> bool:
    sides = zip(tensor.shape[1:], tensor.stride()[1:], strict=True)
    return tensor.stride(0) <= sum((n - 1) * stride for n, stride in sides)


def _without_repeats(key: Any, value: Any) -> tuple[Any, Any]:
    """Drop all but the last of equal indices: numpy writes that one last, torch any of them."""
    parts = key if isinstance(key, tuple) else (key,)
    if any(part.ndim != 1 or part.dtype == np.bool_ for part in parts):
        return key, value
    _, first = np.unique(np.stack(parts)[:, ::-1], axis=1, return_index=True)
    if first.size == parts[0].size:
        return key, value
    kept = np.sort(parts[0].size - 1 - first)
    return tuple([part[kept] for part in parts]), value[kept]


def _takes(out: Any, form: Any, dtype: np.dtype, tensors: Sequence[Any]) -> bool:
    """Return whether a result may be written directly to the memory of `out`."""
    if not out.lent or out.dtype != dtype or dtype not in SAME or not hasattr(form, "name"):
        return False
    if out.device.reads and any(_overlaps(out.tensor, tensor) for tensor in tensors):
        return False
    return any(tensor.shape == out.tensor.shape for tensor in tensors)


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors may have bytes in common."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _overlaps(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors share memory, and not element by element."""
    same = one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
    return not same and shares_memory(one, other)


def aligned(lanes: Lanes, rank: int) -> Lanes:
    """Add dimensions after the leading ones up to a rank: numpy adds them on the left."""
    missing = rank - lanes.ndim
    if missing <= 0:
        return lanes
    return lanes.reshape(*(1,) * missing, *lanes.shape)


def _type(value: object) -> Any:
    if isinstance(value, (Lanes, np.ndarray, np.generic)):
        return value.dtype
    return bool if isinstance(value, bool) else int if isinstance(value, int) else float


@lru_cache(maxsize=4096)
def resolved(ufunc: np.ufunc, types: tuple, dtype: np.dtype | None) -> tuple[np.dtype, ...]:
    """Return the dtypes in which numpy computes, and of the result."""
    types = tuple(np.dtype(np.bool_) if t is bool else t for t in types)
    if ufunc is np.matmul:
        return FLOAT32, FLOAT32, FLOAT32
    if dtype is None:
        return ufunc.resolve_dtypes((*types, None))
    return ufunc.resolve_dtypes((*types, None), signature=(None,) * len(types) + (dtype,))


# filled by `functions`
UFUNCS: dict[Any, Any] = {}
REDUCTIONS: dict[Any, Any] = {}
ACCUMULATIONS: dict[Any, Any] = {}
FUNCTIONS: dict[Any, Any] = {}
