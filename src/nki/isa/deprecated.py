"""Deprecated argument forms of instructions: public code still uses them, so they work (spec/isa.md 5)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ..ir.context import warn
from ..machine import dtypes

P = ParamSpec("P")
R = TypeVar("R")

REMOVED = dict.fromkeys(
    ("tensor_copy_dynamic_src", "tensor_copy_dynamic_dst"),
    "nisa.tensor_copy with a view t.ap(pattern, scalar_offset=register)",
)


def deprecated_dtype(function: Callable[P, R]) -> Callable[P, R]:
    """Accept and ignore `dtype=`: the dtype of dst decides."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if "dtype" in kwargs:
            dtype = kwargs.pop("dtype")
            dst: Any = kwargs.get("dst", args[0] if args else None)
            warn("legacy", f"{function.__name__}: dtype= is an old form", help="the dtype of dst decides")
            if dtype is not None and dst is not None and dtypes.resolve(dtype) != dst.dtype:
                warn(
                    "dtype-ignored",
                    f"{function.__name__}: dtype={dtype} is ignored, dst is {dst.dtype}",
                    notes=[dst.describe()],
                )
        return function(*args, **kwargs)

    return wrapper


def deprecated_order(
    names: tuple[str, ...], is_old: Callable[[tuple[Any, ...]], bool]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept positional arguments in an older release's order; `is_old` recognises it by their kinds."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            if not is_old(args):
                return function(*args, **kwargs)
            warn(
                "legacy",
                f"{function.__name__}: this order of arguments is an old form",
                help=f"pass them by name: {', '.join(f'{name}=' for name in names[: len(args)])}",
            )
            return function(**dict(zip(names, args, strict=False)), **kwargs)  # type: ignore[arg-type, call-arg]

        return wrapper

    return decorate


def deprecated_keywords(**names: str | None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept old keywords under their new names; one whose new name is None is ignored."""
    renamed = names.keys()

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            if not kwargs or renamed.isdisjoint(kwargs):
                return function(*args, **kwargs)
            for old in [name for name in names if name in kwargs]:
                value, new = kwargs.pop(old), names[old]
                help = f"write {new}=" if new else "it has no effect: leave it out"
                warn("legacy", f"{function.__name__}: {old}= is an old form", help=help)
                if new is not None:
                    kwargs.setdefault(new, value)
            return function(*args, **kwargs)

        return wrapper

    return decorate
