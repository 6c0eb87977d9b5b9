"""Arrays of numpy and of frameworks: which framework a value belongs to, and what converts it."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import error
from ..machine import dtypes

_frameworks: dict[str, Callable[[], Any]] = {}  # what loads the converter of a package's tensors


def register_framework(packages: Iterable[str], load: Callable[[], object]) -> None:
    """Register a converter for tensors of these packages. `load` is called when the first one is passed."""
    _frameworks.update(dict.fromkeys(packages, load))


def load_framework(package: str) -> Any:
    """Return the converter of a package's tensors."""
    return _frameworks[package]()


# what people write for a dtype where they describe a tensor in words
SHORT = {
    "bf16": "bfloat16",
    **{f"{prefix}{bits}": f"float{bits}" for prefix in ("f", "fp") for bits in (16, 32)},
    **{
        f"{prefix}{bits}": f"{name}{bits}"
        for prefix, name in (("i", "int"), ("s", "int"), ("u", "uint"))
        for bits in (8, 16, 32)
    },
    **{f"f8{kind}": f"float8_{kind}" for kind in ("e4m3", "e4m3fn", "e5m2")},
    **{f"fp8_{kind}": f"float8_{kind}" for kind in ("e4m3", "e4m3fn", "e5m2")},
}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """A tensor described by shape and dtype, to profile or stage a kernel without data."""

    shape: tuple[int, ...]
    dtype: Any

    @classmethod
    def parse(cls, text: str) -> TensorSpec:
        """`float32[8192,4096]`; `bf16[3,4]`, `f32[...]` and `i8[...]` are understood too."""
        match = re.fullmatch(r"\s*(\w+)\s*\[\s*(\d+(?:\s*,\s*\d+)*)\s*\]\s*", text)
        if match is None:
            raise error("argument", f"{text!r} is not a tensor", help="write it like float32[8192,4096]")
        name = match.group(1)
        return cls(tuple(int(n) for n in match.group(2).split(",")), dtypes.resolve(SHORT.get(name, name)))


class NumpyFramework:
    """Converts numpy arrays: they are already what a Memory needs."""

    name = "numpy"

    @staticmethod
    def to_numpy(value: np.ndarray) -> np.ndarray:
        if type(value) is np.ndarray:  # most are; `np.ma` is imported when it is first named
            return value
        if isinstance(value, np.ma.MaskedArray):
            raise error(
                "argument",
                "masked arrays are no kernel arguments",
                help="x.filled(value) makes a plain array",
            )
        return np.asarray(value)

    @staticmethod
    def from_numpy(array: np.ndarray, like: object = None) -> np.ndarray:
        return array

    @staticmethod
    def check_writable(value: np.ndarray, name: str) -> None:
        if not value.flags.writeable:
            raise error(
                "read-only-input",
                f"the kernel wrote argument '{name}', whose array is read-only",
                help="pass a writable array, or write to a tensor the kernel allocates",
            )

    @staticmethod
    def write_back(value: np.ndarray, array: np.ndarray, inputs: Sequence[object], kernel: str) -> None:
        value[...] = array


def framework_of(value: object) -> Any:
    """Return the converter of an array-like argument, or None for anything else."""
    if isinstance(value, np.ndarray):
        return NumpyFramework
    kind: Any = type(value)
    framework = _converter(kind)
    return framework if framework is not None and framework.is_tensor(value) else None


@functools.lru_cache(maxsize=4096)
def _converter(kind: type) -> Any:
    """Return the converter for values of a type, if one of its bases belongs to a framework."""
    roots = (base.__module__.partition(".")[0] for base in kind.__mro__)
    package = next((root for root in roots if root in _frameworks), None)
    return None if package is None else load_framework(package)


def is_description(value: object) -> bool:
    """Return True for nki.TensorSpec, jax.ShapeDtypeStruct and similar classes."""
    return type(value).__name__ in ("TensorSpec", "ShapeDtypeStruct") and hasattr(value, "shape")


def is_dtype(value: object) -> bool:
    """Return True for a dtype object of nki, numpy, ml_dtypes, torch or JAX."""
    if isinstance(value, (dtypes.DType, np.dtype)):
        return True
    if isinstance(value, type):  # np.float32, or jnp.float32, which knows its numpy dtype
        return issubclass(value, np.generic) or isinstance(getattr(value, "dtype", None), np.dtype)
    return type(value).__name__ == "dtype" and type(value).__module__.startswith("torch")
