"""How compute methods read and write arrays: float32 in between, one cast on write (spec/isa.md 1.3, 1.4)."""

from __future__ import annotations

import threading
from math import prod
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from ..backends.reference.memory import aligned
from ..ir.view import View
from ..machine.dtypes import DType, f32, store
from ..machine.operators import Operator

Array: TypeAlias = np.ndarray
Values: TypeAlias = "np.ndarray | float | None"  # an operand as `compute` gets it: of a tile, or a number


def shaped(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    """`array` in the shape of `like`: operands pair up in stream order, whatever their ranks."""
    return array if array.shape == like.shape else array.reshape(like.shape)


def flat(array: np.ndarray) -> np.ndarray:
    """The [P, F] stream of a tile."""
    return array if array.ndim == 2 else array.reshape(array.shape[0], -1)


def column(value: Values, view: object, ndim: int) -> Any:
    """A number as float32, or a [P, 1] tile widened and shaped to broadcast against `ndim` dimensions."""
    if isinstance(view, View):
        array: Any = value
        return f32(array, view.dtype).reshape(array.shape[0], *(1,) * (ndim - 1))
    return np.float32(value)  # type: ignore[arg-type]


def is_array(value: object) -> TypeGuard[np.ndarray]:
    """An array of any kind, and no number."""
    return getattr(value, "ndim", 0) > 0


def all_hold(mask: np.ndarray) -> bool:
    """The mask holds everywhere. Of arrays elsewhere that is taken for granted, and asked at the end."""
    if mask.__class__ is not np.ndarray:
        mask.doubt(np.logical_not(mask))  # type: ignore[attr-defined]
        return True
    return bool(mask.all())


def moves_bits(dst: np.ndarray, target: DType, src: np.ndarray, source: DType) -> bool:
    """True when elements of src may go to dst as they are: equal dtypes, held in the same form."""
    return target == source and dst.dtype == src.dtype


_local = threading.local()


def scratch(shape: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    """A float32 array of the kind of `like` to compute into.

    The next call for the same shape on this thread uses it again.
    """
    if like.__class__ is not np.ndarray:
        return np.empty_like(like, np.float32, shape=shape)
    try:
        return _local.arrays[shape]
    except (AttributeError, KeyError):
        arrays = _local.__dict__.setdefault("arrays", {})
        if len(arrays) > 64:
            arrays.clear()
        return arrays.setdefault(shape, np.ndarray(shape, np.float32, aligned(4 * prod(shape))))


def emit(dst: np.ndarray, dtype: DType, formula: Any, *args: Any) -> None:
    """dst = cast(formula(*args)); straight into dst where that is the same."""
    if dst.dtype == np.float32 and dtype != "tfloat32" and isinstance(formula, np.ufunc):
        formula(*args, out=dst)
    else:
        store(dst, as_float32(formula(*args)), dtype)


def as_float32(values: np.ndarray) -> np.ndarray:
    """Comparison results become 1.0 and 0.0."""
    return values if values.dtype == np.float32 else values.astype(np.float32)


def apply(op: Operator, a: object, b: object, reverse: bool = False) -> np.ndarray:
    """op on float32 operands, as float32; unary operators ignore `b` and `reverse`."""
    assert op.formula is not None
    if op.is_unary:
        return as_float32(op.formula(a))
    return as_float32(op.formula(b, a) if reverse else op.formula(a, b))
