"""The data types: one table, and the casts of spec/language.md 6.1 and spec/isa.md 1.4.

A dtype is a string with attributes (`nl.float32 == "float32"`). Every arithmetic path is
`f32(array, source)`, float32 arithmetic, `store(dst, result, target)`. Bits stay only where the source
and target dtypes are equal. Numpy may warn of signalling NaNs only: executors run under np.errstate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, TypeAlias

import ml_dtypes
import numpy as np

from nki.errors import NkiError, error, nearest

FLOAT32 = np.dtype(np.float32)
UNSIGNED: dict[int, np.dtype] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}


class DType(str):
    """The name of a data type, with its properties. Only this module makes them.

    Members:

    - `name`: as in `nl.float32`.
    - `itemsize`: bytes of an element.
    - `is_float`, `is_integer`, `is_bool`, `is_packed`: its kind.
    - `castable`: whether engines convert it; packed and scale types are only copied.

    Example:

    ```python
    print(nl.bfloat16, nl.bfloat16.itemsize, nl.float8_e4m3fn_x4.is_packed)
    ```

    ```output
    bfloat16 2 True
    ```

    See also: `ndarray`, `float32`, `bfloat16`.
    """

    itemsize: int  # bytes
    storage: np.dtype  # in memory
    bits: np.dtype  # the unsigned integer of the same size
    largest: Any  # int or float: largest finite value; of a lane, for the packed types
    is_bool: bool
    is_integer: bool
    is_float: bool  # False for the packed types
    is_signed: bool
    is_packed: bool  # four lanes in one element
    castable: bool  # may be converted to and from float32
    lane: Any  # of a packed type: a DType, or ml_dtypes.float4_e2m1fn, which has none

    def __repr__(self) -> str:
        return "nl.bool_" if self.is_bool else f"nl.{self}"

    def __reduce__(self) -> tuple[Callable, tuple[str]]:
        return resolve, (str(self),)  # copies and pickles are the same object


class _ForeignDType(Protocol):
    """A dtype object of numpy or torch."""

    @property
    def itemsize(self) -> int: ...


# Whatever `resolve` takes: a DType or its name, a dtype object, or a scalar type such as np.float32.
DTypeLike: TypeAlias = str | type | _ForeignDType

NAMES: dict[str, DType] = {}


def _dtype(
    name: str, storage: type, largest: float, castable: bool = True, lane: DType | type | None = None
) -> DType:
    dtype = DType(name)
    dtype.storage = np.dtype(storage)
    dtype.itemsize = dtype.storage.itemsize
    dtype.bits = UNSIGNED[dtype.itemsize]
    dtype.largest = largest
    dtype.is_bool = dtype.storage.kind == "b"
    dtype.is_packed = lane is not None
    dtype.is_integer = dtype.storage.kind in "iu" and not dtype.is_packed
    dtype.is_float = not (dtype.is_bool or dtype.is_integer or dtype.is_packed)
    dtype.is_signed = dtype.storage.kind == "i" or (dtype.is_float and castable) or dtype.is_packed
    dtype.castable = castable
    dtype.lane = lane
    NAMES[name] = dtype
    return dtype


# spec/language.md 6
bool_ = _dtype("bool", np.bool_, 1)
int8 = _dtype("int8", np.int8, 2**7 - 1)
int16 = _dtype("int16", np.int16, 2**15 - 1)
int32 = _dtype("int32", np.int32, 2**31 - 1)
uint8 = _dtype("uint8", np.uint8, 2**8 - 1)
uint16 = _dtype("uint16", np.uint16, 2**16 - 1)
uint32 = _dtype("uint32", np.uint32, 2**32 - 1)
float16 = _dtype("float16", np.float16, 65504.0)
bfloat16 = _dtype("bfloat16", ml_dtypes.bfloat16, (2 - 2**-7) * 2.0**127)
float32 = _dtype("float32", np.float32, (2 - 2**-23) * 2.0**127)
tfloat32 = _dtype("tfloat32", np.float32, (2 - 2**-10) * 2.0**127)  # the low 13 mantissa bits are 0
float8_e4m3 = _dtype("float8_e4m3", ml_dtypes.float8_e4m3, 240.0)  # IEEE style: has inf
float8_e4m3fn = _dtype("float8_e4m3fn", ml_dtypes.float8_e4m3fn, 448.0)  # no inf
float8_e5m2 = _dtype("float8_e5m2", ml_dtypes.float8_e5m2, 57344.0)
float8_e8m0fnu = _dtype("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, 2.0**127, castable=False)  # powers of two
float8_e5m2_x4 = _dtype("float8_e5m2_x4", np.uint32, 57344.0, castable=False, lane=float8_e5m2)
float8_e4m3fn_x4 = _dtype("float8_e4m3fn_x4", np.uint32, 448.0, castable=False, lane=float8_e4m3fn)
float4_e2m1fn_x4 = _dtype("float4_e2m1fn_x4", np.uint16, 6.0, castable=False, lane=ml_dtypes.float4_e2m1fn)

ALL: tuple[DType, ...] = tuple(NAMES.values())
ALIASES = {"bool_": bool_, "float8e4": float8_e4m3, "float8e5": float8_e5m2}
_ACCEPTED = NAMES | ALIASES

# ml_dtypes registers its names with numpy; with this one np.dtype(nl.x) works for all but the packed types
np.sctypeDict.setdefault("tfloat32", np.float32)


# --- which dtype is meant -------------------------------------------------------------------------------


def resolve(dtype: object, what: str = "dtype") -> DType:
    """Return the canonical dtype for a name, or for a dtype object of numpy, ml_dtypes, torch or jax."""
    if type(dtype) is DType:
        return dtype
    found = None if _is_big_endian(dtype) else _ACCEPTED.get(_name(dtype))
    if found is None:
        reason, help = _refusal(dtype, _name(dtype))
        raise error("dtype", f"{what}: {reason}", help=help)
    return found


def _name(dtype: object) -> str:
    """Return the name of a dtype object of another package, without importing that package."""
    if isinstance(dtype, str):
        return str(dtype)
    if isinstance(dtype, type):
        inner = getattr(dtype, "dtype", None)  # jnp.float32 is a class that knows its numpy dtype
        name = inner.name if isinstance(inner, np.dtype) else dtype.__name__
        return f"Python's {name}" if dtype.__module__ == "builtins" else name
    if isinstance(dtype, np.dtype):
        return _void_name(dtype) if dtype.kind == "V" else dtype.name
    return f"{type(dtype).__name__} object" if hasattr(dtype, "shape") else str(dtype).removeprefix("torch.")


def _void_name(dtype: np.dtype) -> str:
    """Other packages' types have a name; a packed one may be a record whose first field is named after it."""
    if dtype.type is not np.void or not dtype.names:
        return dtype.type.__name__
    packed = NAMES.get(dtype.names[0])
    is_packed = packed is not None and packed.is_packed and packed.itemsize == dtype.itemsize
    return dtype.names[0] if is_packed else "void"


