"""Data types of the old API: numpy's own, and what an operator makes of two of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nki.machine import dtypes
from nki.machine.dtypes import DType, DTypeLike

float32, float16 = np.float32, np.float16
int8, int16, int32 = np.int8, np.int16, np.int32
uint8, uint16, uint32 = np.uint8, np.uint16, np.uint32
bool_ = np.bool_
bfloat16 = np.dtype(ml_dtypes.bfloat16)
float8_e4m3 = np.dtype(ml_dtypes.float8_e4m3)
float8_e5m2 = np.dtype(ml_dtypes.float8_e5m2)
tfloat32 = float32r = np.dtype("V4")


def new_dtype(dtype: DTypeLike) -> DType:
    """Return the dtype of `nki` for one of the old API."""
    if type(dtype) is type and dtype in _CLASSES:
        return _CLASSES[dtype]
    if isinstance(dtype, np.dtype) and dtype == tfloat32:
        return dtypes.tfloat32
    if isinstance(dtype, str) and dtype.startswith("nki."):
        dtype = dtype.rsplit(".", 1)[-1]
    return dtypes.resolve(dtype)


_NUMPY = (float32, float16, int8, int16, int32, uint8, uint16, uint32, bool_)
_CLASSES: dict[type, DType] = {float: dtypes.float32, int: dtypes.int32, bool: dtypes.bool_}
_CLASSES |= {cls: dtypes.resolve(cls) for cls in _NUMPY}


def old_dtype(dtype: DType) -> np.dtype:
    """Return the numpy dtype that kernels see as `t.dtype`."""
    return tfloat32 if dtype is dtypes.tfloat32 else dtype.storage


_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32")


def promote(a: DType, b: DType) -> DType:
    """What an operator makes of two dtypes: float beats int, wider beats narrower."""
    if a == b:
        return a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        return _promote_floats(a, b)
    a, b = (dtypes.uint8 if d.is_bool else d for d in (a, b))
    if a.is_signed == b.is_signed:
        return a if a.itemsize >= b.itemsize else b
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    wider = {1: dtypes.int16, 2: dtypes.int32}
    return wider.get(unsigned.itemsize, dtypes.float32)


def _promote_floats(a: DType, b: DType) -> DType:
    if a.itemsize != b.itemsize:
        return a if a.itemsize > b.itemsize else b
    if a.itemsize == 1:
        return dtypes.bfloat16
    return dtypes.float32  # float16 with bfloat16, tfloat32 with float32


def dtype_of_number(value: Any) -> DType:
    """Bare numbers are uint8, int32 or float32; numpy's keep their type."""
    if isinstance(value, np.generic):
        wide = {"float64": dtypes.float32, "int64": dtypes.int32, "uint64": dtypes.uint32}
        return wide.get(value.dtype.name) or dtypes.resolve(value.dtype)
    return (
        dtypes.uint8
        if isinstance(value, bool)
        else dtypes.int32
        if isinstance(value, int)
        else dtypes.float32
    )


def sizeinbytes(dtype: DTypeLike) -> int:
    return new_dtype(dtype).itemsize
