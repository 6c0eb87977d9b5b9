"""Arrays of numpy and of the frameworks: whose a value is, and what converts it."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from typing import Any

import numpy as np

from ..errors import error
from ..ir import tree
from ..machine import dtypes

# packages whose tensors a module of nki.frameworks converts; the module is imported when one is met
FRAMEWORKS = {"torch": "nki.frameworks.torch", "jax": "nki.frameworks.jax", "jaxlib": "nki.frameworks.jax"}

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
        if isinstance(value, np.ma.MaskedArray):
            raise error(
                "argument",
                "masked arrays are no kernel arguments",
                help="x.filled(value) makes a plain array",
            )
        return np.asarray(value)

    @staticmethod
    def from_numpy(array: np.ndarray, like: Any = None) -> np.ndarray:
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
    def write_back(value: np.ndarray, array: np.ndarray, inputs: list[Any], kernel: str) -> None:
        value[...] = array


def framework_of(value: Any) -> Any:
    """The converter of an array-like argument, or None for anything else."""
    if isinstance(value, np.ndarray):
        return NumpyFramework
    kind: Any = type(value)
    framework = _bridge(kind)
    return framework if framework is not None and framework.is_tensor(value) else None


@functools.lru_cache(maxsize=4096)
def _bridge(kind: type) -> Any:
    """The module for values of a type, if one of its bases belongs to a framework."""
    roots = (base.__module__.partition(".")[0] for base in kind.__mro__)
    module = next((FRAMEWORKS[root] for root in roots if root in FRAMEWORKS), None)
    return None if module is None else importlib.import_module(module)


def bridge_of(value: Any) -> Any:
    """The framework, other than numpy, that a call with these arguments belongs to; None for numpy."""
    if value is None or value.__class__ in (int, float, bool, str, np.ndarray):
        return None
    framework = framework_of(value)
    if framework is not None:
        return None if framework is NumpyFramework else framework
    kind = tree.container_of(value)
    if kind is None:
        return None
    children = (bridge_of(child) for _, child in kind.children(value))
    return next((bridge for bridge in children if bridge is not None), None)


def is_description(value: Any) -> bool:
    """nki.TensorSpec, jax.ShapeDtypeStruct and their like."""
    return type(value).__name__ in ("TensorSpec", "ShapeDtypeStruct") and hasattr(value, "shape")


def is_dtype(value: Any) -> bool:
    """A dtype object of nki, numpy, ml_dtypes, torch or JAX."""
    if isinstance(value, (dtypes.DType, np.dtype)):
        return True
    if isinstance(value, type):  # np.float32, or jnp.float32, which knows its numpy dtype
        return issubclass(value, np.generic) or isinstance(getattr(value, "dtype", None), np.dtype)
    return type(value).__name__ == "dtype" and type(value).__module__.startswith("torch")
