"""Argument forms of older NKI releases that public code still uses (isa.md 5)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import dtypes
from ..core import warn


def legacy_dtype(function: Callable) -> Callable:
    """Accept and ignore `dtype=`: the dtype of dst decides."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if "dtype" in kwargs:
            dtype = kwargs.pop("dtype")
            dst = kwargs.get("dst", args[0] if args else None)
            warn("legacy", f"{function.__name__}: dtype= is an old form", help="the dtype of dst decides")
            if dtype is not None and dst is not None and dtypes.resolve(dtype) != dst.dtype:
                warn(
                    "dtype-ignored",
                    f"{function.__name__}: dtype={dtype} is ignored, dst is {dst.dtype}",
                    notes=[dst.describe()],
                )
        return function(*args, **kwargs)

    return wrapper