def _is_big_endian(dtype: object) -> bool:
    return isinstance(dtype, np.dtype) and not dtype.isnative


_TOO_WIDE = {
    **dict.fromkeys(["int64", "longlong", "int", "Python's int"], int32),
    **dict.fromkeys(["uint64", "ulonglong"], uint32),
    **dict.fromkeys(["float64", "double", "longdouble", "float128", "float", "Python's float"], float32),
    "Python's bool": bool_,
}


def _refusal(dtype: object, name: str) -> tuple[str, str]:
    """Return why this is not a dtype, and what to write instead."""
    if _is_big_endian(dtype):
        return f"{name} is big-endian here, NKI is little-endian", 'use x.astype(x.dtype.newbyteorder("="))'
    reason = f"{name} is not an NKI dtype"
    if name in _TOO_WIDE:
        target = _TOO_WIDE[name]
        if isinstance(dtype, str) or name.startswith("Python"):
            return reason, f"write {target!r}"
        is_torch = type(dtype).__module__.startswith("torch")
        return reason, "cast first: " + (f"x.to(torch.{target})" if is_torch else f"x.astype(np.{target})")
    if "complex" in name:
        return reason, "pass x.real and x.imag, cast to float32, as two tensors"
    if name.endswith(" object"):
        return reason, "pass its dtype, x.dtype"
    if isinstance(dtype, np.dtype) and dtype.kind in "OSUMmV":
        return f"{dtype} is not an NKI dtype", "elements are plain numbers: cast first, x.astype(np.float32)"
    close = nearest(name, _ACCEPTED)
    return reason, f"did you mean {_ACCEPTED[close]!r}?" if close else f"use one of {', '.join(NAMES)}"


# --- casting --------------------------------------------------------------------------------------------


def _table(storage: np.dtype | type, count: int = 256) -> np.ndarray:
    """Return the float32 value of every code of a small float."""
    return np.arange(count, dtype=np.uint8).view(storage).astype(np.float32)


def _codes(storage: np.dtype) -> np.ndarray:
    """Return the code of every float32 whose low 16 bits are 0, indexed by its high 16 bits."""
    highs = np.arange(2**16, dtype=np.uint32) << 16
    with np.errstate(all="ignore"):
        return highs.view(np.float32).astype(storage).view(np.uint8)


_FP8 = (float8_e4m3, float8_e4m3fn, float8_e5m2)
_FP8_VALUES = {dtype: _table(dtype.storage) for dtype in _FP8}
_FP8_CODES = {dtype: _codes(dtype.storage) for dtype in _FP8}
_FP4_VALUES = _table(ml_dtypes.float4_e2m1fn, 16)
_FP4_SHIFTS = np.arange(0, 16, 4, dtype=np.uint16)

# the float32 numbers that end the range of an integer type; the upper end of the 32-bit ones is no float32
_INTEGER_RANGE = {
    dtype: (np.float32(np.iinfo(dtype.storage).min), np.float32(dtype.largest - dtype.largest // 2**24))
    for dtype in ALL
    if dtype.is_integer
}


def f32(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the values as float32; the array itself if it holds float32 already."""
    if array.dtype == FLOAT32:
        return array
    if dtype in _FP8_VALUES:
        return entries(_FP8_VALUES[dtype], array.view(np.uint8))
    if dtype is bfloat16 and _is_scattered(array):
        wide = array.view(np.uint16).astype(np.uint32)
        wide <<= np.uint32(16)
        return wide.view(np.float32)
    if dtype.castable:
        return array.astype(np.float32)
    raise _not_castable(dtype)


def _is_scattered(array: object) -> bool:
    """Whether no two elements are neighbours: there ml_dtypes takes four times as long as numpy."""
    return isinstance(array, np.ndarray) and array.size > 64 and array.itemsize not in array.strides


def entries(table: np.ndarray, numbers: Any) -> np.ndarray:
    """Return table[numbers]; other kinds of arrays have their own method."""
    if isinstance(numbers, (np.ndarray, np.generic)):
        return table.take(numbers)
    return numbers.entries_of(table)  # type: ignore[no-any-return]


def cast(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Cast float32 to any castable dtype; float32 itself is not copied."""
    if dtype is float32:
        return x
    out = np.empty_like(x, dtype=dtype.storage)
    store(out, x, dtype)
    return out


def store(dst: np.ndarray, x: np.ndarray, dtype: DType) -> None:
    """Write cast(x, dtype) into dst, without a temporary array."""
    if dtype is bfloat16 and dst.dtype != FLOAT32 and _is_scattered(dst):
        bits(dst)[...] = bits(np.asarray(x).astype(bfloat16.storage))
    elif dtype is float32 or dtype is bfloat16:
        dst[...] = x  # ml_dtypes' rounding is as fast as bit tricks in numpy
    elif dst.dtype == FLOAT32 and dtype is not tfloat32:
        dst[...] = x  # NKI_PRECISE_FP=0: memory of a narrow float keeps float32 values
    elif dtype.is_integer:
        _store_integer(dst, x, dtype)
    elif dtype in _FP8_CODES:
        bits(dst)[...] = entries(_FP8_CODES[dtype], _round_to_odd(x))
    elif dtype is float16:
        _store_float16(dst, x)
    elif dtype is bool_:
        np.not_equal(x, 0, out=dst)
    elif dtype is tfloat32:
        bits(dst)[...] = _tfloat32_bits(x)
    else:
        raise _not_castable(dtype)


@np.errstate(all="ignore")
def _store_float16(dst: np.ndarray, x: np.ndarray) -> None:
    dst[...] = x


@np.errstate(all="ignore")
def _store_integer(dst: np.ndarray, x: np.ndarray, dtype: DType) -> None:
    """Round to nearest even, saturate, and turn NaN into 0."""
    low, high = _INTEGER_RANGE[dtype]
    rounded = x.clip(low, high, out=np.empty_like(x))
    np.rint(rounded, out=rounded)
    if rounded.__class__ is np.ndarray and rounded.max(initial=low) < high:
        dst[...] = rounded
        return
    too_large = x > high  # before the store, for dst may share memory with x
    np.copyto(rounded, np.float32(0), where=np.isnan(rounded))
    dst[...] = rounded
    np.copyto(dst, dtype.storage.type(dtype.largest), where=too_large)


def _round_to_odd(x: np.ndarray) -> np.ndarray:
    """Return the high 16 bits of each float32, the last one set if any below is: rounds later as x does."""
    source = x.view(np.uint32)
    index = source & np.uint32(0xFFFF)
    index += np.uint32(0xFFFF)
    index |= source
    index >>= np.uint32(16)
    return index


def _tfloat32_bits(x: np.ndarray) -> np.ndarray:
    source = x.view(np.uint32)
    rounded = np.right_shift(source, np.uint32(13), out=np.empty_like(source))
    rounded &= np.uint32(1)
    rounded += np.uint32(0xFFF)  # just under a half, and the half itself if the last remaining bit is odd
    rounded += source
    nan = np.isnan(x)
    if nan.any():
        np.copyto(rounded, source | np.uint32(0x400000), where=nan)
    rounded &= np.uint32(0xFFFFE000)
    return rounded


def convert(array: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """Convert as a copy between two dtypes does: equal dtypes keep their bits, others go through float32."""
    return array if source is target else cast(f32(array, source), target)


def _not_castable(dtype: DType) -> NkiError:
    return error(
        "dtype",
        f"{dtype} has no casts: no engine and no DMA converts it to or from another dtype",
        help="copy between equal dtypes, reinterpret with .view(), or use nisa.quantize_mx and nc_matmul_mx",
    )


@cache
def promote(a: DType, b: DType) -> DType:
    """Return the dtype of an `nl` result whose two tiles have these dtypes (spec/language.md 6.2)."""
    if a is b:
        return a
    if not (a.castable and b.castable):
        raise _not_castable(b if a.castable else a)
    low, high = sorted((a, b), key=lambda d: (d.is_float, d.is_integer, d.itemsize, d is float32))
    if low.is_float and low.itemsize == high.itemsize < 4:
        return float32 if low.itemsize == 2 else bfloat16  # float16 with bfloat16; two kinds of fp8
    if low.is_integer and high.is_integer and low.is_signed != high.is_signed:
        signed, unsigned = (low, high) if low.is_signed else (high, low)
        return {1: int8, 2: int16, 4: int32}[max(signed.itemsize, min(2 * unsigned.itemsize, 4))]
    return high


# --- bits -----------------------------------------------------------------------------------------------


def bits(array: np.ndarray) -> np.ndarray:
    """Return the same memory as unsigned integers of the same size, for copies that keep every bit."""
    return array.view(UNSIGNED[array.itemsize])


@cache
def poison(dtype: DType) -> Any:
    """Return the contents of fresh memory: NaN, 4, or all ones (spec/language.md 4)."""
    if dtype.is_integer or dtype.is_bool:
        return dtype.storage.type(4)
    if dtype.castable:
        return dtype.storage.type(np.nan)
    return np.full((), 2 ** (8 * dtype.itemsize) - 1, dtype.bits).view(dtype.storage)[()]


def scalar(value: int | float | np.generic, dtype: DType) -> Any:
    """Return a number in the storage type. Integers stay exact; other numbers are float32 constants first."""
    if dtype.is_integer and isinstance(value, (int, np.integer)):
        smallest = -dtype.largest - 1 if dtype.is_signed else 0
        if not smallest <= value <= dtype.largest:
            raise error("dtype", f"{value} does not fit {dtype} ({smallest} to {dtype.largest})")
        return dtype.storage.type(value)
    if not dtype.castable:
        if value != 0:
            raise error("dtype", f"{dtype} memory can only be filled with 0, not {value}")
        return np.zeros((), dtype.bits).view(dtype.storage)[()]
    with np.errstate(over="ignore"):
        return cast(np.array(value, np.float32), dtype)[()]


def unpack_x4(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the float32 values of the lanes in a new last axis of 4, lowest bits first."""
    if dtype is float4_e2m1fn_x4:
        return entries(_FP4_VALUES, (array[..., None] >> _FP4_SHIFTS) & np.uint16(0xF))
    return f32(array[..., None].view(np.uint8), dtype.lane)


def pack_x4(lanes: np.ndarray, dtype: DType) -> np.ndarray:
    """Pack a last axis of 4 lanes: float32 values, which are rounded, or one-byte codes of the lane type."""
    if dtype is float4_e2m1fn_x4:
        codes = lanes if lanes.itemsize == 1 else lanes.astype(dtype.lane)
        return np.bitwise_or.reduce(codes.view(np.uint8).astype(np.uint16) << _FP4_SHIFTS, axis=-1)
    codes = lanes if lanes.itemsize == 1 else cast(lanes, dtype.lane)
    return codes.copy().view(np.uint32)[..., 0]
